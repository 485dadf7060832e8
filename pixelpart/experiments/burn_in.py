"""How long AT comes before the mask, each length next to a uniform arm with the same burn-in and PART's mean budget."""

from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import FOUR, Experiment
from pixelpart.experiments.common.results import Results, shown_name
from pixelpart.experiments.common.scales import EPS, Arms, Scale, uniform_label

LENGTHS = {"paper": (0, 10, 20, 40), "demo": (0, 1, 2, 3)}
PART, UNIFORM = "PART s=1, {}", "{}, {}"


def arms(scale: Scale) -> Arms:
    found: Arms = {}
    for length in LENGTHS[scale.name]:
        own = {} if length == scale.burn_in else {"burn_in": {"epochs": length}}
        found[PART.format(length)] = scale.method("PART s=1", **own)
    for length in LENGTHS[scale.name]:
        first = {"epochs": length, "eps": EPS}
        label = UNIFORM.format(uniform_label(scale.mean(8, 7)), length)
        found[label] = scale.config("at", eps=scale.mean(8, 7), burn_in=first if length else {})
    return found


def pairs(arms: Arms) -> list[tuple[str, str]]:
    """PART of each length and the uniform arm of that length."""
    half = len(arms) // 2
    return list(zip(list(arms)[:half], list(arms)[half:], strict=True))


def plot(results: Results) -> Figure:
    half = len(results.arms) // 2
    with plots.style():
        figure, axes = plots.panels(2, width=3.6, height=3.3, title=plots.heading(results))
        for one, column in zip(axes, (results.columns[0], results.columns[-1]), strict=True):
            for place, names in enumerate((results.arms[:half], results.arms[half:])):
                cells = {int(name.rpartition(" ")[2]): results.cell(name, column) for name in names}
                plots.series(one, cells, colour=plots.COLOURS[place], label=names[0].rpartition(",")[0])
            one.set_title(f"{shown_name(column)}, %")
            one.set_xlabel("epochs of burn-in")
            one.set_xticks(LENGTHS[results.scale])
        axes[0].legend(frameon=False, fontsize=8)
        return figure


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    baselines=pairs,
    plot=plot,
    notes=("The number after the comma is the length of the burn-in, with 8/255; budget is the mean after it.",),
)
