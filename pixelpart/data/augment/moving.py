"""The parameters of an augmentation, and how they move the pixels of images, masks and budgets.

Nothing here draws a random number or waits for the device.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from pixelpart.data.augment.colour import Colour, recolour
from pixelpart.types import Images, Probabilities

PAD = 4
Lines = Int64[Tensor, "b #h #w"]  # numbers of rows or columns


@dataclass(frozen=True)
class Box:
    """A rectangle, relative to the image's height and width; it may extend beyond the border."""

    y: Float[Tensor, " b"]  # its centre
    x: Float[Tensor, " b"]
    height: Float[Tensor, " b"]
    width: Float[Tensor, " b"]


@dataclass(frozen=True)
class Mix:
    """A box filled with the same region of another image, `step` rows further in the batch."""

    box: Box
    step: Int64[Tensor, " b"]


@dataclass(frozen=True)
class Warp:
    """Rows and columns cut off at the borders, the rest shifted, then sheared or rotated.

    As much is padded as was cut. All but `matrix` have one number for the rows and one for the columns.
    """

    cut: Float[Tensor, "b 2"]  # fraction of the height, and of the width, that is cut
    cut_first: Float[Tensor, "b 2"]  # fraction of what is cut that is cut at the top, or at the left
    pad_first: Float[Tensor, "b 2"]  # fraction of the padding that is at the top, or at the left
    matrix: Float[Tensor, "b 2 2"]  # maps positions in the result to source positions, relative to the centre


@dataclass(frozen=True)
class Params:
    """Parameters of the augmentation of each image in a batch; None for operations that a kind does not use."""

    top: Int64[Tensor, " b"]  # the crop's corner in the padded image, from 0 to 2 PAD
    left: Int64[Tensor, " b"]
    flip: Bool[Tensor, " b"]
    warp: Warp | None = None
    erase: Box | None = None
    mix: Mix | None = None
    colour: Colour | None = None

    def __getitem__(self, rows: slice) -> "Params":
        """The parameters of a slice of the batch."""
        return _rows_of(self, rows)


def _rows_of(part: Any, rows: slice) -> Any:
    """These rows of a tensor, or of all tensors in a dataclass."""
    if part is None or isinstance(part, Tensor):
        return None if part is None else part[rows]
    named = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return type(part)(**{name: _rows_of(value, rows) for name, value in named.items()})


def apply_to_images(params: Params, images: Images) -> Images:
    """The augmented images: recoloured, then moved."""
    return apply(params, images if params.colour is None else recolour(params.colour, images))


def apply(params: Params, tensor: Shaped[Tensor, "b c h w"], *, fill: float = 0.0) -> Shaped[Tensor, "b c h w"]:
    """Each image padded by PAD with `fill`, cropped to its size at (top, left), then flipped if `flip`.

    out[i, :, r, s] = padded[i, :, top_i + r, left_i + s'] with s' = w - 1 - s if flip_i else s

    A warp maps (r, s') to another position. Erased pixels are `fill`. The box of another, equally augmented image comes
    last.
    """
    b, c, h, w = tensor.shape
    column = torch.arange(w, device=tensor.device)
    column = torch.where(params.flip[:, None], w - 1 - column, column)[:, None, :] + params.left[:, None, None] - PAD
    row = torch.arange(h, device=tensor.device)[:, None] + params.top[:, None, None] - PAD
    if params.warp is None:
        outside = (row < 0) | (row >= h) | ((column < 0) | (column >= w))
    else:
        row, column, outside = warp_positions(params.warp, row, column, (h, w))
    if params.erase is not None:
        outside = outside | inside_box(params.erase, (h, w))
    source = row.clamp(0, h - 1) * w + column.clamp(0, w - 1)
    moved = tensor.flatten(2).gather(2, source.flatten(1)[:, None].expand(b, c, h * w)).view(b, c, h, w)
    moved = moved.masked_fill(outside[:, None], fill)
    if params.mix is None:
        return moved
    return torch.where(inside_box(params.mix.box, (h, w))[:, None], moved[partner_rows(params.mix)], moved)


def warp_positions(
    warp: Warp, row: Lines, column: Lines, size: tuple[int, int]
) -> tuple[Lines, Lines, Bool[Tensor, "b h w"]]:
    """The source row and column of each pixel, rounded, and whether it was cut off or is outside the image."""
    h, w = size
    y, x = row - (h - 1) / 2, column - (w - 1) / 2
    matrix = warp.matrix[..., None, None]
    row, above = shift_lines(matrix[:, 0, 0] * y + matrix[:, 0, 1] * x + (h - 1) / 2, warp, 0, h)
    column, sideways = shift_lines(matrix[:, 1, 0] * y + matrix[:, 1, 1] * x + (w - 1) / 2, warp, 1, w)
    return row, column, above | sideways


def shift_lines(
    position: Float[Tensor, "b h w"], warp: Warp, axis: int, length: int
) -> tuple[Lines, Bool[Tensor, "b h w"]]:
    """The row (axis 0) or column (axis 1) that each pixel is read from, and whether that is cut off or outside."""
    cut, cut_first, pad_first = (part[:, axis, None, None] for part in (warp.cut, warp.cut_first, warp.pad_first))
    lines = (cut * length).round()
    first, padding = (cut_first * (lines + 1)).floor(), (pad_first * (lines + 1)).floor()  # from 0 to `lines`
    line = position.round() + first - padding
    return line.long(), (line < first) | (line >= first + length - lines)


def inside_box(box: Box, size: tuple[int, int]) -> Bool[Tensor, "b h w"]:
    """Whether the centre of each pixel is in the box."""
    h, w = size
    row, column = torch.arange(h, device=box.y.device), torch.arange(w, device=box.y.device)
    rows = (row + 0.5 - h * box.y[:, None]).abs() < h / 2 * box.height[:, None]
    columns = (column + 0.5 - w * box.x[:, None]).abs() < w / 2 * box.width[:, None]
    return rows[:, :, None] & columns[:, None, :]


def partner_rows(mix: Mix) -> Int64[Tensor, " b"]:
    """The batch row of the image that each is mixed with; its own row if the batch ends before the partner."""
    n = len(mix.step)
    return (torch.arange(n, device=mix.step.device) + mix.step).clamp(0, n - 1)


def mix_labels(params: Params, y: Probabilities, size: tuple[int, int]) -> Probabilities:
    """Labels of the augmented images: kept y + (1 - kept) y of the partner (Yun et al. 2019); y without mixing."""
    if params.mix is None:
        return y
    kept = (1 - inside_box(params.mix.box, size).float().mean((1, 2))).to(y.dtype)[:, None]
    return kept * y + (1 - kept) * y[partner_rows(params.mix)]
