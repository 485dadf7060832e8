"""Our AutoAttack next to its authors' code, on the same models and images, compared by sample.

    python benchmarks/agreement.py --images 1000 --jobs 14 --out agreement.json

The claim: our mean robust accuracy over seeds is at most 0.1 points above the mean of the reference plus the spread of
the reference over its seeds. A second column reports for how many of our seeds the accuracy is at most 0.1 points above
the highest of the reference. The models are two small networks, trained here on CIFAR-10 with and without attacks, and
the same networks behind defences that only hide their gradients. CPU only; each process has one thread.

Work is cut into chunks of images, and every model gets its first chunk before any gets its second: a killed run, or one
that ends after --minutes, has fewer images of each model and is complete otherwise. FILE is written after every chunk.
"""

import argparse
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pixelpart as pp
from pixelpart.evaluation.statistics import crossed_bootstrap

ALLOWED = 0.001  # accuracy above the reference and its spread
CHUNK = 200  # images per task
ROUNDING = 1e-9  # of sums of accuracies


# -- networks, and defences that hide their gradients

NETWORKS: dict[str, dict[str, Any]] = {
    "at": {"eps": "8/255", "attack": {"steps": 2, "step_size": "5/255"}},
    "standard": {"eps": 0, "eps_low": 0, "attack": {"steps": 1}},
}


def train(name: str, folder: Path, threads: int) -> None:
    """Trains a tiny-cnn for three epochs on CIFAR-10, unless the folder has it already."""
    torch.set_num_threads(threads)
    config = pp.recipes.cifar10_at(
        model="tiny-cnn", normalize=True, precision="fp32", epochs=3, holdout=512, probe=512, ema=0.99,
        optim={"lr": 0.2, "weight_decay": 5e-4, "schedule": "cyclic", "warmup": 0.3},
        **NETWORKS[name],
    )  # fmt: skip
    pp.train(config, folder / name, device="cpu")


def plain(x: Tensor) -> Tensor:
    return x


def quantised(x: Tensor) -> Tensor:
    """Rounds to 16 levels: the gradient is zero almost everywhere."""
    return (15 * x).round() / 15


def straight(x: Tensor) -> Tensor:
    """Rounds to 16 levels with the gradient of the identity (a straight-through estimator)."""
    with torch.no_grad():
        rest = quantised(x) - x
    return x + rest


def shattered(x: Tensor) -> Tensor:
    """Adds a ripple of 2/255 that is so fine that it determines the sign of the gradient."""
    return x + 2 / 255 * torch.sin(2000 * x)


class Hidden(nn.Module):
    """scale * net(front(x))"""

    def __init__(self, net: nn.Module, front: Callable[[Tensor], Tensor], scale: float) -> None:
        super().__init__()
        self.net, self.front, self.scale = net, front, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.net(self.front(x))


@dataclass(frozen=True)
class Case:
    """A network, the function applied to its input, the factor of its logits, and eps."""

    network: str
    front: Callable[[Tensor], Tensor] = plain
    scale: float = 1.0
    eps: float = 8 / 255

    def model(self, folder: Path) -> nn.Module:
        net = pp.Run(folder / self.network).model
        return net if self.front is plain and self.scale == 1 else Hidden(net, self.front, self.scale).eval()


# slow cases first; at 8/255 the standard network has no robust image, so there are cases with smaller eps
CASES = {
    "standard quantised, 4/255": Case("standard", quantised, eps=4 / 255),
    "AT shattered": Case("at", shattered),
    "standard straight-through, 2/255": Case("standard", straight, eps=2 / 255),
    "AT quantised": Case("at", quantised),
    "standard saturated, 2/255": Case("standard", scale=1e4, eps=2 / 255),
    "AT saturated": Case("at", scale=1e4),  # softmax is 0 or 1 in fp32, so cross-entropy has no gradient
    "standard, 2/255": Case("standard", eps=2 / 255),
    "AT": Case("at"),
    "standard": Case("standard"),
}


# -- one task: a case, an engine, a chunk


def attack(case: str, engine: str, seed: int, start: int, stop: int, folder: Path) -> dict[str, Any]:
    """Which of the test images from start to stop remain correct under AutoAttack, and the time it took."""
    torch.set_num_threads(1)
    images, labels = pp.data.load("cifar10", split="test")
    wall, cpu = time.perf_counter(), time.process_time()
    result = pp.evaluate(
        CASES[case].model(folder),
        attacks=["natural", "autoattack"],
        data=(images[start:stop], labels[start:stop]),
        eps=CASES[case].eps,
        engine=engine,
        seed=seed,
        device="cpu",
    )
    return {
        "natural": result["natural"].right.tolist(),
        "right": result["autoattack"].right.tolist(),
        "warnings": result["autoattack"].warnings,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


# -- all tasks


def compare(done: dict[tuple[Any, ...], dict[str, Any]], runs: list[tuple[str, int]], case: str) -> dict[str, Any]:
    """The figures of a case over the chunks that all runs have finished."""
    starts = sorted({start for name, _, start in done if name == case})
    finished = [start for start in starts if all((case, run, start) in done for run in runs)]
    flags, cost = {}, {}
    for run in runs:
        chunks = [done[case, run, start] for start in finished]
        flags[run] = torch.tensor([flag for chunk in chunks for flag in chunk["right"]], dtype=torch.bool)
        cost[run] = sum(chunk["cpu_seconds"] for chunk in chunks)
    ours, reference = ([run for run in runs if run[0] == engine] for engine in ("own", "reference"))
    n = len(flags[ours[0]])
    if n == 0:
        return {"n": 0}
    accuracy = {run: int(right.sum()) / n for run, right in flags.items()}
    highest, lowest = (pick(accuracy[run] for run in reference) for pick in (max, min))
    above = mean([accuracy[run] for run in ours]) - mean([accuracy[run] for run in reference])
    return {
        "n": n,
        "eps": CASES[case].eps,
        "natural": sum(sum(done[case, ours[0], start]["natural"]) for start in finished) / n,
        "own": [accuracy[run] for run in ours],
        "reference": [accuracy[run] for run in reference],
        "spread": highest - lowest,
        "above": above,
        "holds": above <= highest - lowest + ALLOWED + ROUNDING,
        "holds by seed": [accuracy[run] <= highest + ALLOWED + ROUNDING for run in ours],
        "robust under ours only": [[int((flags[own] & ~flags[other]).sum()) for other in reference] for own in ours],
        "robust under the reference only": [
            [int((flags[other] & ~flags[own]).sum()) for other in reference] for own in ours
        ],
        "cpu_seconds": {"own": [cost[run] for run in ours], "reference": [cost[run] for run in reference]},
        "warnings": sorted(
            {warning for run in ours for start in finished for warning in done[case, run, start]["warnings"]}
        ),
        "chunks": finished,
        "flags": {f"{engine} {seed}": [int(flag) for flag in flags[engine, seed]] for engine, seed in runs},
    }


def difference(flags: dict[str, list[int]]) -> str:
    """The mean of ours minus that of the reference, over seeds and images."""
    ours, theirs = ([v for k, v in flags.items() if k.startswith(engine)] for engine in ("own", "reference"))
    if min(len(ours), len(theirs)) < 2:
        return ""
    found = crossed_bootstrap(np.array(ours, dtype=bool), np.array(theirs, dtype=bool))
    return f"{100 * found.estimate:+z.2f} [{100 * found.low:+z.2f}, {100 * found.high:+z.2f}]"


def table(cases: dict[str, dict[str, Any]]) -> str:
    """A line per case; "only ours": images robust under ours only, for each of our seeds and of the reference's."""
    heads = ("ours, by seed", "reference", "only ours", "only reference", "difference, points [95 %]")
    head = " ".join(f"{head:<16}" for head in heads)
    lines = [f"{'model':<32} {'n':>5} {'natural':>8}  {head} {'CPU time':>9}  claim"]
    for name, row in cases.items():
        if row["n"] == 0:
            lines.append(f"{name:<32} {0:>5}")
            continue
        cells = [" ".join(f"{accuracy:.2%}" for accuracy in row[engine]) for engine in ("own", "reference")]
        only = (row[f"robust under {engine} only"] for engine in ("ours", "the reference"))
        cells += ["; ".join(", ".join(map(str, counts)) for counts in by_seed) for by_seed in only]
        cells.append(f"{difference(row['flags']):<25}")
        ratio = mean(row["cpu_seconds"]["own"]) / mean(row["cpu_seconds"]["reference"])
        verdict = f"{'holds' if row['holds'] else 'FAILS'} in the mean"
        verdict += f", for {sum(row['holds by seed'])} of {len(row['holds by seed'])} seeds"
        figures = f"{row['n']:>5} {row['natural']:>8.2%}  {' '.join(f'{cell:<16}' for cell in cells)} {ratio:>8.2f}x"
        lines.append(f"{name:<32} {figures}  {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="only cases whose name contains this (default: all)")
    parser.add_argument("--images", type=int, default=1000, help="test images per model (default: 1000)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of the reference (default: 2)")
    parser.add_argument("--own-seeds", type=int, default=2, help="our seeds (default: 2)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--minutes", type=float, default=6, help="no chunk is started after this time (default: 6)")
    parser.add_argument("--models", type=Path, default=Path("runs/agreement"), help="folder of the trained networks")
    parser.add_argument("--out", type=Path, default=Path("agreement.json"))
    parser.add_argument("--from", dest="kept", nargs="+", type=Path, help="print the table of these files; run nothing")
    args = parser.parse_args()
    if args.kept:
        print(table({name: row for path in args.kept for name, row in json.loads(path.read_text())["cases"].items()}))
        return

    deadline = time.monotonic() + 60 * args.minutes
    runs = [*(("own", seed) for seed in range(args.own_seeds)), *(("reference", seed) for seed in range(args.seeds))]
    cases = [name for name in CASES if args.cases in name]
    if not cases:
        parser.error(f"no case contains {args.cases!r}; choose from {'; '.join(CASES)}")
    starts = range(0, args.images, CHUNK)
    done: dict[tuple[Any, ...], dict[str, Any]] = {}
    context = get_context("spawn")
    with ProcessPoolExecutor(len(NETWORKS), mp_context=context) as pool:
        threads = max(1, args.jobs // len(NETWORKS))
        list(pool.map(train, NETWORKS, itertools.repeat(args.models), itertools.repeat(threads)))

    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        waiting: dict[Future[dict[str, Any]], tuple[Any, ...]] = {}
        for start, case, run in itertools.product(starts, cases, runs):
            stop = min(start + CHUNK, args.images)
            waiting[pool.submit(attack, case, *run, start, stop, args.models)] = case, run, start
        try:
            for future in as_completed(waiting):
                if future.cancelled():
                    continue
                done[waiting[future]] = future.result()
                if time.monotonic() > deadline:
                    cancel(waiting)
                write(args, done, runs)
                case, (engine, seed), start = waiting[future]
                seconds = done[waiting[future]]["seconds"]
                print(f"{len(done)}/{len(waiting)}  {case}, {engine} {seed}, from {start}: {seconds:.0f} s", flush=True)
        finally:
            cancel(waiting)  # else the pool would finish all tasks before an error is raised
    print(table(write(args, done, runs)))


def cancel(waiting: Iterable[Future[dict[str, Any]]]) -> None:
    for future in waiting:
        future.cancel()


def write(
    args: argparse.Namespace, done: dict[tuple[Any, ...], dict[str, Any]], runs: list[tuple[str, int]]
) -> dict[str, dict[str, Any]]:
    cases = {case: compare(done, runs, case) for case in CASES if args.cases in case}
    content = {
        "what": "AutoAttack standard: ours and pyautoattack, for several seeds; robust accuracy, flags by test image",
        "settings": {key: getattr(args, key) for key in ("images", "own_seeds", "seeds", "minutes")} | {"chunk": CHUNK},
        "allowed": ALLOWED,
        "machine": f"{platform.machine()} CPU, {args.jobs} processes of one thread, torch {torch.__version__}",
        "holds": all(row.get("holds", False) for row in cases.values()),
        "cases": cases,
    }
    aside = args.out.with_name(args.out.name + ".part")
    aside.write_text(json.dumps(content))
    aside.replace(args.out)
    return cases


if __name__ == "__main__":
    main()
