"""Lemma 1 and Theorem 1 on their 2-D toy: the theorem's points minimise the loss, and the maximisers are corners."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.tables import Table
from pixelpart.experiments.common.toy import (
    Point,
    Toy,
    facts,
    grid_search,
    kkt_points,
    loss,
    maximisers,
    random_study,
    theorem_points,
    worth,
)

TOYS = {
    "equal budgets": Toy(residual=0.5, weights=(2.0, 1.0), eps=(1.0, 1.0)),
    "less for the pixel that matters less": Toy(residual=0.5, weights=(2.0, 1.0), eps=(1.0, 0.5)),
    "a point far off": Toy(residual=-4.0, weights=(2.0, 1.0), eps=(1.0, 1.0)),
}
RANDOM = 1000


def analyse(results: Results, runner: Runner) -> list[Table]:
    results.analysis = {"toys": {name: facts(toy) for name, toy in TOYS.items()}, "random": random_study(RANDOM)}
    rows = []
    for name, toy in TOYS.items():
        for kind, points in (("Theorem 1", theorem_points(toy)), ("maximiser", maximisers(toy))):
            rows += [[name, kind, *_row(point)] for point in points]
        grid = grid_search(toy)
        rows.append([name, "grid search", _pair(grid.argmax), f"{grid.largest:.4g}", "", "", ""])
    head = ["toy", "point", "change", "loss", "multipliers (up 1, down 1, up 2, down 2)", "in the box", "case"]
    study = results.analysis["random"]
    found = [[f"KKT points in case ({case})", str(study["kkt_points"].get(case, 0))] for case in ("i", "ii", "iii")]
    found += [[name, f"{value:.2g}"] for name, value in study["checks"].items()]
    return [Table("Points", head, rows), Table(f"{RANDOM} random toys", ["what", "number"], found)]


def _row(point: Point) -> list[str]:
    numbers = ", ".join(f"{value:.3g}" for value in point.multipliers)
    return [_pair(point.delta), f"{point.loss:.4g}", numbers, "yes" if point.inside else "no", point.case]


def _pair(delta: tuple[float, float]) -> str:
    return f"({delta[0]:.3g}, {delta[1]:.3g})"


def plot(results: Results) -> Figure:
    with plots.style():
        title = "Loss of the linear toy (dark: high); the box is what the budgets allow\n"
        figure, axes = plots.panels(len(TOYS), width=3.5, height=4.4, title=title)
        for one, (name, toy) in zip(axes, TOYS.items(), strict=True):
            draw(one, toy)
            one.set_title(f"{name}\nr = {toy.residual:g}, w = {_pair(toy.weights)}, eps = {_pair(toy.eps)}")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        return figure


def draw(axes: Axes, toy: Toy) -> None:
    """The loss over the box, Theorem 1's points, the maximiser with its multipliers, the grid's maximum."""
    span = 2.6
    grid = np.linspace(-span, span, 201)
    values = loss(toy, np.stack(np.meshgrid(grid, grid, indexing="xy"), axis=-1))
    axes.contourf(grid, grid, np.sqrt(values), levels=14, cmap="Blues", alpha=0.75)
    line = (toy.residual - toy.weights[0] * grid) / toy.weights[1]
    axes.plot(grid, line, color=plots.INK, linewidth=1, linestyle=(0, (4, 3)), label="loss 0: case (i)")
    e1, e2 = toy.eps
    axes.plot([-e1, e1, e1, -e1, -e1], [-e2, -e2, e2, e2, -e2], color=plots.INK, linewidth=1.2)
    ends = np.array([point.delta for point in theorem_points(toy)])
    axes.plot(*ends.T, "o", color=plots.COLOURS[1], markerfacecolor="white", markersize=6, label="Theorem 1's points")
    for corner in [point for point in kkt_points(toy) if point.case == "ii"]:
        axes.plot(*corner.delta, "^", color=plots.COLOURS[2], markersize=7)
        text = f"loss {corner.loss:.4g}\nmultipliers {worth(corner)[0]:.3g}, {worth(corner)[1]:.3g}"
        below = corner.delta[1] < 0
        axes.annotate(
            text, corner.delta, xytext=(0, -9 if below else 9), va="top" if below else "bottom", ha="center",
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    axes.plot([], [], "^", color=plots.COLOURS[2], label="KKT corner: case (ii)")
    axes.plot(*maximisers(toy)[0].delta, "*", color=plots.COLOURS[5], markersize=14, label="maximiser")
    axes.plot(*grid_search(toy).argmax, "+", color=plots.INK, markersize=9, label="grid search")
    axes.set(xlim=(-span, span), ylim=(-span, span), aspect="equal")
    axes.set(xlabel="change of pixel 1", ylabel="change of pixel 2")
    axes.grid(False)


EXPERIMENT = Experiment(
    analyse=analyse,
    plot=plot,
    notes=(
        "Theorem 1's points make the residual 0: the loss is at its minimum and all multipliers vanish, which is "
        "Lemma 1's case (i). With both weights different from 0, case (iii) is empty: a single multiplier above 0 "
        "needs a residual different from 0, and then the other pixel's derivative is not 0 either.",
        "The maximisers are corners, case (ii). Their multipliers are what a unit of budget adds to the loss at each "
        "pixel, in proportion to |w|.",
    ),
)
