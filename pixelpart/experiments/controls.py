"""What of the mask matters: PART 8|4 next to another image's mask, its mean over the image, blobs, and its inverse."""

from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.measures import SENSITIVITY
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, EPS, FAST, Arms, Scale, uniform_label
from pixelpart.experiments.frontier import eight_four

CONTROLS = ("shuffled", "flat", "blobs", "inverted")
ATTACKS = ("natural", "pgd20", "apgd")


def arms(scale: Scale) -> Arms:
    found = eight_four(scale, CONTROLS)
    if scale.name == "demo":
        found["8|4 object"] = scale.config("part", eps_low=4 / 255, mask={"source": "object"})
    return found | {uniform_label(eps): scale.uniform(eps) for eps in (scale.mean(8, 4), EPS)}


def pairs(arms: Arms) -> list[tuple[str, str]]:
    """The mask minus each control; and the control `flat`, which keeps each image's mean, minus the uniform mean."""
    mean = list(arms)[-2]
    others = [label for label in arms if label.startswith("8|4") and label != "8|4 CAM"]
    return [*(("8|4 CAM", other) for other in others), ("8|4 CAM", mean), ("8|4 flat", mean)]


def plot(results: Results) -> Figure:
    return plots.intervals(results, filled=lambda arm: arm == "8|4 CAM")


EXPERIMENT = Experiment(
    arms=arms,
    attacks=ATTACKS,
    measures=("pixelpart.experiments.common.measures:sensitivity",),
    columns=lambda scale: (*ATTACKS, *((SENSITIVITY,) if scale.name == "demo" else ())),
    baselines=pairs,
    scales={"paper": FAST, "demo": DEMO},
    seeds={"paper": range(100, 108), "demo": range(1)},
    fewer={"U6": 4, "8|4 blobs": 4, "8|4 inverted": 4},
    blind={"paper": ""},  # its runs are the study's
    plot=plot,
    notes=(
        "CAM - shuffled: placement and area of the mask; CAM - flat: placement; flat - U: hidden weighting of images.",
    ),
)
