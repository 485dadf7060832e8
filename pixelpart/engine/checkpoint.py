"""Checkpoints of a run: save, resume, fork, keep the best."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from pixelpart.config import Config, differing_fields
from pixelpart.engine.state import TrainingState
from pixelpart.errors import Diverged, UserError
from pixelpart.runs import Facts, Run, RunFolder, fill, load_checkpoint, read_facts, save_checkpoint

# Fields in which a fork may differ from its parent; data, held-out images, model and seed must be equal.
FORK_MAY_CHANGE = (
    "recipe", "init_from", "keep", "epochs", "eps", "eps_low", "eps_ramp", "eps_from", "attack", "mask", "burn_in",
    "objective", "optim", "awp", "probe", "precision",
)  # fmt: skip


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0  # steps taken, over all epochs
    epoch: int = 0  # epochs finished
    best_robust_ce: float | None = None
    best_epoch: int | None = None
    forked_here: bool = False  # no step taken since the fork
    images: int = 0  # training images; 0 in old checkpoints


class RunCheckpoints:
    """The checkpoints of one run; loading copies into the existing tensors of `state` and `maps`."""

    def __init__(
        self, folder: RunFolder, config: Config, state: TrainingState, maps: Tensor | None, *, writes: bool
    ) -> None:
        self.folder, self.config, self.state, self.maps, self.writes = folder, config, state, maps, writes
        self._best: tuple[dict[str, Tensor], Position] | None = None  # not yet on disk
        self._steps = 0  # of an epoch

    def tensors(self) -> dict[str, Tensor]:
        return self.state.tensors() | ({"maps": self.maps} if self.maps is not None else {})

    def resume(self, steps: int, images: int) -> Position:
        """Loads the last checkpoint, or the parent's if the run is a fork, or nothing; returns the position.

        `steps` and `images` are those of an epoch. With another number of images, others would be held out.
        """
        path, self._steps = self.folder.checkpoint("last"), steps
        at = Position()
        if path.exists():
            tensors, facts = load_checkpoint(path)
            at = Position(**facts["position"])
            _require_same(images, at, path)
            if at.step > steps * self.config.epochs or at.epoch != at.step // steps:
                raise UserError(f"{path}: step {at.step} in epoch {at.epoch + 1} does not fit {steps} steps an epoch")
            fill(self.tensors(), tensors, source=path)
            if facts["config"] != self.config.hash():
                raise UserError(f"{path} belongs to another config ({facts['config']}, not {self.config.hash()})")
        elif self.config.init_from and self.config.fork_source[1]:
            at = self._fork(steps, images)
        at.images = images
        return at

    def save(self, at: Position) -> None:
        """Writes the best, if it is new, then the last: a kill in between loses only the work since the last save."""
        self._require_finite(at)
        if not self.writes:
            return
        if at.epoch == self.config.epochs and not self.config.holdout:
            self._best = (self.state.weights(), at)
        if self._best is not None:
            weights, position = self._best
            save_checkpoint(self.folder.checkpoint("best"), weights, self._facts(position))
            self._best = None
        kept = self.folder.checkpoint(f"epoch-{at.epoch}")
        if self.keeps(at.epoch) and at.step == at.epoch * self._steps and not kept.exists():
            save_checkpoint(kept, self.tensors(), self._facts(at))
        save_checkpoint(self.folder.checkpoint("last"), self.tensors(), self._facts(at))

    def keeps(self, epoch: int) -> bool:
        """Whether the checkpoint after this many epochs is kept, for other runs to fork from."""
        return epoch in (*self.config.keep, self.config.burn_in.epochs or None)

    def consider(self, robust_ce: float, at: Position) -> None:
        """Keeps the current weights as the best if their robust cross-entropy on held-out images is the lowest."""
        if at.best_robust_ce is None or robust_ce < at.best_robust_ce:
            at.best_robust_ce, at.best_epoch = robust_ce, at.epoch
            self._best = ({name: tensor.clone() for name, tensor in self.state.weights().items()}, replace(at))

    def last_good(self) -> str:
        path = self.folder.checkpoint("last")
        if not path.exists():
            return "no checkpoint yet"
        return f"the last good checkpoint is {path}, step {read_facts(path)['position']['step']}"

    def _facts(self, at: Position) -> Facts:
        settings = self.config.model_dump(mode="json")
        about = {"config": self.config.hash(), "model": self.config.model, "settings": settings}
        return about | {"position": asdict(at), "epoch": at.epoch}

    def _fork(self, steps: int, images: int) -> Position:
        """Starts from the state of another run after some epochs."""
        path, epoch = find_parent(self.config)
        tensors, facts = load_checkpoint(path)
        _require_same(images, Position(**facts["position"]), path)
        if facts["position"]["step"] != epoch * steps:
            raise UserError(f"{path} is at step {facts['position']['step']}, not at the end of epoch {epoch}")
        tensors.pop("maps", None)  # computed anew
        fill(self.state.tensors(), tensors, source=path)
        return Position(step=epoch * steps, epoch=epoch, forked_here=True)

    def _require_finite(self, at: Position) -> None:
        if not all(bool(tensor.isfinite().all()) for tensor in self.state.weights().values()):
            raise Diverged(f"weights are not finite after step {at.step}; {self.last_good()}")


def find_parent(config: Config) -> tuple[Path, int]:
    """The checkpoint that `init_from` names, and its epoch; UserError if this config cannot be forked from it.

    The epoch is 0 if only weights are taken.
    """
    run, epoch = config.fork_source
    source = RunFolder(run)
    theirs = source.read_config()
    if not epoch:
        return _find_weights(source, theirs, config), 0
    if source.exported:
        raise UserError(f"cannot fork {run}: it was exported, without what only training needs")
    taken = {name: getattr(theirs, name) for name in FORK_MAY_CHANGE}
    taken["optim"] = theirs.optim.model_copy(update={"name": config.optim.name})  # its state is taken over
    if differing := differing_fields(theirs, config.model_copy(update=taken)):
        raise UserError(f"cannot fork {run}: {'; '.join(differing)}")
    path, last = source.checkpoint(f"epoch-{epoch}"), source.checkpoint("last")
    if not path.exists() and last.exists():
        at = Position(**read_facts(last)["position"])
        if at.step == epoch * -(-at.images // theirs.batch_size):  # at the end of that epoch
            path = last
    if not path.exists():
        epochs = ", ".join(map(str, source.kept_epochs())) or "none"
        raise UserError(f"{run} has no checkpoint after epoch {epoch}; kept epochs: {epochs} (see --keep)")
    if epoch >= config.epochs:
        raise UserError(
            f"init_from {config.init_from} has no epochs left to train: epochs is {config.epochs}, and a fork goes on "
            f"after epoch {epoch}; --init-from {run} starts a new run with its weights"
        )
    return path, epoch


def _find_weights(source: RunFolder, theirs: Config, config: Config) -> Path:
    """The best checkpoint of a finished run with the same network."""
    same = theirs.model_copy(update={name: getattr(config, name) for name in ("model", "normalize")})
    if differing := differing_fields(theirs, same):
        raise UserError(f"cannot start from {source.path}: {'; '.join(differing)}")
    last = source.checkpoint("last")
    if last.exists() and (epoch := read_facts(last)["position"]["epoch"]) < theirs.epochs:
        raise UserError(f"cannot start from {source.path}: only {epoch} of its {theirs.epochs} epochs are trained")
    return Run(source.path).find_checkpoint("best")


def _require_same(images: int, at: Position, path: Path) -> None:
    if at.images not in (0, images):
        raise UserError(
            f"{path} was trained on {at.images} images, but the data set now has {images}; start a new run with --out"
        )
