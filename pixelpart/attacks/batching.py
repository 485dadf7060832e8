"""Continuous batching of a search: a try leaves the batch once it is settled, and a waiting one takes its place.

A try is one run of a search on one sample. Rows of the batch may be at different steps. On a GPU the step is a CUDA
graph, one for each of a few batch sizes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks.ball import inside
from pixelpart.attacks.search import Search, State, budget_per_sample, is_correct, keys_of_try, per_row, target_classes
from pixelpart.runtime.precision import cudnn_benchmark
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model
from pixelpart.view import capture

Say = Callable[[str], None]

GRAPH_SIZES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 1)  # batch sizes that get a graph, as fractions of `slots`
GRAPH_COST = 150_000  # row-steps that a smaller graph must save to be worth capturing (an estimate)
CHECKS_PER_TRY = 20  # on a GPU: how often the host waits for the device to see which rows are settled
MAX_LEAP = 16  # steps that a row may leap at once while there are fewer rows than slots
OUTCOME = ("x_adv", "margin", "hit", "step")  # what a finished row keeps while the rest of the batch goes on


class Try(NamedTuple):
    """One run of one search on one sample; number // restarts is the target's rank, number % restarts the restart."""

    search: str
    sample: int
    number: int


@dataclass
class Samples:
    """Images under attack: `begin` starts tries on them; `broken_by` decides, with the full-precision model, whether an
    image is adversarial.

    `take` returns the images and labels of sample numbers. The budget is a float, or a tensor with one row per sample.
    The draws of a try depend only on the seed, the search's name, the sample and the number of the try.
    """

    take: Callable[[Tensor], tuple[Images, Labels]]
    budget: Budget
    clean_logits: Logits
    model: Model
    seed: int
    found: Images | None = None  # receives the adversarial images that were found

    def begin(self, search: Search, tries: Sequence[Try]) -> State:
        """The search's state at its first step; all tries are of this search."""
        rows = torch.tensor([(try_.sample, try_.number) for try_ in tries], device=self.clean_logits.device)
        samples, numbers = rows.unbind(1)
        x, y, budget = self._take(samples)
        target = target_classes(self.clean_logits[samples], y, numbers // search.restarts) if search.targets else y
        keys = draws.keys(self.seed, f"attack/{tries[0].search}", samples, numbers)
        return search.begin(x, y, budget, keys_of_try(keys, numbers, search.restarts), target)

    def broken_by(self, x_adv: Images, search: Search, tries: Sequence[Try]) -> Flags:
        """Where the model errs on x_adv and x_adv is inside the budget."""
        samples = torch.tensor([try_.sample for try_ in tries], device=self.clean_logits.device)
        x, y, budget = self._take(samples)
        errs = ~is_correct(self.model(x_adv), y) & inside(x_adv, x, budget, norm=search.norm)
        if self.found is not None:
            for row in errs.nonzero()[:, 0].tolist():  # one by one: several tries of a sample may have succeeded
                self.found[samples[row]] = x_adv[row]
        return errs

    def _take(self, samples: Tensor) -> tuple[Images, Labels, Tensor]:
        x, y = self.take(samples)
        return x, y, budget_per_sample(self.budget[samples] if isinstance(self.budget, Tensor) else self.budget, x)


def run_tries(
    search: Search, view: Model, samples: Samples, tries: Sequence[Try], *, slots: int, say: Say = lambda line: None
) -> Iterator[tuple[Try, bool]]:
    """Yields each settled try, and whether it broke its sample; the remaining tries of a broken sample are dropped.

    The search goes through `view`. Where it finds an error, and at the end of a try, `samples` decides.
    """
    broken: set[int] = set()
    size = _batch_size(len(tries), slots)
    stepper = Stepper(search, view, slots, say)
    waiting = (try_ for try_ in tries if try_.sample not in broken)
    rows: list[Try] = []
    state: State = {}
    while True:
        new = list(islice(waiting, size - len(rows)))
        if new:
            begun = samples.begin(search, new)
            state = {name: torch.cat((state[name], more)) for name, more in begun.items()} if state else begun
            rows = rows + new
        if not rows:
            return
        state = stepper(state)
        hit, ended = torch.stack((state["hit"], state["step"] >= search.steps)).cpu().tolist()
        checked = [i for i in range(len(rows)) if hit[i] or ended[i]]
        if checked:
            index = torch.tensor(checked, device=state["step"].device)
            verdicts = samples.broken_by(state["x_adv"][index], search, [rows[i] for i in checked]).tolist()
            state["hit"][index] = False
            for i, errs in zip(checked, verdicts, strict=True):
                if errs:
                    broken.add(rows[i].sample)
                if errs or ended[i]:
                    yield rows[i], errs
        live = [i for i, try_ in enumerate(rows) if not ended[i] and try_.sample not in broken]
        rows = [rows[i] for i in live]
        if len(live) < len(state["step"]):
            index = torch.tensor(live, dtype=torch.long, device=state["step"].device)
            state = {name: tensor[index] for name, tensor in state.items()}


class Stepper:
    """Takes a state one step further, or on a GPU a few steps, by replaying a CUDA graph."""

    def __init__(self, search: Search, view: Model, slots: int, say: Say) -> None:
        self.search, self.view, self.slots, self.say = search, view, slots, say
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, State]] = {}  # by batch size, with its buffers
        self._capture_failed = False

    def __call__(self, state: State) -> State:
        if not state["x"].is_cuda:
            return self.search.advance(self.view, state)
        steps = math.ceil(self.search.steps / CHECKS_PER_TRY)
        if not self._capture_failed:
            return self._replay(state, steps)
        for _ in range(steps):
            state = self._advance(state)
        return state

    def _advance(self, state: State) -> State:
        """One step or leap; a row that has finished keeps its outcome until the host next checks."""
        finished = state["step"] >= self.search.steps
        n = self._leap(len(state["step"]))
        if self.search.leap is None or n == 1:
            new = self.search.advance(self.view, state)
        else:
            new = self.search.leap(self.view, state, n)
        for name in OUTCOME:
            new[name] = torch.where(per_row(finished, new[name]), state[name], new[name])
        return new

    def _leap(self, rows: int) -> int:
        """How many steps to take at once, so that a few rows give the network a full batch."""
        return min(MAX_LEAP, self.slots // rows) if self.search.leap else 1

    def _replay(self, state: State, steps: int) -> State:
        n = len(state["step"])
        size = self._graph_size(state)
        leap = self._leap(size)
        if size not in self._graphs:
            buffers = {name: _padded(tensor, size) for name, tensor in state.items()}
            try:
                # timing takes about a second, which pays off for the batch sizes that do most of the work
                with cudnn_benchmark(size * leap >= self.slots / 4):
                    graph, _ = capture.record(lambda: self._advance_in_place(buffers))
            except RuntimeError as error:
                self._capture_failed = True
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                self.say(f"CUDA graph capture of the search failed; it runs without: {reason}")
                return self(state)
            self._graphs[size] = graph, buffers
        graph, buffers = self._graphs[size]
        for name, tensor in state.items():
            buffers[name][:n].copy_(tensor)
        for _ in range(math.ceil(steps / leap)):
            graph.replay()
        return {name: buffer[:n] for name, buffer in buffers.items()}

    def _graph_size(self, state: State) -> int:
        """The batch size to replay; a graph smaller than an existing one is captured only if it saves GRAPH_COST."""
        n = len(state["step"])
        smallest = next(size for share in GRAPH_SIZES if (size := math.ceil(share * self.slots)) >= n)
        existing = min((size for size in self._graphs if size >= n), default=None)
        if existing is None:
            return smallest
        steps_left = self.search.steps - int(state["step"].min())
        return smallest if (existing - smallest) * steps_left > GRAPH_COST else existing

    def _advance_in_place(self, buffers: State) -> None:
        new = {name: tensor for name, tensor in self._advance(buffers).items() if tensor is not buffers[name]}
        pointers = {buffer.data_ptr() for buffer in buffers.values()}
        # a buffer that the search returns under another name is cloned before it is overwritten
        new = {name: tensor.clone() if tensor.data_ptr() in pointers else tensor for name, tensor in new.items()}
        for name, tensor in new.items():
            buffers[name].copy_(tensor)


def _batch_size(tries: int, slots: int) -> int:
    """The smallest batch that needs no more rounds than `slots` rows would: rounds are then as equal as possible."""
    return max(1, math.ceil(tries / max(1, math.ceil(tries / slots))))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """A copy with this many rows, the last row repeated."""
    return torch.cat((tensor, tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])))
