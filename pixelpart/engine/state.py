"""What training changes: weights, optimiser state, averaged weights, and the sums behind a row of metrics."""

import copy
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from pixelpart.config import Config
from pixelpart.data import of_config
from pixelpart.engine.awp import perturbed
from pixelpart.engine.optimizers import OPTIMIZERS, state_of
from pixelpart.engine.views import Shape, choose_layout, make_views
from pixelpart.errors import UserError
from pixelpart.models import Classifier
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.runtime.world import SINGLE_PROCESS, World
from pixelpart.types import Budget, Images, Share
from pixelpart.view.borrow import FrozenView
from pixelpart.view.views import Folding


class TrainingState:
    """The model and everything that a step updates.

    `model` holds the weights, `network` computes with them in train mode, `attack_view()` is the model as the attack
    sees it. All tensors stay at the same addresses, as a captured step requires.
    """

    def __init__(
        self,
        model: Classifier,
        config: Config,
        device: torch.device,
        world: World = SINGLE_PROCESS,
        *,
        shape: Shape | None = None,
    ) -> None:
        """`shape` of an image (default: that of the data set)."""
        self.world = world
        self.model = model.to(device).train()
        shape = shape or of_config(config).shape
        self.layout = choose_layout(self.model, shape=shape, device=device)
        dtype = PRECISIONS[config.precision]
        self.attack_view: Folding  # returns a FrozenView (features, head) of the current weights, in eval mode
        self.attack_view, training_view = make_views(dtype, self.model, shape=shape, device=device, layout=self.layout)
        self.low_precision = training_view is not None
        self.network: Callable[[Tensor], Tensor] = training_view or self.model
        self.average = WeightAverage(self.model, config.ema) if config.ema else None
        self.tally = Tally(device)
        self.lr = torch.zeros((), device=device)
        self.optimizer = OPTIMIZERS[config.optim.name](self.model, self.lr, config.optim)
        self.clip = config.optim.clip

    def descend(self, loss_function: Callable[[], Tensor], *, n: int, awp: float = 0.0) -> Tensor:
        """Takes one optimiser step on the gradient at weights perturbed by `awp` (0: not), and returns the loss.

        The loss is a mean over n images. Gradients are averaged over the images of all processes, so that all keep
        equal weights. Batch norm normalises by a process's own slice; its running statistics are averaged.
        """
        self.optimizer.zero_grad()
        all_mean = functools.partial(means, n=n, world=self.world)
        with perturbed(self.model, loss_function, gamma=awp, all_mean=all_mean) if awp else nullcontext():
            loss = loss_function()
            loss.backward()
        average_in_place([weight.grad for weight in self.model.parameters() if weight.grad is not None], n, self.world)
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        average_in_place([buffer for buffer in self.model.buffers() if buffer.is_floating_point()], n, self.world)
        if self.average is not None:
            self.average.update()
        return loss

    def evaluated_view(self) -> FrozenView:
        """A view of the model that is evaluated: with averaged weights if there are any."""
        return self.attack_view(self.model if self.average is None else self.average.model)

    def weights(self) -> dict[str, Tensor]:
        """What a checkpoint needs for evaluation."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            named |= {f"average.{name}": tensor for name, tensor in self.average.model.state_dict().items()}
        return named

    def tensors(self) -> dict[str, Tensor]:
        """What the next step depends on, except stored maps, by its name in a checkpoint; not copied."""
        return self.weights() | state_of(self.optimizer, self.model) | {"tally": self.tally.sums}


def check_last_batch(state: TrainingState, config: Config, x: Images, *, n: int) -> None:
    """Raises a UserError if an epoch of n images ends in a batch of one and the model cannot be trained on it.

    A network with batch norm after global pooling cannot. `x`: images of the training shape.
    """
    size = config.batch_size
    if (n % size or size) // state.world.size > 1:
        return
    with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []), torch.no_grad():
        try:
            copy.deepcopy(state.model).train()(x[:1])
        except ValueError:
            raise UserError(
                f"batch_size {size} leaves a last batch of one of {n} images, on which {config.model} cannot be "
                "trained (batch norm over a single value); choose another batch_size"
            ) from None


def means(tensors: Sequence[Tensor], n: int, world: World) -> Sequence[Tensor]:
    """Each tensor's mean over the processes, weighted by their numbers of images, n in this process."""
    if world.size == 1 or not tensors:
        return tensors
    parts = [n * tensor.flatten() for tensor in tensors]
    *sums, images = world.total(torch.cat([*parts, parts[0].new_tensor([n])])).split([*map(len, parts), 1])
    return [(part / images).view_as(tensor) for part, tensor in zip(sums, tensors, strict=True)]


@torch.no_grad()
def average_in_place(tensors: list[Tensor], n: int, world: World) -> None:
    """Replaces each tensor by its mean over the processes."""
    if world.size > 1 and tensors:
        torch._foreach_copy_(tensors, list(means(tensors, n, world)))


class WeightAverage:
    """average <- d average + (1 - d) model after every step; parameters and batch-norm statistics alike.

    After t steps of the run d = min(decay, age / (1 + age)) with age = min(t / 10, (t / 64)^2), the number of steps by
    which the average lags: at most a tenth of the steps so far, and almost none at first, where weights change fast.
    In a long run d becomes `decay`.
    """

    def __init__(self, model: Classifier, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self._fused: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        self._strided: list[tuple[Tensor, Tensor]] = []  # not dense in memory, as a buffer that is a slice
        self._counters: list[tuple[Tensor, Tensor]] = []
        pairs = zip(self.model.state_dict().values(), model.state_dict().values(), strict=True)
        for averaged, live in {pair[0].data_ptr(): pair for pair in pairs}.values():  # a shared tensor only once
            if not averaged.is_floating_point():
                self._counters.append((averaged, live))
            elif averaged.stride() == live.stride() == torch.empty_like(live).stride():
                self._fused.setdefault(averaged.dtype, []).append((averaged, live))
            else:
                self._strided.append((averaged, live))
        self._rate = torch.tensor(decay - 1, device=next(model.parameters()).device)  # d - 1

    def set_step(self, taken: int) -> None:
        """Sets d for the update after `taken` steps of the run, in a tensor that a captured step reads."""
        age = min(taken / 10, (taken / 64) ** 2)
        self._rate.fill_(min(self.decay, age / (1 + age)) - 1)

    @torch.no_grad()
    def update(self) -> None:
        """One pass over memory: w <- w - lr (g + weight_decay w) with lr = d - 1, g = model, weight_decay = -1.

        torch._foreach_lerp_ with a tensor as weight would be one kernel for every tensor of the model.
        """
        for pairs in self._fused.values():
            averages, weights = zip(*pairs, strict=True)
            torch._fused_sgd_(
                averages, weights, [], lr=self._rate, weight_decay=-1.0, momentum=0.0, dampening=0.0, nesterov=False,
                maximize=False, is_first_step=False,
            )  # fmt: skip
        for averaged, live in self._strided:
            averaged.lerp_(live, -self._rate.to(averaged.dtype))
        for averaged, live in self._counters:
            averaged.copy_(live)


class Tally:
    """Sums over an epoch's images, kept on the device and read rarely."""

    FIELDS = ("images", "loss", "budget", "high", "dead", "broken_steps")

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(self.FIELDS), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, budget: Budget, share: Share, dead: Tensor, *, n: int) -> None:
        """Adds a step on n images: its mean loss, its budgets, their shares and its number of dead maps."""
        level = budget if isinstance(budget, Tensor) else loss.new_full((), budget)
        values = (
            torch.ones_like(loss),
            loss,
            level.mean(),
            (share >= 0.5).float().mean(),
            dead / n,
            (~loss.isfinite()).float() / n,
        )
        self.sums += n * torch.stack([value.detach().double() for value in values])

    def read(self, world: World = SINGLE_PROCESS) -> dict[str, float]:
        """The sums over all processes, as numbers; waits for the device."""
        return dict(zip(self.FIELDS, world.total(self.sums).tolist(), strict=True))

    def gather(self, world: World) -> None:
        """Moves the sums of all processes into the first and zeroes the others, as after loading a checkpoint."""
        total = world.total(self.sums)
        self.sums.copy_(total if world.leads else torch.zeros_like(total))
