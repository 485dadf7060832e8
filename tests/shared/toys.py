"""A search whose outcomes are written down beforehand."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pixelpart.attacks.batching import Sweep
from pixelpart.attacks.search import Search


def nobody(x):
    raise AssertionError("the toy asks no model")


class OnCuda(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@dataclass
class Toy:
    """A search of `steps` steps that finds something for a try at the steps written down, and notes what it is asked.

    x_adv is the number of the step, from 1, that found it last, 0 before. `real` has those that break the model.
    """

    steps: int
    found: dict = field(default_factory=dict)  # try -> steps, from 1
    real: dict = field(default_factory=dict)
    cuda: bool = False

    def __post_init__(self):
        self.begun, self.rows, self.took, self.judged, self.settled = [], [], Counter(), [], []

    def begin(self, tries):
        self.begun.append(list(tries))
        samples, numbers = torch.tensor(tries).unbind(1)
        x = torch.zeros(len(tries), 1, 1, 1)
        finds = torch.zeros(len(tries), self.steps + 50, dtype=torch.bool)
        for row, one in enumerate(tries):
            finds[row, list(self.found.get(one, ()))] = True
        return {
            "x": x.as_subclass(OnCuda) if self.cuda else x,
            "sample": samples,
            "number": numbers,
            "finds": finds,
            "step": torch.zeros_like(samples),
            "x_adv": x.clone(),
            "margin": torch.zeros(len(tries)),
            "hit": torch.zeros(len(tries), dtype=torch.bool),
        }

    def advance(self, net, state):
        tries = list(zip(state["sample"].tolist(), state["number"].tolist(), strict=True))
        self.rows.append(tries)
        self.took.update(tries)
        step = state["step"] + 1
        now = state["finds"].gather(1, step[:, None]).squeeze(1)
        x_adv = torch.where(now[:, None, None, None], step[:, None, None, None].float(), state["x_adv"])
        return state | {"step": step, "x_adv": x_adv, "hit": state["hit"] | now}

    def confirm(self, tries, x_adv):
        shown = [int(value) for value in x_adv.flatten()]
        self.judged += zip(tries, shown, strict=True)
        return torch.tensor([step in self.real.get(one, ()) for one, step in zip(tries, shown, strict=True)])

    def __call__(self, tries, slots, say=lambda line: None):
        search = Search(lambda *_: {}, self.advance, steps=self.steps)
        run = Sweep(search, nobody, self.begin, self.confirm, slots, say)
        return run(tries, lambda one, broken: self.settled.append((one, broken)))


def tries_of(samples, numbers):
    return [(sample, number) for number in range(numbers) for sample in range(samples)]
