"""Appendix H.3: the five behaviours of obfuscated gradients, for PART and, next to it, for AT."""

from typing import Any

from matplotlib.figure import Figure

from pixelpart.data import SETS
from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment, More
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import SCALES, Arms, Scale
from pixelpart.experiments.common.tables import Table
from pixelpart.runs import Run
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.work import Job

LABELS = ("AT", "PART s=1")
GROWING = {f"{levels}/255": f"eps {levels}/255" for levels in (16, 32, 64)}
COLUMNS = (
    "natural", "pgd1", "one step", "pgd20", "transfer", "unbounded", "random only", *GROWING.values(),
)  # fmt: skip


def arms(scale: Scale) -> Arms:
    return {label: scale.method(label) for label in LABELS}


def measure(run: Run, job: Job) -> dict[str, Any]:
    """The report of `pixelpart check`, with the other arm's run of this seed as the surrogate."""
    from pixelpart.evaluation.checks.obfuscation import check
    from pixelpart.evaluation.statistics import wilson

    images = job.images or SETS[job.config.dataset].counts["test"]
    other = surrogate(run, job)
    report = check(run, surrogate=other, images=images, checkpoint=job.checkpoint)
    found = {name: report[name].numbers for name in ("one step", "black box", "unbounded", "random", "growing eps")}
    columns = {
        "one step": 100 * found["one step"]["fgsm"],
        "transfer": 100 * found["black box"]["transfer"],
        "unbounded": 100 * found["unbounded"]["unbounded"],
        "random only": 100 * found["random"]["random_only"] / images,
    }
    columns |= {GROWING[eps]: 100 * share for eps, share in found["growing eps"]["accuracy"].items() if eps in GROWING}
    ends = {name: wilson(round(value * images / 100), images) for name, value in columns.items()}
    intervals = {name: [100 * low, 100 * high] for name, (low, high) in ends.items()}
    about = {"verdict": report.verdict, "suspicious": report.suspicious, "surrogate": other.dir.name}
    return {"columns": columns, "intervals": intervals} | about


def surrogate(run: Run, job: Job) -> Run:
    """The run of the other arm, which is in the same folder."""
    for scale in SCALES.values():
        names = [identity(config.model_copy(update={"seed": job.config.seed})) for config in arms(scale).values()]
        if job.id in names:
            return Run(run.dir.parent / names[1 - names.index(job.id)])
    raise AssertionError(f"{run.dir} is not a run of this experiment")


def analyse(results: Results, more: More) -> list[Table]:
    """The verdicts, also of behaviours on which the check is stricter than the numbers above."""
    found = [
        (arm, run.measures["gradients"])
        for arm, runs in results.runs.items()
        for run in runs
        if "gradients" in run.measures
    ]
    rows = [[arm, one["verdict"], ", ".join(one["suspicious"])] for arm, one in found]
    return [Table("Verdicts of pixelpart check", ["arm", "verdict", "suspicious"], rows)] if rows else []


def plot(results: Results) -> Figure:
    columns = ["natural", *COLUMNS[1:]]
    with plots.style():
        figure, (axes,) = plots.panels(1, width=8.5, height=3.4, title=plots.heading(results))
        plots.bars(axes, results, columns)
        return figure


EXPERIMENT = Experiment(
    arms=arms,
    attacks={"paper": ("natural", "pgd1", "pgd20"), "demo": ("natural", "pgd1", "pgd20")},
    measures=("pixelpart.experiments.gradients:measure",),
    columns=lambda scale: COLUMNS,
    paper=lambda scale: paper.GRADIENTS,
    analyse=analyse,
    plot=plot,
    notes=(
        "one step: FGSM at eps; the paper's PGD-1, one step of 2/255, is in the column pgd1.",
        "transfer: PGD-20 through the other arm's run of the same seed. random only: images that 100 random points of "
        "the ball break and PGD-20 does not, in %. eps: PGD-20 with steps in proportion to eps.",
    ),
)
