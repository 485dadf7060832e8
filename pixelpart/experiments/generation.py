"""Table 5: training examples made by PGD, as usual, or by MMA."""

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import FOUR, Experiment
from pixelpart.experiments.common.scales import Arms, Scale

NAMES = ("pgd", "mma")


def arms(scale: Scale) -> Arms:
    labels = {f"{label}, {name}": (label, name) for name in NAMES for label in ("AT", "PART s=1")}
    return {
        arm: scale.method(label) if name == "pgd" else scale.method(label, attack={"name": name})
        for arm, (label, name) in labels.items()
    }


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    paper=lambda scale: paper.GENERATION,
    baselines=lambda arms: [(f"PART s=1, {name}", f"AT, {name}") for name in NAMES],
    plot=plots.intervals,
)
