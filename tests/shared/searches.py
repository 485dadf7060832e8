"""AutoAttack with few steps: how it is called and stopped, and a model for which its outcome is known."""

import itertools

import torch

from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.square import square_search

EPS = 0.02
CPU = torch.device("cpu")


def short():
    return {
        "apgd-ce": apgd_search(steps=3),
        "apgd-t": apgd_search(steps=3, targets=9),
        "fab-t": fab_search(steps=4),
        "square": square_search(10),
    }


def stop_after(count):
    """A progress callback that raises KeyboardInterrupt at its call number `count`."""
    calls = itertools.count(1)

    def progress(*_):
        if next(calls) == count:
            raise KeyboardInterrupt

    return progress


def partial_files(folder):
    return sorted(folder.glob("eval/*.partial"))


def evaluated(run, *more, attacks="autoattack"):
    return ["evaluate", str(run.dir), "--attacks", attacks, "--images", "40", "--device", "cpu", "--json", *more]


def plane_truth(plane, x, y, eps):
    """Which samples remain correct; pixels are far enough from 0 and 1 that only the ball binds."""
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    return (score > eps * plane.linear.weight.abs().sum()).numpy()
