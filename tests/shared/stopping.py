"""Runs that are stopped and resumed."""

import os
import signal

import pytest

from pixelpart.engine import train as train_module
from pixelpart.engine.train import train


def stop_after(monkeypatch, steps):
    """Sends Ctrl-C during this step, counted from 1."""
    original, taken = train_module.train_step, []

    def counted(*args):
        original(*args)
        taken.append(1)
        if len(taken) == steps:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(train_module, "train_step", counted)


def whole_and_parts(config, folder, monkeypatch, *, at, **settings):
    """The same run twice: uninterrupted, and stopped after step `at` and resumed."""
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
