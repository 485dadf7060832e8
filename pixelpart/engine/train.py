"""A training run: epochs of steps, a row of metrics after each, and checkpoints from which it resumes bit for bit."""

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path

import torch

from pixelpart import draws
from pixelpart.config import Config
from pixelpart.engine import messages, metrics, training_data
from pixelpart.engine.checkpoint import Position, RunCheckpoints
from pixelpart.engine.fast import CapturedStep
from pixelpart.engine.optimizers import SCHEDULES
from pixelpart.engine.plan import Plan, prepare
from pixelpart.engine.signals import Stopped, stop_requests
from pixelpart.engine.state import TrainingState, check_last_batch
from pixelpart.engine.step import step_batch, train_step
from pixelpart.engine.stored_maps import check_mask, empty_maps, renew_maps
from pixelpart.engine.time_left import TimeLeft
from pixelpart.errors import Diverged, UserError
from pixelpart.runs import MetricsRow, Run, RunFolder
from pixelpart.runtime.device import choose_device, current
from pixelpart.runtime.precision import fast_arithmetic, ieee_fp32
from pixelpart.runtime.progress import LiveTable, Progress, Screen
from pixelpart.runtime.world import World, joined, local_device

SAVE_SECONDS = 60.0  # at most this much work is lost to a kill
CHECK_STEPS = 50  # how often the loss is checked for values that are not finite


def train(
    config: Config,
    out: Path | str,
    *,
    device: torch.device | str | None = None,
    data_root: Path | str | None = None,
    screen: Screen | None = None,
    save_seconds: float = SAVE_SECONDS,
    fast: bool = True,
    stop_after: int | None = None,
) -> Run:
    """Trains the config in the folder `out`, or resumes the run that is there; returns the finished run.

    Ctrl-C or SIGTERM saves and raises KeyboardInterrupt; the same call then resumes. On a GPU the step is compiled and
    captured unless `fast` is False; the two paths differ by rounding, and in the draws of a network's dropout.
    Processes started by torchrun share every batch. With `stop_after` the run ends after that epoch, to be resumed.
    """
    plan, folder = prepare(config, out, device=device), RunFolder(out)
    with joined() as world:
        device, screen = choose_device(device or local_device()), screen or Screen()
        shown = screen if world.leads else Screen(quiet=True)
        with current(device):
            trainer = Trainer(plan, folder, device, shown, world, data_root=data_root, fast=fast)
            with folder.locked() if world.leads else nullcontext():
                trainer.run(save_seconds, stop_after)
            world.wait()  # until the first process has written its files
    return Run(folder.path)


class Trainer:
    """One process of one run."""

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
            raise UserError(f"batch_size {config.batch_size} is smaller than the number of processes, {world.size}")
        if world.size > 1 and plan.main.mask is not None and (setting := plan.main.mask.across_images):
            raise UserError(f"{setting} compares the images of a whole batch; train in one process, without torchrun")
        self.state = TrainingState(plan.model, config, device, world)
        self.step: Callable[..., None] = train_step
        self.probe_batch: metrics.ProbeBatch = functools.partial(metrics.probe_batch, self.state.evaluated_view, config)
        self.chunk = self.probe_chunk = 1024 if device.type == "cuda" else 128

        self.loader, self.probe_sets, self.objects = training_data.load(
            config, data_root, device=device, world=world, screen=screen, layout=self.state.layout
        )
        x, y = self.probe_sets["train"]
        check_last_batch(self.state, config, x, n=len(self.loader))
        if plan.main.mask is not None:
            with self.arithmetic():
                check_mask(self.state, plan.main.mask, config.mask, x, y, objects=self.objects.probe)
        self.measured_on = "held-out" if config.holdout else "test"
        self.notes = training_data.notes(config, data_root, images=len(self.loader))
        self.maps = empty_maps(self.state, plan.main.mask, len(self.loader), x, y)
        self.checkpoints = RunCheckpoints(folder, config, self.state, self.maps, writes=world.leads)
        self.position = Position()
        self.table = LiveTable(messages.epoch_columns(config))
        self.rows: list[MetricsRow] = []  # of metrics.jsonl
        self.clock: dict[int, float] = {}  # seconds of the epoch at the last two saves, by step
        self.collapse = metrics.CollapseCheck(config)
        if fast and device.type == "cuda" and world.size == 1:
            self.use_fast_path()

    def use_fast_path(self) -> None:
        """Compiles and captures steps and probes from now on."""
        captured = CapturedStep(self.state, batch_size=self.config.batch_size, say=self.say)
        self.step, self.probe_batch = captured, captured.captured_probe(self.probe_batch)
        self.probe_chunk = captured.batch_size

    def arithmetic(self) -> AbstractContextManager[None]:
        """The arithmetic that the run computes in."""
        return fast_arithmetic() if self.state.low_precision else ieee_fp32(self.device)

    # -- the loop

    def run(self, save_seconds: float, stop_after: int | None = None) -> None:
        steps, epochs = self.loader.steps, self.config.epochs
        end = min(epochs, stop_after or epochs)
        if self.world.leads:
            self.folder.check_config(self.config)  # again, now that the folder is locked
        self.position = self.checkpoints.resume(steps, len(self.loader))
        if self.world.leads:
            self.folder.write_config(self.config)
            self.rows, problems = self.folder.rewind_metrics(self.position.epoch, epochs=self.config.epochs)
            for problem in problems:
                self.say(problem)
        else:
            self.state.tally.sums.zero_()  # the checkpoint holds the sums of all processes
        if self.position.step >= steps * end:
            if end == epochs:
                self.say(f"{self.folder.path} is finished: {epochs} epochs")
            return
        opening = messages.opening_lines(
            self.plan, self.state, self.position, self.loader, captured=isinstance(self.step, CapturedStep)
        )
        for line in [*opening, *self.notes]:
            self.say(line)
        generators = torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])
        self.table.rows = [messages.row_cells(row, self.config) for row in self.rows]
        try:
            self.time_left = TimeLeft(self.plan, steps, end)
            bars = self.screen.bars(table=self.table, time_left=lambda: self.time_left.text(self.position.step))
            with self.arithmetic(), generators, bars as progress, stop_requests(self.announce_stop) as stop:
                self.stop, self.save_seconds, self.saved_at = stop, save_seconds, time.monotonic()
                for epoch in range(self.position.step // steps, end):
                    self.begin_epoch(epoch)
                    for step in range(self.position.step % steps, steps):
                        self.take_step(epoch, step)
                        self.show_progress(progress)
                        if step + 1 < steps:
                            self.save_if_due()
                    self.finish_epoch(epoch)
                    last = epoch + 1 == end
                    self.save_if_due(always=last or self.checkpoints.keeps(epoch + 1), may_stop=not last)
        except Stopped:
            self.say(f"stopped after step {self.position.step}; the same command resumes from there")
            raise
        except KeyboardInterrupt:
            self.say("stopped without saving; the same command resumes from the last checkpoint")
            raise
        if end == epochs and self.world.leads:
            if self.collapse.label is not None:
                self.report_collapse()
            self.say(messages.conclusion(self.rows, self.position.best_epoch, self.config))

    def begin_epoch(self, epoch: int) -> None:
        """Starts the clock and, at the epoch's first step, resets the sums and renews stored maps."""
        self.epoch_began, self.epoch_images, self.epoch_steps, self.seconds_before = time.monotonic(), 0, 0, 0.0
        self.doing = "the step in progress"
        self.so_far = {"epoch": epoch + 1, "phase": self.plan.phase(epoch).name}
        if self.position.step % self.loader.steps:
            if (seconds := self.folder.read_clock(self.position.step)) is None:
                self.say(f"resumed: seconds of epoch {epoch + 1} do not include the steps before")
            self.seconds_before = seconds or 0.0
            self.clock = {self.position.step: self.seconds_before}
        else:
            self.state.tally.sums.zero_()
            if self.maps is not None and (self.plan.renews_maps(epoch) or self.position.forked_here):
                assert self.plan.main.mask is not None
                self.doing = f"the computation of the maps of epoch {epoch + 1}"
                renew_maps(self.maps, self.state, self.plan.main.mask, self.loader, chunk=self.chunk)
                self.doing = "the step in progress"

    def take_step(self, epoch: int, step: int) -> None:
        config, steps = self.config, self.loader.steps
        phase = self.plan.phase(epoch)
        self.state.lr.fill_(SCHEDULES[config.optim.schedule](config.optim, epoch + (step + 0.5) / steps, config.epochs))
        if self.state.average is not None:
            self.state.average.set_step(self.position.step)
        scale, maps = self.plan.budget_scale(epoch), {"stored_maps": self.maps, "objects": self.objects.training}
        batch = step_batch(config, phase, self.loader, epoch=epoch, step=step, budget_scale=scale, **maps)
        stream = f"network of process {self.world.rank}" if self.world.rank else "network"
        draws.seed_torch(config.seed, stream, epoch, step)  # for a network's dropout
        self.step(self.state, phase, batch)
        self.position.step += 1
        self.position.forked_here = False
        self.epoch_images += len(batch.labels)
        self.epoch_steps += 1
        if self.epoch_steps == 1 < steps:  # it may have compiled, and maps were renewed before it
            self.first_step_ended = time.monotonic()
        else:
            began, n = (self.first_step_ended, self.epoch_steps - 1) if steps > 1 else (self.epoch_began, 1)
            self.time_left.step_seconds[phase.name] = (time.monotonic() - began) / n
        if self.position.step % CHECK_STEPS == 0 or step + 1 == steps:
            sums = self.state.tally.read(self.world)
            self.so_far["loss"] = sums["loss"] / sums["images"]
            if sums["broken_steps"]:
                last_good = self.checkpoints.last_good()
                raise Diverged(f"the loss was not finite at or before step {self.position.step}; {last_good}")

    def finish_epoch(self, epoch: int) -> None:
        """Measures, keeps the best, and adds the epoch's row to metrics.jsonl."""
        self.doing = f"the measurement after epoch {epoch + 1}"
        seconds = time.monotonic() - self.epoch_began
        sums = self.state.tally.read(self.world)
        probes = {
            name: metrics.probe(self.probe_batch, x, y, seed=self.config.seed, stream=name, chunk=self.probe_chunk)
            for name, (x, y) in self.probe_sets.items()
        }
        self.position.epoch = epoch + 1
        if self.config.holdout and epoch >= self.config.burn_in.epochs:  # burn-in epochs do not count as best
            self.checkpoints.consider(probes[self.measured_on].robust_ce, self.position)
        phase, scale, (x, y) = self.plan.phase(epoch), self.plan.budget_scale(epoch), self.probe_sets["train"]
        damage = metrics.phase_damage(self.state, phase, x, y, objects=self.objects.probe, budget_scale=scale)
        row = metrics.epoch_row(epoch, phase, self.state, sums, probes, self.measured_on, damage)
        row["seconds"] = self.seconds_before + time.monotonic() - self.epoch_began
        row["images_per_second"] = self.epoch_images * self.world.size / seconds
        self.time_left.measuring = time.monotonic() - self.epoch_began - seconds
        if self.world.leads:
            self.rows.append(row)
            self.folder.write_metrics(self.rows)
        self.table.rows.append(messages.row_cells(row, self.config))
        self.table.current = ()
        self.say(messages.summary_line(row, self.config), in_table=True)
        x, y = self.probe_sets[self.measured_on]
        if self.collapse.after_epoch(self.state, self.position, x, y, chunk=self.chunk):
            self.report_collapse()
        if row["dead_cams"] >= sums["images"]:
            self.say("every heat map of this epoch was zero, so all pixels had eps: is the feature map a single point?")

    # -- saving and stopping

    def save_if_due(self, *, always: bool = False, may_stop: bool = True) -> None:
        """Saves if some time has passed or a stop was requested, in any process; a stop then ends the run."""
        wishes = [self.stop.is_set(), time.monotonic() - self.saved_at > self.save_seconds]
        stop, due = wishes if self.world.size == 1 else self.world.any_of(torch.tensor(wishes)).tolist()
        if stop or due or always:
            self.state.tally.gather(self.world)
            if self.world.leads:  # before the checkpoint: a kill in between leaves the seconds of the one before
                seconds = self.seconds_before + time.monotonic() - self.epoch_began
                self.clock = dict([*self.clock.items(), (self.position.step, seconds)][-2:])
                self.folder.write_clock(self.clock)
            self.checkpoints.save(self.position)
            self.saved_at = time.monotonic()
        if stop and may_stop:
            raise Stopped

    # -- messages

    def announce_stop(self) -> None:
        self.say(
            f"stopping: finishes {self.doing}, then saves; a second Ctrl-C stops at once and loses what came after the "
            "last checkpoint"
        )

    def report_collapse(self) -> None:
        assert self.collapse.label is not None
        images = f"{len(self.probe_sets[self.measured_on][1])} {self.measured_on}"
        self.say(messages.collapse_line(self.config, self.collapse.label, images))

    def show_progress(self, progress: Progress) -> None:
        """Updates the bar and, on a terminal, the row of the epoch in progress."""
        done, total = self.position.step * self.config.batch_size, self.config.epochs * self.loader.steps
        note = f"epoch {self.so_far['epoch']}/{self.config.epochs}"
        progress(self.config.recipe, done, total * self.config.batch_size, "" if self.screen.live else note)
        if self.screen.live:
            seconds = time.monotonic() - self.epoch_began
            rate = self.epoch_images * self.world.size / seconds
            row = self.so_far | {"images_per_second": rate, "seconds": seconds}
            self.table.current = messages.row_cells(row, self.config)

    def say(self, line: str, *, in_table: bool = False) -> None:
        """Logs a line and shows it, unless a live table already has what it says."""
        if self.world.leads:
            if not (in_table and self.screen.live):
                self.screen.say(line)
            self.folder.log(f"{datetime.now().isoformat(timespec='seconds')} {line}")
