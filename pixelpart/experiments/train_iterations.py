"""Table 8: PART with more steps of PGD in training."""

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import FOUR, Experiment
from pixelpart.experiments.common.scales import Arms, Scale

STEPS = {"paper": (10, 20, 40, 60), "demo": (5, 10, 20, 30)}  # the first is the recipe's own


def arms(scale: Scale) -> Arms:
    first, *others = STEPS[scale.name]
    more = {f"{steps} steps": scale.method("PART s=1", attack={"steps": steps}) for steps in others}
    return {f"{first} steps": scale.method("PART s=1")} | more


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    paper=lambda scale: paper.TRAIN_ITERATIONS,
    baselines=lambda arms: [(arm, next(iter(arms))) for arm in list(arms)[1:]],
    plot=plots.intervals,
)
