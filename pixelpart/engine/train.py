"""The run: epochs of steps, a row of metrics after each, checkpoints from which it goes on as if never stopped."""

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from pixelpart import data, draws, masks
from pixelpart.attacks.ball import draw_noise
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.data.loader import Loader, as_float, split_holdout
from pixelpart.dataname import with_options
from pixelpart.device import choose_device
from pixelpart.engine import probe
from pixelpart.engine.build import Plan, build
from pixelpart.engine.capture import Captured, fast_arithmetic
from pixelpart.engine.checkpoint import Checkpoints, Position
from pixelpart.engine.learner import Learner
from pixelpart.engine.schedule import SCHEDULES
from pixelpart.engine.step import StepInputs, class_map, look, train_step
from pixelpart.errors import Diverged, UserError
from pixelpart.frozen import Frozen
from pixelpart.masks import MaskStore
from pixelpart.precision import full_precision
from pixelpart.progress import Meter, Screen
from pixelpart.run import Run
from pixelpart.runfolder import Row, RunFolder
from pixelpart.types import Budget, Images, Labels, Map
from pixelpart.world import World

SAVE_SECONDS = 60.0  # at most this much work is lost to a kill
DAMAGE_IMAGES = 128  # for which the first-order damage is worked out after every epoch
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
    is compiled and captured unless `fast` is False; the numbers differ by rounding alone.
    """
    config = settled(config)
    plan = build(config)
    folder = RunFolder(out)
    folder.check(config)
    trainer = Trainer(plan, folder, choose_device(device), screen or Screen(), World(), data_root=data_root, fast=fast)
    with folder.locked():
        trainer.run(save_seconds)
    return Run(folder.path)


def settled(config: Config) -> Config:
    """The config with what it does not say of a set of the user's own, so that its run opens without the data."""
    if config.dataset in data.SETS:
        if config.size or config.num_classes:
            raise UserError(f"size and num_classes are for sets of your own; {config.dataset} has its own")
        return config
    folder = config.dataset.startswith("folder:")
    name = with_options(config.dataset, size=config.size or None) if folder else config.dataset
    entry = data.find(name)
    found = {"size": entry.size, "num_classes": entry.num_classes}
    for field, value in found.items():
        if getattr(config, field) not in (0, value):
            raise UserError(f"{name} has {field} {value}, not the {getattr(config, field)} of the config")
    return config.model_copy(update={"dataset": name, **found})


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
        self.learner = Learner(plan.model, config, device)
        self.step: Callable[..., None] = train_step
        self.measure: probe.Measure = functools.partial(probe.measure, self._judged, config)
        self.chunk = self.probed_at_once = 1024 if device.type == "cuda" else 128
        if fast and device.type == "cuda":
            self.go_fast()

        images, labels = load_checked(config.dataset, "train", data_root, screen=screen)
        kept, held = split_holdout(len(images), config.holdout, config.seed)
        self.loader = Loader(
            images, labels, rows=kept, batch_size=config.batch_size, seed=config.seed, device=device, world=world
        )
        some = torch.randperm(len(kept), generator=draws.generator(config.seed, "probe images"))[: config.probe]
        self.probes: dict[str, tuple[Images, Labels]] = {"train": self._place(images[kept[some]], labels[kept[some]])}
        if config.holdout:
            self.probes["held-out"] = self._place(images[held], labels[held])
        else:
            test = load_checked(config.dataset, "test", data_root, screen=screen)
            self.probes["test"] = self._place(*(tensor[: config.probe] for tensor in test))
        self.measured_on = "held-out" if config.holdout else "test"

        left_out = data.find(config.dataset).skipped
        self.skipped = left_out(data_root) if left_out else []
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
        self.folder.check(self.config)
        self.at = self.checkpoints.resume(steps)
        self.folder.claim(self.config)
        if self.at.step == steps * epochs:
            self.say(f"{self.folder.path} is finished: {epochs} epochs")
            return
        self.announce()
        arithmetic = fast_arithmetic() if self.learner.narrow else full_precision(self.device)
        with arithmetic, stop_requests() as stop, self.screen.bars() as move:
            saved = time.monotonic()
            for epoch in range(self.at.step // steps, epochs):
                for _ in self.steps_of(epoch, move):
                    late = time.monotonic() - saved > save_seconds
                    if (stop.is_set() or late) and self.at.step % steps:
                        self.checkpoints.save(self.at)
                        saved = time.monotonic()
                        self.leave(stop)
                self.finish_epoch(epoch)
                late = time.monotonic() - saved > save_seconds
                if stop.is_set() or late or epoch + 1 == epochs or self.checkpoints.keeps(epoch + 1):
                    self.checkpoints.save(self.at)
                    saved = time.monotonic()
                if epoch + 1 < epochs:
                    self.leave(stop)

    def steps_of(self, epoch: int, move: Meter) -> Iterator[None]:
        """Takes the remaining steps of an epoch, one for every turn of the caller's loop."""
        phase, steps = self.plan.phase(epoch), self.loader.steps
        self.began, self.images_here = time.monotonic(), 0
        if self.at.step % steps == 0:
            self.learner.tally.sums.zero_()
            if self.plan.renews_maps(epoch) or self.at.forked_here:
                self.renew_maps()
        for step in range(self.at.step % steps, steps):
            rate = SCHEDULES[self.config.optim.schedule](
                self.config.optim, epoch + (step + 0.5) / steps, self.config.epochs
            )
            self.learner.lr.fill_(rate)
            inputs = self.inputs(epoch, step)
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

    def inputs(self, epoch: int, step: int) -> StepInputs:
        """The step's batch with its draws, each made for the global batch, of which this process takes its part."""
        batch = self.loader.batch(epoch, step)
        whole = self.loader.global_size(step)
        mine = self.world.slice(whole)
        phase = self.plan.phase(epoch)

        def generator(stream: str) -> torch.Generator:
            return draws.generator(self.config.seed, stream, epoch, step, device=self.device)

        moves = augment.draw(self.config.augment, whole, generator=generator("augment"))
        several = () if phase.starts == 1 else (phase.starts,)
        like = batch.images.new_empty((*several, whole, *batch.images.shape[1:]))
        noise = draw_noise(like, kind=phase.start, generator=generator("start"))
        return StepInputs(
            batch.images,
            batch.labels,
            moves[mine],
            noise[..., mine, :, :, :],
            maps=self.store.get(batch.index) if self.store is not None and phase.mask is not None else None,
        )

    def finish_epoch(self, epoch: int) -> None:
        """Measures, keeps the best, and adds the epoch's row to metrics.jsonl."""
        trained = time.monotonic() - self.began
        sums = self.learner.tally.read()
        readings = {
            name: probe.read(self.measure, x, y, seed=self.config.seed, stream=name, chunk=self.probed_at_once)
            for name, (x, y) in self.probes.items()
        }
        reading = readings[self.measured_on]
        self.at.epoch = epoch + 1
        if self.config.holdout and epoch >= self.config.burn_in.epochs:  # burn-in is not yet the method
            self.checkpoints.consider(reading.robust_ce, self.at)
        row: Row = {
            "epoch": epoch + 1,
            "phase": self.plan.phase(epoch).name,
            "loss": sums["loss"] / sums["images"],
            "lr": self.learner.lr.item(),
            "natural": reading.natural,
            "pgd": reading.pgd,
            "robust_ce": reading.robust_ce,
            "measured_on": self.measured_on,
            "train_natural": readings["train"].natural,
            "train_pgd": readings["train"].pgd,
            "budget_mean": sums["budget"] / sums["images"],
            "high_fraction": sums["high"] / sums["images"],
            "dead_cams": round(sums["dead"]),
            "damage": self.damage(epoch),
            "seconds": time.monotonic() - self.began,
            "images_per_second": self.images_here * self.world.size / trained,
        }
        if self.world.leads:
            self.folder.write_metrics([*self.folder.read_metrics(), row])
        self.say(
            f"epoch {epoch + 1}/{self.config.epochs} {row['phase']}: loss {row['loss']:.4f}, "
            f"natural {row['natural']:.1%}, "
            f"pgd {row['pgd']:.1%} ({self.measured_on}), pgd on training images {row['train_pgd']:.1%}, "
            f"{row['seconds']:.1f} s"
        )
        before, self.only_class = self.only_class, self.collapsed()
        if self.only_class not in (None, before):  # told when it begins, not after every epoch
            self.say(
                f"collapsed: all {len(self.probes[self.measured_on][1])} {self.measured_on} images are called class "
                f"{self.only_class}; a lower optim.lr, another seed or --eps-ramp 5 may help"
            )
        if row["dead_cams"] >= sums["images"]:
            self.say(
                "every heat map of this epoch was dead, so every pixel had eps: is the feature map a single point?"
            )

    # -- parts

    def _place(self, images: Images, labels: Labels) -> tuple[Images, Labels]:
        x = as_float(images.to(self.device))
        return x.contiguous(memory_format=torch.channels_last), labels.to(self.device)

    def _judged(self) -> Frozen:
        return self.learner.freeze(self.learner.judged)

    def _maps_of(self, x: Images, y: Labels) -> Map:
        model = self.learner.freeze()
        return class_map(self.learner, model, self.plan.main, x, y, look(model, x))

    def _empty_store(self) -> MaskStore:
        x, y = (tensor[:1] for tensor in self.probes["train"])
        return MaskStore(len(self.loader), self._maps_of(x, y).shape[1:], device=self.device)

    def renew_maps(self) -> None:
        """Fills the store, if there is one, with the present model's maps of all training images, un-augmented."""
        if self.store is None:
            return
        for index in torch.arange(len(self.loader)).split(self.chunk):
            x, y = self._place(*self.loader.take(index))
            self.store.put(index.to(self.device), self._maps_of(x, y))

    def damage(self, epoch: int) -> float:
        """What a budget from fresh maps can do to the raw weights, to first order, on probed training images."""
        x, y = (tensor[:DAMAGE_IMAGES] for tensor in self.probes["train"])
        phase = self.plan.phase(epoch)
        budget: Budget = phase.eps
        if phase.mask is not None:
            budget = phase.mask.budget(masks.upscale(self._maps_of(x, y), (x.shape[-2], x.shape[-1])))
        return probe.damage(self.learner.freeze(), x, y, budget)

    @torch.no_grad()
    def collapsed(self) -> int | None:
        """The class that every probed image is taken for, where it is one and the labels are not; else None."""
        x, y = self.probes[self.measured_on]
        model = self._judged()
        called = torch.cat([model(part).argmax(1) for part in x.split(self.chunk)]).unique()
        return int(called[0]) if len(called) == 1 and len(y.unique()) > 1 else None

    def check_finite(self) -> None:
        if self.learner.tally.read()["broken_steps"]:
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
            self.say(
                f"{config.recipe}: {config.epochs} epochs of {steps} steps on {self.device}, config {config.hash()}"
            )
        if self.skipped:
            more = f"; and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else ""
            self.say(f"left out as bad: {'; '.join(self.skipped[:3])}{more}")
        if not self.learner.freeze.folded:
            self.say(
                f"{config.model}: its structure cannot be read: batch norm is not folded, and all is computed in fp32"
            )

    def say(self, line: str) -> None:
        if self.world.leads:
            self.screen.say(line)
            self.folder.log(f"{datetime.now().isoformat(timespec='seconds')} {line}")

    def leave(self, stop: threading.Event) -> None:
        if stop.is_set():
            self.say(f"stopped after step {self.at.step}; the same command goes on from there")
            raise KeyboardInterrupt


def load_checked(
    name: str, split: str, root: Path | str | None, *, screen: Screen | None = None
) -> tuple[Tensor, Tensor]:
    """A split of a data set; pixels or labels that are not what the set says they are give a UserError."""
    with (screen or Screen(quiet=True)).bars() as move:
        images, labels = data.load(
            name, split=split, root=root, progress=lambda done, total, what: move(what, done, total, "")
        )
    entry = data.find(name)
    data.check_images(images, labels, entry.num_classes, shape=(3, entry.size, entry.size))
    return images, labels


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set instead of interrupting; a second Ctrl-C interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
