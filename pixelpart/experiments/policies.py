"""Budgets that might move the curve: over time, over images, over pixels, each with a twin; on held-out images."""

from dataclasses import replace
from typing import Any

from pixelpart.config import Config
from pixelpart.experiments.common.distances import distances, plot_frontier, uniform_labels
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, EPS, FAST, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table

UNIFORM = (7, 8, 9, 10)
SCALES = {
    "paper": replace(FAST, settings={"holdout": 5000}),
    "demo": replace(DEMO, epochs=3, images=256, keep=()),
}


def arms(scale: Scale) -> Arms:
    def policy(high: float, low: float, **mask: Any) -> Config:
        return scale.config("part", eps=high / 255, eps_low=low / 255, burn_in={"eps": EPS}, mask=mask)

    found = {uniform_label(level / 255): scale.uniform(level / 255) for level in UNIFORM}
    found |= {f"eps {a} to {b}": scale.uniform(b / 255, eps_from=a / 255) for a, b in ((6, 10), (10, 6))}
    for name, control in (("4+8r", "none"), ("12-8r", "inverted")):  # r: rank of the clean margin in the batch
        found[f"margin {name}"] = policy(12, 4, source="margin", rule="rank", control=control)
    found["margin shuffled"] = policy(12, 4, source="margin", rule="rank", control="shuffled")
    found["dropout"] = policy(32 / 3, 0, source="blobs", rule="quantile:0.25")
    for name, control in (("CAM 10|6 inverted", "inverted"), ("CAM 10|6 shuffled", "shuffled")):
        found[name] = policy(10, 6, source="gradcam", rule="mean", control=control, mean=EPS)
    for power in ("0.5", "-0.5"):
        for name, control in ((f"|g|^{power}", "none"), (f"|g|^{power} shuffled", "shuffled")):
            gradient = {"source": "gradient:2", "target": "label", "rule": f"power:{power}"}
            found[name] = policy(16, 2, **gradient, control=control, mean=EPS)
    return found | {"U8 with AWP": scale.config("at", awp={"gamma": 0.01})}


def pairs(arms: Arms) -> list[tuple[str, str]]:
    """Each policy and its twin."""
    found = [("eps 6 to 10", "eps 10 to 6"), ("margin 4+8r", "margin shuffled"), ("margin 12-8r", "margin shuffled")]
    found += [("CAM 10|6 inverted", "CAM 10|6 shuffled"), ("dropout", "U8"), ("U8 with AWP", "U8")]
    return [*found, *((f"|g|^{power}", f"|g|^{power} shuffled") for power in ("0.5", "-0.5"))]


def analyse(results: Results, runner: Runner) -> list[Table]:
    known = uniform_labels(results)
    return distances(results, [pair for pair in pairs(results.configs) if not {*pair} & {*known}])


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural", "apgd"),
    baselines=pairs,
    scales=SCALES,
    seeds={"paper": range(100, 104), "demo": range(2)},
    split="held-out",
    analyse=analyse,
    plot=plot_frontier,
    notes=(
        "Measured on held-out training images. margin: budget by the rank r of the clean margin in the batch; dropout: "
        "0 on a quarter of the area, in blobs drawn at every step; |g|^p: budget by a power of the gradient.",
        "U8 with AWP is a positive control.",
    ),
)
