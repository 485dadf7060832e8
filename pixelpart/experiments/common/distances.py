"""Arms next to the curve that uniform budgets draw: D with its interval for each, and the figure."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pixelpart.comparison.frontier import (
    Arm,
    Distance,
    distance,
    distance_within_seeds,
    fit_curve,
    negative_control,
    secant_distance,
)
from pixelpart.comparison.frontier_study import (
    MARGIN,
    StudyDesign,
    pooled_deviation,
    seed_correlation,
    simulate_studies,
    smallest_effect,
    verdict,
)
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.results import Results, shown_name
from pixelpart.experiments.common.tables import Table

ROBUST = "apgd"
STUDIES = 2000
ALARMS = 0.035, 0.065  # of the 95 % interval, in simulated studies without an effect
WAITS = "D is computed once all runs have finished, two seeds or more of each arm."
NO_CURVE = "The uniform arms do not differ in natural accuracy: there is no curve, and no D."


def uniform_labels(results: Results) -> list[str]:
    return [label for label in results.arms if label[0] == "U" and label[1:].replace(".", "").isdigit()]


def study_arm(results: Results, label: str, robust: str = ROBUST) -> Arm:
    runs = [run for run in results.runs[label] if {"natural", robust} <= run.flags.keys()]
    flags = [np.stack([run.flags[column] for run in runs]) for column in ("natural", robust)]
    return Arm(flags[0], flags[1], tuple(run.seed for run in runs))


def has_curve(uniform: Sequence[Arm]) -> bool:
    return len({arm.mean_natural for arm in uniform}) > 2


def distances(results: Results, pairs: list[tuple[str, str]], *, simulate: bool = False) -> list[Table]:
    """D of each arm from the curve of the uniform arms, and the difference of D for each pair; fills the analysis.

    Nothing is computed before all runs have finished: results seen before that would change the error rates.
    """
    known = uniform_labels(results)
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
        found[label], row = d.as_json(), [label, str(d), ends(d, 0.975), ends(d, 0.9)]
        if d.estimate is not None:
            seen, judged = smallest_effect(d), str(verdict(arms[label], uniform)).partition(";")[0]
            found[label] |= {"smallest effect": seen, "verdict": judged}
            row += [f"{100 * seen:.2f}", judged]
        rows.append([*row, "", ""][:6])
    head = ["arm", "D, points [95 % interval]", "97.5 %", "90 %", "smallest effect, 80 % power", "verdict"]
    tables = [Table("Distance from the uniform curve", head, rows)]
    apart = {f"{a} - {b}": distance(arms[a], uniform, arms[b]) for a, b in pairs}
    if apart:
        lines = [[name, str(d), ends(d, 0.975)] for name, d in apart.items()]
        tables.append(Table("Differences of D", ["arms", "points [95 % interval]", "97.5 % interval"], lines))
    deviation = pooled_deviation(list(arms.values()), uniform)
    results.analysis |= {
        "distances": found, "differences": {name: d.as_json() for name, d in apart.items()}, "deviation": deviation,
    }  # fmt: skip
    control, secant = dict(zip(known, negative_control(uniform), strict=True)), secants(arms, others)
    checks = [
        *([f"D of {label} from the others", str(d)] for label, d in control.items()),
        *([f"{label} - U7.5, along the secant from U7 to U8", str(d)] for label, d in secant.items()),
        ["deviation of y between seeds, points", f"{100 * deviation:.2f}"],
    ]
    for name, known_distances in {"negative control": control, "secant": secant}.items():
        results.analysis[name] = {label: d.as_json() for label, d in known_distances.items()}
    alike = seed_correlation(list(arms.values()), uniform)
    if not math.isnan(alike):
        checks.append(["correlation of y between the arms of a seed", f"{alike:.2f}"])
        results.analysis["correlation"] = alike
    near = [label for label in others if found[label]["estimate"] is not None]
    if simulate and near:
        alarms = simulate_studies(StudyDesign.like([arms[near[0]]], uniform), studies=STUDIES)
        judged = "inside" if ALARMS[0] <= alarms.share <= ALARMS[1] else "outside"
        text = f"{alarms}; {judged} 3.5 to 6.5 %"
        checks.append([f"false alarms of the 95 % interval, simulated for {near[0]}", text])
        results.analysis["calibration"] = alarms.as_json()
    tables.append(Table("Checks", ["what", "found"], checks))
    return tables if results.scale == "paper" else [*tables, *within_seeds(results, pairs)]  # not preregistered


def within_seeds(results: Results, pairs: list[tuple[str, str]]) -> list[Table]:
    """D of each arm from the curve of its own seed's uniform runs, and the difference of each pair; fills the analysis.

    The runs of a seed share initial weights, the order of images and the burn-in, so that D varies far less within
    seeds than accuracy does between them.
    """
    known = uniform_labels(results)
    arms = {label: study_arm(results, label) for label in results.arms}
    uniform = [arms[label] for label in known]
    found = {label: distance_within_seeds(arms[label], uniform) for label in arms if label not in known}
    apart = {f"{a} - {b}": distance_within_seeds(arms[a], uniform, arms[b]) for a, b in pairs}
    rows, analysis = [], dict[str, Any]()
    for label, d in (found | apart).items():
        seen = None if d.estimate is None else smallest_effect(d)
        analysis[label] = d.as_json() | {"smallest effect": seen}
        rows.append([label, str(d), "" if seen is None else f"{100 * seen:.2f}"])
    results.analysis["within seeds"] = analysis
    head = ["arm", "D, points [95 % interval]", "smallest effect, 80 % power"]
    return [Table("Within seeds: distance from the curve of the same seed", head, rows)]


def ends(d: Distance, confidence: float) -> str:
    """The interval, in points."""
    if d.estimate is None:
        return ""
    low, high = d.interval(confidence)
    return f"[{100 * low:+z.2f}, {100 * high:+z.2f}]"


def secants(arms: dict[str, Arm], others: Sequence[str]) -> dict[str, Distance]:
    """D without a fitted curve, if the three uniform arms that it needs are there."""
    if not {"U7", "U7.5", "U8"} <= arms.keys():
        return {}
    return {label: secant_distance(arms[label], arms["U7.5"], (arms["U7"], arms["U8"])) for label in others}


def plot_frontier(results: Results) -> Figure:
    """Natural against robust accuracy with the uniform curve, a dot for every run; next to it D of every other arm.

    All arms have the same images, so D is known better than their accuracies, whose intervals are not drawn.
    """
    known = uniform_labels(results)
    others = [label for label in results.arms if label not in known]
    with plots.style():
        height = max(4.4, 1.2 + 0.27 * len(others))
        figure = Figure(figsize=(10.0, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        for one in (left, right):
            plots.calm(one)
        figure.suptitle(plots.heading(results, intervals=False), fontsize=9.5, x=0.01, ha="left")
        names = {arm: arm for arm in known}
        styles = {arm: plots.point(results, arm, known) for arm in results.arms}
        plots.plane(left, results, y=ROBUST, styles=styles, names=names, runs=True)
        left.set_title("dots: runs, large: means; grey: uniform budgets and their curve")
        natural, robust = (results.cell(others[0], column) for column in ("natural", ROBUST))
        if len(others) == 1 and natural and robust:
            left.annotate(
                others[0], (natural.mean, robust.mean), xytext=(28, 14), textcoords="offset points", fontsize=8,
                color=styles[others[0]]["color"], arrowprops={"arrowstyle": "-", "lw": 0.5},
            )  # fmt: skip
        if "distances" in results.analysis:
            draw_curve(left, [study_arm(results, label) for label in known], band=False)
        _distances(right, results, known, others)
        return figure


def draw_curve(axes: Axes, arms: Sequence[Arm], *, band: bool = True) -> None:
    """The quadratic through the uniform arms, with its band unless an arm has a single run."""
    curve = fit_curve(arms)
    across = np.linspace(min(arm.mean_natural for arm in arms), max(arm.mean_natural for arm in arms), 60)
    axes.plot(100 * across, [100 * curve.at(n) for n in across], color=plots.FAINT, linewidth=1.2, zorder=1)
    if band and min(arm.runs for arm in arms) > 1:
        low, high = np.array([curve.band(n) for n in across]).T
        axes.fill_between(100 * across, 100 * low, 100 * high, color=plots.FAINT, alpha=0.2, linewidth=0, zorder=0)


def _distances(axes: Axes, results: Results, known: Sequence[str], others: Sequence[str]) -> None:
    """A row per arm: D with the intervals of its verdict, or within seeds with the smallest effect it could detect."""
    within = "within seeds" in results.analysis
    found = results.analysis.get("within seeds" if within else "distances", {})
    widths = {"interval": 1.6} if within else {"interval 97.5 %": 0.9, "interval 90 %": 2.6}
    for row, arm in enumerate(others):
        d, style = found.get(arm, {"estimate": None}), plots.point(results, arm, known)
        if d["estimate"] is not None:
            if within:
                seen = 100 * d["smallest effect"]
                axes.barh(row, 2 * seen, left=-seen, height=0.7, color=plots.FAINT, alpha=0.2, linewidth=0)
            for name, width in widths.items():
                ends = [100 * end for end in d[name]]
                axes.plot(ends, [row, row], color=style["color"], linewidth=width, solid_capstyle="butt")
            axes.plot(100 * d["estimate"], row, style["fmt"], color=style["color"], markersize=5)
        else:  # the row is only the legend of the other panel
            axes.plot(0, row, style["fmt"], color=style["color"], markersize=5, markerfacecolor="white")
            text = "outside the curve's range" if arm in found else "no D yet"
            axes.annotate(text, (0, row), xytext=(8, 0), textcoords="offset points", fontsize=8, va="center")
    title = "distance from the curve"
    if not found:
        axes.set_xticks([])
    elif within:
        title += " of the same seed\n95 % intervals; grey: up to the smallest effect\n"
        title += "that would be detected (80 % power, level .025)"
    else:
        for end in (-100 * MARGIN, 100 * MARGIN):
            axes.axvline(end, color=plots.FAINT, linewidth=0.9, linestyle="--", zorder=1)
        title += f"\nthick: 90 %, thin: 97.5 % interval\non the curve: 90 % inside ±{100 * MARGIN:.2f} (dashed)"
    axes.axvline(0, color=plots.FAINT, linewidth=1.2, zorder=1)
    axes.margins(x=0.05)
    axes.use_sticky_edges = False  # bars end at the frame otherwise
    axes.set_yticks(range(len(others)), others)
    spare = max(0.0, (5 - len(others)) / 2)  # a few arms do not fill the panel
    axes.set_ylim(len(others) - 0.5 + spare, -0.5 - spare)
    axes.set_xlabel(f"D, points of {shown_name(ROBUST)} accuracy")
    axes.set_title(title)
