"""Runs that are stopped in the middle and go on."""

import os
import signal

import pytest

from pixelpart.engine import train as train_module
from pixelpart.engine.train import train


def stop_after(monkeypatch, steps):
    """Ctrl-C during the so many-th step of this process."""
    original, taken = train_module.train_step, []

    def counted(*args):
        original(*args)
        taken.append(1)
        if len(taken) == steps:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(train_module, "train_step", counted)


def whole_and_parts(config, folder, monkeypatch, *, at, **settings):
    """The same run twice: in one go, and stopped after the at-th step and gone on with."""
    whole = train(config, folder / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_after(patch, at)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder / "parts", **settings)
    return whole, train(config, folder / "parts", **settings)


def files_of(run):
    return {name: run.folder.checkpoint(name).read_bytes() for name in ("last", "best")}


def rows_without_clock(run):
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in run.metrics]
