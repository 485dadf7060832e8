"""Draws depend only on (seed, stream, epoch, step)."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart import draws

KEYS = st.tuples(
    st.integers(0, 50), st.sampled_from(["order", "start", "probe/train", "a/1", "a"]), *[st.integers(0, 50)] * 2
)


def some(*key):
    return torch.rand(8, generator=draws.generator(*key))


@given(st.lists(KEYS, min_size=2, max_size=20, unique=True))
def test_equal_keys_give_equal_numbers_and_different_keys_different_ones(keys):
    assert torch.equal(some(*keys[0]), some(*keys[0]))
    assert len({tuple(some(*key).tolist()) for key in keys}) == len(keys)


def test_the_seed_is_63_bits_of_blake2b_of_the_key():
    digest = hashlib.blake2b(b"3/order/2/1", digest_size=8).digest()
    expected = int.from_bytes(digest, "little") // 2
    assert draws.generator(3, "order", 2, 1).initial_seed() == expected


# -- keys and hashed: draws that belong to a sample


def splitmix64(z):
    """The output of splitmix64 for the state z, in Python's integers."""
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z // 2**27) * 0x94D049BB133111EB % 2**64
    return z ^ z // 2**31


def signed(z):
    """A tensor with these 64 bits."""
    return torch.tensor((z + 2**63) % 2**64 - 2**63)


def is_uniform(numbers, bins=16):
    """By a chi-square test, at five standard deviations."""
    counts, expected = torch.histc(numbers.flatten(), bins, 0, 1), numbers.numel() / bins
    return ((counts - expected) ** 2 / expected).sum() < bins - 1 + 5 * (2 * (bins - 1)) ** 0.5


def uncorrelated(rows):
    """No two rows are correlated, at five standard deviations."""
    return torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 5 / rows.shape[1] ** 0.5


@pytest.mark.parametrize(
    ("state", "out"),
    [(0, 0xE220A8397B1DCDAF), (0x9E3779B97F4A7C15, 0x6E789E6AA1B965F4), (2 * 0x9E3779B97F4A7C15, 0x06C45D188009454F)],
)
def test_mixing_gives_the_published_values_of_splitmix64(state, out):
    assert splitmix64(state % 2**64) == out
    assert draws._mix(signed(state)).item() % 2**64 == out


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_hashed_numbers_by_hand(key, counter):
    row = splitmix64((key + splitmix64(counter)) % 2**64)
    expected = [(splitmix64((row + i) % 2**64) >> 40) / 2**24 for i in range(5)]
    assert draws.hashed(signed(key)[None], 5, counter=counter).tolist() == [expected]


def test_keys_by_hand():
    digest = int.from_bytes(hashlib.blake2b(b"3/square/0/0", digest_size=8).digest(), "little") >> 1
    expected = [splitmix64((splitmix64((sample + digest) % 2**64) + 2) % 2**64) for sample in (0, 7)]
    assert [key % 2**64 for key in draws.keys(3, "square", torch.tensor([0, 7]), 2).tolist()] == expected


def test_hashed_numbers_are_uniform_over_keys_positions_and_counters():
    samples = torch.arange(4000)
    for keys in (samples, -samples, draws.keys(0, "apgd", samples)):  # the keys need not look random
        numbers = draws.hashed(keys, 8)
        assert numbers.shape == (4000, 8)
        assert numbers.dtype == torch.float32
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert all(is_uniform(column) for column in numbers.T)
        assert uncorrelated(numbers.T)
    assert is_uniform(draws.hashed(torch.tensor([5]), 50_000))
    steps = torch.stack([draws.hashed(samples, 1, counter=counter)[:, 0] for counter in range(8)])
    assert all(is_uniform(row) for row in steps)
    assert uncorrelated(steps)
    assert uncorrelated(draws.hashed(torch.arange(8), 4000))


@given(st.permutations(range(6)), st.integers(1, 6))
def test_the_draws_of_a_sample_depend_only_on_its_key_and_counter(order, n):
    keys, counters = draws.keys(0, "fab", torch.arange(6)), torch.tensor([0, 1, 1, 70, 5000, 3])
    order = torch.tensor(order[:n])
    together = draws.hashed(keys, 7, counter=counters)
    assert torch.equal(draws.hashed(keys[order], 7, counter=counters[order]), together[order])
    assert torch.equal(draws.hashed(keys[order], 3, counter=counters[order]), together[order, :3])
    assert torch.equal(draws.hashed(keys, 7, counter=70)[3], together[3])


def test_hashed_normals_are_normal_and_independent():
    numbers = draws.hashed_normal(draws.keys(0, "apgd", torch.arange(400)), 500)
    assert numbers.isfinite().all()
    far_from_0 = 5 / numbers.numel() ** 0.5
    for power, moment, deviation in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert (numbers.double() ** power).mean().item() == pytest.approx(moment, abs=deviation * far_from_0)
    assert (numbers.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.4655 * far_from_0)
    assert abs(torch.corrcoef(numbers.T[:2])[0, 1]) < 5 / 400**0.5
    keys = draws.keys(0, "apgd", torch.arange(6))
    assert torch.equal(draws.hashed_normal(keys.flip(0), 4).flip(0), draws.hashed_normal(keys, 4))


def test_hashing_reads_no_value_and_does_not_use_the_global_generator():
    before = torch.get_rng_state()
    some(0, "start", 1, 2)
    draws.hashed(draws.keys(0, "apgd", torch.arange(4)), 3)
    assert torch.equal(before, torch.get_rng_state())
    with FakeTensorMode():
        keys = draws.keys(0, "apgd", torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long))
        assert draws.hashed(keys, 3, counter=torch.zeros_like(keys)).shape == (4, 3)
