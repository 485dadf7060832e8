"""Table 6: the maps of three methods; with pooling and one linear layer, gradcam and xgradcam are the same map."""

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import FOUR, Experiment
from pixelpart.experiments.common.scales import Arms, Scale

CAMS = ("gradcam", "xgradcam", "layercam")


def arms(scale: Scale) -> Arms:
    return {
        cam: scale.method("PART s=1") if cam == "gradcam" else scale.method("PART s=1", mask={"source": cam})
        for cam in CAMS
    }


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    paper=lambda scale: paper.CAMS,
    baselines=lambda arms: [(cam, "gradcam") for cam in CAMS[1:]],
    plot=plots.intervals,
    notes=("gradcam and xgradcam are one map here: their difference is noise, in the paper too.",),
)
