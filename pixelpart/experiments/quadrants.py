"""Figure 1: one quadrant of the image with 6/255, the others with 12/255, next to the uniform 10.5/255.

The quadrants are fixed in the frame that the network sees. With flips, left and right are one distribution there: how
far ul and ur, or bl and br, are apart is noise.
"""

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.scales import Arms, Scale

REGIONS = {region: f"{region} 6|12" for region in ("ul", "ur", "bl", "br")}  # labels


def arms(scale: Scale) -> Arms:
    levels = {"eps": 6 / 255, "eps_low": 12 / 255, "burn_in": {"epochs": 0}}  # the marked quadrant gets eps
    found = {
        label: scale.config("part", mask={"source": f"quadrant:{region}", "rule": "mean"}, **levels)
        for region, label in REGIONS.items()
    }
    return found | {"U10.5": scale.config("at", eps=10.5 / 255)}


def pairs(arms: Arms) -> list[tuple[str, str]]:
    """Each quadrant next to the uniform arm, and quadrants that differ by noise or as in the paper."""
    others = [(REGIONS[a], REGIONS[b]) for a, b in (("ul", "br"), ("ul", "ur"), ("bl", "br"))]
    return [*((label, "U10.5") for label in REGIONS.values()), *others]


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural", "pgd20", "apgd"),
    paper=lambda scale: {REGIONS[region]: numbers for region, numbers in paper.QUADRANTS.items()},
    baselines=pairs,
    seeds={"paper": range(3), "demo": range(3)},
    plot=plots.intervals,
    notes=(
        "ul 6|12: 6/255 in the upper left quarter of the image, 12/255 elsewhere.",
        "ul - ur and bl - br measure noise, as each pair is one distribution where images are flipped.",
    ),
)
