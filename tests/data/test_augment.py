import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.data.augment import AUGMENTS, PAD, Params, apply, draw, kept, mixed, picture
from pixelpart.data.augment.colour import recolour
from pixelpart.data.augment.moving import inside
from pixelpart.data.augment.params import Warp
from pixelpart.errors import UserError

each_kind = pytest.mark.parametrize("kind", AUGMENTS)


def draws_of(kind, n, seed=0):
    return draw(kind, n, generator=torch.Generator().manual_seed(seed))


def moved_by_loop(params, tensor, fill):
    """The same move one pixel at a time."""
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
def test_image_and_mask_move_pixel_by_pixel_as_the_loop_moves_them(dtype):
    params = draw("crop-flip", 7, generator=torch.Generator().manual_seed(3))
    images = torch.randint(1, 256, (7, 3, 6, 9)).to(dtype)
    mask = torch.randint(1, 3, (7, 1, 6, 9)).to(dtype)
    assert torch.equal(apply(params, images), moved_by_loop(params, images, 0))
    assert torch.equal(apply(params, mask, fill=9.0), moved_by_loop(params, mask, 9))
    assert apply(params, images).dtype == dtype


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2 * PAD), st.integers(0, 2 * PAD), st.booleans())
def test_what_an_image_and_its_mask_show_together_stays_together(top, left, flip):
    params = Params(torch.tensor([top]), torch.tensor([left]), torch.tensor([flip]))
    image = torch.arange(1, 101.0).view(1, 1, 10, 10)
    assert torch.equal(apply(params, image > 40), apply(params, image) > 40)


def test_a_corner_crop_by_hand():
    """Cropped 4 up and 4 to the left, a picture moves down and right: its first pixel comes to (4, 4)."""
    image = torch.zeros(2, 1, 6, 6)
    image[:, :, 0, 0] = 1
    moved = apply(Params(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([False, True])), image, fill=0.25)
    assert moved[0, 0, 4, 4] == 1
    assert moved[1, 0, 4, 1] == 1
    assert (moved[:, :, :4] == 0.25).all()
    assert (moved[0, 0, 4:, :4] == 0.25).all()
    assert (moved == 0.25).sum() == 2 * (36 - 4)


def test_none_leaves_every_pixel_where_it_is():
    image = torch.rand(5, 3, 8, 8)
    assert torch.equal(apply(draw("none", 5), image), image)


def test_draws_are_fixed_by_the_generator_and_cover_all_corners():
    first, second = (draw("crop-flip", 3000, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first.top, second.top)
    assert torch.equal(first.flip, second.flip)
    assert len({*zip(first.top.tolist(), first.left.tolist(), strict=True)}) == (2 * PAD + 1) ** 2
    assert 0.45 < first.flip.float().mean() < 0.55


def test_some_of_the_moves_are_the_moves_of_some():
    params = draw("crop-flip", 10)
    images = torch.rand(10, 3, 8, 8)
    assert torch.equal(apply(params[3:7], images[3:7]), apply(params, images)[3:7])


# -- every kind


@each_kind
def test_the_mask_goes_where_the_image_goes_pixel_by_pixel(kind):
    """An image in which every pixel holds its own number, from 1, tells where each pixel of the mask must come from."""
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
def test_the_same_generator_gives_the_same_picture_and_the_global_one_is_not_touched(kind):
    images, before = torch.rand(8, 3, 32, 32), torch.get_rng_state()
    first, second = (picture(draws_of(kind, 8, seed=5), images) for _ in range(2))
    assert torch.equal(first, second)
    assert 0 <= first.min() <= first.max() <= 1
    assert kind == "none" or not torch.equal(first, picture(draws_of(kind, 8, seed=6), images))
    assert torch.equal(torch.get_rng_state(), before)


@each_kind
def test_the_part_of_a_batch_looks_as_it_does_in_the_whole(kind):
    params, images = draws_of(kind, 10), torch.rand(10, 3, 16, 16)
    whole = picture(params, images)
    for rows in (slice(2, 6), slice(6, 10)):
        assert torch.equal(picture(params[rows], images[rows]), whole[rows])


@each_kind
def test_no_tensor_is_asked_for_its_value(kind):
    params = draws_of(kind, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert picture(params, torch.rand(4, 3, 32, 32)).shape == (4, 3, 32, 32)
        assert mixed(params, torch.rand(4, 10), (32, 32)).shape == (4, 10)


def test_every_kind_of_crop_and_flip_crops_and_flips_alike():
    plain, cutout, cutmix = (draws_of(kind, 50) for kind in ("crop-flip", "crop-flip-cutout", "crop-flip-cutmix"))
    for other in (cutout, cutmix):
        for field in ("top", "left", "flip"):
            assert torch.equal(getattr(plain, field), getattr(other, field))


# -- cutout


@pytest.mark.parametrize("size", [32, 64])
def test_a_square_of_a_quarter_to_half_the_side_is_cut_out(size):
    params = draws_of("crop-flip-cutout", 400)
    holes = inside(params.erase, (size, size))
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
def test_a_label_keeps_the_share_of_pixels_that_are_still_its_own(n):
    params = unmoved(draws_of("crop-flip-cutmix", n, seed=2))
    images = torch.arange(n).view(n, 1, 1, 1).expand(n, 1, 32, 32)
    moved = apply(params, images)
    shares = mixed(params, torch.eye(n, dtype=torch.float64), (32, 32))
    for i in range(n):
        counts = torch.bincount(moved[i].flatten(), minlength=n) / 1024
        assert torch.equal(shares[i], counts.double())
        partner = min(i ^ 1, n - 1)
        assert counts[[i, partner]].sum() == (2 if i == partner else 1)
    if n == 7:
        assert shares[6, 6] == 1


def test_the_box_shows_the_partner_as_it_was_cropped_and_flipped():
    params, images = draws_of("crop-flip-cutmix", 6), torch.rand(6, 3, 32, 32)
    plain = apply(dataclasses.replace(params, mix=None), images)
    box = inside(params.mix.box, (32, 32))
    moved = apply(params, images)
    for i in range(6):
        assert torch.equal(moved[i][:, box[i]], plain[i ^ 1][:, box[i]])
        assert torch.equal(moved[i][:, ~box[i]], plain[i][:, ~box[i]])


def test_a_part_that_separates_partners_leaves_both_as_they_are():
    params, images = draws_of("crop-flip-cutmix", 10), torch.rand(10, 3, 32, 32)
    plain, whole = apply(dataclasses.replace(params, mix=None), images), apply(params, images)
    part = apply(params[3:8], images[3:8])
    assert torch.equal(part[0], plain[3])
    assert torch.equal(part[1:], whole[4:8])
    targets = mixed(params[3:8], torch.eye(10)[3:8], (32, 32))
    assert torch.equal(targets[0], torch.eye(10)[3])


def test_boxes_of_all_sizes_are_mixed_in():
    """Their share is uniform before the edge clips them."""
    shares = 1 - kept(draws_of("crop-flip-cutmix", 4000).mix, (32, 32))
    sides = torch.linspace(0, 1, 100_001).sqrt()
    covered = (sides - sides.square() / 4).square().mean()  # what is left of a side s, over all centres: s - s^2 / 4
    assert shares.mean() == pytest.approx(covered.item(), abs=0.015)
    assert shares.min() < 0.02
    assert shares.max() > 0.9


def test_without_mixing_targets_stay_the_very_tensor():
    targets = torch.rand(4, 3)
    assert mixed(draw("crop-flip", 4), targets, (32, 32)) is targets


# -- idbh


def test_a_crop_shift_equals_cutting_out_and_pasting():
    params = draws_of("idbh", 200, seed=1)
    turned = (params.warp.matrix != torch.eye(2)).flatten(1).any(1)
    images = torch.rand(200, 3, 32, 32)
    moved = apply(dataclasses.replace(params, erase=None), images)
    lines_seen = set()
    for i in (~turned).nonzero().flatten().tolist():
        lines = [round(float(share) * 32) for share in params.warp.cut[i]]
        (top, left), (down, right) = (
            [int(float(s) * (n + 1)) for s, n in zip(shares[i], lines, strict=True)]
            for shares in (params.warp.taken, params.warp.put)
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
def test_a_rotation_is_pillows_to_the_nearest_pixel(degrees):
    picture_ = torch.arange(1, 32 * 32 + 1, dtype=torch.int32).view(32, 32)
    angle = torch.tensor(degrees).deg2rad()
    matrix = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
    mine = apply(still_warp(matrix), picture_[None, None])[0, 0]
    theirs = torch.from_numpy(np.array(Image.fromarray(picture_.numpy(), mode="I").rotate(-degrees)))
    assert (mine == theirs).float().mean() > 0.99  # where two pixels are equally near, either will do


def test_a_shear_moves_rows_by_their_distance_from_the_middle():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, :, 4] = 1
    moved = apply(still_warp(torch.tensor([[1.0, 0.0], [0.5, 1.0]])), image)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in moved[::2]] == [[6], [5], [4], [3], [2]]


def test_each_operation_has_its_turn_and_half_of_the_images_are_erased():
    params = draws_of("idbh", 8000)
    counts = torch.bincount(params.colour.operation + 1, minlength=7) / 8000
    assert counts.tolist() == pytest.approx([2 / 8] + [1 / 8] * 6, abs=0.02)
    erased = inside(params.erase, (32, 32)).float().mean((1, 2))
    assert (erased > 0).float().mean() == pytest.approx(0.5, abs=0.03)
    assert 0.3 < erased.max() < 0.36
    still = (params.warp.matrix == torch.eye(2)).flatten(1).all(1)
    assert torch.equal(still, params.colour.operation >= 0)
    angles = torch.atan2(params.warp.matrix[:, 1, 0], params.warp.matrix[:, 0, 0]).abs().rad2deg()
    assert angles.max() == pytest.approx(10, abs=0.2)
    assert params.flip.float().mean() == pytest.approx(0.5, abs=0.03)


def test_colours_change_in_pictures_and_not_in_masks():
    params, images = draws_of("idbh", 64), torch.rand(64, 3, 32, 32)
    plain, shown = apply(params, images), picture(params, images)
    assert torch.equal((plain != shown).flatten(1).any(1), params.colour.operation >= 0)
    assert torch.equal(shown, apply(params, recolour(params.colour, images)))
    assert (shown.amax(1)[plain.amax(1) == 0] == 0).all()  # padding and holes stay empty


def test_an_unknown_kind_names_the_choices():
    with pytest.raises(UserError, match=r"'cutout'; choose from crop-flip, crop-flip-cutmix, .*, none"):
        draw("cutout", 3)
