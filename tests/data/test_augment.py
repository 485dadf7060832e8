import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.data.augment import PAD, Params, apply, draw
from pixelpart.errors import UserError


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


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    draw("crop-flip", 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_kind_names_the_choices():
    with pytest.raises(UserError, match="'cutout'; choose from crop-flip, none"):
        draw("cutout", 3)
