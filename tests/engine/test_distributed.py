"""Processes that share a run: threads that sum as all_reduce does, and torchrun's processes in the slow test."""

import copy
import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest
import torch

from pixelpart import draws, masks, recipes
from pixelpart.data import augment
from pixelpart.data.loader import Loader
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import step_batch, train_step
from pixelpart.engine.stored_maps import renew_maps
from pixelpart.runtime.world import World

CPU = torch.device("cpu")


class Together:
    """Sums over the threads."""

    def __init__(self, size):
        self.barrier, self.parts = threading.Barrier(size, timeout=60), {}

    def total(self, rank, tensor):
        self.parts[rank] = tensor
        self.barrier.wait()
        total = sum(self.parts[other] for other in sorted(self.parts))
        self.barrier.wait()
        return total


@dataclass(frozen=True)
class Threaded(World):
    together: Together = field(default=None, compare=False)

    def total(self, tensor):
        return self.together.total(self.rank, tensor)


def in_threads(size, work, prepare=lambda world: world):
    """work(prepare(world)) of every rank, in parallel; preparing, which traces networks, is done one by one."""
    together, results = Together(size), [None] * size
    ready = [prepare(Threaded(rank, size, together)) for rank in range(size)]

    def one(rank):
        try:
            results[rank] = work(ready[rank])
        except BaseException:
            together.barrier.abort()
            raise

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def plan_of(method, **settings):
    small = {"burn_in": {"epochs": 0}, "batch_size": 8, "attack": {"steps": 2}, "normalize": False}
    return build_plan(recipes.shapes_vit(method, **(small | settings)))


def loader_of(n, plan, world):
    g = draws.generator(0, "test")
    images = torch.randint(256, (n, 3, 32, 32), generator=g, dtype=torch.uint8)
    return Loader(images, torch.arange(n) % 10, batch_size=plan.config.batch_size, seed=0, world=world)


def state_for(plan, world, dtype=torch.float64):
    state = TrainingState(copy.deepcopy(plan.model).to(dtype), plan.config, CPU, world)
    state.lr.fill_(0.001)
    state.attack_view()
    return state


def epoch_of(state, plan, *, n):
    """The state after one epoch on n images, in float64."""
    loader = loader_of(n, plan, state.world)
    for step in range(loader.steps):
        batch = step_batch(plan.config, plan.phase(0), loader, epoch=0, step=step)
        wide = dataclasses.replace(batch, images=batch.images.double(), start_noise=batch.start_noise.double())
        train_step(state, plan.phase(0), wide)
    return state


AWP = {"awp": {"gamma": 0.01}, "ema": 0.9}


@pytest.mark.parametrize(
    ("method", "settings", "size", "n"),
    [("part", {}, 2, 16), ("trades", AWP, 3, 17), ("part-m", {"augment": "crop-flip"}, 3, 17)],
)
def test_several_processes_train_the_weights_of_a_single_process(method, settings, size, n):
    """Without batch norm. Three slices of 8 are unequal, and all processes get a copy of a last batch of one image."""
    plan = plan_of(method, **settings)
    alone = epoch_of(state_for(plan, World()), plan, n=n)
    for state in in_threads(size, lambda own: epoch_of(own, plan, n=n), lambda world: state_for(plan, world)):
        for (name, mine), theirs in zip(state.weights().items(), alone.weights().values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9, msg=name)
        assert state.tally.sums.isfinite().all()


def test_with_batch_norm_all_processes_have_equal_weights_and_statistics():
    plan = plan_of("part", model="tiny-cnn", mask={"source": "gradcam"}, ema=0.9)
    first, second = in_threads(2, lambda own: epoch_of(own, plan, n=24), lambda world: state_for(plan, world))
    before = plan.model.state_dict()
    for (name, mine), theirs in zip(first.weights().items(), second.weights().values(), strict=True):
        assert torch.equal(mine, theirs), name
        if name.startswith("model.") and "running_mean" in name:
            assert not torch.equal(mine, before[name.removeprefix("model.")].double()), name


def test_sums_are_over_all_processes_and_are_gathered_by_the_first():
    def work(state):
        world = state.world
        state.tally.sums.fill_(1.0 + world.rank)
        read = state.tally.read(world)["images"]
        state.tally.gather(world)
        return read, state.tally.sums[0].item(), state.tally.read(world)["images"]

    plan = plan_of("at")
    assert in_threads(3, work, lambda world: state_for(plan, world)) == [(6, 6, 6), (6, 0, 6), (6, 0, 6)]


def test_stored_maps_equal_those_of_a_single_process():
    plan = plan_of("part", model="tiny-cnn", mask={"source": "gradcam", "every": 1})

    def prepare(world):
        return state_for(plan, world, torch.float32)

    def maps(state):
        made = torch.zeros(11, 8, 8)
        renew_maps(made, state, plan.main.mask, loader_of(11, plan, state.world), chunk=3)
        return made

    alone = maps(prepare(World()))
    assert alone.flatten(1).any(1).all()
    for mine in in_threads(3, maps, prepare):
        torch.testing.assert_close(mine, alone)


def test_the_source_and_the_control_have_the_first_and_the_second_noise_of_each_image():
    """As in `masks.apply_policy`; each process has those of its own images."""
    plan = plan_of("part", mask={"source": "blobs", "control": "blobs"})
    drawn = masks.draw_blobs(8, generator=draws.generator(plan.config.seed, "blobs", 3, 0))
    for rank, rows in enumerate((slice(0, 4), slice(4, 8))):
        loader = loader_of(13, plan, World(rank, 2))
        batch = step_batch(plan.config, plan.main, loader, epoch=3, step=0)
        assert torch.equal(torch.stack([batch.source_noise, batch.control_noise], 1), drawn[rows])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", augment.AUGMENTS)
def test_the_batches_of_several_processes_make_up_that_of_one(kind, size):
    """CutMix too, although slices of 8 images in 3 processes would start at odd rows if they were equal."""
    plan = plan_of("part", augment=kind)

    def batches(world):
        loader = loader_of(13, plan, world)
        for step in range(loader.steps):
            batch = step_batch(plan.config, plan.main, loader, epoch=3, step=step)
            targets = augment.mix_labels(batch.augmentation, torch.eye(10)[batch.labels], (32, 32))
            yield augment.apply_to_images(batch.augmentation, batch.images), targets, batch.start_noise

    for alone, *shares in zip(batches(World()), *(batches(World(rank, size)) for rank in range(size)), strict=True):
        for whole, *parts in zip(alone, *shares, strict=True):
            assert torch.equal(whole, torch.cat(parts))


COMMAND = [
    "--burn-in.epochs", "1", "--epochs", "2", "--holdout", "64", "--probe", "64", "--batch-size", "512",
    "--attack.steps", "2", "--mask.every", "1", "--quiet",
]  # fmt: skip


def torchrun(folder, name, processes=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [*command, "-m", "pixelpart", "train", "shapes-part", "--out", name, *COMMAND],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [2, 1])
def test_a_run_of_two_processes_resumes_to_the_same_metrics(processes, tmp_path):
    """With another number of processes, up to batch norm, whose statistics are per process."""
    whole = torchrun(tmp_path, "whole")
    assert whole.wait(120) == 0, whole.stderr.read()
    stopped = torchrun(tmp_path, "stopped")
    log = tmp_path / "stopped" / "log.txt"
    while not log.exists() or "burn-in" not in log.read_text():
        assert stopped.poll() is None
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) != 0
    assert "stopped after step" in log.read_text()
    again = torchrun(tmp_path, "stopped", processes)
    assert again.wait(120) == 0, again.stderr.read()
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    ]
    for mine, theirs in zip(*rows, strict=True):
        for timing in ("seconds", "images_per_second", "sum"):
            mine.pop(timing), theirs.pop(timing)
        assert mine == theirs or processes == 1
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.05)
    assert rows[0][0] == rows[1][0]
    assert rows[0][1]["high_fraction"] < 1
