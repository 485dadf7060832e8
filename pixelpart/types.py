"""The tensors that travel between the rooms, one alias each; b images of c channels, h by w pixels, k classes."""

from collections.abc import Callable

from jaxtyping import Bool, Float, Integer
from torch import Tensor

Images = Float[Tensor, "b c h w"]  # pixels in [0, 1]
Labels = Integer[Tensor, " b"]  # class numbers
Logits = Float[Tensor, "b k"]
Probabilities = Float[Tensor, "b k"]  # >= 0, and 1 in sum over the classes
Targets = Labels | Probabilities  # what a prediction should be: a label stands for probability 1
PerSample = Float[Tensor, " b"]
Flags = Bool[Tensor, " b"]
Activations = Float[Tensor, "b f u v"]  # what `model.features` returns
Map = Float[Tensor, "b u v"]  # a class activation map at feature size, raw
Heatmap = Float[Tensor, "b h w"]  # a map at image size, in [0, 1]
BudgetMap = Float[Tensor, "b #c #h #w"]  # the largest change allowed at each pixel, >= 0
Budget = float | BudgetMap  # a float means the same everywhere

Model = Callable[[Images], Logits]
