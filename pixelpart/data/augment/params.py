"""What happens to each image of a batch, in numbers; what a kind of augmentation does not use is None."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int64
from torch import Tensor

PAD = 4


@dataclass(frozen=True)
class Box:
    """A rectangle, in shares of the image's height and width; it may reach over the edge."""

    y: Float[Tensor, " b"]  # its centre
    x: Float[Tensor, " b"]
    height: Float[Tensor, " b"]
    width: Float[Tensor, " b"]


@dataclass(frozen=True)
class Mix:
    """A box that shows the same place of another image, the one `step` rows further on."""

    box: Box
    step: Int64[Tensor, " b"]


@dataclass(frozen=True)
class Warp:
    """Lines cut off at the edges, what is left put elsewhere, all of it sheared or turned; rows first, then columns."""

    cut: Float[Tensor, "b 2"]  # lines that are cut, in shares of the height and of the width
    taken: Float[Tensor, "b 2"]  # which of them lie before what is left: from 0, none, up to 1, all
    put: Float[Tensor, "b 2"]  # how many are empty before it in the result, in the same way
    matrix: Float[Tensor, "b 2 2"]  # leads from a place in the result, seen from its centre, to where it came from


@dataclass(frozen=True)
class Colour:
    """One operation on colours for each image: its number in `colour.OPERATIONS`, -1 for none, and its strength."""

    operation: Int64[Tensor, " b"]
    strength: Float[Tensor, " b"]


@dataclass(frozen=True)
class Params:
    """One move per image: the crop's corner in the padded image, from 0 to 2 PAD, and whether it is then mirrored."""

    top: Int64[Tensor, " b"]
    left: Int64[Tensor, " b"]
    flip: Bool[Tensor, " b"]
    warp: Warp | None = None
    erase: Box | None = None
    mix: Mix | None = None
    colour: Colour | None = None

    def __getitem__(self, rows: slice) -> "Params":
        """The moves of some of the images, which stand together."""
        return _some(self, rows)


def _some(part: Any, rows: slice) -> Any:
    """These rows of a tensor, or of all the tensors in a part."""
    if part is None or isinstance(part, Tensor):
        return None if part is None else part[rows]
    named = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return type(part)(**{name: _some(value, rows) for name, value in named.items()})
