"""Table 1: AT, TRADES and MART, each as it is and with masks stored for one or ten epochs."""

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import FOUR, Experiment
from pixelpart.experiments.common.scales import BASELINES, METHODS, Arms, Scale, masked_pairs


def arms(scale: Scale) -> Arms:
    labels = [label for name in METHODS for label in ([f"{name} s=1", f"{name} s=10"] if name in BASELINES else [name])]
    return {label: scale.method(label) for label in labels}


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    paper=lambda scale: paper.TABLE1.get(scale.data, paper.TABLE1["cifar10"]),
    baselines=masked_pairs,
    data=("cifar10", "svhn", "tinyimagenet"),
    plot=plots.intervals,
    notes=("s: epochs for which a mask is stored.",),
)
