"""Draws are a function of (seed, stream, epoch, step) and of nothing else."""

import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelpart import draws

KEYS = st.tuples(
    st.integers(0, 50), st.sampled_from(["order", "start", "probe/train", "a/1", "a"]), *[st.integers(0, 50)] * 2
)


def some(*key):
    return torch.rand(8, generator=draws.generator(*key))


@given(KEYS)
def test_equal_keys_give_equal_numbers(key):
    assert torch.equal(some(*key), some(*key))


@given(st.lists(KEYS, min_size=2, max_size=20, unique=True))
def test_different_keys_give_different_numbers(keys):
    assert len({tuple(some(*key).tolist()) for key in keys}) == len(keys)


def test_the_seed_is_63_bits_of_blake2b_of_the_key():
    digest = hashlib.blake2b(b"3/order/2/1", digest_size=8).digest()
    expected = int.from_bytes(digest, "little") // 2
    assert draws.generator(3, "order", 2, 1).initial_seed() == expected


def test_a_draw_neither_reads_nor_moves_the_global_generator():
    before = torch.get_rng_state()
    first = some(0, "start", 1, 2)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(first, some(0, "start", 1, 2))


def test_neighbouring_steps_are_not_correlated():
    rows = torch.stack([torch.randn(4000, generator=draws.generator(0, "start", 0, step)) for step in range(8)])
    gram = torch.corrcoef(rows) - torch.eye(8)
    assert gram.abs().max() < 5 / 4000**0.5
