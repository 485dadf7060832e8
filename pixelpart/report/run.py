"""What the page shows of one run folder; what is missing or cannot be read becomes a note on the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pixelpart.config import DEFAULT_EPS, Config, default_step_size, flat, validation_message
from pixelpart.errors import UserError
from pixelpart.evaluation.results import checksum_matches, current_entries
from pixelpart.files import parse_json, read_text
from pixelpart.runs import MetricsRow, Run, mean_budget

if TYPE_CHECKING:
    from pixelpart.report.explanation import Explanation

COLOURS = 8  # --run-0 to --run-7 in report.css
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "*": "★"}  # as characters


class JsonRecord(BaseModel):
    """An object of a JSON file; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


R = TypeVar("R", bound=JsonRecord)


def step_size_of(settings: Mapping[str, Any], eps: float | None) -> float | str | None:
    """The step size of an attack with these settings, or "default"; None of one without steps.

    Attacks with the default, which depends on eps, are the same attack at several eps.
    """
    step_size = settings.get("step_size")
    return "default" if step_size == default_step_size(eps or DEFAULT_EPS) else step_size


class Measurement(JsonRecord):
    """One entry of eval.json or corruptions.json."""

    attack: str
    checkpoint: str
    epoch: int | None = None
    weights: str = "raw"
    dataset: str
    split: str = "test"
    accuracy: float = Field(ge=0, le=1)
    interval: tuple[float, float]
    n: int = Field(ge=0)
    eps: float | None = None
    settings: dict[str, Any] = {}
    seed: int = 0
    precision: str = "fp32"
    seconds: float | None = None
    machine: str = ""
    warnings: tuple[str, ...] = ()
    entry: dict[str, Any] = {}  # all of it, as in the file

    @property
    def engine(self) -> str:
        """Whose code ran the attack: own, or reference (the authors of AutoAttack)."""
        return self.settings.get("engine", "own")

    @property
    def step_size(self) -> float | str | None:
        """See `step_size_of`."""
        return step_size_of(self.settings, self.eps)

    @property
    def gradients(self) -> str:
        """The precision of the gradients of a step attack, which is part of what the attack is."""
        return self.settings.get("search", "fp32") if "step_size" in self.settings else "fp32"

    @property
    def column(self) -> str:
        """The column of the table: the attack, with engine and precision where they are not the usual ones."""
        unusual = [word for word in (self.engine, self.gradients) if word not in ("own", "fp32")]
        return ", ".join([self.attack, *unusual])

    @property
    def own_eps(self) -> bool:
        """Whether the attack has its own eps, rather than that of its row in the table."""
        return "@" in self.attack or not self.settings.keys().isdisjoint({"norm", "eps_low"})


class Marked:
    """A run or an arm, whose place among the others chooses its colour and marker."""

    place: int

    @property
    def colour(self) -> int:
        return self.place % COLOURS

    @property
    def marker(self) -> str:
        """The marker for matplotlib; those of one colour have different ones."""
        return list(MARKERS)[(self.place + self.place // COLOURS) % len(MARKERS)]

    @property
    def mark(self) -> str:
        """The marker as a character."""
        return MARKERS[self.marker]


@dataclass(eq=False)
class ReportedRun(Marked):
    """A run with its label on the page; `notes` says what is missing."""

    run: Run
    place: int = 0
    label: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.run.dir

    @property
    def config(self) -> Config:
        return self.run.config

    @cached_property
    def metrics(self) -> list[MetricsRow]:
        problems: list[str] = []
        rows = self.run.folder.read_metrics(problems)
        self.notes += [f"{problem}; curves and times are without it" for problem in problems]
        return rows

    @cached_property
    def epochs_done(self) -> int:
        return max((row["epoch"] for row in self.metrics), default=0)

    @property
    def seconds(self) -> float:
        """The time of training."""
        return sum(row["seconds"] for row in self.metrics)

    @property
    def budget(self) -> float | None:
        """The mean budget in training, after burn-in, in 1/255."""
        return mean_budget(self.metrics)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the config by dotted name."""
        return flat(self.config)

    @property
    def burn_in(self) -> int:
        """The number of finished burn-in epochs."""
        return max((row["epoch"] for row in self.metrics if row["phase"] == "burn-in"), default=0)

    @cached_property
    def measurements(self) -> list[Measurement]:
        return self.read_measurements("eval.json")

    @cached_property
    def explanation(self) -> "Explanation | None":
        """What `pixelpart explain` wrote, or None with a note."""
        from pixelpart.report.explanation import read_explanation

        return read_explanation(self)

    def read_measurements(self, file: str) -> list[Measurement]:
        """The entries of a result file that can be shown."""
        measurements = []
        try:
            entries = current_entries(self.path, file, self.notes)
        except UserError as error:
            self.notes.append(f"{file} is not shown: {error}")
            return []
        for entry in entries:
            try:
                measurements.append(Measurement.model_validate(entry | {"entry": entry}))
            except ValidationError as error:
                self.notes.append(f"{file}: an entry is not shown ({validation_message(error)})")
        return measurements

    def read_record(self, name: str, schema: int, kind: type[R]) -> R | None:
        """The content of a JSON file, or None if it is missing or unusable."""
        try:
            content = parse_json(read_text(self.path / name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.notes.append(f"{name} cannot be read ({error})")
            return None
        if not isinstance(content, dict) or content.get("schema_version") != schema:
            self.notes.append(f"{name} is not shown: its schema_version is not {schema}")
        elif not checksum_matches(content):
            self.notes.append(f"{name} is not shown: checksum mismatch")
        else:
            try:
                return kind.model_validate(content)
            except ValidationError as error:
                self.notes.append(f"{name} is not shown ({validation_message(error)})")
        return None


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """Each folder once, in the given order; labels are the shortest path endings that differ."""
    different = {path.resolve(): path for path in paths}.values()
    runs = [ReportedRun(Run(path), place) for place, path in enumerate(different)]
    for run in runs:
        parts = run.path.resolve().parts
        others = [other.path.resolve().parts for other in runs if other is not run]
        length = next((k for k in range(1, len(parts)) if all(o[-k:] != parts[-k:] for o in others)), len(parts))
        run.label = "/".join(parts[-length:])
        if run.epochs_done < run.config.epochs:
            run.notes.append(f"unfinished: {run.epochs_done} of {run.config.epochs} epochs are done")
        if not run.measurements:
            run.notes.append(f"not evaluated yet: run `{run.run.command('evaluate')}`")
    return runs


def shared_settings(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """The fields, by dotted name, that have the same value in all runs."""
    first, *others = [run.settings for run in runs]
    return {name: value for name, value in first.items() if all(other[name] == value for other in others)}
