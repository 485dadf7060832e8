"""The same as block.sh in one process, which saves starting Python and torch for every command.

    python block.py RUNS SEED ARM...    arms: u8 u7.5 u7 u6 u9 part; ARM+aa also runs AutoAttack

Run it with the frozen commit's package on PYTHONPATH. Finished runs and kept results are reused.
"""

import gc
import os
import sys
import time

import torch

import pixelpart as pp
from pixelpart.recipes import RECIPES

small = {}
if os.environ.get("REHEARSE"):  # on a CPU, in a minute
    small = {"dataset": "shapes", "model": "tiny-cnn", "precision": "fp32", "epochs": 9, "holdout": 64, "probe": 64}
    small |= {"attack": {"steps": 1}, "batch_size": 1024}


def config_of(arm: str, seed: int, runs: str):
    if arm == "u8":
        return RECIPES["cifar10-at-fast"](seed=seed, keep=(8,), **small)
    fork = {"seed": seed, "init_from": f"{runs}/{seed}-u8@8", **small}
    if arm == "part":
        return RECIPES["cifar10-part-fast"](**fork)
    return RECIPES["cifar10-at-fast"](eps=f"{arm.removeprefix('u')}/255", **fork)


def main(runs: str, seed: str, *arms: str) -> None:
    for arm in arms:
        arm, _, extra = arm.partition("+")
        began = time.monotonic()
        run = pp.train(config_of(arm, int(seed), runs), f"{runs}/{seed}-{arm}")
        trained = time.monotonic()
        attacks = ["natural", "apgd", *(["autoattack"] if extra == "aa" else [])]
        pp.evaluate(run, attacks=attacks, checkpoint="last", **({"images": 50} if small else {}))
        print(
            f"{seed}-{arm}: trained in {trained - began:.0f} s, evaluated in {time.monotonic() - trained:.0f} s",
            flush=True,
        )
        del run
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
