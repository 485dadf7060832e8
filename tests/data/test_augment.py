import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.data.augment import AUGMENTS, PAD, apply, apply_to_images, draw, mix_labels
from pixelpart.data.augment.colour import recolour
from pixelpart.data.augment.moving import Warp, inside_box

each_kind = pytest.mark.parametrize("kind", AUGMENTS)


def draws_of(kind, n, seed=0):
    return draw(kind, n, generator=torch.Generator().manual_seed(seed))


def crop_and_flip_by_loop(params, tensor, fill):
    """The same crop and flip, one pixel at a time."""
    b, c, h, w = tensor.shape
    out = torch.empty_like(tensor)
    for i in range(b):
        padded = torch.full((c, h + 2 * PAD, w + 2 * PAD), fill, dtype=tensor.dtype)
        padded[:, PAD : PAD + h, PAD : PAD + w] = tensor[i]
        for r in range(h):
            for s in range(w):
                t = w - 1 - s if params.flip[i] else s
                out[i, :, r, s] = padded[:, int(params.top[i]) + r, int(params.left[i]) + t]
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_crop_and_flip_equal_a_loop_over_pixels(dtype):
    params = draw("crop-flip", 7, generator=torch.Generator().manual_seed(3))
    images = torch.randint(1, 256, (7, 3, 6, 9)).to(dtype)
    mask = torch.randint(1, 3, (7, 1, 6, 9)).to(dtype)
    assert torch.equal(apply(params, images), crop_and_flip_by_loop(params, images, 0))
    assert torch.equal(apply(params, mask, fill=9.0), crop_and_flip_by_loop(params, mask, 9))
    assert apply(params, images).dtype == dtype


def test_crops_cover_all_corners_and_half_are_flipped():
    first = draws_of("crop-flip", 3000, seed=5)
    assert len({*zip(first.top.tolist(), first.left.tolist(), strict=True)}) == (2 * PAD + 1) ** 2
    assert 0.45 < first.flip.float().mean() < 0.55


# -- every kind


@each_kind
def test_a_mask_moves_with_its_image_pixel_by_pixel(kind):
    """In an image of pixel numbers, from 1, the result says where each pixel of the mask must come from."""
    params = draws_of(kind, 9, seed=4)
    numbers = torch.arange(1.0, 9 * 16 * 12 + 1).view(9, 1, 16, 12)
    mask = torch.rand(9, 3, 16, 12)
    source = apply(params, numbers)[:, 0].long()
    expected = torch.full((9, 3, 16, 12), 7.0)
    flat = mask.transpose(0, 1).flatten(1)
    for channel in range(3):
        expected[:, channel] = torch.where(source > 0, flat[channel][source - 1], 7.0)
    assert torch.equal(apply(params, mask, fill=7.0), expected)
    assert kind == "none" or not torch.equal(source, numbers[:, 0].long())


@each_kind
def test_equal_seeds_give_equal_images_and_the_global_generator_is_untouched(kind):
    images, before = torch.rand(8, 3, 32, 32), torch.get_rng_state()
    first, second = (apply_to_images(draws_of(kind, 8, seed=5), images) for _ in range(2))
    assert torch.equal(first, second)
    assert 0 <= first.min() <= first.max() <= 1
    assert kind == "none" or not torch.equal(first, apply_to_images(draws_of(kind, 8, seed=6), images))
    assert torch.equal(torch.get_rng_state(), before)


@each_kind
def test_a_slice_of_a_batch_is_augmented_as_in_the_whole_batch(kind):
    params, images = draws_of(kind, 10), torch.rand(10, 3, 16, 16)
    whole = apply_to_images(params, images)
    for rows in (slice(2, 6), slice(6, 10)):
        assert torch.equal(apply_to_images(params[rows], images[rows]), whole[rows])


@each_kind
def test_augmentation_needs_no_device_sync(kind):
    params = draws_of(kind, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert apply_to_images(params, torch.rand(4, 3, 32, 32)).shape == (4, 3, 32, 32)
        assert mix_labels(params, torch.rand(4, 10), (32, 32)).shape == (4, 10)


# -- cutout


@pytest.mark.parametrize("size", [32, 64])
def test_cutout_erases_a_square_of_a_quarter_to_half_the_side(size):
    params = draws_of("crop-flip-cutout", 400)
    holes = inside_box(params.erase, (size, size))
    heights, widths = holes.any(2).sum(1), holes.any(1).sum(1)
    assert torch.equal(holes.sum((1, 2)), heights * widths)
    whole = [holes[:, 0].any(1), holes[:, -1].any(1), holes[:, :, 0].any(1), holes[:, :, -1].any(1)]
    whole = ~torch.stack(whole).any(0)  # not clipped at an edge
    assert heights[whole].min() in (size // 4, size // 4 + 1)
    assert heights[whole].max() in (size // 2 - 1, size // 2)
    assert ((heights - widths)[whole].abs() <= 1).all()
    assert heights.max() <= size // 2
    assert (apply(params, torch.ones(400, 1, size, size), fill=0.25)[:, 0][holes] == 0.25).all()


# -- cutmix


def unmoved(params):
    """The same draws without the crop and the flip."""
    still = draw("none", len(params.top))
    return dataclasses.replace(params, top=still.top, left=still.left, flip=still.flip)


@pytest.mark.parametrize("n", [6, 7])
def test_cutmix_labels_are_the_shares_of_pixels(n):
    params = unmoved(draws_of("crop-flip-cutmix", n, seed=2))
    images = torch.arange(n).view(n, 1, 1, 1).expand(n, 1, 32, 32)
    moved = apply(params, images)
    shares = mix_labels(params, torch.eye(n, dtype=torch.float64), (32, 32))
    for i in range(n):
        counts = torch.bincount(moved[i].flatten(), minlength=n) / 1024
        assert torch.equal(shares[i], counts.double())
        partner = min(i ^ 1, n - 1)
        assert counts[[i, partner]].sum() == (2 if i == partner else 1)
    if n == 7:
        assert shares[6, 6] == 1


def test_the_cutmix_box_shows_the_cropped_and_flipped_partner():
    params, images = draws_of("crop-flip-cutmix", 6), torch.rand(6, 3, 32, 32)
    plain = apply(dataclasses.replace(params, mix=None), images)
    box = inside_box(params.mix.box, (32, 32))
    moved = apply(params, images)
    for i in range(6):
        assert torch.equal(moved[i][:, box[i]], plain[i ^ 1][:, box[i]])
        assert torch.equal(moved[i][:, ~box[i]], plain[i][:, ~box[i]])


def test_partners_in_different_slices_are_not_mixed():
    params, images = draws_of("crop-flip-cutmix", 10), torch.rand(10, 3, 32, 32)
    plain, whole = apply(dataclasses.replace(params, mix=None), images), apply(params, images)
    part = apply(params[3:8], images[3:8])
    assert torch.equal(part[0], plain[3])
    assert torch.equal(part[1:], whole[4:8])
    targets = mix_labels(params[3:8], torch.eye(10)[3:8], (32, 32))
    assert torch.equal(targets[0], torch.eye(10)[3])


# -- idbh


def test_a_crop_shift_equals_cropping_and_pasting():
    params = draws_of("idbh", 200, seed=1)
    turned = (params.warp.matrix != torch.eye(2)).flatten(1).any(1)
    images = torch.rand(200, 3, 32, 32)
    moved = apply(dataclasses.replace(params, erase=None), images)
    lines_seen = set()
    for i in (~turned).nonzero().flatten().tolist():
        lines = [round(float(share) * 32) for share in params.warp.cut[i]]
        (top, left), (down, right) = (
            [int(float(s) * (n + 1)) for s, n in zip(shares[i], lines, strict=True)]
            for shares in (params.warp.cut_first, params.warp.pad_first)
        )
        h, w = 32 - lines[0], 32 - lines[1]
        canvas = torch.zeros(3, 32, 32)
        canvas[:, down : down + h, right : right + w] = images[i, :, top : top + h, left : left + w]
        assert torch.equal(moved[i], canvas.flip(-1) if params.flip[i] else canvas)
        lines_seen.add(sum(lines))
    assert lines_seen == set(range(11))


def still_warp(matrix):
    zero = torch.zeros(1, 2)
    return dataclasses.replace(draw("none", 1), warp=Warp(zero, zero, zero, matrix[None]))


@pytest.mark.parametrize("degrees", [-10, -3, 7])
def test_a_rotation_equals_pillows(degrees):
    picture_ = torch.arange(1, 32 * 32 + 1, dtype=torch.int32).view(32, 32)
    angle = torch.tensor(degrees).deg2rad()
    matrix = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
    mine = apply(still_warp(matrix), picture_[None, None])[0, 0]
    theirs = torch.from_numpy(np.array(Image.fromarray(picture_.numpy(), mode="I").rotate(-degrees)))
    assert (mine == theirs).float().mean() > 0.99  # ties between two pixels are broken either way


def test_a_shear_moves_rows_by_their_distance_from_the_centre():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, :, 4] = 1
    moved = apply(still_warp(torch.tensor([[1.0, 0.0], [0.5, 1.0]])), image)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in moved[::2]] == [[6], [5], [4], [3], [2]]


def test_idbh_draws_each_operation_equally_often_and_erases_half_of_the_images():
    params = draws_of("idbh", 8000)
    counts = torch.bincount(params.colour.operation + 1, minlength=7) / 8000
    assert counts.tolist() == pytest.approx([2 / 8] + [1 / 8] * 6, abs=0.02)
    erased = inside_box(params.erase, (32, 32)).float().mean((1, 2))
    assert (erased > 0).float().mean() == pytest.approx(0.5, abs=0.03)
    assert 0.3 < erased.max() < 0.36
    still = (params.warp.matrix == torch.eye(2)).flatten(1).all(1)
    assert torch.equal(still, params.colour.operation >= 0)
    angles = torch.atan2(params.warp.matrix[:, 1, 0], params.warp.matrix[:, 0, 0]).abs().rad2deg()
    assert angles.max() == pytest.approx(10, abs=0.2)
    assert params.flip.float().mean() == pytest.approx(0.5, abs=0.03)


def test_colours_change_in_images_and_not_in_masks():
    params, images = draws_of("idbh", 64), torch.rand(64, 3, 32, 32)
    plain, shown = apply(params, images), apply_to_images(params, images)
    assert torch.equal((plain != shown).flatten(1).any(1), params.colour.operation >= 0)
    assert torch.equal(shown, apply(params, recolour(params.colour, images)))
    assert (shown.amax(1)[plain.amax(1) == 0] == 0).all()  # padding and holes stay empty
