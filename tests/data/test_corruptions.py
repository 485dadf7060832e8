"""What all corruptions have in common, their draws, and noise; the others, one by one, are in corruptions/."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats

from corrupting import again, levels, photos
from pixelpart.data import corruptions
from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from pixelpart.errors import UserError

each = pytest.mark.parametrize("name", CORRUPTIONS)
NOT_DRAWN = {
    "gaussian_blur", "defocus_blur", "zoom_blur", "contrast", "brightness", "saturate", "jpeg_compression", "pixelate"
}  # fmt: skip
# CIFAR-10-C's constants do not make these change more pixels, or by more, at each severity than at the one before
UNORDERED = {"glass_blur", "motion_blur", "frost", "spatter", "saturate", "elastic_transform"}


def damage(x, y):
    return (x.int() - y.int()).abs().float().mean().item()


# -- all of them


def test_there_are_nineteen_at_five_severities():
    assert len(CORRUPTIONS) == 19
    assert all(len(one.constants) == len(SEVERITIES) == 5 for one in CORRUPTIONS.values())


@each
def test_what_becomes_of_an_image_depends_on_its_number_and_not_on_its_company(name, monkeypatch):
    x = photos(7)
    whole = corrupt(x, name, 3)
    assert whole.dtype == torch.uint8
    assert whole.shape == x.shape
    assert not torch.equal(whole, x)
    monkeypatch.setattr(corruptions, "CHUNK", 2)
    assert torch.equal(corrupt(x, name, 3), whole)
    assert torch.equal(corrupt(x[4:6], name, 3, first=4), whole[4:6])
    assert torch.equal(corrupt(x, name, 3, seed=1), whole) == (name in NOT_DRAWN)


@each
def test_a_higher_severity_does_more_damage(name):
    x = photos(64)
    done = [damage(x, corrupt(x, name, severity)) for severity in SEVERITIES]
    assert (done == sorted(done)) == (name not in UNORDERED), done
    assert min(done) > 0.3


@each
@pytest.mark.parametrize("size", [(64, 64), (20, 37), (5, 4)])
def test_other_sizes_work(name, size):
    x = photos(2, *size)
    pictures = [np.full((40, 60, 3), 9, np.uint8)] if name == "frost" else None
    for severity in (1, 5):
        assert corrupt(x, name, severity, frost=pictures).shape == x.shape


@each
def test_a_black_and_a_white_image_stay_in_range(name):
    flat = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 32, 32)
    for severity in (1, 4):
        assert corrupt(flat, name, severity).shape == flat.shape


def test_the_input_is_left_alone():
    x = photos(3)
    before = x.clone()
    for name in CORRUPTIONS:
        corrupt(x, name, 5)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("x", "name", "severity", "said"),
    [
        (photos(1), "rain", 1, "unknown corruption 'rain'; choose from brightness, contrast"),
        (photos(1), "fog", 6, "unknown severity 6; choose from 1, 2, 3, 4, 5"),
        (photos(1).float(), "fog", 1, "not float32 (1, 3, 32, 32)"),
        (photos(1)[:, :1], "fog", 1, "not uint8 (1, 1, 32, 32)"),
    ],
)
def test_mistakes_are_told(x, name, severity, said):
    with pytest.raises(UserError) as caught:
        corrupt(x, name, severity)
    assert said in str(caught.value)


def test_progress_counts_the_images(monkeypatch):
    monkeypatch.setattr(corruptions, "CHUNK", 2)
    told = []
    corrupt(photos(5), "contrast", 1, on_done=told.append)
    assert told == [2, 4, 5]


# -- draws


def test_normal_numbers_are_the_inverse_of_the_distribution():
    u, z = (getattr(again("x", 1, 3), kind)(50) for kind in ("uniform", "normal"))
    assert np.allclose(z, np.vectorize(NormalDist().inv_cdf)(u), atol=1e-9)
    z = again("x", 1, 200).normal(1000)
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01


def test_counts_are_poissons():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(4, 0).repeat(3, 1)
    for rate in (500, 50):
        u, counts = again("x", 1, 4).uniform(3, 16, 16), again("x", 1, 4).poisson(levels, rate)
        assert np.array_equal(counts, np.maximum(stats.poisson.ppf(u, levels / 255 * rate), 0))


def test_every_call_draws_anew():
    draw = again("x", 1, 2)
    assert not np.array_equal(draw.uniform(5), draw.uniform(5))


# -- noise


def test_noise_is_added_to_each_value():
    x = photos(3)
    z = again("gaussian_noise", 2, 3).normal(3, 32, 32)
    expected = np.clip(x.numpy() / 255 + 0.06 * z, 0, 1) * 255
    assert torch.equal(corrupt(x, "gaussian_noise", 2), torch.from_numpy(expected.astype(np.uint8)))


def test_speckle_grows_with_the_level():
    grey = torch.tensor([0, 50, 100], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 64, 64)
    spread = (corrupt(grey, "speckle_noise", 1).float() - grey).std((1, 2, 3))
    assert spread[0] == 0
    assert torch.allclose(spread[1:], torch.tensor([3.0, 6.0]), rtol=0.05)


def test_shot_noise_has_poissons_variance():
    grey = torch.full((20, 3, 32, 32), 100, dtype=torch.uint8)
    y = corrupt(grey, "shot_noise", 3).float()
    assert abs(y.mean() - 99.5) < 0.3  # half a level is cut off
    assert abs(y.std() - 255 * math.sqrt(100 / 255 / 100)) < 0.3


def test_impulses_are_black_and_white_and_of_the_right_number():
    grey = torch.full((40, 3, 32, 32), 100, dtype=torch.uint8)
    y = corrupt(grey, "impulse_noise", 5)
    assert set(y.unique().tolist()) == {0, 100, 255}
    assert abs((y == 0).float().mean() - 0.035) < 0.003
    assert abs((y == 255).float().mean() - 0.035) < 0.003


def test_what_is_computed_is_cut_down_to_whole_levels():
    x = photos(5)
    for name in ("fog", "gaussian_blur", "snow"):
        assert np.array_equal(corrupt(x, name, 2), np.floor(levels(name, 2, x)))
