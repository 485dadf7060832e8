"""Every corruption against a plain version of it: loops over pixels, the standard library, or scipy on one image."""

import colorsys
import io
import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from pixelpart.data import corruptions
from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, digital, filters, spatter, weather
from pixelpart.data.corruptions import frost as frosting
from pixelpart.data.corruptions.drawing import Draw
from pixelpart.errors import UserError

each = pytest.mark.parametrize("name", CORRUPTIONS)
NOT_DRAWN = {
    "gaussian_blur", "defocus_blur", "zoom_blur", "contrast", "brightness", "saturate", "jpeg_compression", "pixelate"
}  # fmt: skip
# CIFAR-10-C's constants do not make these change more pixels, or by more, at each severity than at the one before
UNORDERED = {"glass_blur", "motion_blur", "frost", "spatter", "saturate", "elastic_transform"}


def photos(n, h=32, w=32):
    """Smooth noise with edges in it, at all levels."""
    rng = np.random.default_rng(7)
    smooth = ndimage.gaussian_filter(rng.normal(size=(n, 3, h, w)), (0, 0, 3, 3))
    steps = np.sign(ndimage.gaussian_filter(rng.normal(size=(n, 1, h, w)), (0, 0, 4, 4)))
    level = 128 + 60 * smooth / smooth.std() + 40 * steps + 5 * rng.normal(size=smooth.shape)
    return torch.from_numpy(np.clip(level, 0, 255).astype(np.uint8))


def again(name, severity, n, first=0):
    """The draws that `corrupt` makes."""
    return Draw(0, f"corruption/{name}/{severity}", np.arange(first, first + n))


def constants(name, severity):
    return CORRUPTIONS[name].constants[severity - 1]


def levels(name, severity, x):
    """What a corruption computes before it is cut down to whole levels."""
    return CORRUPTIONS[name].apply(x.numpy(), constants(name, severity), again(name, severity, len(x)))


def close(found, expected, atol=1e-3):
    return np.allclose(found, expected, rtol=0, atol=atol)


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
        (photos(1), "fog", 6, "severity 6 is none; choose from 1, 2, 3, 4, 5"),
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
    corrupt(photos(5), "contrast", 1, tell=told.append)
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


# -- blur


def blurred(image, kernel, fold):
    """The sum over a kernel, pixel by pixel; `fold` brings a place beyond the border back."""
    h, w = image.shape
    reach = len(kernel) // 2
    out = np.zeros((h, w))
    for i, j, a, b in itertools.product(range(h), range(w), range(len(kernel)), range(len(kernel))):
        if kernel[a, b]:
            out[i, j] += kernel[a, b] * image[fold(i + a - reach, h), fold(j + b - reach, w)]
    return out


def to_edge(i, n):
    return min(max(i, 0), n - 1)


def mirror(i, n):
    return abs(i) if i < n else 2 * (n - 1) - i


def test_gaussian_blur_is_the_sum_over_a_bell():
    x, sigma = photos(1, 12, 9), 0.7
    taps = np.exp(-(np.arange(-3, 4) ** 2) / (2 * sigma**2))
    kernel = np.outer(taps, taps) / taps.sum() ** 2
    expected = [blurred(channel / 255, kernel, to_edge) * 255 for channel in x[0].numpy()]
    assert close(levels("gaussian_blur", 3, x)[0], np.stack(expected))


def test_defocus_blur_is_the_sum_over_a_soft_disk():
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
    draw = again("glass_blur", 5, 2)
    steps = [draw.below(2, 2, 32, 32) for _ in range(rounds)]
    for n, image in enumerate(x.numpy()):
        bell = lambda one: ndimage.gaussian_filter(one / 255, (0, sigma, sigma), mode="nearest")  # noqa: E731
        level = (bell(image) * 255).astype(np.uint8)
        for (left, up), i, j in itertools.product([step[n] for step in steps], range(31, 1, -1), range(31, 1, -1)):
            level[:, i, j] = level[:, i - up[i, j], j - left[i, j]]
        assert close(levels("glass_blur", 5, x)[n], np.clip(bell(level), 0, 1) * 255)


def smeared(image, angle, radius, sigma):
    """One channel, pixel by pixel."""
    h, w = image.shape
    kernel = [math.exp(-i * i / (2 * sigma**2)) for i in range(2 * radius + 1)]
    sin, cos = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    out = np.zeros((h, w))
    for row, column, (i, weight) in itertools.product(range(h), range(w), enumerate(kernel)):
        down, right = math.ceil(i * sin - 0.5), math.ceil(i * cos - 0.5)
        out[row, column] += weight / sum(kernel) * image[to_edge(row + down, h), to_edge(column + right, w)]
    return out


def test_motion_blur_is_a_sum_along_a_line():
    x = photos(3, 9, 12)
    angles = again("motion_blur", 1, 3).uniform(low=-45, high=45)
    assert (abs(angles) <= 45).all()
    y = corrupt(x, "motion_blur", 1)
    for image, found, angle in zip(x.numpy(), y, angles, strict=True):
        expected = np.stack([smeared(channel, angle, 6, 1) for channel in image])
        assert np.array_equal(found, np.floor(expected + 1 / 514))  # rounded in 16 bits, cut in 8


def test_motion_by_hand():
    """A point is smeared to the left of itself when the blur looks to the right."""
    point = np.zeros((1, 1, 1, 8), np.uint8)
    point[..., 5] = 255
    k = np.exp(-(np.arange(5) ** 2) / 2)
    found = filters.motion(point, np.array([0.0]), radius=2, sigma=1)[0, 0, 0]
    assert found.tolist() == [0, *np.floor(255 * (k / k.sum())[::-1] + 1 / 514).astype(int), 0, 0]


def test_motion_is_that_of_imagemagick():
    """MagickMotionBlurImage of ImageMagick 6.9.11 with radius 3, sigma 1.5 and angle -30, on the same levels."""
    i, j = np.mgrid[:4, :8]
    level = ((i * 37 + j * 53) % 256).astype(np.uint8)
    assert filters.motion(level[None], np.array([-30.0]), radius=3, sigma=1.5)[0].tolist() == [
        [47, 100, 135, 144, 110, 52, 92, 115],
        [62, 115, 150, 159, 126, 68, 108, 130],
        [99, 152, 187, 196, 55, 104, 144, 167],
        [136, 174, 180, 39, 92, 141, 181, 204],
    ]


def test_zoom_blur_is_the_mean_of_zooms():
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


# -- weather


def test_plasma_is_diamonds_and_squares():
    """Every point that a step adds is the mean of the four around it, on a torus, plus noise."""
    size, decay = 8, 2.0
    draw, cloud = again("fog", 1, 1), np.zeros((size, size))
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
    assert np.allclose(weather.plasma(size, decay, again("fog", 1, 1))[0], expected, atol=1e-9)


def test_fog_keeps_the_brightest_value():
    x = photos(2)
    thickness, decay = constants("fog", 4)
    cloud = weather.plasma(32, decay, again("fog", 4, 2))[:, None]
    top = x.numpy().max((1, 2, 3), keepdims=True) / 255
    expected = (x.numpy() / 255 + thickness * cloud) * top / (top + thickness) * 255
    assert close(levels("fog", 4, x), expected)


def test_snow_is_two_layers_of_flakes_over_a_paler_image():
    x = photos(1)
    mean, deviation, grown, threshold, radius, sigma, kept = constants("snow", 4)
    draw = again("snow", 4, 1)
    flakes = ndimage.zoom((mean + deviation * draw.normal(32, 32)[0])[8:23, 8:23], grown, order=1)[1:33, 1:33]
    level = np.floor(np.clip(np.where(flakes < threshold, 0, flakes), 0, 1) * 255)
    angle = draw.uniform(low=-135, high=-45)[0]
    layer = np.floor(smeared(level, angle, radius, sigma) + 1 / 514) / 255
    bright = x[0].numpy() / 255
    grey = np.tensordot([0.299, 0.587, 0.114], bright, 1)
    pale = kept * bright + (1 - kept) * np.maximum(bright, 1.5 * grey + 0.5)
    expected = np.clip(pale + layer + np.rot90(layer, 2), 0, 1) * 255
    assert close(levels("snow", 4, x)[0], expected)


def test_frost_is_cut_from_the_pictures_at_a_fifth_of_their_size():
    rows, columns = np.mgrid[:60, :80]
    picture = np.full((300, 400, 3), 250, np.uint8)
    picture[2::5, 2::5] = np.stack([rows, columns, rows], 2)  # what OpenCV's resize by 0.2 takes
    black = torch.zeros(50, 3, 32, 32, dtype=torch.uint8)
    ice = frosting.cut_frost(32, 32, [picture], again("frost", 1, 50))
    assert np.array_equal(corrupt(black, "frost", 1, frost=[picture]), np.floor(0.2 * ice))
    top, left = ice[:, 0, 0, 0], ice[:, 1, 0, 0]
    assert np.array_equal(ice[:, 0] - top[:, None, None], np.mgrid[:32, :32][0] * np.ones((50, 1, 1)))
    assert np.array_equal(ice[:, 1] - left[:, None, None], np.mgrid[:32, :32][1] * np.ones((50, 1, 1)))
    assert top.min() >= 0
    assert top.max() < 60 - 32
    assert left.max() < 80 - 32
    assert len(set(top)) > 10


def test_drawn_frost_has_the_colours_of_the_pictures():
    ice = frosting.drawn_frost(32, 32, again("frost", 1, 400))
    which = again("frost", 1, 400).below(len(frosting.KINDS))
    for kind, (mean, deviation, _) in enumerate(frosting.KINDS):
        some = ice[which == kind]
        assert np.allclose(some.mean((0, 2, 3)), mean, atol=2)
        assert np.allclose(some.std((0, 2, 3)), deviation, rtol=0.15)


# -- spatter


def test_edges_of_a_bright_square_are_those_that_opencv_finds():
    level = np.zeros((2, 12, 12), np.uint8)
    level[0, 3:9, 3:9] = 200
    edges = spatter.canny(level)
    found = ["".join(".#"[pixel] for pixel in row[2:9]) for row in edges[0, 2:9].astype(int)]
    assert found == ["..####.", ".#....#", "#.....#", "#.....#", "#.....#", "#.....#", ".######"]
    assert edges[0].sum() == 20
    assert not edges[1].any()


def test_rims_are_those_that_opencv_computes():
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


def test_weak_edges_count_where_they_touch_strong_ones():
    """A step by 30 has a gradient of 120, above 50 and not 150: it is an edge only if it goes on from a step by 60."""
    level = np.zeros((2, 9, 30), np.uint8)
    level[:, 5:] = 30
    level[0, 5:, :6] = 60
    assert spatter.canny(level)[0, 4:6, 10:].any()
    assert not spatter.canny(level)[1].any()


def test_distances_are_the_shortest_ways():
    edges = np.zeros((2, 15, 17), bool)
    edges[0, 4, 6] = True
    found = spatter.chamfer(edges)
    for i, j in itertools.product(range(15), range(17)):
        long, short = max(abs(i - 4), abs(j - 6)), min(abs(i - 4), abs(j - 6))
        ways = (
            2.1969 * knight + 1.4 * diagonal + (long - 2 * a - b - diagonal)
            for a, b in itertools.product(range(short + 1), repeat=2)
            for knight, diagonal in [(a + b, short - a - 2 * b)]
            if diagonal >= 0 and long - 2 * a - b - diagonal >= 0
        )
        assert found[0, i, j] == pytest.approx(min(ways))
    assert (found[1] > 1000).all()


def test_equalised_levels_are_shares_of_pixels():
    level = np.array([[[3, 3, 5, 9], [9, 9, 9, 9]], [[4, 4, 4, 4], [4, 4, 4, 4]]], np.uint8)
    found = spatter.equalise(level)
    assert found[0].ravel().tolist() == [0, 0, 42, 255, 255, 255, 255, 255]  # 255 / 6 is 42.5: halves go to even
    assert np.array_equal(found[1], level[1])


def test_water_brightens_and_mud_covers():
    x = photos(4)
    wet = corrupt(x, "spatter", 2)
    assert (wet >= x).all()
    assert (wet > x).any()
    muddy = corrupt(x, "spatter", 5)
    changed = (muddy != x).any(1)
    assert 0.02 < changed.float().mean() < 0.5
    brown = torch.tensor(spatter.MUD)[:, None]
    covered = muddy.permute(1, 0, 2, 3)[:, changed]
    assert (covered.int() - brown).abs().float().mean() < 35  # at least 0.8 of it


def test_mud_pixel_by_pixel():
    x, (mean, deviation, sigma, threshold, strength, _) = photos(1), constants("spatter", 4)
    z = again("spatter", 4, 1).normal(32, 32)[0]
    liquid = ndimage.gaussian_filter(mean + deviation * z, sigma, mode="nearest")
    there = ndimage.gaussian_filter((liquid > threshold).astype(float), strength, mode="nearest")
    there = np.where(there < 0.8, 0, there)
    expected = x[0].numpy() * (1 - there) + np.array(spatter.MUD)[:, None, None] * there
    assert close(levels("spatter", 4, x)[0], expected)


def test_an_image_without_drops_stays_as_it_is():
    x = photos(2).numpy()
    dry = spatter.spatter(x, (0.1, 0.0, 0.7, 0.7, 0.5, 0), again("spatter", 1, 2))
    assert np.allclose(dry, x, atol=1e-3)


# -- digital


def test_contrast_shrinks_towards_the_mean():
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
def test_colours_change_as_the_standard_library_says(name, change):
    x = photos(2)
    x[0, :, 0, :4] = torch.tensor([[9, 7, 0, 255]]).expand(3, 4)  # grey, black, white
    expected = np.empty(x.shape)
    for n, i, j in itertools.product(range(2), range(32), range(32)):
        hsv = colorsys.rgb_to_hsv(*(x[n, :, i, j].double() / 255).tolist())
        expected[n, :, i, j] = np.array(colorsys.hsv_to_rgb(*change(*hsv))) * 255
    assert close(levels(name, 4, x), expected)


def test_colours_come_back():
    x = photos(3).numpy() / 255
    assert np.allclose(digital.to_rgb(*digital.to_hsv(x)), x)


def test_jpeg_is_pillows():
    x = photos(2)
    for image, found in zip(x, corrupt(x, "jpeg_compression", 5), strict=True):
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=40)
        assert np.array_equal(np.asarray(Image.open(file)), found.permute(1, 2, 0))


def test_large_pixels_are_means_of_the_pixels_whose_middle_they_cover():
    x = photos(1, 8, 8)
    groups, spread = [[0, 1], [2], [3, 4], [5], [6, 7]], [0, 0, 1, 2, 2, 3, 4, 4]  # 8 to 5 pixels and back
    small = np.stack([x[0].double()[:, :, group].mean(2) for group in groups], 2)
    small = np.stack([small[:, group].mean(1) for group in groups], 1)
    y = corrupt(x, "pixelate", 5)[0].numpy()
    assert np.abs(y - small[:, spread][:, :, spread]).max() <= 1  # pillow rounds after either axis


def test_elastic_transform_is_an_affine_map_and_then_small_shifts():
    x, (amplitude, sigma, move) = photos(2), constants("elastic_transform", 3)
    draw = again("elastic_transform", 3, 2)
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


def test_no_move_and_no_shift_is_no_change():
    x = photos(2).numpy()
    assert close(digital.elastic_transform(x, (0, 0, 0), again("elastic_transform", 1, 2)), x)


def test_an_affine_map_is_that_of_opencv():
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


def test_three_points_go_where_they_are_sent():
    corners = np.array([[6, 6], [6, 1], [1, 1]], np.float32)
    moved = corners + np.array([[[0.5, -1], [1, 2], [0, 0.25]]], np.float32)
    back = digital.affine(corners, moved)[0]
    assert np.allclose(moved[0] @ back[:, :2].T + back[:, 2], corners)


def test_what_is_computed_is_cut_down_to_whole_levels():
    x = photos(5)
    for name in ("fog", "gaussian_blur", "snow"):
        assert np.array_equal(corrupt(x, name, 2), np.floor(levels(name, 2, x)))
