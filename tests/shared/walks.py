"""A search step by step, images by sample number, and the radii that Auto-PGD is tested with in l2 and l1."""

import torch

from pixelpart.attacks.search import budget_per_sample, target_classes

NORMS = ["l2", "l1"]
RADII = {"l2": 0.1, "l1": 0.4}


class Watched:
    """A model that records the images it is called with."""

    def __init__(self, net):
        self.net, self.seen = net.eval().requires_grad_(False), []

    def __call__(self, x):
        self.seen.append(x.detach().clone())
        return self.net(x)


def by_number(x, y):
    """`take` of images in memory."""
    return lambda index: (x[index], y[index])


def begun(search, net, x, y, budget, keys=None):
    """The state of a search before its first step; the target is the most likely wrong class."""
    keys = torch.arange(len(x)) if keys is None else keys
    return search.begin(x, y, budget_per_sample(budget, x), keys, target_classes(net.eval()(x).detach(), y, 0))


@torch.no_grad()
def advanced(search, net, state, steps=None):
    """The state after the search's steps."""
    for _ in range(search.steps if steps is None else steps):
        state = search.advance(net, state)
    return state
