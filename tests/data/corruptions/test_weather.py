"""Fog, snow, frost and spatter against simple implementations: loops over pixels, or scipy on one image."""

import itertools

import numpy as np
import torch
from scipy import ndimage

from corrupting import close, constants, draws_of, levels, motion_blurred, photos
from pixelpart.data.corruptions import corrupt, spatter, weather
from pixelpart.data.corruptions import frost as frosting

# -- weather


def test_plasma_equals_the_diamond_square_algorithm():
    """Every point that a step adds is the mean of the four around it, on a torus, plus noise."""
    size, decay = 8, 2.0
    draw, cloud = draws_of("fog", 1, 1), np.zeros((size, size))
    step, rough = size, 100.0
    while step >= 2:
        half = step // 2
        places = range(0, size, step)
        around = [(-half, -half), (-half, half), (half, -half), (half, half)]
        for down, right in ((half, half), (0, half), (half, 0)):
            noise = draw.uniform(size // step, size // step, low=-rough, high=rough)[0] * rough
            for (a, i), (b, j) in itertools.product(enumerate(places), enumerate(places)):
                row, column = i + down, j + right
                mean = sum(cloud[(row + p) % size, (column + q) % size] for p, q in around) / 4
                cloud[row, column] = mean + noise[a, b]
            around = [(-half, 0), (half, 0), (0, -half), (0, half)]
        step, rough = half, rough / decay
    expected = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    assert np.allclose(weather.plasma(size, decay, draws_of("fog", 1, 1))[0], expected, atol=1e-9)


def test_fog_equals_its_formula():
    x = photos(2)
    thickness, decay = constants("fog", 4)
    cloud = weather.plasma(32, decay, draws_of("fog", 4, 2))[:, None]
    top = x.numpy().max((1, 2, 3), keepdims=True) / 255
    expected = (x.numpy() / 255 + thickness * cloud) * top / (top + thickness) * 255
    assert close(levels("fog", 4, x), expected)


def test_snow_equals_two_layers_of_flakes_over_a_paler_image():
    x = photos(1)
    mean, deviation, grown, threshold, radius, sigma, kept = constants("snow", 4)
    draw = draws_of("snow", 4, 1)
    flakes = ndimage.zoom((mean + deviation * draw.normal(32, 32)[0])[8:23, 8:23], grown, order=1)[1:33, 1:33]
    level = np.floor(np.clip(np.where(flakes < threshold, 0, flakes), 0, 1) * 255)
    angle = draw.uniform(low=-135, high=-45)[0]
    layer = np.floor(motion_blurred(level, angle, radius, sigma) + 1 / 514) / 255
    bright = x[0].numpy() / 255
    grey = np.tensordot([0.299, 0.587, 0.114], bright, 1)
    pale = kept * bright + (1 - kept) * np.maximum(bright, 1.5 * grey + 0.5)
    expected = np.clip(pale + layer + np.rot90(layer, 2), 0, 1) * 255
    assert close(levels("snow", 4, x)[0], expected)


def test_frost_is_cropped_from_the_pictures_at_a_fifth_of_their_size():
    rows, columns = np.mgrid[:60, :80]
    picture = np.full((300, 400, 3), 250, np.uint8)
    picture[2::5, 2::5] = np.stack([rows, columns, rows], 2)  # what OpenCV's resize by 0.2 takes
    black = torch.zeros(50, 3, 32, 32, dtype=torch.uint8)
    ice = frosting.cropped_frost(32, 32, [picture], draws_of("frost", 1, 50))
    assert np.array_equal(corrupt(black, "frost", 1, frost=[picture]), np.floor(0.2 * ice))
    top, left = ice[:, 0, 0, 0], ice[:, 1, 0, 0]
    assert np.array_equal(ice[:, 0] - top[:, None, None], np.mgrid[:32, :32][0] * np.ones((50, 1, 1)))
    assert np.array_equal(ice[:, 1] - left[:, None, None], np.mgrid[:32, :32][1] * np.ones((50, 1, 1)))
    assert top.min() >= 0
    assert top.max() < 60 - 32
    assert left.max() < 80 - 32
    assert len(set(top)) > 10


def test_generated_frost_has_the_colours_of_the_pictures():
    ice = frosting.generated_frost(32, 32, draws_of("frost", 1, 400))
    which = draws_of("frost", 1, 400).integers(len(frosting.KINDS))
    for kind, (mean, deviation, _) in enumerate(frosting.KINDS):
        some = ice[which == kind]
        assert np.allclose(some.mean((0, 2, 3)), mean, atol=2)
        assert np.allclose(some.std((0, 2, 3)), deviation, rtol=0.15)


# -- spatter


def test_canny_edges_equal_opencvs():
    level = np.zeros((2, 12, 12), np.uint8)
    level[0, 3:9, 3:9] = 200
    edges = spatter.canny(level)
    found = ["".join(".#"[pixel] for pixel in row[2:9]) for row in edges[0, 2:9].astype(int)]
    assert found == ["..####.", ".#....#", "#.....#", "#.....#", "#.....#", "#.....#", ".######"]
    assert edges[0].sum() == 20
    assert not edges[1].any()


def test_rims_equal_opencvs():
    """Canny, distanceTransform, threshold, blur, equalizeHist, filter2D and blur of OpenCV 4.10, on the same levels."""
    i, j = np.mgrid[:10, :12]
    level = ((i * 37 + j * 53) % 97 * ((i - 5) ** 2 + (j - 6) ** 2 < 14) * 2.6).astype(np.uint8)
    found = spatter.rims(np.stack([level, level[::-1]]))[0].astype(int)
    assert found[0].tolist() == [159, 129, 67, 53, 69, 69, 69, 69, 85, 147, 177, 223]
    assert found[1].tolist() == [124, 106, 55, 53, 69, 69, 69, 69, 80, 142, 166, 218]
    assert found[2].tolist() == [83, 71, 12, 0, 0, 0, 0, 0, 34, 119, 161, 212]
    assert found[3].tolist() == [48, 48, 0, 0, 0, 0, 0, 0, 57, 142, 195, 223]
    assert found[4].tolist() == [53, 53, 0, 0, 0, 0, 0, 0, 85, 170, 239, 239]
    assert found[9].tolist() == [69, 69, 0, 0, 0, 0, 0, 0, 85, 170, 239, 239]


def test_equalised_levels_by_hand():
    level = np.array([[[3, 3, 5, 9], [9, 9, 9, 9]], [[4, 4, 4, 4], [4, 4, 4, 4]]], np.uint8)
    found = spatter.equalise(level)
    assert found[0].ravel().tolist() == [0, 0, 42, 255, 255, 255, 255, 255]  # 255 / 6 is 42.5, rounded to even
    assert np.array_equal(found[1], level[1])


def test_mud_equals_scipy():
    x, (mean, deviation, sigma, threshold, strength, _) = photos(1), constants("spatter", 4)
    z = draws_of("spatter", 4, 1).normal(32, 32)[0]
    liquid = ndimage.gaussian_filter(mean + deviation * z, sigma, mode="nearest")
    there = ndimage.gaussian_filter((liquid > threshold).astype(float), strength, mode="nearest")
    there = np.where(there < 0.8, 0, there)
    expected = x[0].numpy() * (1 - there) + np.array(spatter.MUD)[:, None, None] * there
    assert close(levels("spatter", 4, x)[0], expected)


def test_an_image_without_drops_is_unchanged():
    x = photos(2).numpy()
    dry = spatter.spatter(x, (0.1, 0.0, 0.7, 0.7, 0.5, 0), draws_of("spatter", 1, 2))
    assert np.allclose(dry, x, atol=1e-3)
