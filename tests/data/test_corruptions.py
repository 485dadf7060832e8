"""Claims about all corruptions, their random numbers, and noise; the other corruptions are in corruptions/."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats

from corrupting import draws_of, levels, photos
from pixelpart.data import corruptions
from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from pixelpart.errors import UserError

each = pytest.mark.parametrize("name", CORRUPTIONS)
DETERMINISTIC = {
    "gaussian_blur", "defocus_blur", "zoom_blur", "contrast", "brightness", "saturate", "jpeg_compression", "pixelate"
}  # fmt: skip
# with CIFAR-10-C's constants, these do not change pixels more at each higher severity
UNORDERED = {"glass_blur", "motion_blur", "frost", "spatter", "saturate", "elastic_transform"}


def damage(x, y):
    return (x.int() - y.int()).abs().float().mean().item()


# -- all of them


@each
def test_a_corrupted_image_depends_on_its_number_and_not_on_the_batch(name, monkeypatch):
    x = photos(7)
    before, whole = x.clone(), corrupt(x, name, 3)
    assert torch.equal(x, before)
    assert whole.dtype == torch.uint8
    assert whole.shape == x.shape
    assert not torch.equal(whole, x)
    monkeypatch.setattr(corruptions, "CHUNK", 2)
    assert torch.equal(corrupt(x, name, 3), whole)
    assert torch.equal(corrupt(x[4:6], name, 3, first=4), whole[4:6])
    assert torch.equal(corrupt(x, name, 3, seed=1), whole) == (name in DETERMINISTIC)


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - UNORDERED))
def test_a_higher_severity_does_more_damage(name):
    x = photos(40)
    done = [damage(x, corrupt(x, name, severity)) for severity in SEVERITIES]
    assert done == sorted(done)
    assert min(done) > 0.3


@each
@pytest.mark.parametrize("size", [(40, 37), (5, 4)])
def test_other_sizes_and_constant_images_work(name, size):
    x = photos(3, *size)
    x[1], x[2] = 0, 255
    pictures = [np.full((40, 60, 3), 9, np.uint8)] if name == "frost" else None
    for severity in (1, 5):
        assert corrupt(x, name, severity, frost=pictures).shape == x.shape


@pytest.mark.parametrize(
    ("x", "name", "severity", "message"),
    [
        (photos(1), "rain", 1, "unknown corruption 'rain'; choose from brightness, contrast"),
        (photos(1), "fog", 6, "unknown severity 6; choose from 1, 2, 3, 4, 5"),
        (photos(1).float(), "fog", 1, "not float32 (1, 3, 32, 32)"),
        (photos(1)[:, :1], "fog", 1, "not uint8 (1, 1, 32, 32)"),
    ],
)
def test_mistakes_are_user_errors(x, name, severity, message):
    with pytest.raises(UserError) as caught:
        corrupt(x, name, severity)
    assert message in str(caught.value)


def test_progress_counts_the_images(monkeypatch):
    monkeypatch.setattr(corruptions, "CHUNK", 2)
    reports = []
    corrupt(photos(5), "contrast", 1, on_done=reports.append)
    assert reports == [2, 4, 5]


# -- draws


def test_normal_numbers_are_the_inverse_of_the_distribution_function():
    u, z = (getattr(draws_of("x", 1, 3), kind)(50) for kind in ("uniform", "normal"))
    assert np.allclose(z, np.vectorize(NormalDist().inv_cdf)(u), atol=1e-9)
    z = draws_of("x", 1, 200).normal(1000)
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01


def test_counts_follow_the_poisson_distribution():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(4, 0).repeat(3, 1)
    for rate in (500, 50):
        u, counts = draws_of("x", 1, 4).uniform(3, 16, 16), draws_of("x", 1, 4).poisson(levels, rate)
        assert np.array_equal(counts, np.maximum(stats.poisson.ppf(u, levels / 255 * rate), 0))


# -- noise


def test_gaussian_noise_is_added_to_each_value():
    x = photos(3)
    z = draws_of("gaussian_noise", 2, 3).normal(3, 32, 32)
    expected = np.clip(x.numpy() / 255 + 0.06 * z, 0, 1) * 255
    assert torch.equal(corrupt(x, "gaussian_noise", 2), torch.from_numpy(expected.astype(np.uint8)))


def test_speckle_grows_with_the_level():
    grey = torch.tensor([0, 50, 100], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 64, 64)
    spread = (corrupt(grey, "speckle_noise", 1).float() - grey).std((1, 2, 3))
    assert spread[0] == 0
    assert torch.allclose(spread[1:], torch.tensor([3.0, 6.0]), rtol=0.05)


def test_shot_noise_has_the_poisson_variance():
    grey = torch.full((20, 3, 32, 32), 100, dtype=torch.uint8)
    y = corrupt(grey, "shot_noise", 3).float()
    assert abs(y.mean() - 99.5) < 0.3  # rounding down removes half a level
    assert abs(y.std() - 255 * math.sqrt(100 / 255 / 100)) < 0.3


def test_impulse_noise_sets_the_right_share_to_black_and_white():
    grey = torch.full((40, 3, 32, 32), 100, dtype=torch.uint8)
    y = corrupt(grey, "impulse_noise", 5)
    assert set(y.unique().tolist()) == {0, 100, 255}
    assert abs((y == 0).float().mean() - 0.035) < 0.003
    assert abs((y == 255).float().mean() - 0.035) < 0.003


def test_levels_are_rounded_down():
    x = photos(5)
    for name in ("fog", "gaussian_blur", "snow"):
        assert np.array_equal(corrupt(x, name, 2), np.floor(levels(name, 2, x)))
