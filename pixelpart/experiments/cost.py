"""Table 9: what masks cost, made for every batch (fresh) or stored for s epochs: seconds an epoch and memory."""

from matplotlib.figure import Figure

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.paper import Numbers
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import BASELINES, METHODS, Arms, Scale

KINDS = {"fresh": 0, "s=1": 1, "s=10": 10}


def arms(scale: Scale) -> Arms:
    found: Arms = {}
    for name in METHODS:
        if name not in BASELINES:
            found[name] = scale.method(name)
        for kind, every in KINDS.items() if name in BASELINES else ():
            found[f"{name} {kind}"] = scale.method(f"{name} s={every}" if every else name)
    return found


def numbers(scale: Scale) -> Numbers:
    """The paper's, which do not say which s they are of, next to all."""
    return {arm: paper.COST[arm.split(" ")[0]] for arm in arms(scale)}


def plot(results: Results) -> Figure:
    return plots.intervals(results, ["s/epoch", "memory"], filled=lambda arm: arm.split(" ")[0] in BASELINES)


EXPERIMENT = Experiment(
    arms=arms,
    measures=("pixelpart.experiments.common.measures:cost",),
    columns=lambda scale: ("s/epoch", "seconds", "memory"),
    paper=numbers,
    plot=plot,
    seeds={"paper": range(1), "demo": range(1)},
    notes=(
        "s/epoch: mean over the epochs after burn-in but the first, which compiles, with what is measured after each; "
        "seconds: the whole training; memory: peak in MiB of one epoch in a process of its own, of the GPU if there is "
        "one.",
        "The paper's are on two A100, and it does not say which s they are of. Times are only comparable if nothing "
        "else ran on the machine.",
    ),
)
