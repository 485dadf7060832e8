"""The run: epochs of steps, a row of metrics after each, checkpoints from which it goes on as if never stopped."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import torch

from pixelpart import draws
from pixelpart.config import Config
from pixelpart.engine import probe, review, training_data
from pixelpart.engine.checkpoint import Checkpoints, Position
from pixelpart.engine.fast import Captured, fast_arithmetic
from pixelpart.engine.inputs import step_inputs
from pixelpart.engine.plan import Plan, build
from pixelpart.engine.schedule import SCHEDULES
from pixelpart.engine.signals import stop_requests
from pixelpart.engine.state import Learner
from pixelpart.engine.step import train_step
from pixelpart.engine.stored_maps import maps_of, renew
from pixelpart.engine.views import takes_one_image
from pixelpart.errors import Diverged, UserError
from pixelpart.masks import MaskStore
from pixelpart.runs import Run, RunFolder
from pixelpart.runtime.device import choose_device, current
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, Screen
from pixelpart.runtime.world import World, joined, local_device
from pixelpart.view.borrow import FrozenView

SAVE_SECONDS = 60.0  # at most this much work is lost to a kill
CHECK_STEPS = 50  # how often the flag for a loss that is not finite is read


def train(
    config: Config,
    out: Path | str,
    *,
    device: torch.device | str | None = None,
    data_root: Path | str | None = None,
    screen: Screen | None = None,
    save_seconds: float = SAVE_SECONDS,
    fast: bool = True,
) -> Run:
    """Trains what the config says into the folder `out`, or goes on with the run that is there; returns it opened.

    Ctrl-C or SIGTERM saves and raises KeyboardInterrupt; the same call then goes on where it stopped. On a GPU the step
    is compiled and captured unless `fast` is False; the numbers differ by rounding alone, but for a network's dropout.
    Processes that torchrun has started share every batch.
    """
    config = training_data.settled(config)
    plan = build(config)
    folder = RunFolder(out)
    folder.check_config(config)
    with joined() as world:
        place, screen = choose_device(device or local_device()), screen or Screen()
        shown = screen if world.leads else Screen(quiet=True)
        with current(place):
            trainer = Trainer(plan, folder, place, shown, world, data_root=data_root, fast=fast)
            with folder.locked() if world.leads else nullcontext():
                trainer.run(save_seconds)
            world.wait()  # for what the first one writes
    return Run(folder.path)


class Trainer:
    """One process's part in one run."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        device: torch.device,
        screen: Screen,
        world: World,
        *,
        data_root: Path | str | None,
        fast: bool = True,
    ) -> None:
        config = plan.config
        self.plan, self.config, self.folder, self.device = plan, config, folder, device
        self.screen, self.world = screen, world
        if config.batch_size < world.size:
            raise UserError(f"batch_size {config.batch_size} leaves some of {world.size} processes without an image")
        self.learner = Learner(plan.model, config, device, world)
        self.step: Callable[..., None] = train_step
        self.measure: probe.Measure = functools.partial(probe.measure, self._judged, config)
        self.chunk = self.probed_at_once = 1024 if device.type == "cuda" else 128
        if fast and device.type == "cuda" and world.size == 1:
            self.go_fast()

        self.loader, self.probes = training_data.load(
            config, data_root, device=device, world=world, screen=screen, layout=self.learner.layout
        )
        self.check_last_batch()
        self.measured_on = "held-out" if config.holdout else "test"
        self.skipped = training_data.skipped(config, data_root)
        self.store = self._empty_store() if plan.main.mask and plan.main.mask.stored else None
        self.checkpoints = Checkpoints(folder, config, self.learner, self.store, writes=world.leads)
        self.at = Position()
        self.only_class: int | None = None  # of a run that has collapsed

    def go_fast(self) -> None:
        """Steps and measurements from graphs from now on, where that can be."""
        captured = Captured(self.learner, full=self.config.batch_size, say=self.say)
        self.step, self.measure, self.probed_at_once = captured, captured.measuring(self.measure), captured.full

    # -- the loop

    def run(self, save_seconds: float) -> None:
        steps, epochs = self.loader.steps, self.config.epochs
        self.folder.check_config(self.config)
        self.at = self.checkpoints.resume(steps, len(self.loader))
        if self.world.leads:
            self.folder.write_config(self.config)
        else:
            self.learner.tally.sums.zero_()  # what was saved are the sums of all
        if self.at.step == steps * epochs:
            self.say(f"{self.folder.path} is finished: {epochs} epochs")
            return
        self.announce()
        arithmetic = fast_arithmetic() if self.learner.narrow else ieee_fp32(self.device)
        generators = torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])
        with arithmetic, generators, stop_requests() as stop, self.screen.bars() as move:
            saved = time.monotonic()
            for epoch in range(self.at.step // steps, epochs):
                for _ in self.steps_of(epoch, move):
                    stopped, late = self.agreed(stop.is_set(), time.monotonic() - saved > save_seconds)
                    if (stopped or late) and self.at.step % steps:
                        self.save()
                        saved = time.monotonic()
                        self.leave(stopped)
                self.finish_epoch(epoch)
                stopped, late = self.agreed(stop.is_set(), time.monotonic() - saved > save_seconds)
                if stopped or late or epoch + 1 == epochs or self.checkpoints.keeps(epoch + 1):
                    self.save()
                    saved = time.monotonic()
                if epoch + 1 < epochs:
                    self.leave(stopped)

    def steps_of(self, epoch: int, move: Progress) -> Iterator[None]:
        """Takes the remaining steps of an epoch, one for every turn of the caller's loop."""
        phase, steps = self.plan.phase(epoch), self.loader.steps
        self.began, self.images_here = time.monotonic(), 0
        if self.at.step % steps == 0:
            self.learner.tally.sums.zero_()
            if self.store is not None and (self.plan.renews_maps(epoch) or self.at.forked_here):
                renew(self.store, self.learner, self.plan.main, self.loader, chunk=self.chunk)
        for step in range(self.at.step % steps, steps):
            rate = SCHEDULES[self.config.optim.schedule](
                self.config.optim, epoch + (step + 0.5) / steps, self.config.epochs
            )
            self.learner.lr.fill_(rate)
            inputs = step_inputs(self.config, phase, self.loader, self.store, epoch=epoch, step=step)
            stream = f"network of process {self.world.rank}" if self.world.rank else "network"
            draws.seed_torch(self.config.seed, stream, epoch, step)
            self.step(self.learner, phase, inputs)
            self.at.step += 1
            self.at.forked_here = False
            self.images_here += len(inputs.labels)
            if self.at.step % CHECK_STEPS == 0 or step + 1 == steps:
                self.check_finite()
            size = self.config.batch_size
            move(
                self.config.recipe,
                self.at.step * size,
                steps * self.config.epochs * size,
                f"epoch {epoch + 1}/{self.config.epochs}",
            )
            yield

    def finish_epoch(self, epoch: int) -> None:
        """Measures, keeps the best, and adds the epoch's row to metrics.jsonl."""
        trained = time.monotonic() - self.began
        sums = self.learner.tally.read(self.world)
        readings = {
            name: probe.read(self.measure, x, y, seed=self.config.seed, stream=name, chunk=self.probed_at_once)
            for name, (x, y) in self.probes.items()
        }
        self.at.epoch = epoch + 1
        if self.config.holdout and epoch >= self.config.burn_in.epochs:  # burn-in is not yet the method
            self.checkpoints.consider(readings[self.measured_on].robust_ce, self.at)
        row = review.row(
            epoch,
            self.plan.phase(epoch),
            self.learner,
            sums=sums,
            readings=readings,
            measured_on=self.measured_on,
            images=self.probes["train"],
        )
        row["seconds"] = time.monotonic() - self.began
        row["images_per_second"] = self.images_here * self.world.size / trained
        if self.world.leads:
            self.folder.write_metrics([*self.folder.read_metrics(), row])
        self.say(review.summary(row, self.config.epochs))
        x, y = self.probes[self.measured_on]
        # the weights as they are: an average lags behind them
        before, self.only_class = self.only_class, review.collapsed(self.learner.freeze(), x, y, chunk=self.chunk)
        if self.only_class not in (None, before):  # told when it begins, not after every epoch
            self.say(
                f"collapsed: all {len(y)} {self.measured_on} images are called class {self.only_class}; "
                "a lower optim.lr, another seed or --eps-ramp 5 may help"
            )
        if row["dead_cams"] >= sums["images"]:
            self.say(
                "every heat map of this epoch was dead, so every pixel had eps: is the feature map a single point?"
            )

    # -- parts

    def agreed(self, *wishes: bool) -> list[bool]:
        """The wishes that any process has, in all of them."""
        return list(wishes) if self.world.size == 1 else self.world.any_of(torch.tensor(wishes)).tolist()

    def save(self) -> None:
        self.learner.tally.gather(self.world)
        self.checkpoints.save(self.at)

    def _judged(self) -> FrozenView:
        return self.learner.freeze(self.learner.judged)

    def _empty_store(self) -> MaskStore:
        x, y = (tensor[:1] for tensor in self.probes["train"])
        return MaskStore(len(self.loader), maps_of(self.learner, self.plan.main, x, y).shape[1:], device=self.device)

    def check_last_batch(self) -> None:
        """A UserError now, and not at the end of the first epoch, where a process gets a single image there."""
        n, size, (x, _) = len(self.loader), self.config.batch_size, self.probes["train"]
        if (n % size or size) // self.world.size > 1:
            return
        if not takes_one_image(self.learner.model, size=x.shape[-1], device=self.device, layout=self.learner.layout):
            raise UserError(
                f"batch_size {size} leaves a batch of one of {n} images, on which {self.config.model} cannot be "
                "trained (batch norm of single values); choose another"
            )

    def check_finite(self) -> None:
        if self.learner.tally.read(self.world)["broken_steps"]:
            raise Diverged(f"the loss was not finite at or before step {self.at.step}; {self.checkpoints.last_good()}")

    def announce(self) -> None:
        steps, config = self.loader.steps, self.config
        if self.at.forked_here:
            self.say(f"forked from {config.init_from}, at step {self.at.step}, config {config.hash()}")
        elif self.at.step:
            self.say(
                f"resumed at step {self.at.step}: step {self.at.step % steps} of {steps} in epoch {self.at.epoch + 1}"
            )
        else:
            where = f"{self.device}" if isinstance(self.step, Captured) else f"{self.device}, run plainly"
            self.say(f"{config.recipe}: {config.epochs} epochs of {steps} steps on {where}, config {config.hash()}")
        if self.skipped:
            more = f"; and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else ""
            self.say(f"{len(self.skipped)} bad left out: {'; '.join(self.skipped[:3])}{more}")
        if isinstance(self.step, Captured):
            self.say("the step is compiled when it is first met: that takes a minute or more")
        if self.world.size > 1:
            self.say(f"{self.world.size} processes share every batch; their steps run plainly, not from a graph")
        if not self.learner.freeze.folded:
            self.say(
                f"{config.model}: its structure cannot be read: batch norm is not folded, and all is computed in fp32"
            )
        elif config.precision != "fp32" and not self.learner.narrow:
            self.say(f"{config.model}: it cannot be computed in {config.precision}, and stays in its own precision")

    def say(self, line: str) -> None:
        if self.world.leads:
            self.screen.say(line)
            self.folder.log(f"{datetime.now().isoformat(timespec='seconds')} {line}")

    def leave(self, stopped: bool) -> None:
        if stopped:
            self.say(f"stopped after step {self.at.step}; the same command goes on from there")
            raise KeyboardInterrupt
