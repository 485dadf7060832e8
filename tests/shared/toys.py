"""A search whose outcomes are given."""

from collections import Counter

import torch
from torch import Tensor

from pixelpart.attacks.batching import Samples, Try, run_tries
from pixelpart.attacks.search import Search


def no_model(x):
    raise AssertionError("the toy calls no model")


class OnCuda(Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True


class Toy(Samples):
    """A search of `steps` steps that finds something for a try at the given steps, and records its calls.

    x_adv is the number of the last step, from 1, that found something, else 0. `real` has those that break the model.
    `found` and `real` map (sample, number) to steps.
    """

    def __init__(self, steps, found=None, real=None, *, cuda=False):
        self.steps, self.found, self.real, self.cuda = steps, found or {}, real or {}, cuda
        self.begun, self.rows, self.took, self.judged, self.settled = [], [], Counter(), [], []

    def begin(self, search, tries):
        tries = [(one.sample, one.number) for one in tries]
        self.begun.append(tries)
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

    def broken_by(self, x_adv, search, tries):
        found = [int(value) for value in x_adv.flatten()]
        tries = [(one.sample, one.number) for one in tries]
        self.judged += zip(tries, found, strict=True)
        return torch.tensor([step in self.real.get(one, ()) for one, step in zip(tries, found, strict=True)])

    def __call__(self, tries, slots, say=lambda line: None, leap=None):
        search = Search(lambda *_: {}, self.advance, steps=self.steps, leap=leap)
        named = [Try("toy", sample, number) for sample, number in tries]
        for one, broken in run_tries(search, no_model, self, named, slots=slots, say=say):
            self.settled.append(((one.sample, one.number), broken))
        return {sample for (sample, _), broken in self.settled if broken}


def tries_of(samples, numbers):
    return [(sample, number) for number in range(numbers) for sample in range(samples)]
