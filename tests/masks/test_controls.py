"""Controls and scales against naive loops over images and pixels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pixelpart import masks
from pixelpart.masks.policy import scale, with_mean

N, SIZE = 6, 8


def some(channels: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of which some are equal, dead flags of which two are set, and noise."""
    g = torch.Generator().manual_seed(seed)
    share = (torch.rand(N, channels, SIZE, SIZE, generator=g) * 4).round() / 4
    dead = torch.tensor([False, True, False, False, True, False])
    share[dead] = 1
    return share, dead, torch.randn(N, 4, 4, generator=g)


def donor(k: int, dead: list[bool]) -> int:
    """The next live image after k, cyclically."""
    n = len(dead)
    while True:
        k = (k + 1) % n
        if not dead[k]:
            return k


def naive(control: str, share: np.ndarray, dead: list[bool], noise: Tensor) -> np.ndarray:
    out = share.copy()
    for k in range(len(share)):
        if dead[k]:
            continue
        if control == "inverted":
            out[k] = 1 - share[k]
        elif control == "shuffled":
            out[k] = share[donor(k, dead)]
        elif control == "flat":
            out[k] = sum(share[k].flatten().tolist()) / share[k].size
        elif control == "blobs":
            grid = (noise[k] - noise[k].min()) / (noise[k].max() - noise[k].min())
            size = share.shape[2:]
            hills = F.interpolate(grid[None, None], size, mode="bicubic", antialias=True).clamp(0, 1).flatten().tolist()
            pixels = sorted(range(len(hills)), key=lambda pixel: (-hills[pixel], pixel))
            for channel in range(share.shape[1]):
                for pixel, value in zip(pixels, sorted(share[k, channel].flatten(), reverse=True), strict=True):
                    out[k, channel].reshape(-1)[pixel] = value
    return out


def policy(**settings):
    return masks.budget_policy(**{"eps": 8 / 255, "eps_low": 4 / 255} | settings)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("control", masks.CONTROLS)
def test_every_control_equals_a_loop_and_leaves_dead_images_alone(control: str, channels: int) -> None:
    share, dead, noise = some(channels)
    _, controlled = policy(control=control).control_and_scale(share, dead, noise)
    np.testing.assert_allclose(controlled.numpy(), naive(control, share.numpy(), dead.tolist(), noise), rtol=1e-6)


@pytest.mark.parametrize(
    ("dead", "donors"),
    [
        ([0, 0, 0, 0], [1, 2, 3, 0]),
        ([0, 1, 1, 0], [3, 1, 2, 0]),  # a dead image keeps its own and gives to none
        ([1, 0, 1, 1], [0, 1, 2, 3]),  # the only live image keeps its own
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([0], [0]),
    ],
)
def test_shuffled_takes_the_share_of_the_next_live_image(dead: list[int], donors: list[int]) -> None:
    share = torch.arange(1.0, len(dead) + 1).view(-1, 1, 1, 1).expand(-1, 1, 2, 2) / 8
    _, shuffled = policy(control="shuffled").control_and_scale(share, torch.tensor(dead).bool())
    assert (shuffled[:, 0, 0, 0] * 8 - 1).tolist() == donors


def test_ties_of_the_blobs_go_to_the_lower_index() -> None:
    share = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    _, placed = policy(control="blobs").control_and_scale(share, torch.tensor([False]), torch.zeros(1, 4, 4))
    assert placed.tolist() == [[[[1.0, 1.0], [0.0, 0.0]]]]


def test_blobs_are_one_region_and_not_scattered_pixels() -> None:
    share = torch.zeros(32, 1, 32, 32)
    share[:, :, :8] = 1
    noise = masks.draw_blobs(32, generator=torch.Generator().manual_seed(0))[:, 1]
    _, placed = policy(control="blobs").control_and_scale(share, torch.zeros(32).bool(), noise)
    assert torch.equal(placed.sum((1, 2, 3)), share.sum((1, 2, 3)))
    assert len({tuple(image.flatten().tolist()) for image in placed}) == 32
    edges = (placed.diff(dim=2) != 0).sum() + (placed.diff(dim=3) != 0).sum()
    assert edges / 32 < 100  # a random quarter of the pixels would have 744


# -- scale


@pytest.mark.parametrize(("eps", "eps_low"), [(8 / 255, 4 / 255), (6 / 255, 12 / 255), (0.5, 0.0)])
@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize("mean", [0.0, 8 / 255])
def test_the_scale_equals_a_loop(eps: float, eps_low: float, over: str, mean: float) -> None:
    share, dead, _ = some()
    found, _ = policy(eps=eps, eps_low=eps_low, mean=mean, mean_over=over).control_and_scale(share, dead)
    expected = np.array([[eps_low + s * (eps - eps_low) for s in image.flatten().tolist()] for image in share])
    if mean:
        groups = [slice(None)] if over == "batch" else list(range(N))
        for group in groups:
            expected[group] *= mean / (sum(expected[group].flatten()) / expected[group].size)
    np.testing.assert_allclose(found.flatten(1).numpy(), expected, rtol=2e-6)


def test_budgets_that_are_all_zero_become_the_mean_and_none_is_above_one() -> None:
    budget = torch.zeros(2, 1, 8, 8)
    budget[1, 0, 0, 0] = 0.1
    rescaled = with_mean(budget, 8 / 255, over="image")
    assert (rescaled[0] == torch.tensor(8 / 255)).all()
    assert rescaled[1].flatten().tolist() == [1.0] + [0.0] * 63  # 64 * 8/255 would be 2


def test_levels_are_exact_and_may_be_in_either_order() -> None:
    share = torch.tensor([0.0, 0.25, 1.0]).view(1, 1, 1, 3)
    for eps, low in ((12 / 255, 6 / 255), (6 / 255, 12 / 255)):
        found = scale(share, eps=eps, eps_low=low).flatten()
        assert found[[0, 2]].tolist() == torch.tensor([low, eps]).tolist()
        assert found[1].item() == pytest.approx(low + (eps - low) / 4)


@pytest.mark.parametrize("control", masks.CONTROLS)
def test_no_control_waits_for_the_device(control: str) -> None:
    share, dead, noise = (tensor.to("meta") for tensor in some())
    assert policy(control=control, mean=8 / 255).control_and_scale(share, dead, noise)[0].shape == share.shape
