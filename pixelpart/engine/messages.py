"""What training says: lines for the screen and the log, and the rows of the live table."""

from collections.abc import Iterator, Sequence

from pixelpart.config import Config, write_fraction
from pixelpart.data.loader import Loader
from pixelpart.engine.checkpoint import Position
from pixelpart.engine.plan import Plan
from pixelpart.engine.state import TrainingState
from pixelpart.masks import MAPS
from pixelpart.objectives import OBJECTIVES
from pixelpart.runs import MetricsRow
from pixelpart.runtime.device import machine
from pixelpart.version import code_version

EPOCH_COLUMNS = ("epoch", "phase", "loss", "natural", "PGD", "images/s", "seconds")
FORMS = {"phase": "", "loss": ".4f", "natural": ".1%", "pgd": ".1%", "images_per_second": ",.0f", "seconds": ".1f"}


def opening_lines(
    plan: Plan, state: TrainingState, position: Position, loader: Loader, *, captured: bool
) -> Iterator[str]:
    """What trains, where training starts and how it runs."""
    yield f"pixelpart {code_version()} on {machine(loader.device)}"
    config, mask, steps, step = plan.config, plan.main.mask, loader.steps, position.step
    if position.forked_here:
        yield f"forked from {config.init_from}, at step {step}, config {config.hash()}"
    elif step:
        yield f"resumed at step {step}: step {step % steps} of {steps} in epoch {position.epoch + 1}"
    else:
        where = f"{loader.device}" if captured else f"{loader.device}, uncompiled"
        yield f"{config.recipe}: {config.epochs} epochs of {steps} steps on {where}, config {config.hash()}"
        if config.recipe.startswith("folder-"):
            yield settings_line(config, len(loader))
    if mask is not None and config.eps_low > config.eps:
        low, high = write_fraction(config.eps_low), write_fraction(config.eps)
        yield f"eps_low {low} is above eps {high}: marked pixels have the smaller budget"
    reads_features = mask is not None and config.mask.source in MAPS and config.mask.layer == "features"
    if reads_features and (found := getattr(plan.model, "found", "")):
        yield f"maps are read from {found}"
    if captured:
        yield "the step is compiled on first use; this takes about a minute"
    if loader.world.size > 1:
        yield f"{loader.world.size} processes share every batch; their steps run uncompiled"
    if not state.attack_view.folded:
        yield f"torch.fx cannot trace {config.model}: batch norm is not folded and everything runs in fp32"
    elif config.precision != "fp32" and not state.low_precision:
        yield f"{config.model} does not run in {config.precision}; it is trained in its own precision"


def settings_line(config: Config, images: int) -> str:
    """What was chosen for this number of pictures; every value has a flag."""
    burn_in = config.burn_in
    eps = burn_in.eps if isinstance(burn_in.eps, str) else write_fraction(burn_in.eps)
    beta = f" --objective.beta {config.objective.beta:g}" if OBJECTIVES[config.objective.name].weighted else ""
    return (
        f"{images} images to train on, {config.holdout} held out, {config.num_classes} classes, "
        f"{'grey' if config.channels == 1 else 'colour'}: --model {config.model} --augment {config.augment} "
        f"--epochs {config.epochs} --batch-size {config.batch_size} --optim.lr {config.optim.lr:g} "
        f"--ema {config.ema:g} --probe {config.probe} --burn-in.epochs {burn_in.epochs} "
        f"--burn-in.eps {eps} --eps-ramp {config.eps_ramp}{beta}"
        f"{'; burn-in has no attack' if burn_in.epochs and burn_in.eps == 0 else ''}"
    )


def summary_line(row: MetricsRow, config: Config) -> str:
    """The row as a line for the screen and the log."""
    name = "pgd" if config.eps else "natural"  # without an attack, PGD accuracy is natural accuracy
    return (
        f"epoch {row['epoch']}/{config.epochs} {row['phase']}: loss {row['loss']:.4f}, {_accuracy(row, config)}, "
        f"{name} on training images {row[f'train_{name}']:.1%}, {row['seconds']:.1f} s"
    )


def conclusion(rows: Sequence[MetricsRow], best_epoch: int | None, config: Config) -> str:
    """The epoch of the best checkpoint, by held-out images, with its row if that is known; else the last epoch."""
    if best_epoch is None:
        why = "; no images were held out, so best is the last epoch" if rows[-1]["measured_on"] == "test" else ""
        return f"last: epoch {rows[-1]['epoch']}, {_accuracy(rows[-1], config)}{why}"
    measured = (f", {_accuracy(row, config)}" for row in rows if row["epoch"] == best_epoch)
    return f"best: epoch {best_epoch} (lowest {'robust ' * (config.eps > 0)}cross-entropy){''.join(measured)}"


def _accuracy(row: MetricsRow, config: Config) -> str:
    pgd = f", pgd {row['pgd']:.1%}" if config.eps else ""
    return f"natural {row['natural']:.1%}{pgd} ({row['measured_on']})"


def epoch_columns(config: Config) -> list[str]:
    """The heads of the live table: EPOCH_COLUMNS, without PGD if nothing is attacked."""
    return [name for name in EPOCH_COLUMNS if name != "PGD" or config.eps]


def row_cells(row: MetricsRow, config: Config) -> list[str]:
    """The row in `epoch_columns`; a value that the epoch in progress does not have yet is left empty."""
    forms = {name: form for name, form in FORMS.items() if name != "pgd" or config.eps}
    cells = [f"{row[name]:{form}}" if name in row else "" for name, form in forms.items()]
    return [f"{row['epoch']}/{config.epochs}", *cells]


def collapse_line(config: Config, label: int, images: str) -> str:
    """The line that says that all these images are predicted as one class, named if the config names classes."""
    return (
        f"collapsed: all {images} images are predicted as class {config.classes[label] if config.classes else label}; "
        "try a smaller --eps, more --epochs, a longer start without attack (--burn-in.eps 0 and --burn-in.epochs), "
        "--eps-ramp or a lower --optim.lr"
    )
