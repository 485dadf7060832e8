"""Weight averaging: a second copy of the model that follows the first slowly, and is what gets evaluated."""

import copy

import torch

from pixelpart.models import Classifier


class Average:
    """average <- decay average + (1 - decay) model, after every step; parameters and batch-norm statistics alike."""

    def __init__(self, model: Classifier, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))
        self._slow, self._live = zip(*[pair for pair in pairs if pair[0].is_floating_point()], strict=True)
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._slow, self._live, 1 - self.decay)
        for slow, live in self._counts:
            slow.copy_(live)
