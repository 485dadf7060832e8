"""The runs, pictures and sweeps that are attacked: small enough that a thousand of them take minutes."""

import json

import numpy as np
from PIL import Image

from command_line import few
from pixelpart import data, recipes
from pixelpart.engine import train as train_module
from pixelpart.runs import Run
from pixelpart.sweeps.work import Job

SMALL = {"epochs": 3, "holdout": 10, "probe": 16, "batch_size": 50, "attack": {"steps": 1, "step_size": "8/255"}}
ATTACKS = "natural,pgd2x2,apgd-ce"
EVALUATE = ("--images", "40", "--attacks", ATTACKS, "--device", "cpu", "--json", "--quiet")
CLOCK = ("seconds", "images_per_second", "time")


def use_small_settings():
    """`shapes` with its first images, and a checkpoint after every step; a caller under pytest undoes it."""
    data.SETS["shapes"] = few()
    train_module.train.__kwdefaults__["save_seconds"] = 0


def config(**settings):
    """PART with a burn-in of one epoch, and maps that are renewed and stored every epoch."""
    return recipes.shapes(
        "part", **(SMALL | {"burn_in": {"epochs": 1}, "mask": {"rule": "mean", "every": 1}} | settings)
    )


def jobs():
    return [Job(config(eps_low=low), ("natural", "pgd2"), images=40) for low in ("5/255", "6/255", "7/255")]


def write_pictures(folder, rng, n=96):
    """Pictures of two classes with some that cannot be read; the arguments of `data.load` for them."""
    for number in range(n):
        path = folder / ("a", "b")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.frombuffer(rng.randbytes(32 * 32 * 3), np.uint8).reshape(32, 32, 3)
        Image.fromarray(pixels).save(path)
    path.write_bytes(b"no picture")
    return {"name": f"folder:{folder}", "size": 24, "skip_bad": True}


def state_of(folder):
    """What has to be equal to the bit at the end of a run: checkpoints, and rows of metrics without times."""
    run = Run(folder)
    return checkpoints_of(folder), [without_clock(row) for row in run.metrics], run.folder.config_file.read_text()


def checkpoints_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("checkpoints/*.safetensors"))}


def results_of(folder, file="eval.json"):
    """The entries of a result file without times, and their flags."""
    entries = json.loads((folder / file).read_text())["entries"]
    flags = {entry["attack"]: (folder / entry["flags"]).read_bytes() for entry in entries}
    return sorted((without_clock(entry) for entry in entries), key=str), flags


def without_clock(row):
    return {name: value for name, value in row.items() if name not in (*CLOCK, "sum")}
