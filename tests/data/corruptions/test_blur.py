"""Every blur against a simple implementation: loops over pixels, or scipy on one image."""

import itertools
import math

import numpy as np
from scipy import ndimage

from corrupting import clamp_index, close, constants, draws_of, levels, motion_blurred, photos
from pixelpart.data.corruptions import corrupt, filters


def blurred(image, kernel, fold):
    """The sum over a kernel, pixel by pixel; `fold` maps an index beyond the border into the image."""
    h, w = image.shape
    reach = len(kernel) // 2
    out = np.zeros((h, w))
    for i, j, a, b in itertools.product(range(h), range(w), range(len(kernel)), range(len(kernel))):
        if kernel[a, b]:
            out[i, j] += kernel[a, b] * image[fold(i + a - reach, h), fold(j + b - reach, w)]
    return out


def mirror(i, n):
    return abs(i) if i < n else 2 * (n - 1) - i


def test_gaussian_blur_equals_a_sum_over_the_kernel():
    x, sigma = photos(1, 12, 9), 0.7
    taps = np.exp(-(np.arange(-3, 4) ** 2) / (2 * sigma**2))
    kernel = np.outer(taps, taps) / taps.sum() ** 2
    expected = [blurred(channel / 255, kernel, clamp_index) * 255 for channel in x[0].numpy()]
    assert close(levels("gaussian_blur", 3, x)[0], np.stack(expected))


def test_defocus_blur_equals_a_sum_over_a_soft_disk():
    x = photos(1, 12, 9)
    bell = np.exp(-np.array([1, 0, 1]) / (2 * 0.2**2))
    bell = np.outer(bell, bell) / bell.sum() ** 2
    cross = np.zeros((7, 7))
    cross[[3, 2, 4, 3, 3], [3, 3, 3, 2, 4]] = 0.2  # the pixels within 1 of the middle
    kernel = ndimage.correlate(cross, bell, mode="constant")
    expected = [blurred(channel / 255, kernel, mirror) * 255 for channel in x[0].numpy()]
    assert close(levels("defocus_blur", 4, x)[0], np.stack(expected))


def test_glass_blur_copies_pixels_in_the_order_of_the_reference():
    x, (sigma, rounds) = photos(2), constants("glass_blur", 5)
    draw = draws_of("glass_blur", 5, 2)
    steps = [draw.integers(2, 2, 32, 32) for _ in range(rounds)]
    for n, image in enumerate(x.numpy()):
        bell = lambda one: ndimage.gaussian_filter(one / 255, (0, sigma, sigma), mode="nearest")  # noqa: E731
        level = (bell(image) * 255).astype(np.uint8)
        for (left, up), i, j in itertools.product([step[n] for step in steps], range(31, 1, -1), range(31, 1, -1)):
            level[:, i, j] = level[:, i - up[i, j], j - left[i, j]]
        assert close(levels("glass_blur", 5, x)[n], np.clip(bell(level), 0, 1) * 255)


def test_motion_blur_equals_a_sum_along_a_line():
    x = photos(3, 9, 12)
    angles = draws_of("motion_blur", 1, 3).uniform(low=-45, high=45)
    assert (abs(angles) <= 45).all()
    y = corrupt(x, "motion_blur", 1)
    for image, found, angle in zip(x.numpy(), y, angles, strict=True):
        expected = np.stack([motion_blurred(channel, angle, 6, 1) for channel in image])
        assert np.array_equal(found, np.floor(expected + 1 / 514))  # rounded in 16 bits, cut in 8


def test_motion_blur_equals_imagemagicks():
    """MagickMotionBlurImage of ImageMagick 6.9.11 with radius 3, sigma 1.5 and angle -30, on the same levels."""
    i, j = np.mgrid[:4, :8]
    level = ((i * 37 + j * 53) % 256).astype(np.uint8)
    assert filters.motion(level[None], np.array([-30.0]), radius=3, sigma=1.5)[0].tolist() == [
        [47, 100, 135, 144, 110, 52, 92, 115],
        [62, 115, 150, 159, 126, 68, 108, 130],
        [99, 152, 187, 196, 55, 104, 144, 167],
        [136, 174, 180, 39, 92, 141, 181, 204],
    ]


def test_zoom_blur_equals_the_mean_of_zooms():
    x = photos(2)
    bright = x.numpy() / 255
    total = bright.copy()
    for factor in np.arange(1, 1.11, 0.01).tolist():
        part = math.ceil(32 / factor)
        top = (32 - part) // 2
        grown = ndimage.zoom(bright[..., top : top + part, top : top + part], (1, 1, factor, factor), order=1)
        trim = (grown.shape[2] - 32) // 2
        total += grown[..., trim : trim + 32, trim : trim + 32]
    assert close(levels("zoom_blur", 2, x), total / 13 * 255)  # 1.11 is one of them, by rounding
