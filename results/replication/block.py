"""Arms of `pixelpart experiment replication --scale paper` with one seed, in one process.

    python results/replication/block.py RUNS SEED ARM...    for example: runs 0 AT "AT, late decay" "PART s=1"

Of the arms with one loss, the first is trained from the start and the others are forked from it after the last epoch
that they share. Finished epochs and kept results are reused: the same command goes on after an interruption. The table
is made by `pixelpart experiment replication --scale paper --from RUNS`.
"""

import gc
import os
import sys
import time

import torch

import pixelpart as pp
from pixelpart.config import with_fields
from pixelpart.experiments import replication
from pixelpart.experiments.common.experiment import FOUR
from pixelpart.experiments.common.scales import SCALES

scale = SCALES["demo" if os.environ.get("REHEARSE") else "paper"]  # demo: on a CPU
DECAY = 60 if scale.name == "paper" else 1  # AT and "AT, late decay" share the epochs before AT's first decay


def folder(runs: str, arm: str, seed: str) -> str:
    return f"{runs}/{arm.lower().replace('=', '').replace(', ', '-').replace(' ', '-')}-{seed}"


def main(runs: str, seed: str, *arms: str) -> None:
    configs, first = replication.arms(scale), dict[str, str]()  # the first arm with each loss
    for arm in arms:
        parent = first.setdefault(configs[arm].objective.name, arm)
        if parent == arm:
            fields = {"keep": sorted({scale.burn_in, DECAY} if arm == "AT" else {scale.burn_in})}
        else:
            epoch = DECAY if (parent, arm) == ("AT", "AT, late decay") else scale.burn_in
            fields = {"init_from": f"{folder(runs, parent, seed)}@{epoch}", "keep": []}
        began = time.monotonic()
        config = with_fields(configs[arm], {"seed": int(seed), **fields}, source=arm)
        run = pp.train(config, folder(runs, arm, seed))
        trained = time.monotonic()
        pp.evaluate(run, attacks=FOUR, checkpoint="last", images=scale.images)
        seconds = f"trained in {trained - began:.0f} s, evaluated in {time.monotonic() - trained:.0f} s"
        print(f"{arm}, seed {seed}: {seconds}", flush=True)
        del run
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
