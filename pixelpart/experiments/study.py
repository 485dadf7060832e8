"""Is it the pixels? The study's first stage: D of PART 8|7 from the curve of five uniform budgets, blind until the end.

results/study/PREREGISTRATION.md has the design. With all runs there, the deviation between seeds comes first: above
0.20 points, three arms get four more seeds before D is computed.
"""

from dataclasses import replace
from statistics import fmean

from pixelpart.evaluation.frontier_study import pooled_deviation
from pixelpart.experiments.common.distances import distances, has_curve, plot_frontier, study_arm, uniform_arms
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, FAST, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table

UNIFORM = (6, 7, 7.5, 8, 9)  # levels of 255
PART = "8|7 CAM"
EXTENDED = ("U8", "U7.5", PART)
FIRST, LAST = range(100, 108), range(100, 112)  # seeds of these arms, and with those that a large deviation adds
DEVIATION = 0.0020
RULE = (
    "The pooled deviation of y is computed after eight seeds; above 0.20 points, U8, U7.5 and 8|7 CAM get seeds 108 to "
    "111 before D is computed."
)


def arms(scale: Scale) -> Arms:
    found = {uniform_label(level / 255): scale.uniform(level / 255) for level in UNIFORM}
    return found | {PART: scale.config("part")}


def withhold(results: Results) -> str:
    """Why D is not computed yet; only the deviation between seeds is looked at."""
    if results.scale != "paper":
        return ""
    runs = {arm: [run for run in runs if run.seed in FIRST] for arm, runs in results.runs.items()}
    first = replace(results, runs=runs)
    found = {label: study_arm(first, label) for label in first.arms}
    uniform = [found[label] for label in uniform_arms(first)]
    deviation = pooled_deviation(list(found.values()), uniform) if has_curve(uniform) else 0.0
    if deviation <= DEVIATION:
        results.runs = first.runs  # further seeds are not looked at
        return ""
    missing = {arm: [s for s in LAST if s not in {run.seed for run in results.runs[arm]}] for arm in EXTENDED}
    if not any(missing.values()):
        return ""
    listed = "\n".join(f"{arm} needs seeds {', '.join(map(str, seeds))}" for arm, seeds in missing.items() if seeds)
    return f"The pooled deviation of y is {100 * deviation:.2f} points, above 0.20. Before D is computed,\n{listed}\n"


def analyse(results: Results, runner: Runner) -> list[Table]:
    """D; and how far AutoAttack is below apgd, for the runs that have both."""
    tables, rows = distances(results, [], simulate=True), []
    for arm in EXTENDED:
        gaps = [
            run.values["apgd"] - run.values["autoattack"] for run in results.runs[arm] if "autoattack" in run.values
        ]
        rows += [[arm, str(len(gaps)), f"{fmean(gaps):.3f}"]] if gaps else []
    head = ["arm", "seeds", "points"]
    return [*tables, *([Table("apgd minus AutoAttack; should differ by less than 0.05", head, rows)] if rows else [])]


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural", "apgd"),
    scales={"paper": FAST, "demo": DEMO},
    seeds={"paper": FIRST, "demo": range(2)},
    fewer={"U6": 4, "U7": 4, "U9": 4},
    reads=("autoattack",),
    blind={"paper": RULE},
    withhold=withhold,
    analyse=analyse,
    plot=plot_frontier,
    notes=(
        "U6: 8/255 in the burn-in, then 6/255. D: robust accuracy above the quadratic through the uniform arms.",
        "H1, two-sided at .025: above or below the curve if the 97.5 % interval excludes 0, on it if the 90 % interval "
        "is inside 0.30 points.",
    ),
)
