"""The demo: AT and PART on the built-in data set, trained, evaluated and explained."""

from pathlib import Path

import torch

from pixelpart import recipes
from pixelpart.comparison.compare import compare
from pixelpart.config import DEFAULT_ATTACKS
from pixelpart.engine.train import train
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.explain import explain
from pixelpart.runs import Run
from pixelpart.runtime.progress import Screen

KEPT_EPOCHS = (1, 2, 4, 8)  # the stops of the page's slider, besides the best checkpoint
IMAGES = 100


def run_demo(
    out: Path, *, seed: int = 0, device: torch.device | str | None = None, screen: Screen | None = None
) -> list[Run]:
    """Both runs, each in a folder under `out`; a second call resumes them or reuses their results."""
    screen = screen or Screen()
    runs = [_train_and_evaluate(name, out / name, seed, device, screen) for name in ("shapes-at", "shapes-part")]
    screen.say(str(compare({run.dir.name: [run.dir] for run in runs})))
    return runs


def _train_and_evaluate(name: str, out: Path, seed: int, device: torch.device | str | None, screen: Screen) -> Run:
    run = train(recipes.RECIPES[name](seed=seed, keep=KEPT_EPOCHS), out, device=device, screen=screen)
    with screen.bars() as move:

        def show(attack: str, done: int, total: int, note: str) -> None:
            move(f"{name} {attack}", done, total, note)

        result = evaluate(run, attacks=DEFAULT_ATTACKS, device=device, progress=show)
    explain(run, n=IMAGES, device=device)
    screen.say(f"{name}, best checkpoint, test images:\n{result}")
    return run
