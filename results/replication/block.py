"""Arms of `pixelpart experiment replication --scale paper` with one seed, in one process.

    python results/replication/block.py RUNS SEED ARM...    for example: runs 0 AT "AT, late decay" "PART s=1"

An arm is forked from its baseline after the last epoch that they share, so the baseline comes first. Finished epochs
and kept results are reused: the same command goes on after an interruption. The table is made by
`pixelpart experiment replication --scale paper --from RUNS`.
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

scale = SCALES["demo" if os.environ.get("REHEARSE") else "paper"]  # demo: on a CPU, in two minutes
SHARED = {"AT, late decay": 60 if scale.name == "paper" else 1}  # epochs; of all others: the burn-in


def folder(runs: str, arm: str, seed: str) -> str:
    return f"{runs}/{arm.lower().replace('=', '').replace(', ', '-').replace(' ', '-')}-{seed}"


def main(runs: str, seed: str, *arms: str) -> None:
    configs = replication.arms(scale)
    for arm in arms:
        if arm in ("AT", "TRADES", "MART"):
            fields = {"keep": sorted({scale.burn_in, *(SHARED.values() if arm == "AT" else ())})}
        else:
            baseline = {"PART-T": "TRADES", "PART-M": "MART"}.get(arm.partition(" s=")[0], "AT")
            fields = {"init_from": f"{folder(runs, baseline, seed)}@{SHARED.get(arm, scale.burn_in)}", "keep": []}
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
