"""What a run changes as it learns: weights, optimiser, averaged weights, and the sums behind a row of metrics."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pixelpart.config import Config
from pixelpart.data import of_config
from pixelpart.engine.averaging import Average
from pixelpart.engine.awp import perturbed
from pixelpart.engine.distributed import average_gradients, average_statistics, means
from pixelpart.engine.optimizers import OPTIMIZERS, state_of
from pixelpart.engine.views import lay_out, views_in
from pixelpart.models import Classifier
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.runtime.world import World
from pixelpart.types import Budget

ALONE = World()


class Tally:
    """Sums over an epoch's images, kept on the device and read once in a while."""

    FIELDS = ("images", "loss", "budget", "high", "dead", "broken_steps")

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(self.FIELDS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, budget: Budget, dead: Tensor, *, n: int, middle: Budget) -> None:
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

    def read(self, world: World = ALONE) -> dict[str, float]:
        """The sums over all processes, as numbers; waits for the device."""
        return dict(zip(self.FIELDS, world.total(self.sums).tolist(), strict=True))

    def gather(self, world: World) -> None:
        """The process that leads takes the sums of all, the others begin anew: as it is after a checkpoint is read."""
        total = world.total(self.sums)
        self.sums.copy_(total if world.leads else torch.zeros_like(total))


class Learner:
    """`model` holds the weights, `network` computes with them in train mode, `freeze()` shows them to the attack."""

    def __init__(
        self,
        model: Classifier,
        config: Config,
        device: torch.device,
        world: World = ALONE,
        *,
        size: int | None = None,
    ) -> None:
        """`size` of the images, if it is not that of the data set."""
        self.world = world
        self.model = model.to(device).train()
        size = size or of_config(config).size
        self.layout = lay_out(self.model, size=size, device=device)
        dtype = PRECISIONS[config.precision]
        self.freeze, working = views_in(dtype, self.model, size=size, device=device, layout=self.layout)
        self.narrow = working is not None
        self.network: Callable[[Tensor], Tensor] = working or self.model
        self.average = Average(self.model, config.ema) if config.ema else None
        self.tally = Tally(device)
        self.lr = torch.zeros((), device=device)
        self.optimizer = OPTIMIZERS[config.optim.name](self.model, self.lr, config.optim)
        self.clip = config.optim.clip

    def descend(self, objective: Callable[[], Tensor], *, n: int, awp: float = 0.0) -> Tensor:
        """One step of the optimiser down the objective's gradient, taken at weights perturbed by `awp`; the loss.

        The objective is a mean over n images; where other processes have images too, the step is that of all of them.
        """
        self.optimizer.zero_grad()
        with perturbed(self.model, objective, gamma=awp, agree=lambda grads: means(grads, n, self.world)):
            loss = objective()
            loss.backward()
        average_gradients(self.model, n, self.world)
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        average_statistics(self.model, n, self.world)
        if self.average is not None:
            self.average.update()
        return loss

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
        return self.weights() | state_of(self.optimizer, self.model) | {"tally": self.tally.sums}
