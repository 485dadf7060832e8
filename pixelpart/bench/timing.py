"""Wall time and memory of functions that do the same work, and the table of results."""

import dataclasses
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pixelpart.runtime.device import current
from pixelpart.runtime.precision import fast_arithmetic, ieee_fp32

Timed = Callable[[], object]  # the function that is timed
Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchRow:
    """One way of doing the work. `ratio` is its speed over that of `baseline`, in the median of the rounds."""

    what: str
    baseline: str
    milliseconds: float
    ratio: float
    images_per_second: float
    times: list[float]  # milliseconds of every round; `milliseconds` is their median
    peak_mib: float | None = None  # GPU only: memory that the work adds at its peak, weights included
    tflops: float | None = None  # GPU only, if known: useful operations per second, in units of 1e12


@dataclass
class BenchReport:
    """The rows of one bench, and single figures computed from them."""

    bench: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: list[BenchRow] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what a reader of the figures has to know

    def __getitem__(self, what: str) -> BenchRow:
        return next(row for row in self.rows if row.what == what)

    def note(self, line: str) -> None:
        """Adds a note, once."""
        self.notes += [] if line in self.notes else [line]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"torch": torch.__version__}

    def __str__(self) -> str:
        wide = max(len(row.what) for row in self.rows)
        head = f"{'':<{wide}} {'ms':>10} {'ratio':>8} {'us/image':>10} {'images/s':>10}"
        on_gpu = any(row.peak_mib is not None for row in self.rows)
        lines = [head + (f" {'peak MiB':>10} {'TFLOP/s':>9}" if on_gpu else "")]
        for row in self.rows:
            line = f"{row.what:<{wide}} {row.milliseconds:>10.2f} {row.ratio:>7.2f}x"
            line += f" {1e6 / row.images_per_second:>10.1f} {row.images_per_second:>10.0f}"
            if on_gpu:
                peak, tflops = ("" if value is None else f"{value:.0f}" for value in (row.peak_mib, row.tflops))
                line += f" {peak:>10} {tflops:>9}"
            lines.append(line)
        lines += [f"{name}: {value:.3f}" for name, value in self.figures.items()]
        named = ", ".join(f"{key} {value}" for key, value in (self.settings | self.machine).items())
        return "\n".join([*lines, *self.notes, f"{named}, torch {torch.__version__}"])


@dataclass
class Bench:
    """A bench that is being run: where, how often, and the report that it fills."""

    report: BenchReport
    device: torch.device
    repeats: int
    say: Say

    def measure(
        self,
        makers: Mapping[str, Callable[[], Timed]],
        *,
        images: int,
        against: Mapping[str, str] | None = None,
        memory: bool = True,
    ) -> list[BenchRow]:
        """A row for each way of doing the work; its baseline is named in `against` (default: the first way).

        A maker does what is done once (build, compile) and returns the function to time. The ways take turns, round by
        round, so that a slow phase of the machine affects all of them. Memory is measured after the timing, when cuDNN
        has chosen its algorithms, with each way made and run on its own.
        """
        runs = {what: make() for what, make in makers.items()}
        times, calls = {what: list[float]() for what in makers}, {}
        for what, run in runs.items():
            self.say(f"{what}: warm-up")
            milliseconds(run, self.device)
            calls[what] = calls_per_round(run, self.device)
        for number in range(self.repeats):
            for what, run in runs.items():
                times[what].append(milliseconds(run, self.device, calls=calls[what]))
                self.say(f"{what}: {times[what][-1]:.1f} ms, {number + 1} of {self.repeats}")
        del runs, run
        rows = []
        for what, make in makers.items():
            base, median = against[what] if against else next(iter(makers)), statistics.median(times[what])
            ratio, peak = median_ratio(times[base], times[what]), peak_mib(make, self.device) if memory else None
            rows.append(BenchRow(what, base, median, ratio, 1000 * images / median, times[what], peak))
        self.report.rows += rows
        return rows


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of times / others: a slow round slows both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def calls_per_round(run: Timed, device: torch.device) -> int:
    """5 calls back to back on a GPU, where the host runs ahead as in a training loop; 1 if a call takes long."""
    return 5 if device.type == "cuda" and milliseconds(run, device) < 500 else 1


def milliseconds(run: Timed, device: torch.device, *, calls: int = 1) -> float:
    """The time of a call, from an idle device to an idle device."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            run()
        return 1000 * (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / calls


def peak_mib(make: Callable[[], Timed], device: torch.device) -> float | None:
    """The memory in MiB that making and running it adds at its peak, captured graphs included; None on a CPU."""
    if device.type != "cuda":
        return None
    gc.collect()  # frees the memory of what ran before
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run = make()
    for _ in range(2):
        run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


@contextmanager
def arithmetic(device: torch.device, precision: str = "bf16") -> Iterator[None]:
    """The same arithmetic for ours and the baselines: on a GPU that of training, on a CPU IEEE fp32."""
    fast = device.type == "cuda" and precision != "fp32"
    with current(device), fast_arithmetic() if fast else ieee_fp32(device):
        yield


def describe_machine(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return {"device": f"{name} ({torch.backends.cpu.get_cpu_capability()})", "threads": torch.get_num_threads()}
