"""`--workers`: processes that share the images give one result, and one that fails ends them all."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.square import square_search
from pixelpart.evaluation import measure as measure_module
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.store import NOT_STORED
from pixelpart.runtime.world import World

BAD = """
import os, signal, time
import torch
from torch import nn

class Late(nn.Module):
    '''Right about nothing but black images until it has seen so many batches, then something goes wrong.'''
    def __init__(self, rank, fault):
        super().__init__()
        self.linear, self.rank, self.fault, self.seen = nn.Linear(3, 10), rank, fault, 0
    def forward(self, x):
        self.seen += 1
        logits = self.linear(x.mean((2, 3)))
        if os.environ.get("RANK") == str(self.rank) and self.seen > 40:
            if self.fault == "nan":
                return logits * float("nan")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("in the worker")
        if os.environ.get("RANK") != str(self.rank) and self.seen > 40:
            time.sleep(1)
        return logits

def slow():
    open("under way", "w").close()
    return Late(None, "")
def nan(): return Late(1, "nan")
def kill(): return Late(1, "kill")
def fault(): return Late(1, "fault")
"""


def evaluated(folder, *args):
    command = [sys.executable, "-m", "pixelpart", "evaluate", *args, "--data", "shapes", "--device", "cpu"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), str(folder)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--workers", "2"], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "notice", "said"),
    [
        (["nowhere:model"], [], "pixelpart: no module 'nowhere', neither in this folder nor among the installed ones"),
        (["bad:nan", "--attacks", "pgd200"], [NOT_STORED], "pixelpart: the model returned NaN or infinite logits for "),
    ],
)
def test_a_user_error_in_a_worker_is_one_line_and_exit_code_2(tmp_path, args, notice, said):
    (tmp_path / "bad.py").write_text(BAD)
    done = evaluated(tmp_path, *args, "--images", "64")
    *before, error = done.stderr.splitlines()
    assert (done.returncode, before, done.stdout) == (2, notice, "")
    assert error.startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "said"), [("kill", "worker 1 was ended by SIGKILL"), ("fault", "in the worker")])
def test_a_worker_that_dies_ends_the_others(tmp_path, fault, said):
    (tmp_path / "bad.py").write_text(BAD)
    done = evaluated(tmp_path, f"bad:{fault}", "--attacks", "pgd200", "--images", "64")
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_without_a_traceback(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    command = ["-m", "pixelpart", "evaluate", "bad:slow", "--data", "shapes", "--attacks", "pgd9999", "--device", "cpu"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), str(tmp_path)]), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *command, "--workers", "2"], cwd=tmp_path, env=env, **pipes)
    while not (tmp_path / "under way").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, ("", f"{NOT_STORED}\n"))


class Shared:
    """Adds up the tensors of threads as all_reduce does."""

    def __init__(self, size):
        self.barrier, self.tensors = threading.Barrier(size, timeout=20), {}

    def total(self, world, tensor):
        self.tensors[world.rank] = tensor
        self.barrier.wait()
        summed = torch.stack(list(self.tensors.values())).sum(0)
        self.barrier.wait()
        return summed


@pytest.fixture
def threaded(monkeypatch):
    """Threads instead of processes: without torch.fx, which patches modules of all threads while it traces one."""
    monkeypatch.setattr(measure_module, "trusted_view", lambda model, *_: (model, None))


def at_once(work, ranks):
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("threaded")
def test_a_result_that_only_one_process_finds_is_measured_by_all(plane, pair, monkeypatch, tmp_path):
    """Another evaluation may write between the two; if only one then went to work, it would wait for ever."""
    settings = {"data": pair, "attacks": "natural,pgd3", "eps": 0.03, "step_size": 0.01}
    alone = evaluate(plane, **settings, out=tmp_path / "1", name="plane")
    shared, found = Shared(2), {}
    monkeypatch.setattr(World, "total", lambda world, tensor: shared.total(world, tensor))

    def work(rank):
        kept = {"out": tmp_path / str(rank), "name": "plane"}
        found[rank] = evaluate(copy.deepcopy(plane), **settings, **kept, world=World(rank, 2))

    at_once(work, 2)
    for rank in range(2):
        assert not any(found[rank][name].reused for name in found[rank])
        assert found[rank].flags["pgd3"].tolist() == alone.flags["pgd3"].tolist()


@pytest.mark.usefixtures("threaded")
def test_squares_warning_counts_the_images_of_all_processes(plane, pair, monkeypatch):
    """It may break few in each share, and many in all; the leader's own share says nothing."""

    class Stairs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.plane = copy.deepcopy(plane)  # each thread has its own, to freeze

        def forward(self, x):
            return self.plane((x * 64).round() / 64 + 0 * x)

    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": apgd_search(steps=3), "square": square_search(40)})
    settings = {"data": pair, "attacks": "autoattack", "eps": 0.03}
    alone = evaluate(Stairs(), **settings)["autoattack"]
    assert any("Square" in warning for warning in alone.warnings)
    shared, found, shares = Shared(3), {}, []
    monkeypatch.setattr(World, "total", lambda world, tensor: shared.total(world, tensor))

    def work(rank):
        told = lambda name, done, total, note: shares.append(float(note.split("%")[0]))  # noqa: E731
        found[rank] = evaluate(Stairs(), **settings, world=World(rank, 3), progress=told)["autoattack"]

    at_once(work, 3)
    assert [found[rank].warnings for rank in range(3)] == [alone.warnings] * 3
    assert [found[rank].right.tolist() for rank in range(3)] == [alone.right.tolist()] * 3
    assert 0 <= min(shares) <= max(shares) <= 100
