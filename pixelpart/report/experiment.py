"""The pages of `pixelpart experiment`: an experiment's figure, tables and runs; or all experiments of a folder."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pixelpart.config import validation_message
from pixelpart.errors import UserError
from pixelpart.experiments import EXPERIMENTS
from pixelpart.files import parse_json, read_text
from pixelpart.report.arms import ReportedArm, collect, varying
from pixelpart.report.commands import experiment_command
from pixelpart.report.formatting import capital, count
from pixelpart.report.run import JsonRecord, read_runs
from pixelpart.report.sweep import runs_content


class ArmRecord(JsonRecord):
    requested: int
    runs: tuple[str, ...]


class ExperimentRecord(JsonRecord):
    """result.json."""

    experiment: str
    title: str
    number: str
    scale: str
    data: str
    arms: dict[str, ArmRecord]


@dataclass(frozen=True)
class MarkdownTable:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ReportedExperiment:
    """What `pixelpart experiment` left in a folder."""

    folder: Path
    record: ExperimentRecord
    figure: bytes  # PNG; b"" without a figure
    lead: str
    tables: list[MarkdownTable]
    notes: list[str]

    @property
    def about(self) -> str:
        """Its number in the paper, its scale and data set."""
        return f"{capital(self.lead)}." if self.lead else ""

    @property
    def figure_uri(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.figure).decode()}"

    @property
    def figure_width(self) -> int:
        """In CSS pixels, at which text drawn with 9 points at 150 dots per inch has about the size of a caption."""
        return round(0.7 * int.from_bytes(self.figure[16:20], "big"))  # the width in a PNG's header

    @property
    def command(self) -> str:
        own, seeds = self.record, max((arm.requested for arm in self.record.arms.values()), default=0)
        return experiment_command(own.experiment, own.scale, data=own.data, seeds=seeds, folder=self.folder)


def experiment_content(folder: Path) -> dict[str, Any]:
    """The variables of experiment.html for one experiment; those of its runs that are still there are shown too."""
    experiment = read_experiment(folder)
    return {"experiments": [experiment], "lead": "", **_runs(experiment)}


def experiments_content(folder: Path) -> dict[str, Any]:
    """The variables of experiment.html for all experiments of a folder, in the order of `pixelpart experiment`."""
    experiments = [read_experiment(path.parent) for path in sorted(folder.glob("*/result.json"))]
    order = {name: number for number, name in enumerate(EXPERIMENTS)}
    experiments.sort(key=lambda experiment: order.get(experiment.record.experiment, len(order)))
    return {
        "experiments": experiments,
        "lead": f"{count(len(experiments), 'experiment')}: figures, tables, the paper's numbers.",
        "runs": [],
    }


def read_experiment(folder: Path) -> ReportedExperiment:
    """A UserError if result.json cannot be read; table.md and figure.png may be missing."""
    path = folder / "result.json"
    try:
        record = ExperimentRecord.model_validate(parse_json(read_text(path)))
    except ValidationError as error:
        raise UserError(f"{path} is not the result of an experiment: {validation_message(error)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    figure, table = folder / "figure.png", folder / "table.md"
    image = figure.read_bytes() if figure.is_file() else b""
    text = read_text(table, errors="replace") if table.exists() else ""
    return ReportedExperiment(folder, record, image, *read_markdown(text))


def read_markdown(text: str) -> tuple[str, list[MarkdownTable], list[str]]:
    """The line below the title, the tables and the notes of a table.md."""
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    lead = [line for line in head.splitlines() if line and not line.startswith(("# ", "- "))]
    tables = []
    for part in parts:
        title, *lines = part.splitlines()
        rows = [_cells(line) for line in lines if line.startswith("|")]
        tables.append(MarkdownTable(title, rows[0] if rows else [], rows[2:]))
    notes = [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    return " ".join(lead), tables, list(dict.fromkeys(notes))  # the same note may be below several tables


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _runs(experiment: ReportedExperiment) -> dict[str, Any]:
    """Arms with the runs that are still there: where result.json says, or in the runs next to the experiment."""
    arms: list[ReportedArm] = []
    for label, arm in experiment.record.arms.items():
        if paths := [path for run in arm.runs if (path := _find_run(experiment.folder, Path(run)))]:
            arms.append(ReportedArm(label, read_runs(paths), len(arms)))
    return runs_content(collect(arms), varying([run for arm in arms for run in arm.runs])) if arms else {"runs": []}


def _find_run(folder: Path, path: Path) -> Path | None:
    candidates = (path, folder.parent / "runs" / path.name)
    return next((found for found in candidates if (found / "config.json").exists()), None)
