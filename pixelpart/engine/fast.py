"""The fast path: `train_step` itself, its inner functions compiled, the whole of it captured as one CUDA graph.

A captured graph replays the same kernels on the same addresses, so what changes from step to step is copied into
buffers beforehand, and all that a step changes (weights, momentum, averages, sums) lives at fixed addresses.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pixelpart.attacks.pgd import move, signed_step, total_loss
from pixelpart.engine.plan import Phase
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step
from pixelpart.types import Images, Labels
from pixelpart.view import capture
from pixelpart.view.capture import compiled

Key = tuple[str, float, bool, int]  # what two steps from one graph have in common
# what compiling or capturing may raise
UNFIT = (RuntimeError, torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit)


class Captured:
    """Does what `train_step` does, from one graph for every phase and batch size.

    Batches of `full` images go through compiled code; the short last batch of an epoch is captured as it is. What
    cannot be compiled or captured is said once, and runs plainly from then on.
    """

    def __init__(self, learner: Learner, *, full: int, say: Callable[[str], None] = print) -> None:
        self.learner, self.full, self.say = learner, full, say
        self.ascend: Callable[..., Tensor] = functools.partial(
            signed_step, total_loss=compiled(total_loss), move=compiled(move)
        )
        learner.freeze.compile()
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, StepInputs]] = {}
        self._objectives: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.plain = False

    def __call__(self, learner: Learner, phase: Phase, inputs: StepInputs) -> None:
        assert learner is self.learner
        key = (phase.name, phase.awp, inputs.share is None, len(inputs.labels))
        if key not in self._graphs and not self.plain:
            self._capture_or_say(key, phase, inputs)
        if self.plain:
            return train_step(learner, phase, inputs)
        graph, buffers = self._graphs[key]
        for buffer, value in zip(tensors_in(buffers), tensors_in(inputs), strict=True):
            buffer.copy_(value)
        graph.replay()

    def _capture_or_say(self, key: Key, phase: Phase, inputs: StepInputs) -> None:
        """Adds the graph of a phase and batch size; the learner is as before, and so is what it may draw."""
        state = self.learner.state()
        before = {name: tensor.clone() for name, tensor in state.items()}
        try:
            self._graphs[key] = self._capture(self._compiled(phase) if key[-1] == self.full else phase, inputs)
        except UNFIT as error:
            self._give_up(error)
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(before[name])
        torch.manual_seed(torch.initial_seed())

    def _compiled(self, phase: Phase) -> Phase:
        """The phase with compiled functions; phases that differ in budgets or awp alone share the objective's."""
        made = compile_phase(phase, self.ascend)
        return dataclasses.replace(made, objective=self._objectives.setdefault(phase.objective, made.objective))

    def _capture(self, phase: Phase, inputs: StepInputs) -> tuple[torch.cuda.CUDAGraph, StepInputs]:
        """The graph of one step, and the buffers it reads; what it learns on the way is to be undone."""
        buffers = copy_of(inputs)

        def forget_gradients() -> None:  # those of the graph are to be its own
            self.learner.optimizer.zero_grad(set_to_none=True)

        graph, _ = capture.record(
            lambda: train_step(self.learner, phase, buffers), pool=self._pool, between=forget_gradients
        )
        return graph, buffers

    def measuring(self, measure: Callable[..., Tensor]) -> Callable[[Images, Labels, Images], Tensor]:
        """Does what `probe.measure` does, for full batches from a graph of its own."""
        replayed = capture.Replayed(functools.partial(measure, ascend=self.ascend))

        def run(x: Images, y: Labels, noise: Images) -> Tensor:
            if not self.plain and len(x) == self.full:
                try:
                    return replayed(x, y, noise)
                except UNFIT as error:
                    self._give_up(error)
            return measure(x, y, noise)

        return run

    def _give_up(self, error: Exception) -> None:
        self.plain, self.ascend = True, signed_step
        self.learner.freeze.interpret()
        self.say(f"the step cannot be compiled and captured, so it runs plainly: {reason(error)}")


def reason(error: Exception) -> str:
    """The first line of what went wrong, not of what torch's compiler wraps around it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error
    return next(iter(str(inner).splitlines()), type(inner).__name__)


def compile_phase(phase: Phase, ascend: Callable[..., Tensor]) -> Phase:
    """The phase with its costly functions compiled: the attack's step, the loss with the network in it, the budget."""
    objective, mask = phase.objective, phase.mask

    def loss(*args: Any) -> Tensor:
        return objective(*args)

    if mask is not None:
        budget_of = mask.budget

        def budget(*args: Any) -> Any:
            return budget_of(*args)

        mask = dataclasses.replace(mask, budget=compiled(budget))
    attack = functools.partial(phase.attack, ascend=ascend)
    return dataclasses.replace(phase, attack=attack, objective=compiled(loss), mask=mask)


def tensors_in(inputs: Any) -> Iterator[Tensor]:
    """The tensors of a step's inputs, always in the same order."""
    for field in dataclasses.fields(inputs):
        value = getattr(inputs, field.name)
        if dataclasses.is_dataclass(value):
            yield from tensors_in(value)
        elif value is not None:
            yield value


def copy_of(inputs: Any) -> Any:
    """The same inputs in buffers of their own."""
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    copies = {
        k: copy_of(v) if dataclasses.is_dataclass(v) else None if v is None else v.clone() for k, v in values.items()
    }
    return dataclasses.replace(inputs, **copies)


@contextmanager
def fast_arithmetic() -> Iterator[None]:
    """cuDNN may time its algorithms and keep the best, and fp32 products may be TF32; switched back on leaving."""
    benchmark = torch.backends.cudnn.benchmark
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller has set them by torch's newer switches: they stay
        products = None
    torch.backends.cudnn.benchmark = True
    if products is not None:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        if products is not None:
            torch.set_float32_matmul_precision(products)
