"""Runs a search over many samples: a batch that is always full, out of which a sample goes as soon as it is settled.

A try is one run of the search at one sample: (sample number, number of the try). Tries wait in line; as rows of the
batch become free, the next ones take their places, whatever step the other rows are at. On a GPU the step is a graph,
one for each of a few batch sizes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from pixelpart.attacks.search import Search, State, wide
from pixelpart.types import Flags, Images, Model
from pixelpart.view import capture

Try = tuple[int, int]  # sample, number of the try
Rows = Callable[[list[Try]], State]  # what `search.begin` makes of these tries
Confirm = Callable[[list[Try], Images], Flags]  # whether the model itself errs on these images, inside the ball
Settle = Callable[[Try, bool], None]  # a try that is over, and whether it broke its sample

SIZES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 1)  # batches for which there are graphs, in shares of `slots`
JUDGED = ("x_adv", "margin", "hit", "step")
WORTH = 150_000  # steps of a row that a smaller graph has to save: by estimate, making one takes as long
LOOKS = 20  # in a try on a GPU, at which the host waits for the device to see what is settled
AHEAD = 16  # steps that a row may leap at once, while there are fewer rows than slots


@dataclass(frozen=True)
class Sweep:
    """`Sweep(search, net, ...)(tries, settle)`: every try until its sample is broken; returns the broken samples.

    What the searched model takes for an error counts if `confirm` does. So does the best image of a try that has come
    to its end.
    """

    search: Search
    net: Model
    begin: Rows
    confirm: Confirm
    slots: int
    say: Callable[[str], None] = lambda line: None

    @torch.no_grad()
    def __call__(self, tries: Sequence[Try], settle: Settle = lambda one, broken: None) -> set[int]:
        broken: set[int] = set()
        slots = _even(len(tries), self.slots)
        step = Step(self.search, self.net, self.slots, self.say)
        waiting = _unbroken(tries, broken)
        rows: list[Try] = []
        state: State | None = None
        while True:
            new = list(islice(waiting, slots - len(rows)))
            if new:
                state = _joined(state, self.begin(new))
                rows = rows + new
            if state is None or not rows:
                return broken
            state = step(state)
            left = self._look(rows, state, broken, settle)
            rows = [rows[i] for i in left]
            if len(left) < len(state["step"]):
                index = torch.tensor(left, dtype=torch.long, device=state["step"].device)
                state = {name: tensor[index] for name, tensor in state.items()}

    def _look(self, rows: list[Try], state: State, broken: set[int], settle: Settle) -> list[int]:
        """The rows that go on, after those that seem broken or are at their end have been judged."""
        over = state["step"] >= self.search.steps
        hit, over_too = torch.stack((state["hit"], over)).cpu().tolist()
        asked = [i for i in range(len(rows)) if hit[i] or over_too[i]]
        if asked:
            index = torch.tensor(asked, device=over.device)
            verdicts = self.confirm([rows[i] for i in asked], state["x_adv"][index]).tolist()
            state["hit"][index] = False
            for i, wrong in zip(asked, verdicts, strict=True):
                if wrong:
                    broken.add(rows[i][0])
                if wrong or over_too[i]:
                    settle(rows[i], wrong)
        return [i for i, (sample, _) in enumerate(rows) if not over_too[i] and sample not in broken]


class Step:
    """A few steps of a search at once: on a GPU from a graph, elsewhere one plain step."""

    def __init__(self, search: Search, net: Model, slots: int, say: Callable[[str], None]) -> None:
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


def _unbroken(tries: Sequence[Try], broken: set[int]) -> Iterator[Try]:
    """The tries in their order; one whose sample is broken by the time its turn comes is passed over."""
    return (one for one in tries if one[0] not in broken)


def _even(tries: int, slots: int) -> int:
    """The least number of rows that needs no more turns than `slots` would: the last turn is then full as well."""
    return max(1, math.ceil(tries / max(1, math.ceil(tries / slots))))


def _joined(state: State | None, more: State) -> State:
    return more if state is None else {name: torch.cat((tensor, more[name])) for name, tensor in state.items()}


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """A copy with so many rows, the last one repeated."""
    return torch.cat((tensor, tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])))
