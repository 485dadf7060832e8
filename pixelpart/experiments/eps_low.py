"""Figure 4: eps_low from one to four levels below eps; and the search for it that the paper leaves open.

The search forks one burn-in into many values of eps_low and halves them (Jamieson and Talwalkar 2016, "Non-stochastic
best arm identification"): after every rung, the half with the highest natural + robust accuracy on held-out training
images goes on. No test image is used.
"""

from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import FOUR, Experiment, Runner
from pixelpart.experiments.common.results import Results, shown_name
from pixelpart.experiments.common.scales import SCALES, Arms, Scale
from pixelpart.experiments.common.tables import Table, written

PANELS = {12: (11, 10, 9, 8), 8: (7, 6, 5, 4)}  # levels of eps, and of eps_low
CANDIDATES = (7, 6, 5, 4, 3, 2, 1, 0)
RUNGS = {"paper": (30, 50, 80), "demo": (2, 3, 4)}  # epochs
HELD_OUT = {"paper": {"holdout": 5000}, "demo": {}}  # shapes holds out 512
IMAGES = {"paper": None, "demo": 256}
ATTACKS = ("natural", "apgd")


def arms(scale: Scale) -> Arms:
    found: Arms = {}
    for high, lows in PANELS.items():
        found[f"AT {high}"] = scale.method("AT") if high == 8 else scale.method("AT", eps=high / 255)
        for low in lows:
            own = {} if (high, low) == (8, 7) else {"eps": high / 255, "eps_low": low / 255}
            found[f"{high}|{low}"] = scale.method("PART s=1", **own)
    return found


def search(results: Results, runner: Runner) -> list[Table]:
    """Successive halving; results.analysis has the score of every candidate at every rung."""
    scale, last, rows, rungs = SCALES[results.scale], RUNGS[results.scale][-1], [], []
    parents = dict.fromkeys(CANDIDATES, "")  # RUN@EPOCH of the candidates that are left
    for epochs in RUNGS[results.scale]:
        configs: Arms = {
            f"8|{low}": scale.method(
                "PART s=1", eps_low=low / 255, epochs=epochs, keep=(epochs,), optim={"schedule": "constant"},
                init_from=parent, **HELD_OUT[results.scale],
            )
            for low, parent in parents.items()
        }  # fmt: skip
        found = runner.more(configs, attacks=ATTACKS, split="held-out", images=IMAGES[results.scale], seeds=1)
        cells = {low: [found.cell(f"8|{low}", attack) for attack in ATTACKS] for low in parents}
        if any(cell is None for pair in cells.values() for cell in pair):
            break  # some runs are not there yet
        scores = {low: sum(cell.mean for cell in pair if cell) for low, pair in cells.items()}
        ranked = sorted(scores, key=lambda low: -scores[low])
        kept = ranked[: max(1, len(ranked) // 2)]
        rungs.append({"epochs": epochs, "scores": {f"8|{low}": scores[low] for low in scores}, "kept": kept})
        for low in ranked:
            goes = "" if low not in kept else "chosen" if epochs == last else "goes on"
            rows.append([str(epochs), f"8|{low}", *map(written, cells[low]), f"{scores[low]:.2f}", goes])
        parents = {low: f"{found.runs[f'8|{low}'][0].folder.resolve()}@{epochs}" for low in kept}
    finished = len(rungs) == len(RUNGS[results.scale])
    results.analysis = {"rungs": rungs, "chosen": f"8|{next(iter(parents))}" if finished else None}
    head = ["after epoch", "budget", *ATTACKS, "sum", ""]
    return [Table("Search on held-out images, first seed", head, rows)] if rows else []


def plot(results: Results) -> Figure:
    robust = results.columns[-1]
    with plots.style():
        figure, axes = plots.panels(2, width=3.6, height=3.4, title=plots.heading(results))
        for one, (high, lows) in zip(axes, PANELS.items(), strict=True):
            for place, column in enumerate(("natural", robust)):
                cells = {low: results.cell(f"{high}|{low}", column) for low in lows}
                plots.series(one, cells, colour=plots.COLOURS[place], label=f"PART, {shown_name(column)}")
                flat = dict.fromkeys((lows[0], lows[-1]), results.cell(f"AT {high}", column))
                plots.series(one, flat, colour=plots.COLOURS[place], label=f"AT, {shown_name(column)}", dashed=True)
            one.set_title(f"eps = {high}/255")
            one.set_xlabel("eps_low, in 1/255")
            one.set_xticks(lows)
            one.invert_xaxis()
        axes[0].set_ylabel("accuracy, %")
        axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return figure


EXPERIMENT = Experiment(
    arms=arms,
    attacks=FOUR,
    baselines=lambda arms: [(f"{high}|{low}", f"AT {high}") for high, lows in PANELS.items() for low in lows],
    analyse=search,
    plot=plot,
    notes=("All are attacked at 8/255. The search has a constant learning rate, so that a rung continues the last.",),
)
