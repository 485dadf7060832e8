"""Continuous batching of a search: a sample leaves the batch once it is settled, and a waiting one takes its place.

A try is one run of a search on one sample. Rows of the batch may be at different steps. On a GPU the step is a CUDA
graph, one for each of a few batch sizes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.ball import inside
from pixelpart.attacks.search import Search, State, is_correct, numbered, targets_of, wide
from pixelpart.draws import keys as keys_of
from pixelpart.types import Flags, Images, Labels, Logits, Model
from pixelpart.view import capture

Say = Callable[[str], None]
BatchOf = Callable[[Tensor], tuple[Images, Labels, Tensor]]  # sample numbers -> images, labels and budgets

SIZES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 1)  # batch sizes with a graph, as fractions of `slots`
JUDGED = ("x_adv", "margin", "hit", "step")
WORTH = 150_000  # row-steps that a smaller graph has to save: by estimate, capturing one takes as long
LOOKS = 20  # times per try at which the host waits for a GPU to see what is settled
AHEAD = 16  # most steps that a row may leap at once, while there are fewer rows than slots


class Try(NamedTuple):
    """One run of one search on one sample; the number counts targets and restarts."""

    search: str
    sample: int
    number: int


@dataclass
class Samples:
    """The samples under attack, by number: how a try starts, and whether an image breaks the model.

    The draws of a try depend only on the seed, the search's name, the sample and the number of the try.
    """

    batch_of: BatchOf
    clean_logits: Logits
    model: Model
    seed: int

    def begin(self, search: Search, tries: Sequence[Try]) -> State:
        """The search's state at its first step; all tries are of this search."""
        rows = torch.tensor([(one.sample, one.number) for one in tries], device=self.clean_logits.device)
        samples, numbers = rows.unbind(1)
        x, y, budget = self.batch_of(samples)
        target = targets_of(self.clean_logits[samples], y, numbers // search.restarts) if search.targets else y
        keys = numbered(keys_of(self.seed, f"attack/{tries[0].search}", samples, numbers), numbers, search.restarts)
        return search.begin(x, y, budget, keys, target)

    def broken_by(self, x_adv: Images, search: Search, tries: Sequence[Try]) -> Flags:
        """Where the model errs on x_adv and x_adv is inside the budget."""
        x, y, budget = self.batch_of(torch.tensor([one.sample for one in tries], device=self.clean_logits.device))
        return ~is_correct(self.model(x_adv), y) & inside(x_adv, x, budget, norm=search.norm)


def run_tries(
    search: Search, view: Model, samples: Samples, tries: Sequence[Try], *, slots: int, say: Say = lambda line: None
) -> Iterator[tuple[Try, bool]]:
    """Yields each settled try, and whether it broke its sample; the remaining tries of a broken sample are dropped.

    The search goes through `view`. Where it finds an error, and at the end of a try, `samples` decides.
    """
    broken: set[int] = set()
    size = _even(len(tries), slots)
    advance = Stepper(search, view, slots, say)
    waiting = (one for one in tries if one.sample not in broken)
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
        state = advance(state)
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
        left = [i for i, one in enumerate(rows) if not ended[i] and one.sample not in broken]
        rows = [rows[i] for i in left]
        if len(left) < len(state["step"]):
            index = torch.tensor(left, dtype=torch.long, device=state["step"].device)
            state = {name: tensor[index] for name, tensor in state.items()}


class Stepper:
    """A few steps of a search at once: on a GPU from a graph, elsewhere one plain step."""

    def __init__(self, search: Search, net: Model, slots: int, say: Say) -> None:
        self.search, self.net, self.slots, self.say = search, net, slots, say
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, State]] = {}
        self._plain = False

    def __call__(self, state: State) -> State:
        if not state["x"].is_cuda:
            return self.search.advance(self.net, state)
        strides = math.ceil(self.search.steps / LOOKS)
        if not self._plain:
            return self._replayed(state, strides)
        for _ in range(strides):
            state = self._once(state)
        return state

    def _once(self, state: State) -> State:
        """One step or leap on, but for what is judged of a row that is at its end: looks are a few steps apart."""
        over = state["step"] >= self.search.steps
        new = self._moved(state)
        for name in JUDGED:
            new[name] = torch.where(wide(over, new[name]), state[name], new[name])
        return new

    def _moved(self, state: State) -> State:
        ahead = self._ahead(len(state["step"]))
        if self.search.leap is None or ahead == 1:
            return self.search.advance(self.net, state)
        return self.search.leap(self.net, state, ahead)

    def _ahead(self, rows: int) -> int:
        """How many steps so many rows may leap at once: the network then has a full batch to work on."""
        return min(AHEAD, self.slots // rows) if self.search.leap else 1

    def _replayed(self, state: State, strides: int) -> State:
        n = len(state["step"])
        size = self._size(state)
        ahead = self._ahead(size)
        if size not in self._graphs:
            buffers = {name: _padded(tensor, size) for name, tensor in state.items()}
            try:
                # timing takes a second or so: it pays for the batches that most of the work is done in
                with timed_algorithms(size * ahead >= self.slots / 4):
                    graph, _ = capture.record(lambda: self._advance(buffers))
            except RuntimeError as error:
                self._plain = True
                first = next(iter(str(error).splitlines()), type(error).__name__)
                self.say(f"the search cannot be captured as a graph, so it runs plainly: {first}")
                return self(state)
            self._graphs[size] = graph, buffers
        graph, buffers = self._graphs[size]
        for name, tensor in state.items():
            buffers[name][:n].copy_(tensor)
        for _ in range(math.ceil(strides / ahead)):
            graph.replay()
        return {name: buffer[:n] for name, buffer in buffers.items()}

    def _size(self, state: State) -> int:
        """The batch size whose graph is to be replayed: a smaller one than there is has to be worth its making."""
        n = len(state["step"])
        least = next(size for share in SIZES if (size := math.ceil(share * self.slots)) >= n)
        there = min((size for size in self._graphs if size >= n), default=None)
        if there is None:
            return least
        left = self.search.steps - int(state["step"].min())
        return least if (there - least) * left > WORTH else there

    def _advance(self, buffers: State) -> None:
        """The buffers one step on, in place."""
        new = {name: tensor for name, tensor in self._once(buffers).items() if tensor is not buffers[name]}
        held = {buffer.data_ptr() for buffer in buffers.values()}
        # what a search hands on by another name is set aside before it is overwritten
        new = {name: tensor.clone() if tensor.data_ptr() in held else tensor for name, tensor in new.items()}
        for name, tensor in new.items():
            buffers[name].copy_(tensor)


@contextmanager
def timed_algorithms(wanted: bool) -> Iterator[None]:
    """Whether cuDNN times its algorithms for a convolution that it has not met, and keeps the best."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _even(tries: int, slots: int) -> int:
    """The least number of rows that needs no more turns than `slots` would: the last turn is then full as well."""
    return max(1, math.ceil(tries / max(1, math.ceil(tries / slots))))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """A copy with so many rows, the last one repeated."""
    return torch.cat((tensor, tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])))
