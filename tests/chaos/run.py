"""`make chaos`: kills, damage, hostile folders, fuzzed strings and full disks; a table of attempts and failures.

The same seed makes the same choices; the moments of kills also depend on the machine. Two processes share the parts.
"""

import argparse
import functools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch

from damage import damages
from full_disk import full_disks
from fuzz import fuzzes
from hostile import hostile_folders
from kills import kills
from small_runs import use_small_settings

PARTS = {"fuzz": fuzzes, "kills": kills, "damage": damages, "hostile": hostile_folders, "disk": full_disks}


def attack(part, seed, folder):
    """Makes the attacks of a part and prints a row for each; returns the number of failures."""
    failures, begun = 0, time.monotonic()
    (folder / part).mkdir()
    for tally in PARTS[part](random.Random(f"{seed} {part}"), folder / part):
        now = time.monotonic()
        row = f"{tally.kind:<42} {tally.attempts:>9,} {len(tally.failures):>9,} {now - begun:>8.0f}"
        print("\n  ".join([row, *tally.failures[:5]]), flush=True)
        failures, begun = failures + len(tally.failures), now
    return failures


def chaos(seed, parts, folder):
    """Makes all attacks; returns the number of failures."""
    torch.set_num_threads(1)
    use_small_settings()
    begun = time.monotonic()
    print(f"{'attack':<42} {'attempts':>9} {'failures':>9} {'seconds':>8}", flush=True)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        failures = sum(pool.map(functools.partial(attack, seed=seed, folder=folder), parts))
    print(f"seed {seed}: {failures} failures, {time.monotonic() - begun:.0f} s")
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="0")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    found = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where syncing a file takes no time
    with tempfile.TemporaryDirectory(prefix="pixelpart-chaos-", dir=memory) as name:
        sys.exit(1 if chaos(found.seed, found.parts or list(PARTS), Path(name)) else 0)
