"""The fast path: `train_step` with its inner functions compiled, captured as one CUDA graph.

A graph replays the same kernels on the same addresses. What changes from step to step is therefore copied into buffers
first, and everything that a step updates (weights, momentum, averages, sums) stays at fixed addresses.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pixelpart.attacks.pgd import move, signed_step, total_loss
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import Phase, StepBatch, train_step
from pixelpart.masks import BudgetPolicy
from pixelpart.types import Images, Labels
from pixelpart.view import capture
from pixelpart.view.capture import compiled

Key = tuple[str, float, bool, int]  # phase, awp, full budgets or scaled, batch size: one graph for each


class CapturedStep:
    """Runs `train_step` from CUDA graphs, one for every phase and batch size.

    Batches of `batch_size` images go through compiled code; the short last batch of an epoch is captured uncompiled.
    A step that cannot be compiled or captured is reported once and runs uncompiled from then on.
    """

    def __init__(self, state: TrainingState, *, batch_size: int, say: Callable[[str], None] = print) -> None:
        self.state, self.batch_size, self.say = state, batch_size, say
        self.ascend: Callable[..., Tensor] = functools.partial(
            signed_step, total_loss=compiled(total_loss), move=compiled(move)
        )
        state.attack_view.compile()
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, StepBatch]] = {}
        self._losses: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.plain = False  # whether compiling or capturing has failed

    def __call__(self, state: TrainingState, phase: Phase, batch: StepBatch) -> None:
        assert state is self.state
        key = (phase.name, phase.awp, batch.budget_scale is None, len(batch.labels))
        if key not in self._graphs and not self.plain:
            self._try_capture(key, phase, batch)
        if self.plain:
            return train_step(state, phase, batch)
        graph, buffers = self._graphs[key]
        for buffer, value in zip(tensors_in(buffers), tensors_in(batch), strict=True):
            buffer.copy_(value)
        graph.replay()

    def _try_capture(self, key: Key, phase: Phase, batch: StepBatch) -> None:
        """Adds the graph of a phase and batch size; training state and torch's generators are left unchanged."""
        tensors = self.state.tensors()
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        try:
            self._graphs[key] = self._capture(self._compiled(phase) if key[-1] == self.batch_size else phase, batch)
        except compile_errors() as error:
            self._run_uncompiled(error)
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])
        torch.manual_seed(torch.initial_seed())

    def _compiled(self, phase: Phase) -> Phase:
        """The phase with compiled functions; phases with equal losses share the compiled loss."""
        made = compile_phase(phase, self.ascend)
        return dataclasses.replace(made, loss=self._losses.setdefault(phase.loss, made.loss))

    def _capture(self, phase: Phase, batch: StepBatch) -> tuple[torch.cuda.CUDAGraph, StepBatch]:
        """The graph of one step and the buffers it reads; the warm-up steps change the training state."""
        buffers = copy_of(batch)

        def drop_gradients() -> None:  # the graph allocates its own
            self.state.optimizer.zero_grad(set_to_none=True)

        graph, _ = capture.record(
            lambda: train_step(self.state, phase, buffers), pool=self._pool, between=drop_gradients
        )
        return graph, buffers

    def captured_probe(self, probe_batch: Callable[..., Tensor]) -> Callable[[Images, Labels, Images], Tensor]:
        """`metrics.probe_batch`, replayed from a graph of its own for full batches."""
        replayed = capture.Replayed(functools.partial(probe_batch, ascend=self.ascend))

        def run(x: Images, y: Labels, noise: Images) -> Tensor:
            if not self.plain and len(x) == self.batch_size:
                try:
                    return replayed(x, y, noise)
                except compile_errors() as error:
                    self._run_uncompiled(error)
            return probe_batch(x, y, noise)

        return run

    def _run_uncompiled(self, error: Exception) -> None:
        self.plain, self.ascend = True, signed_step
        self.state.attack_view.interpret()
        self.say(f"the step cannot be compiled and captured; it runs uncompiled: {reason(error)}")


def compile_errors() -> tuple[type[Exception], ...]:
    """What compiling or capturing may raise; a function, since torch._dynamo takes seconds to import."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return RuntimeError, TorchDynamoException, FailOnRecompileLimitHit


def reason(error: Exception) -> str:
    """The first line of the original error, not of what torch's compiler wraps around it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error
    return next(iter(str(inner).splitlines()), type(inner).__name__)


def compile_phase(phase: Phase, ascend: Callable[..., Tensor]) -> Phase:
    """The phase with its expensive functions compiled: the attack's step, the loss with the network, the budget."""
    loss_function = phase.loss

    def loss(*args: Any) -> Tensor:
        return loss_function(*args)

    attack = phase.attack
    parameters = inspect.signature(attack).parameters.values()
    if any(parameter.name == "ascend" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        attack = functools.partial(attack, ascend=ascend)
    mask = None if phase.mask is None else compile_policy(phase.mask)
    return dataclasses.replace(phase, attack=attack, loss=compiled(loss), mask=mask)


def compile_policy(policy: BudgetPolicy) -> BudgetPolicy:
    """The policy with rule, control and scale compiled; how maps are read depends on the network and is not."""

    def share(*args: Any) -> Any:
        return policy.share(*args)

    def control_and_scale(*args: Any) -> Any:
        return policy.control_and_scale(*args)

    made = copy.copy(policy)
    # shadow the methods of the same name
    vars(made).update(share=compiled(share), control_and_scale=compiled(control_and_scale))
    return made


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, always in the same order."""
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if dataclasses.is_dataclass(value):
            yield from tensors_in(value)
        elif value is not None:
            yield value


def copy_of(batch: Any) -> Any:
    """The batch with all of its tensors cloned."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    copies = {
        k: copy_of(v) if dataclasses.is_dataclass(v) else None if v is None else v.clone() for k, v in values.items()
    }
    return dataclasses.replace(batch, **copies)
