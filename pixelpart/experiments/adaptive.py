"""Tables 2 and 3: PGD and MMA through the attacked model's own mask, 12/255 where it is high and 8/255 elsewhere."""

from matplotlib.figure import Figure

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import masked_pairs

STEPS = (20, 40, 60, 80, 100)
KINDS = {"adaptive PGD": "adaptive-pgd", "adaptive MMA": "adaptive-mma"}
ATTACKS = tuple(f"{kind}{steps}" for kind in KINDS.values() for steps in STEPS)


def plot(results: Results) -> Figure:
    over = {title: {steps: f"{kind}{steps}" for steps in STEPS} for title, kind in KINDS.items()}
    return plots.lines(results, over, xlabel="steps")


EXPERIMENT = Experiment(
    arms=lambda scale: scale.methods(every=1),
    attacks=ATTACKS,
    paper=lambda scale: paper.ADAPTIVE,
    baselines=masked_pairs,
    plot=plot,
    notes=("These attacks leave the ball of 8/255: their numbers belong to no threat model with a single eps.",),
)
