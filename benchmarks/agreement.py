"""Our AutoAttack beside its authors' code, on the same models and images, sample by sample.

    python benchmarks/agreement.py --images 1000 --jobs 14 --out agreement.json

The claim: robust accuracy by ours, in the mean over its seeds, is never more than 0.1 points above the mean of the
reference, plus the reference's own spread over seeds. Beside it stands whether every seed of ours is at most 0.1 points
above the highest of the reference. It is put to two small networks, trained here on CIFAR-10 with and without attacks,
and to the same networks behind defences that only hide their gradients. CPU alone; each process has one thread.

Work is cut into chunks of images, and every model has its first chunk before any has its second: a run that is cut off,
or ends at --minutes, has fewer images of each model and is otherwise whole. FILE is written anew after every chunk.
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

import torch
from torch import Tensor, nn

import pixelpart as pp

ALLOWED = 0.001  # of accuracy, above the reference and its spread
CHUNK = 200  # images at a time
ROUNDING = 1e-9  # of sums of shares


# -- networks, and what hides their gradients

NETWORKS: dict[str, dict[str, Any]] = {
    "at": {"eps": "8/255", "attack": {"steps": 2, "step_size": "5/255"}},
    "standard": {"eps": 0, "eps_low": 0, "attack": {"steps": 1}},
}


def train(name: str, folder: Path, threads: int) -> None:
    """A tiny-cnn after three epochs on CIFAR-10; one that is in the folder already stays."""
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
    """The nearest of 16 levels: the gradient is zero wherever there is one."""
    return (15 * x).round() / 15


def straight(x: Tensor) -> Tensor:
    """The same with a gradient as if it were x: what is computed has none, but the network gives one of its own."""
    with torch.no_grad():
        rest = quantised(x) - x
    return x + rest


def shattered(x: Tensor) -> Tensor:
    """x and a ripple of 2/255 so fine that the gradient's sign is the ripple's."""
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
    """A network, what is put in front of it, what its logits are multiplied by, and eps."""

    network: str
    front: Callable[[Tensor], Tensor] = plain
    scale: float = 1.0
    eps: float = 8 / 255

    def model(self, folder: Path) -> nn.Module:
        net = pp.Run(folder / self.network).model
        return net if self.front is plain and self.scale == 1 else Hidden(net, self.front, self.scale).eval()


# the slow ones first; at 8/255 nothing is left of the standard network, so there are smaller eps as well
CASES = {
    "standard quantised, 4/255": Case("standard", quantised, eps=4 / 255),
    "AT shattered": Case("at", shattered),
    "standard straight-through, 2/255": Case("standard", straight, eps=2 / 255),
    "AT quantised": Case("at", quantised),
    "standard saturated, 2/255": Case("standard", scale=1e4, eps=2 / 255),
    "AT saturated": Case("at", scale=1e4),  # softmax is 0 or 1 in fp32: no gradient of cross-entropy
    "standard, 2/255": Case("standard", eps=2 / 255),
    "AT": Case("at"),
    "standard": Case("standard"),
}


# -- one piece of work: a case, an engine, a chunk


def attack(case: str, engine: str, seed: int, start: int, stop: int, folder: Path) -> dict[str, Any]:
    """Which of the test images from start to stop stay right under AutoAttack, and at what cost."""
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


# -- all of it


def compare(done: dict[tuple[Any, ...], dict[str, Any]], runs: list[tuple[str, int]], case: str) -> dict[str, Any]:
    """The case's figures over the chunks that every run has finished."""
    starts = sorted({start for one, _, start in done if one == case})
    whole = [start for start in starts if all((case, run, start) in done for run in runs)]
    flags, cost = {}, {}
    for run in runs:
        pieces = [done[case, run, start] for start in whole]
        flags[run] = torch.tensor([flag for piece in pieces for flag in piece["right"]], dtype=torch.bool)
        cost[run] = sum(piece["cpu_seconds"] for piece in pieces)
    ours, theirs = ([run for run in runs if run[0] == engine] for engine in ("own", "reference"))
    n = len(flags[ours[0]])
    if n == 0:
        return {"n": 0}
    share = {run: int(right.sum()) / n for run, right in flags.items()}
    highest, lowest = (pick(share[run] for run in theirs) for pick in (max, min))
    above = mean([share[run] for run in ours]) - mean([share[run] for run in theirs])
    return {
        "n": n,
        "eps": CASES[case].eps,
        "natural": sum(sum(done[case, ours[0], start]["natural"]) for start in whole) / n,
        "own": [share[run] for run in ours],
        "reference": [share[run] for run in theirs],
        "spread": highest - lowest,
        "above": above,
        "holds": above <= highest - lowest + ALLOWED + ROUNDING,
        "holds by seed": [share[run] <= highest + ALLOWED + ROUNDING for run in ours],
        "own alone stands": [[int((flags[own] & ~flags[other]).sum()) for other in theirs] for own in ours],
        "reference alone stands": [[int((flags[other] & ~flags[own]).sum()) for other in theirs] for own in ours],
        "cpu_seconds": {"own": [cost[run] for run in ours], "reference": [cost[run] for run in theirs]},
        "warnings": sorted(
            {warning for run in ours for start in whole for warning in done[case, run, start]["warnings"]}
        ),
        "chunks": whole,
        "flags": {f"{engine} {seed}": [int(flag) for flag in flags[engine, seed]] for engine, seed in runs},
    }


def table(cases: dict[str, dict[str, Any]]) -> str:
    seeds = f"{'ours, by seed':<24} {'reference, by seed':<24}"
    lines = [f"{'model':<26} {'n':>5} {'natural':>8}  {seeds} {'CPU time':>9}  claim"]
    for name, row in cases.items():
        if row["n"] == 0:
            lines.append(f"{name:<26} {0:>5}")
            continue
        ours, theirs = (" ".join(f"{share:.2%}" for share in row[engine]) for engine in ("own", "reference"))
        ratio = mean(row["cpu_seconds"]["own"]) / mean(row["cpu_seconds"]["reference"])
        verdict = f"{'holds' if row['holds'] else 'FAILS'} in the mean"
        verdict += f", for {sum(row['holds by seed'])} of {len(row['holds by seed'])} seeds"
        figures = f"{row['n']:>5} {row['natural']:>8.2%}  {ours:<24} {theirs:<24} {ratio:>8.2f}x"
        lines.append(f"{name:<26} {figures}  {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="those whose name contains this (here: all)")
    parser.add_argument("--images", type=int, default=1000, help="of the test set, for each model")
    parser.add_argument("--seeds", type=int, default=2, help="of the reference")
    parser.add_argument("--own-seeds", type=int, default=2, help="of ours")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=6, help="after which no chunk is begun")
    parser.add_argument("--models", type=Path, default=Path("runs/agreement"), help="the trained networks' folder")
    parser.add_argument("--out", type=Path, default=Path("agreement.json"))
    args = parser.parse_args()

    deadline = time.monotonic() + 60 * args.minutes
    runs = [*(("own", seed) for seed in range(args.own_seeds)), *(("reference", seed) for seed in range(args.seeds))]
    cases = [name for name in CASES if args.cases in name]
    if not cases:
        parser.error(f"no case is named {args.cases!r}; choose from {'; '.join(CASES)}")
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
            cancel(waiting)  # the pool would see to all of them before an error gets out
    print(table(write(args, done, runs)))


def cancel(waiting: Iterable[Future[dict[str, Any]]]) -> None:
    for future in waiting:
        future.cancel()


def write(
    args: argparse.Namespace, done: dict[tuple[Any, ...], dict[str, Any]], runs: list[tuple[str, int]]
) -> dict[str, dict[str, Any]]:
    cases = {case: compare(done, runs, case) for case in CASES if args.cases in case}
    content = {
        "what": "AutoAttack standard: ours and pyautoattack, at several seeds; robust accuracy, flags by test image",
        "asked": {key: getattr(args, key) for key in ("images", "own_seeds", "seeds", "minutes")} | {"chunk": CHUNK},
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
