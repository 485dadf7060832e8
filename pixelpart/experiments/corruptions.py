"""Table 4: accuracy on images with common corruptions, at severity 1 as in the paper and at all; and minus natural.

A smaller uniform eps also raises accuracy on mild corruptions, so PART is compared with a uniform arm of its mean too.
"""

from collections.abc import Sequence

import numpy as np

from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES
from pixelpart.evaluation.statistics import PerImage
from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results, RunResult
from pixelpart.experiments.common.scales import Arms, Scale, masked_pairs, uniform_label
from pixelpart.experiments.common.tables import STAR, Table, written
from pixelpart.runtime.tables import warning_lines

NAMES = {**{name: name for name in CORRUPTIONS}, "frost-drawn": "frost"}  # frost without photographs has its own name
COLUMNS = ("natural", "severity 1", "all severities", "severity 1 - natural", "all severities - natural")


def arms(scale: Scale) -> Arms:
    mean = scale.mean(8, 7)
    return scale.methods(every=10) | {uniform_label(mean): scale.uniform(mean)}


def analyse(results: Results, runner: Runner) -> list[Table]:
    """Derives the means over corruptions; the table of all corruptions at severity 1."""
    for run in [run for runs in results.runs.values() for run in runs]:
        natural = run.flags.get("natural")
        for column, severities in (("severity 1", (1,)), ("all severities", SEVERITIES)):
            mean = share(run, severities)
            if mean is not None and natural is not None:
                run.add(column, mean, of=versions(severities))
                run.add(f"{column} - natural", mean - natural, of=("natural", column))
    rows, stars = [], list[tuple[str, list[str]]]()
    for key, name in NAMES.items():
        cells = [(results.cell(arm, f"{key}-1"), results.paper.get(arm, {}).get(f"{name}-1")) for arm in results.arms]
        if any(cell and cell.values for cell, _ in cells):
            texts = [(written(ours), f"{theirs[0]:.2f}" if theirs else "") for ours, theirs in cells]
            rows.append([key, *(text for pair in texts for text in pair)])
            stars += [(key, cell.warnings) for cell, _ in cells if cell]
    head = [text for arm in results.arms for text in (arm, "paper")]
    title = "Severity 1, mean [95 % interval]"
    return [Table(title, ["corruption", *head], rows, warning_lines(stars, mark=STAR))] if rows else []


def share(run: RunResult, severities: tuple[int, ...]) -> PerImage | None:
    """For each image the share of its corrupted versions that are classified correctly; None if some are missing."""
    found = [run.flags[version] for version in versions(severities) if version in run.flags]
    return np.mean(found, axis=0) if len(found) == len(CORRUPTIONS) * len(severities) else None


def versions(severities: Sequence[int]) -> list[str]:
    """The columns of all corruptions at these severities."""
    return [f"{name}-{severity}" for name in NAMES for severity in severities]


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural",),
    measures=("pixelpart.experiments.common.measures:corruptions",),
    columns=lambda scale: COLUMNS,
    reads=tuple(versions(SEVERITIES)),
    paper=lambda scale: paper.CORRUPTIONS,
    baselines=lambda arms: [*masked_pairs(arms), ("PART s=10", list(arms)[-1])],
    analyse=analyse,
    plot=plots.intervals,
    notes=("In the paper the rows of Gaussian noise and Gaussian blur are equal.",),
)
