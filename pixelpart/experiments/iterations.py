"""Table 7: PGD with 10 to 100 steps."""

from matplotlib.figure import Figure

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import masked_pairs

ATTACKS = {steps: f"pgd{steps}" for steps in (10, 20, 40, 60, 80, 100)}


def plot(results: Results) -> Figure:
    return plots.lines(results, {"PGD at 8/255": ATTACKS}, xlabel="steps")


EXPERIMENT = Experiment(
    arms=lambda scale: scale.methods(every=1),
    attacks=tuple(ATTACKS.values()),
    paper=lambda scale: paper.ITERATIONS,
    baselines=masked_pairs,
    plot=plot,
)
