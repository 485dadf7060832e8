"""Between a run in memory and its folder: save, resume, fork, keep the best."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from pixelpart.config import Config, differing_fields
from pixelpart.engine.state import Learner
from pixelpart.errors import Diverged, UserError
from pixelpart.masks import MaskStore
from pixelpart.runs import Facts, RunFolder, fill, load_checkpoint, read_facts, save_checkpoint

# Where a fork may differ from the run it comes from; data, held-out images, model and seed must be the same.
FORK_MAY_CHANGE = (
    "recipe", "init_from", "keep", "epochs", "eps", "eps_low", "eps_ramp", "attack", "mask", "burn_in", "objective",
    "optim", "awp", "probe", "precision",
)  # fmt: skip


@dataclass
class Position:
    """How far a run is."""

    step: int = 0  # steps taken, over all epochs
    epoch: int = 0  # epochs finished
    best_robust_ce: float | None = None
    best_epoch: int | None = None
    forked_here: bool = False  # no step has been taken since the fork
    images: int = 0  # that it learns from; older checkpoints do not tell


class Checkpoints:
    """The checkpoints of one run. All of its state exists before; loading copies into it."""

    def __init__(
        self, folder: RunFolder, config: Config, learner: Learner, store: MaskStore | None, *, writes: bool
    ) -> None:
        self.folder, self.config, self.learner, self.store, self.writes = folder, config, learner, store, writes
        self._best: tuple[dict[str, Tensor], Position] | None = None  # not yet on disk

    def state(self) -> dict[str, Tensor]:
        return self.learner.state() | ({"maps": self.store.maps} if self.store is not None else {})

    def resume(self, steps: int, images: int) -> Position:
        """Loads the last checkpoint, or the one that the run forks from, or nothing; says where the run stands.

        An epoch has so many steps and images. Had it another number, other images would be held out.
        """
        path = self.folder.checkpoint("last")
        at = Position()
        if path.exists():
            tensors, facts = load_checkpoint(path)
            at = Position(**facts["position"])
            _require_same(images, at, path)
            fill(self.state(), tensors, source=path)
            if facts["config"] != self.config.hash():
                raise UserError(f"{path} belongs to another config ({facts['config']}, not {self.config.hash()})")
        elif self.config.init_from:
            at = self._fork(steps, images)
        at.images = images
        if self.writes and self.folder.metrics_file.exists():
            self.folder.write_metrics([row for row in self.folder.read_metrics() if row["epoch"] <= at.epoch])
        return at

    def save(self, at: Position) -> None:
        """Writes the best, if there is a new one, then the last: a kill in between costs nothing but the work since."""
        self._require_finite(at)
        if not self.writes:
            return
        if at.epoch == self.config.epochs and not self.config.holdout:
            self._best = (self.learner.weights(), at)
        if self._best is not None:
            weights, position = self._best
            save_checkpoint(self.folder.checkpoint("best"), weights, self._facts(position))
            self._best = None
        kept = self.folder.checkpoint(f"epoch-{at.epoch}")
        if self.keeps(at.epoch) and not kept.exists():  # the first save after an epoch is at its very end
            save_checkpoint(kept, self.state(), self._facts(at))
        save_checkpoint(self.folder.checkpoint("last"), self.state(), self._facts(at))

    def keeps(self, epoch: int) -> bool:
        """Whether the state after so many epochs is kept for good, for other runs to fork from."""
        return epoch in (*self.config.keep, self.config.burn_in.epochs or None)

    def consider(self, robust_ce: float, at: Position) -> None:
        """Remembers the present weights if their robust cross-entropy on held-out images is the lowest so far."""
        if at.best_robust_ce is None or robust_ce < at.best_robust_ce:
            at.best_robust_ce, at.best_epoch = robust_ce, at.epoch
            self._best = ({name: tensor.clone() for name, tensor in self.learner.weights().items()}, replace(at))

    def last_good(self) -> str:
        path = self.folder.checkpoint("last")
        return (
            f"the last good checkpoint is {path}, step {read_facts(path)['position']['step']}"
            if path.exists()
            else "no checkpoint yet"
        )

    def _facts(self, at: Position) -> Facts:
        settings = self.config.model_dump(mode="json")
        about = {"config": self.config.hash(), "model": self.config.model, "settings": settings}
        return about | {"position": asdict(at), "epoch": at.epoch}

    def _fork(self, steps: int, images: int) -> Position:
        """The state of another run after some epochs, as this run's beginning."""
        run, _, epoch = self.config.init_from.rpartition("@")
        if not run or not epoch.isdigit():
            raise UserError(f"init_from {self.config.init_from!r} is not RUN@EPOCH, such as runs/part@20")
        source = RunFolder(run)
        kept = sorted(source.path.glob("checkpoints/epoch-*.safetensors"))
        path = source.checkpoint(f"epoch-{epoch}")
        if not path.exists():
            there = ", ".join(file.stem.removeprefix("epoch-") for file in kept) or "none"
            raise UserError(f"{run} keeps no checkpoint after epoch {epoch}; there are: {there} (see --keep)")
        theirs = source.read_config()
        taken = {name: getattr(theirs, name) for name in FORK_MAY_CHANGE}
        taken["optim"] = theirs.optim.model_copy(update={"name": self.config.optim.name})  # its state is carried on
        mine = self.config.model_copy(update=taken)
        if differing := differing_fields(theirs, mine):
            raise UserError(f"cannot fork {run}: {'; '.join(differing)}")
        if int(epoch) >= self.config.epochs:
            raise UserError(
                f"init_from {self.config.init_from} leaves nothing to train: epochs is {self.config.epochs}"
            )
        tensors, facts = load_checkpoint(path)
        _require_same(images, Position(**facts["position"]), path)
        tensors.pop("maps", None)  # made anew
        fill(self.learner.state(), tensors, source=path)
        assert facts["position"]["step"] == int(epoch) * steps
        return Position(step=int(epoch) * steps, epoch=int(epoch), forked_here=True)

    def _require_finite(self, at: Position) -> None:
        if not all(bool(tensor.isfinite().all()) for tensor in self.learner.weights().values()):
            raise Diverged(f"weights are not finite after step {at.step}; {self.last_good()}")


def _require_same(images: int, at: Position, path: Path) -> None:
    if at.images not in (0, images):
        raise UserError(
            f"{path} has learned from {at.images} images, and there are {images} now; begin another run with --out"
        )
