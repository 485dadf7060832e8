"""`corruptions`: a model's accuracy on test images corrupted by noise, blur, weather and digital artefacts."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pixelpart.attacks.autoattack import default_slots
from pixelpart.data import SETS
from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES
from pixelpart.data.corruptions.source import CorruptionSource, Facts, check_names, open_source
from pixelpart.errors import UserError, choose
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.measure import natural
from pixelpart.evaluation.result import Entry, FlagArray, Outcome
from pixelpart.evaluation.store import ResultKey, ResultStore, hash_json
from pixelpart.evaluation.target import Target, load_target
from pixelpart.evaluation.validate import check_counts, check_model
from pixelpart.runs import Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.view.borrow import borrowed

FILE = "corruptions.json"
DRAWN = "frost is drawn by a formula, not cut from photographs: it is not the frost of CIFAR-10-C"


@dataclass(frozen=True)
class CorruptionResult:
    """The outcome on clean images, and of every corruption at every severity: `result["fog", 3].accuracy`."""

    clean: Outcome = field(repr=False)
    outcomes: dict[tuple[str, int], Outcome] = field(repr=False)

    def __getitem__(self, cell: tuple[str, int]) -> Outcome:
        return self.outcomes[cell]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.outcomes))

    @property
    def severities(self) -> list[int]:
        return sorted({severity for _, severity in self.outcomes})

    @property
    def entries(self) -> list[Entry]:
        return [outcome.entry for outcome in (self.clean, *self.outcomes.values())]

    def mean(self, name: str | None = None) -> tuple[float, float, float]:
        """Mean accuracy over the severities of one corruption, or over all corruptions, with its 95 % interval."""
        flags = [outcome.right for (key, _), outcome in self.outcomes.items() if name in (None, key)]
        return mean_accuracy(np.stack(flags))

    def as_json(self) -> dict[str, Any]:
        def mean(name: str | None) -> dict[str, Any]:
            accuracy, *interval = self.mean(name)
            return {"accuracy": accuracy, "interval": interval}

        return {"mean": mean(None), "means": {name: mean(name) for name in self.names}, "entries": self.entries}

    def __str__(self) -> str:
        """One line per corruption, one column per severity, means with their intervals, then the warnings."""
        width = max(len(name) for name in (*self.names, "corruption"))
        blank = " " * 9 * len(self.severities)

        def line(name: str, cells: str, mean: float, low: float, high: float, *, warned: bool) -> str:
            return f"{name:<{width}}{cells}{mean:>9.2%}  [{low:.2%}, {high:.2%}]{' *' if warned else ''}"

        lines = [f"{'corruption':<{width}}" + "".join(f"{s:>9}" for s in self.severities) + f"{'mean':>9}"]
        for name in self.names:
            outcomes = [self.outcomes[name, severity] for severity in self.severities]
            cells = "".join(f"{outcome.accuracy:>9.2%}" for outcome in outcomes)
            lines.append(line(name, cells, *self.mean(name), warned=any(outcome.warnings for outcome in outcomes)))
        warnings = dict.fromkeys(warning for entry in self.entries for warning in entry["warnings"])
        lines.append(line("mean", blank, *self.mean(), warned=bool(warnings)))
        lines.append(line("clean", blank, self.clean.accuracy, *self.clean.interval, warned=False))
        lines.append(f"n = {self.clean.n}, corrupted images: {self.entries[-1]['settings']['source']}")
        return "\n".join([*lines, *(f"* {warning}" for warning in warnings)])


def corruptions(
    subject: Run | str | Path | nn.Module,
    *,
    severities: Iterable[int] = SEVERITIES,
    names: str | Iterable[str] | None = None,
    images: int | None = None,
    folder: str | Path | None = None,
    frost: str | Path | None = None,
    checkpoint: str = "best",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: int = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
) -> CorruptionResult:
    """The accuracy of a model on test images corrupted in 19 ways at 5 severities (Hendrycks and Dietterich 2019).

    `subject`, `images`, `checkpoint`, `data`, `root`, `out` and `name` are as in `evaluate`. Corrupted images are read
    from .npy files in `folder`, or in CIFAR-10-C in the data root; otherwise they are generated, with the photographs
    of frost in the folder `frost`, or those of the package imagecorruptions if it is installed, or else with drawn
    frost. Each outcome is stored in corruptions.json at once, and reused for the same model and images.
    """
    wanted, chosen = list(dict.fromkeys(severities)), parse_names(names)
    for severity in wanted:
        if not isinstance(severity, int) or severity not in SEVERITIES:
            raise UserError(f"unknown severity {severity!r}; choose from {', '.join(map(str, SEVERITIES))}")
    if not wanted:
        raise UserError(f"no severities given; choose from {', '.join(map(str, SEVERITIES))}")
    check_counts(images=images, batch_size=batch_size)
    target = load_target(
        subject,
        checkpoint=checkpoint,
        data=data,
        size=size,
        skip_bad=skip_bad,
        images=images,
        device=device,
        root=root,
        out=out,
        name=name,
    )
    source = _open_source(target, chosen, root=root, folder=folder, frost=frost, say=say)
    batch_size = batch_size or default_slots(target.pictures.device)
    with ieee_fp32(target.pictures.device), borrowed(target.model) as model:
        run = CorruptionRun(model, target, source, batch_size, progress, total=1 + len(chosen) * len(wanted))
        clean = run.outcome("clean", 0)
        cells = [(corruption, severity) for corruption in chosen for severity in sorted(wanted)]
        outcomes = {(source.name(key), severity): run.outcome(key, severity) for key, severity in cells}
    return CorruptionResult(clean, outcomes)


def mean_accuracy(flags: FlagArray) -> tuple[float, float, float]:
    """The mean of flags (versions, n) and its 95 % interval.

    mean ± z s / sqrt(n), s the standard deviation between images of the share of an image's versions that are correct:
    the versions of an image are not independent, so only the images count.
    """
    shares = flags.mean(0)
    n, mean = len(shares), float(shares.mean())
    half = NormalDist().inv_cdf(0.975) * float(shares.std(ddof=1)) / math.sqrt(n) if n > 1 else 1.0
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def parse_names(names: str | Iterable[str] | None) -> list[str]:
    """Corruptions by their names, in the order of CORRUPTIONS; all if None."""
    if names is None:
        return list(CORRUPTIONS)
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for name in wanted:
        choose(CORRUPTIONS, name, "corruption")
    if not wanted:
        raise UserError(f"no corruptions given; choose from {', '.join(CORRUPTIONS)}")
    return [name for name in CORRUPTIONS if name in wanted]


def _open_source(target: Target, names: list[str], **settings: Any) -> CorruptionSource:
    dataset = target.tags["dataset"]
    x, y = target.pictures.images, target.pictures.labels
    whole = dataset in SETS and len(x) == SETS[dataset].counts["test"]
    source = open_source(x, y, whole=whole, dataset=dataset, **settings)
    check_names(source, names)
    return source


class CorruptionRun:
    """One model and one source of corrupted images; `outcome` measures one corruption at one severity."""

    def __init__(
        self,
        model: nn.Module,
        target: Target,
        source: CorruptionSource,
        batch_size: int,
        progress: Progress,
        *,
        total: int,
    ) -> None:
        self.model, self.target, self.source = model, target, source
        self.batch_size, self.progress = batch_size, progress
        self.store = ResultStore(target, file=FILE)
        self.key = ResultKey.of(model, target, check_model(model, target.pictures))
        self.warnings: list[str] | None = None
        self.done, self.total = 0, total * len(target.pictures)

    def outcome(self, corruption: str, severity: int) -> Outcome:
        """The stored or newly measured outcome of one corruption, or of the clean images (severity 0)."""
        facts: Facts = self.source.facts(corruption, severity) if severity else {"source": "clean"}
        name = self.source.name(corruption) if severity else corruption
        title = f"{name}-{severity}" if severity else name
        key = dataclasses.replace(self.key, images=hash_json([self.key.images, facts]))
        outcome = self.store.find(key, title)
        if outcome is None:
            start = time.perf_counter()
            correct = self._measure(corruption, severity)
            if self.warnings is None:
                self.warnings = [*self.target.warnings, *sanity.model_warnings(self.model, self.target.pictures)]
            outcome = self.store.add(
                key,
                title,
                correct,
                eps=0.0,
                settings={"corruption": name, "severity": severity, "source": facts["source"]},
                seed=facts.get("seed", 0),
                warnings=[*self.warnings, *([DRAWN] if name == "frost-drawn" else [])],
                seconds=time.perf_counter() - start,
            )
        self.done += outcome.n
        self.progress("classifying", self.done, self.total, f"{title} {outcome.accuracy:.2%}")
        return outcome

    def _measure(self, corruption: str, severity: int) -> FlagArray:
        pictures = self.target.pictures
        if severity:
            x = self.source.images(corruption, severity, self.progress)
            pictures = ImageSet(x, pictures.labels, pictures.device)
        return natural(
            self.model,
            pictures,
            batch_size=self.batch_size,
            report=lambda done, correct: self.progress("classifying", self.done + done, self.total, ""),
        ).numpy()
