"""Each source against a loop over images or pixels; what a name may be."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pixelpart import masks, models
from pixelpart.errors import UserError
from pixelpart.masks.sources import CleanPass, SourceInputs

SIZE = 16


@pytest.fixture(scope="module")
def model():
    return models.build("tiny-cnn", generator=torch.Generator().manual_seed(1)).eval().double()


def images(n: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.arange(n) % 10


def read(name: str, inputs: SourceInputs) -> Tensor:
    return masks.parse_source(name).maps(inputs)


@pytest.mark.parametrize("target", ["label", "predicted"])
def test_gradient_is_the_size_of_the_losss_gradient_over_its_largest(model, target: str) -> None:
    x, y = images()
    found = read("gradient", SourceInputs(x, y, y if target == "label" else None, view=model))
    for i in range(len(x)):
        leaf = x[i : i + 1].clone().requires_grad_()
        logits = model(leaf)[0]
        label = y[i] if target == "label" else logits.argmax()
        (-logits.log_softmax(0)[label]).backward()
        sizes = leaf.grad[0].abs().sum(0)
        torch.testing.assert_close(found[i], sizes / sizes.max())
    assert not found.requires_grad


def test_a_gradient_of_zero_is_a_dead_map() -> None:
    x, y = images(2)
    found = read("gradient", SourceInputs(x, y, y, view=lambda x: 0 * x.sum((2, 3))))
    assert masks.is_dead(found).all()


def test_the_gradient_is_blurred_by_a_gaussian_whose_weights_sum_to_one_also_at_the_border(model) -> None:
    x, y = images(2)
    sharp, blurred = (read(name, SourceInputs(x, y, y, view=model)) for name in ("gradient", "gradient:2"))
    for image, found in zip(sharp.numpy(), blurred.numpy(), strict=True):
        expected = np.zeros((SIZE, SIZE))
        for r in range(SIZE):
            for c in range(SIZE):
                weights = [[math.exp(-((i - r) ** 2 + (j - c) ** 2) / 8) for j in range(SIZE)] for i in range(SIZE)]
                expected[r, c] = (image * weights).sum() / sum(map(sum, weights))
        np.testing.assert_allclose(found, expected / expected.max(), rtol=1e-9)


def test_margin_is_the_labels_logit_minus_the_largest_other(model) -> None:
    x, y = images()
    logits = model(x).detach()
    expected = [z[k] - max(z[:k] + z[k + 1 :]) for z, k in zip(logits.tolist(), y.tolist(), strict=True)]
    for seen in ({"clean": CleanPass(model.features(x), logits)}, {"view": model}):
        assert read("margin", SourceInputs(x, y, **seen)).shape == (4, 1, 1)
        assert read("margin", SourceInputs(x, y, **seen)).flatten().tolist() == pytest.approx(expected)


def test_centre_is_a_gaussian_of_a_quarter_of_the_side() -> None:
    heat = read("centre", SourceInputs(*images(2)))
    for r in range(SIZE):
        for c in range(SIZE):
            distance = (r - 7.5) ** 2 + (c - 7.5) ** 2
            assert heat[1, r, c].item() == pytest.approx(math.exp(-distance / (2 * 4**2)))


@pytest.mark.parametrize(("corner", "rows", "columns"), [
    ("ul", slice(0, 8), slice(0, 8)), ("ur", slice(0, 8), slice(8, 16)),
    ("bl", slice(8, 16), slice(0, 8)), ("br", slice(8, 16), slice(8, 16)),
])  # fmt: skip
def test_a_quadrant_is_one_there_and_zero_elsewhere(corner: str, rows: slice, columns: slice) -> None:
    expected = torch.zeros(2, SIZE, SIZE, dtype=torch.float64)
    expected[:, rows, columns] = 1
    assert torch.equal(read(f"quadrant:{corner}", SourceInputs(*images(2))), expected)


def test_an_object_is_its_mask_unless_it_fills_the_image() -> None:
    x, y = images(3)
    objects = torch.zeros(3, SIZE, SIZE)
    objects[0, 2:5, 3:9], objects[1] = 1, 1
    heat = read("object", SourceInputs(x, y, objects=objects))
    assert torch.equal(heat[0], objects[0].double())
    assert masks.is_dead(heat).tolist() == [False, True, True]


def test_blobs_differ_between_images_and_from_those_of_the_control() -> None:
    drawn = masks.draw_blobs(2000, generator=torch.Generator().manual_seed(3))
    assert drawn.shape == (2000, 2, 4, 4)
    assert abs(drawn.mean().item()) < 0.02
    assert drawn.std().item() == pytest.approx(1, abs=0.02)
    assert np.corrcoef(drawn[:, 0].flatten(), drawn[:, 1].flatten())[0, 1] == pytest.approx(0, abs=0.02)
    assert torch.equal(read("blobs", SourceInputs(*images(2), noise=drawn[:2, 0])), drawn[:2, 0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quadrant", "unknown quadrant ''; choose from bl, br, ul, ur"),
        ("quadrant:top", "unknown quadrant 'top'; choose from bl, br, ul, ur"),
        ("gradient:wide", "mask.source 'gradient:wide' is not gradient:SIGMA"),
        ("gradient:-1", "mask.source 'gradient:-1' is not gradient:SIGMA"),
        ("centre:2", "mask.source 'centre' takes no setting, but 'centre:2' has one"),
        ("center", "unknown mask.source 'center'; did you mean centre. choose from blobs, centre, gradcam"),
    ],
)
def test_a_mistake_in_a_source_is_a_user_error(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        masks.parse_source(name)
