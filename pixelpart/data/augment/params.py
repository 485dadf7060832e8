"""Parameters of the augmentation of each image in a batch; None for operations that a kind does not use."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int64
from torch import Tensor

PAD = 4


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
    """Lines cut off at the borders, the rest shifted, then sheared or rotated; for rows, then for columns."""

    cut: Float[Tensor, "b 2"]  # cut lines as shares of the height and of the width
    taken: Float[Tensor, "b 2"]  # share of them that is cut before the rest, from 0 to 1
    put: Float[Tensor, "b 2"]  # share of them that is empty before the rest in the result
    matrix: Float[Tensor, "b 2 2"]  # maps positions in the result to source positions, relative to the centre


@dataclass(frozen=True)
class Colour:
    """A colour operation for each image: its number in `colour.OPERATIONS`, -1 for none, and its strength."""

    operation: Int64[Tensor, " b"]
    strength: Float[Tensor, " b"]


@dataclass(frozen=True)
class Params:
    """Parameters of each image: the crop's corner in the padded image, from 0 to 2 PAD, whether to flip it, ..."""

    top: Int64[Tensor, " b"]
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
