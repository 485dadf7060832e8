"""What a run changes as it learns: weights, momentum, averaged weights, and the sums behind a row of metrics."""

from collections.abc import Callable

import torch
from torch import Tensor

from pixelpart.config import Config
from pixelpart.engine.averaging import Average
from pixelpart.frozen import PRECISIONS, Folding, Working
from pixelpart.models import Classifier
from pixelpart.types import Budget


class Tally:
    """Sums over an epoch's images, kept on the device and read once in a while."""

    FIELDS = ("images", "loss", "budget", "high", "dead", "broken_steps")

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(self.FIELDS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, budget: Budget, dead: Tensor, *, n: int, middle: float) -> None:
        level = budget if isinstance(budget, Tensor) else loss.new_full((), budget)
        values = (
            torch.ones_like(loss),
            loss,
            level.mean(),
            (level >= middle).float().mean(),
            dead / n,
            (~loss.isfinite()).float() / n,
        )
        self.sums += n * torch.stack([value.detach().double() for value in values])

    def read(self) -> dict[str, float]:
        """The sums as numbers; waits for the device."""
        return dict(zip(self.FIELDS, self.sums.tolist(), strict=True))


class Learner:
    """`model` holds the weights, `network` computes with them in train mode, `freeze()` shows them to the attack."""

    def __init__(self, model: Classifier, config: Config, device: torch.device) -> None:
        self.model = model.to(device).train()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        dtype = PRECISIONS[config.precision]
        self.freeze = Folding(self.model, dtype=dtype, fuse=dtype is not None and device.type == "cuda")
        self.narrow = dtype is not None and self.freeze.folded
        self.network: Callable[[Tensor], Tensor] = (
            Working(self.model, dtype=dtype) if dtype and self.narrow else self.model
        )
        self.average = Average(self.model, config.ema) if config.ema else None
        self.tally = Tally(device)
        self.lr = torch.zeros((), device=device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=self.lr,
            momentum=config.optim.momentum,
            weight_decay=config.optim.weight_decay,
            fused=True,
        )
        # All state exists from the start, at addresses that never change: a checkpoint is copied into it.
        for parameter in self.model.parameters():
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    @property
    def judged(self) -> Classifier:
        """The weights that are evaluated: the average where there is one."""
        return self.model if self.average is None else self.average.model

    def weights(self) -> dict[str, Tensor]:
        """What a checkpoint needs for evaluation."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            named |= {f"average.{name}": tensor for name, tensor in self.average.model.state_dict().items()}
        return named

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, as live tensors."""
        momentum = {
            f"momentum.{name}": self.optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
        }
        return self.weights() | momentum | {"tally": self.tally.sums}
