"""Is it the pixels? The study's first stage: D of PART 8|7 from the curve of five uniform budgets, blind until the end.

results/study/PREREGISTRATION.md has the design. With all runs there, the deviation between seeds comes first: above
0.20 points, three arms get four more seeds before D is computed.
"""

from dataclasses import replace
from statistics import fmean

from pixelpart.comparison.frontier_study import pooled_deviation
from pixelpart.experiments.common.distances import distances, has_curve, plot_frontier, study_arm, uniform_labels
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, FAST, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table

UNIFORM = (6, 7, 7.5, 8, 9)  # levels of 255
PART = "8|7 CAM"
EXTENDED = ("U8", "U7.5", PART)
FIRST, LAST = range(100, 108), range(100, 112)  # seeds of these arms, and with those that a large deviation adds
DEVIATION = 0.0020
ATTACKS_APART = 0.05  # points
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
    uniform = [found[label] for label in uniform_labels(first)]
    deviation = pooled_deviation(list(found.values()), uniform) if has_curve(uniform) else 0.0
    seeds = FIRST if deviation <= DEVIATION else LAST
    results.runs = {arm: [run for run in runs if run.seed in seeds] for arm, runs in results.runs.items()}
    results.requested = {arm: len(runs) for arm, runs in results.runs.items()}
    if all(results.requested[arm] == len(seeds) for arm in EXTENDED):
        return ""
    return (
        f"The pooled deviation of y is {100 * deviation:.2f} points, above 0.20. Before D is computed, U8, U7.5 and "
        f"{PART} need seeds 108 to 111: --seeds 12.\n"
    )


def analyse(results: Results, runner: Runner) -> list[Table]:
    """D; and whether apgd minus AutoAttack is the same in all arms, on the runs that have both."""
    tables = distances(results, [], simulate=True)
    both = {arm: [run.values for run in results.runs[arm] if "autoattack" in run.values] for arm in EXTENDED}
    gaps = {arm: fmean(one["apgd"] - one["autoattack"] for one in values) for arm, values in both.items() if values}
    if len(gaps) > 1:
        apart = max(gaps.values()) - min(gaps.values())
        judged = f"{apart:.3f}, {'less' if apart < ATTACKS_APART else 'not less'} than {ATTACKS_APART}"
        rows = [[arm, str(len(both[arm])), f"{gap:.3f}"] for arm, gap in gaps.items()]
        rows.append(["largest difference between arms", "", judged])
        tables.append(Table("apgd minus AutoAttack", ["arm", "seeds", "points"], rows))
        results.analysis["apgd minus AutoAttack"] = gaps
    return tables


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
