"""Contrast, colours, JPEG, pixelation and elastic transforms against simple implementations."""

import colorsys
import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from corrupting import close, constants, draws_of, levels, photos
from pixelpart.data.corruptions import corrupt, digital


def test_contrast_scales_the_distance_to_the_mean():
    x = photos(3)
    mean = x.double().mean((2, 3), keepdim=True)
    assert close(levels("contrast", 3, x), (x.double() - mean) * 0.4 + mean)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("brightness", lambda h, s, v: (h, s, min(v + 0.2, 1))),
        ("saturate", lambda h, s, v: (h, min(s * 2 + 0.1, 1), v)),
    ],
)
def test_brightness_and_saturation_equal_colorsys(name, change):
    x = photos(2)
    x[0, :, 0, :4] = torch.tensor([[9, 7, 0, 255]]).expand(3, 4)  # grey, black, white
    expected = np.empty(x.shape)
    for n, i, j in itertools.product(range(2), range(32), range(32)):
        hsv = colorsys.rgb_to_hsv(*(x[n, :, i, j].double() / 255).tolist())
        expected[n, :, i, j] = np.array(colorsys.hsv_to_rgb(*change(*hsv))) * 255
    assert close(levels(name, 4, x), expected)


def test_jpeg_equals_pillows():
    x = photos(2)
    for image, found in zip(x, corrupt(x, "jpeg_compression", 5), strict=True):
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=40)
        assert np.array_equal(np.asarray(Image.open(file)), found.permute(1, 2, 0))


def test_pixelate_averages_pixels():
    x = photos(1, 8, 8)
    groups, spread = [[0, 1], [2], [3, 4], [5], [6, 7]], [0, 0, 1, 2, 2, 3, 4, 4]  # 8 to 5 pixels and back
    small = np.stack([x[0].double()[:, :, group].mean(2) for group in groups], 2)
    small = np.stack([small[:, group].mean(1) for group in groups], 1)
    y = corrupt(x, "pixelate", 5)[0].numpy()
    assert np.abs(y - small[:, spread][:, :, spread]).max() <= 1  # pillow rounds after either axis


def test_elastic_transform_equals_scipy():
    x, (amplitude, sigma, move) = photos(2), constants("elastic_transform", 3)
    draw = draws_of("elastic_transform", 3, 2)
    corners = np.array([[26.0, 26], [26, 6], [6, 6]])
    moved = corners + draw.uniform(3, 2, low=-move, high=move)
    shifts = [draw.uniform(32, 32, low=-1, high=1) for _ in range(2)]
    rows, columns = np.mgrid[:32, :32]
    y = levels("elastic_transform", 3, x)
    for n in range(2):
        back = np.linalg.solve(np.c_[moved[n], np.ones(3)], corners)  # from where a pixel is to where it was
        place = np.stack([columns, rows, np.ones_like(rows)], -1) @ back
        place = np.round(place * 32) / 32
        right, down = (
            ndimage.gaussian_filter(shift[n], sigma, mode="reflect", truncate=3) * amplitude for shift in shifts
        )
        for channel, found in zip(x[n].numpy() / 255.0, y[n], strict=True):
            once = ndimage.map_coordinates(channel, [place[..., 1], place[..., 0]], order=1, mode="mirror")
            twice = ndimage.map_coordinates(once, [rows + down, columns + right], order=1, mode="reflect")
            assert np.abs(twice * 255 - found).mean() < 0.1  # OpenCV rounds 32nds of a pixel in two steps


def test_an_affine_map_equals_opencvs():
    """warpAffine of OpenCV 4.10 with BORDER_REFLECT_101, on the same values."""
    i, j = np.mgrid[:5, :6]
    x = ((i * 37 + j * 53) % 256).astype(np.float32)
    there = np.array([[1.1, -0.2, 0.7], [0.15, 0.9, -0.4]])
    back = np.linalg.inv(np.vstack([there, [0, 0, 1]]))[None, :2]
    expected = [
        [47.812, 32.094, 73.844, 114.438, 161.312, 212.312],
        [78.344, 82.5, 124.75, 165.344, 205.594, 231.688],
        [107.719, 133.406, 175.156, 183.75, 145.344, 48.094],
        [143.219, 183.812, 224.406, 90.156, 52.406, 93.0],
        [130.031, 182.188, 233.188, 55.0, 83.156, 134.156],
    ]
    assert close(digital.warp(x[None, None].repeat(3, 1), back)[0, 2], expected)
