"""Arms next to the curve that uniform budgets draw: D with its interval for each, and the figure."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pixelpart.evaluation.frontier import (
    Arm,
    distance,
    distance_difference,
    fit_curve,
    negative_control,
    pooled_deviation,
    smallest_effect,
)
from pixelpart.evaluation.frontier_study import StudyDesign, simulate_studies, verdict
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.tables import Table

ROBUST = "apgd"
STUDIES = 2000
WAITS = "D is computed once all runs are there, two seeds or more of each arm."
NO_CURVE = "The uniform arms do not differ in natural accuracy: there is no curve, and no D."


def uniform_arms(results: Results) -> list[str]:
    return [label for label in results.arms if label[0] == "U" and label[1:].replace(".", "").isdigit()]


def study_arm(results: Results, label: str) -> Arm:
    runs = [run for run in results.runs[label] if {"natural", ROBUST} <= run.flags.keys()]
    flags = [np.stack([run.flags[column] for run in runs]) for column in ("natural", ROBUST)]
    return Arm(flags[0], flags[1], tuple(run.seed for run in runs))


def has_curve(uniform: Sequence[Arm]) -> bool:
    return len({arm.mean_natural for arm in uniform}) > 2


def distances(results: Results, pairs: list[tuple[str, str]], *, simulate: bool = False) -> list[Table]:
    """D of each arm from the curve of the uniform arms, and the difference of D for each pair; fills the analysis.

    Nothing is computed before all runs are there: a look in between would change the error rates.
    """
    known = uniform_arms(results)
    fewest = min((len(runs) for runs in results.runs.values()), default=0)
    if not results.complete or fewest < 2 or len(known) < 3:
        results.notes.append(WAITS)
        return []
    arms = {label: study_arm(results, label) for label in results.arms}
    uniform = [arms[label] for label in known]
    if not has_curve(uniform):
        results.notes.append(NO_CURVE)
        return []
    others = [label for label in arms if label not in known]
    rows, found = [], {}
    for label in others:
        d = distance(arms[label], uniform)
        if d.estimate is None:
            found[label] = d.as_json()
            rows.append([label, str(d), "", ""])
            continue
        seen = smallest_effect(d, confidence=0.95)
        found[label] = d.as_json() | {"smallest effect": seen}
        rows.append([label, str(d), f"{100 * seen:.2f}", str(verdict(arms[label], uniform))])
    head = ["arm", "D, points [95 % interval]", "smallest effect seen with 80 %", "verdict (97.5 %)"]
    tables = [Table("Distance from the uniform curve", head, rows)]
    apart = {f"{a} - {b}": distance_difference(arms[a], arms[b], uniform) for a, b in pairs}
    if apart:
        lines = [[name, str(d)] for name, d in apart.items()]
        tables.append(Table("Differences of D", ["arms", "points [95 % interval]"], lines))
    checks = [
        [f"D of {label} from the others", str(d)] for label, d in zip(known, negative_control(uniform), strict=True)
    ]
    deviation = pooled_deviation(list(arms.values()), uniform)
    checks.append(["deviation of y between seeds, points", f"{100 * deviation:.2f}"])
    results.analysis |= {
        "distances": found, "differences": {name: d.as_json() for name, d in apart.items()}, "deviation": deviation,
    }  # fmt: skip
    near = [label for label in others if found[label]["estimate"] is not None]
    if simulate and near:
        alarms = simulate_studies(StudyDesign.like([arms[near[0]]], uniform), studies=STUDIES)
        checks.append([f"false alarms of the 95 % interval, simulated for {near[0]}", str(alarms)])
        results.analysis["calibration"] = alarms.as_json()
    return [*tables, Table("Checks", ["what", "found"], checks)]


def plot_frontier(results: Results) -> Figure:
    """Natural against robust accuracy: the uniform curve with its band, every arm as a point with its error."""
    known = uniform_arms(results)
    figure, axes = plots.plane(results, y=ROBUST, first=known)
    ready = [label for label in known if len(results.runs[label]) > 0]
    with plots.style():
        arms = [study_arm(results, label) for label in ready]
        if has_curve(arms):
            curve = fit_curve(arms)
            across = np.linspace(min(a.mean_natural for a in arms), max(a.mean_natural for a in arms), 60)
            axes.plot(100 * across, [100 * curve.at(n) for n in across], color=plots.FAINT, linewidth=1.2, zorder=1)
            if min(arm.runs for arm in arms) > 1:
                low, high = np.array([curve.band(n) for n in across]).T
                axes.fill_between(
                    100 * across, 100 * low, 100 * high, color=plots.FAINT, alpha=0.2, linewidth=0, zorder=0
                )
        found = results.analysis.get("distances", {})
        if seen := [d["smallest effect"] for d in found.values() if d["estimate"] is not None]:
            least = " to ".join(f"{100 * value:.1f}" for value in sorted({min(seen), max(seen)}))
            text = f"grey: curve of uniform budgets, 95 % band\nsmallest distance seen with 80 %: {least} points"
            axes.text(0.02, 0.02, text, transform=axes.transAxes, fontsize=8, color=plots.INK, va="bottom")
    return figure
