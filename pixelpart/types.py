"""Names for the tensors that pass between packages; b images of c channels, h by w pixels, k classes."""

from collections.abc import Callable

from jaxtyping import Bool, Float, Integer
from torch import Tensor

Images = Float[Tensor, "b c h w"]  # pixels in [0, 1]
Labels = Integer[Tensor, " b"]  # class numbers
Logits = Float[Tensor, "b k"]
Probabilities = Float[Tensor, "b k"]  # >= 0, summing to 1 over the classes
Targets = Labels | Probabilities  # a label means probability 1 for its class
PerSample = Float[Tensor, " b"]
Flags = Bool[Tensor, " b"]
Activations = Float[Tensor, "b f u v"]  # output of `model.features`
Map = Float[Tensor, "b u v"]  # a class activation map at feature size, raw
Heatmap = Float[Tensor, "b h w"]  # a map at image size, in [0, 1]
Share = Float[Tensor, "b #c h w"]  # of the way from eps_low to eps, in [0, 1]
BudgetMap = Float[Tensor, "b #c #h #w"]  # the largest change allowed at each pixel, >= 0
Budget = float | BudgetMap  # a float means the same everywhere

Model = Callable[[Images], Logits]


def dtype_name(tensor: Tensor) -> str:
    """float32 for torch.float32, as messages have it."""
    return str(tensor.dtype).removeprefix("torch.")
