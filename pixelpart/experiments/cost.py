"""Table 9: what masks cost, made for every batch (fresh) or stored for s epochs: seconds an epoch and memory."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from pixelpart.config import Config
from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment
from pixelpart.experiments.common.paper import Numbers
from pixelpart.experiments.common.results import Results, all_epochs
from pixelpart.experiments.common.scales import BASELINES, METHODS, Arms, Scale
from pixelpart.runs import Run
from pixelpart.sweeps.work import Job

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


def measure(run: Run, job: Job) -> dict[str, Any]:
    """Seconds of an epoch after burn-in and of the run, and the peak memory of a process that trains one epoch."""
    every = all_epochs(run.dir)
    masked = [row["seconds"] for row in every if row["epoch"] > job.config.burn_in.epochs]
    values = run.config.model_dump(mode="json") | {"init_from": "", "keep": [], "epochs": 1}
    values["burn_in"] |= {"epochs": 0}
    command = [sys.executable, "-m", "pixelpart.experiments.cost", json.dumps(values)]
    peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds = {"s/epoch": fmean(masked[1:] or masked), "seconds": sum(row["seconds"] for row in every)}
    return {"columns": seconds | {"memory": peak["mib"]}, "memory of": peak["of"]}


def footprint(values: dict[str, Any]) -> dict[str, Any]:
    """Trains the config in a temporary folder; the most memory that was in use, in MiB: the GPU's if it has one."""
    import torch

    from pixelpart.engine.train import train
    from pixelpart.runtime.progress import Screen

    with tempfile.TemporaryDirectory() as folder:
        train(Config.model_validate(values), Path(folder) / "run", screen=Screen(quiet=True))
    if torch.cuda.is_available():
        return {"mib": torch.cuda.max_memory_allocated() / 2**20, "of": "GPU"}
    # ru_maxrss would include the parent process, as it was when it started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"mib": int(status["VmHWM"].split()[0]) / 2**10, "of": "process"}


def plot(results: Results) -> Figure:
    return plots.intervals(results, ["s/epoch", "memory"], filled=lambda arm: arm.split(" ")[0] in BASELINES)


EXPERIMENT = Experiment(
    arms=arms,
    measures=("pixelpart.experiments.cost:measure",),
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

if __name__ == "__main__":
    print(json.dumps(footprint(json.loads(sys.argv[1]))))
