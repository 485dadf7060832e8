"""Colour operations against Pillow's, which rounds to 256 levels: equal up to two levels."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from pixelpart.data.augment import colour
from pixelpart.data.augment.colour import Colour
from pixelpart.data.shapes import generate

PILLOW = {
    "saturation": lambda image, s: ImageEnhance.Color(image).enhance(s),
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(s),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(s),
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(s),
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
}
NUMBERS = {function.__name__: number for number, function in enumerate(colour.OPERATIONS)}


@pytest.fixture(scope="module")
def images():
    """Dark and bright noise, and shapes; large, as Pillow equalizes in steps of n // 255 pixels."""
    g = torch.Generator().manual_seed(0)
    noise = torch.stack([torch.randint(low, low + 140, (3, 256, 256), generator=g) for low in (10, 90)])
    shapes = generate("test")[0][:2].repeat_interleave(8, 2).repeat_interleave(8, 3)
    return torch.cat([noise.to(torch.uint8), shapes])


def recoloured(images, name, s):
    n = len(images)
    params = Colour(torch.full((n,), NUMBERS[name] if name else -1), torch.full((n,), s))
    return colour.recolour(params, images.float() / 255)


@pytest.mark.parametrize("s", [0.1, 1.9])
@pytest.mark.parametrize("name", PILLOW)
def test_an_operation_equals_pillows(images, name, s):
    mine = recoloured(images, name, s) * 255
    for ours, image in zip(mine, images, strict=True):
        theirs = np.asarray(PILLOW[name](Image.fromarray(image.permute(1, 2, 0).numpy()), s))
        assert (ours - torch.from_numpy(theirs.copy()).permute(2, 0, 1)).abs().max() <= 2


def test_each_image_gets_its_own_operation(images):
    x = images.float() / 255
    params = Colour(torch.tensor([-1, 0, 3, 5]), torch.tensor([0.2, 0.2, 0.5, 1.0]))
    out = colour.recolour(params, x)
    assert torch.equal(out[0], x[0])
    for i in range(1, 4):
        name = list(NUMBERS)[params.operation[i]]
        assert torch.equal(out[i], recoloured(images[i : i + 1], name, params.strength[i].item())[0])


@pytest.mark.parametrize("name", PILLOW)
def test_a_constant_image_stays_finite_and_in_range(name):
    out = recoloured(torch.full((1, 3, 8, 8), 200, dtype=torch.uint8), name, 1.9)
    assert out.isfinite().all()
    assert 0 <= out.min() <= out.max() <= 1
