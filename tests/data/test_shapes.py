import hashlib

import numpy as np
import pytest
import torch

from pixelpart import data
from pixelpart.data import shapes


@pytest.fixture(scope="module")
def scenes():
    return shapes._scenes("test")


@pytest.fixture(scope="module")
def empty():
    """The same images without their objects."""
    with pytest.MonkeyPatch.context() as patch:
        far = [(lambda u, v, r: np.full_like(u, 9), texture) for _, texture in shapes._KINDS]
        patch.setattr(shapes, "_KINDS", far)
        return shapes._scenes("test")[0]


@pytest.fixture(scope="module")
def train():
    return data.load("shapes", split="train")


def test_the_bits_are_the_same_on_every_machine(scenes):
    """Another hash means that all results on this data set have to be measured again."""
    pictures, masks, labels = scenes
    found = hashlib.sha256(pictures.tobytes() + masks.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    assert found[:16] == "8fadc23a279bd39c"


def test_global_generators_are_untouched(scenes):
    torch.manual_seed(1)
    np.random.seed(1)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    images, labels = shapes.generate("test")
    assert np.array_equal(images.numpy(), scenes[0])
    assert np.array_equal(labels.numpy(), scenes[2])
    assert np.array_equal(shapes.object_masks("test").numpy(), scenes[1])
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("split", ["train", "test"])
def test_shapes_types_and_balance(split, train, scenes):
    images, labels = train if split == "train" else map(torch.from_numpy, (scenes[0], scenes[2]))
    n = shapes.COUNTS[split]
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (n, 3, 32, 32))
    assert labels.bincount().tolist() == [n // 10] * 10
    assert labels[:200].bincount(minlength=10).min() > 5  # not sorted by class
    data.check_images(images, labels, 10, shape=(3, 32, 32))


def test_mean_and_std_are_those_of_the_training_images(train):
    pixels = train[0].permute(1, 0, 2, 3).flatten(1)
    for channel, mean, std in zip(pixels, shapes.MEAN, shapes.STD, strict=True):
        count = torch.bincount(channel, minlength=256).double() / channel.numel()
        level = torch.arange(256).double() / 255
        assert float(count @ level) == pytest.approx(mean, abs=5e-4)
        assert float(count @ (level - mean) ** 2) ** 0.5 == pytest.approx(std, abs=5e-4)


@pytest.mark.parametrize(("pointed", "reach"), [(False, 1), (True, 3)])
def test_outside_the_mask_only_a_soft_edge_differs_from_the_empty_scene(scenes, empty, pointed, reach):
    """The edge is a pixel wide; points thinner than a pixel fade over three."""
    pictures, masks, labels = scenes
    some = np.isin(labels, [shapes.CLASSES.index(name) for name in ("crescent", "triangle", "star")]) == pointed
    mask = torch.from_numpy(masks[some]).float()[:, None]
    near = torch.nn.functional.max_pool2d(mask, 2 * reach + 1, 1, reach)[:, 0].bool().numpy()
    assert not (pictures != empty)[some].any(axis=1)[~near].any()


def test_inside_the_mask_most_pixels_differ_by_more_than_eps(scenes, empty):
    """Nine of ten object pixels differ by more than 8 levels, and at least half of them in every image."""
    pictures, masks, _ = scenes
    differs = np.abs(pictures.astype(int) - empty).max(axis=1) > 8
    share = (differs & masks).sum((1, 2)) / masks.sum((1, 2))
    assert share.mean() > 0.9
    assert share.min() > 0.5


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("disc", np.pi * 100),
        ("ring", np.pi * 100 * (1 - 0.48**2)),
        ("square", 17.0**2),
        ("triangle", 3 * np.sqrt(3) * 6.2**2),
        ("cross", 2 * 20 * 6 - 6 * 6),
        ("star", 5 * 3.7**2 * np.tan(np.pi / 5) * (1 + np.tan(np.pi / 5) * np.tan(2 * np.pi / 5))),
    ],
)
def test_outlines_have_the_area_of_the_geometric_shape(name, area):
    outline, _ = shapes._KINDS[shapes.CLASSES.index(name)]
    axis = np.linspace(-16, 16, 801, dtype=np.float32)
    u, v = np.meshgrid(axis, axis)
    assert (outline(u, v, np.float32(10)) < 0).mean() * 32 * 32 == pytest.approx(area, rel=0.02)
