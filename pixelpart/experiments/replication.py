"""Table 1 again, with fresh masks, a decay on the last epoch, and the authors' code as released; each cell is judged.

As released: masks by the rule `official`, each applied to another image, and a learning rate that falls only in the
last epoch. A cell is consistent with the paper if the interval of ours minus the paper's includes 0.
"""

from matplotlib.figure import Figure

from pixelpart.experiments import table1
from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import FOUR, Experiment, Runner
from pixelpart.experiments.common.paper import Numbers
from pixelpart.experiments.common.results import Claim, Results, shown_name
from pixelpart.experiments.common.scales import Arms, Scale, masked_pairs
from pixelpart.experiments.common.tables import Table

FRESH, LATE, RELEASED = "PART fresh", "AT, late decay", "PART as released"
SEEDS = 3  # fewer decide no claim


def arms(scale: Scale) -> Arms:
    late = {"schedule": "step", "decay_at": (scale.epochs - 1,)}
    released = {"rule": "official", "control": "shuffled"}
    return table1.arms(scale) | {
        FRESH: scale.method("PART"),
        LATE: scale.method("AT", optim=late),
        RELEASED: scale.method("PART s=1", optim=late, mask=released),
    }


def numbers(scale: Scale) -> Numbers:
    """The paper's; those of AT and PART s=1 once more for what its code would do."""
    found = paper.TABLE1["cifar10"]
    return found | {LATE: found["AT"], RELEASED: found["PART s=1"]}


def verdict(claim: Claim) -> str:
    """Whether an arm's difference from its baseline is that of the paper; "" without both."""
    if claim.ours is None or claim.paper is None:
        return ""
    ours, low, high = claim.ours
    if len(claim.seeds) < SEEDS:
        return "undecided (few seeds)"
    inside = low <= claim.paper <= high
    if low > 0 < claim.paper or high < 0 > claim.paper:
        return "replicated" + ("" if inside else ", larger" if abs(ours) > abs(claim.paper) else ", smaller")
    return "undecided" if inside else "contradicted"


def analyse(results: Results, runner: Runner) -> list[Table]:
    """What of the paper's table is consistent with ours, cell by cell and difference by difference."""
    if results.scale != "paper":
        return []
    columns = results.columns
    cells, claims = [], []
    for arm in results.arms:
        found = [results.cell(arm, column) for column in columns]
        apart = [cell.minus_paper if cell else None for cell in found]
        cells.append([arm, *("" if a is None else "consistent" if a[1] <= 0 <= a[2] else "differs" for a in apart)])
    for arm, base in results.baselines:
        claims.append([f"{arm} - {base}", *(verdict(results.claim(arm, base, c)) for c in columns)])
    results.analysis = {"cells": [["arm", *columns], *cells], "claims": [["difference", *columns], *claims]}
    return [
        Table("Is a cell consistent with the paper?", ["arm", *columns], cells),
        Table("Is a difference that of the paper?", ["difference", *columns], claims),
    ]


def plot(results: Results) -> Figure:
    """Ours minus the paper's with the interval that decides; at demo scale, where the paper's do not compare, ours."""
    found = {(arm, c): results.cell(arm, c) for arm in results.arms for c in results.columns}
    apart = {key: cell.minus_paper for key, cell in found.items() if cell and cell.minus_paper}
    if results.scale != "paper" or not apart:
        return plots.intervals(results)
    arms = [arm for arm in results.arms if any(key[0] == arm for key in apart)]
    with plots.style():
        filled = "filled: the interval (deviation of seeds assumed) excludes 0"
        title = f"{plots.heading(results, intervals=False)}; {filled}"
        height = 1.2 + 0.27 * len(arms)
        figure, axes = plots.panels(len(results.columns), width=2.5, height=height, title=title, sharey=True)
        for panel, column in zip(axes, results.columns, strict=True):
            for row, arm in enumerate(arms):
                if (arm, column) in apart:
                    mean, low, high = apart[arm, column]
                    face = "white" if low <= 0 <= high else plots.COLOURS[0]
                    panel.plot([low, high], [row, row], color=plots.COLOURS[0], linewidth=1.6, solid_capstyle="butt")
                    panel.plot(mean, row, "o", color=plots.COLOURS[0], markersize=5, markerfacecolor=face)
            panel.axvline(0, color=plots.INK, linewidth=0.8)
            panel.set_title(f"{shown_name(column)}, ours - paper, points")
            panel.set_ylim(len(arms) - 0.5, -0.5)
        axes[0].set_yticks(range(len(arms)), arms)
        return figure


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    paper=numbers,
    baselines=lambda arms: [*masked_pairs([a for a in arms if " s=" in a]), (FRESH, "AT"), (RELEASED, LATE)],
    analyse=analyse,
    plot=plot,
    seeds={"paper": range(1), "demo": range(1)},
    notes=(
        "s: epochs for which a mask is stored; fresh: a mask for every batch. Late decay: the learning rate falls only "
        "in the last epoch. As released: rule official, each image with the mask of another, late decay.",
        f"Consistent: within ±1.96 s √(1/k + 1/3) of the paper. With {SEEDS} seeds or more, a difference is replicated "
        "if its 95 % interval excludes 0 on the paper's side (larger, smaller: and the paper's difference too), else "
        "contradicted if it excludes the paper's difference.",
    ),
)
