"""Wall time and memory of functions that do the same work, and the table they end up in."""

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

from pixelpart.engine.fast import fast_arithmetic
from pixelpart.runtime.device import current
from pixelpart.runtime.precision import ieee_fp32

Run = Callable[[], object]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One way of doing the work. `ratio`: how many times as fast as `baseline` it is, in the median of the rounds."""

    what: str
    baseline: str
    milliseconds: float
    ratio: float
    images_per_second: float
    times: list[float]  # milliseconds of every repeat, the median of which is above
    peak_mib: float | None = None  # on a GPU: what the work adds to the memory in use, weights and all
    tflops: float | None = None  # on a GPU, where it is known: useful operations a second, in units of 1e12


@dataclass
class Report:
    """What one bench measured: rows, and single figures that follow from them."""

    bench: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what a reader of the figures has to know

    def __getitem__(self, what: str) -> Row:
        return next(row for row in self.rows if row.what == what)

    def note(self, line: str) -> None:
        """Adds to the notes, once."""
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
                line += f" {_or_blank(row.peak_mib):>10} {_or_blank(row.tflops):>9}"
            lines.append(line)
        lines += [f"{name}: {value:.3f}" for name, value in self.figures.items()]
        named = ", ".join(f"{key} {value}" for key, value in (self.settings | self.machine).items())
        return "\n".join([*lines, *self.notes, f"{named}, torch {torch.__version__}"])


def _or_blank(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def compare(
    makers: Mapping[str, Callable[[], Run]],
    *,
    device: torch.device,
    images: int,
    repeats: int,
    say: Say,
    against: Mapping[str, str] | None = None,
    memory: bool = True,
) -> list[Row]:
    """A row for each way of doing the work; its baseline is the one named in `against`, else the first.

    A maker does what is done once (build, compile) and returns what is timed. The ways take turns, round by round, so
    that a machine that slows down slows all of them. Memory, if it is asked for, is that of one way made and run alone,
    after the timing, when cuDNN has its algorithms.
    """
    runs = {what: make() for what, make in makers.items()}
    times, calls = {what: list[float]() for what in makers}, {}
    for what, run in runs.items():
        say(f"{what}: warm-up")
        once(run, device)
        calls[what] = calls_of(run, device)
    for number in range(repeats):
        for what, run in runs.items():
            times[what].append(once(run, device, calls=calls[what]))
            say(f"{what}: {times[what][-1]:.1f} ms, {number + 1} of {repeats}")
    del runs, run
    peaks = {what: peak_mib(make, device) if memory else None for what, make in makers.items()}
    bases = against or dict.fromkeys(makers, next(iter(makers)))
    middle = {what: statistics.median(values) for what, values in times.items()}
    return [
        Row(
            what,
            bases[what],
            milliseconds=middle[what],
            ratio=over(times[bases[what]], times[what]),
            images_per_second=1000 * images / middle[what],
            times=times[what],
            peak_mib=peaks[what],
        )
        for what in makers
    ]


def over(times: Sequence[float], others: Sequence[float]) -> float:
    """How many times the others the times are, in the median of the rounds: a slow round has slowed both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def calls_of(run: Run, device: torch.device) -> int:
    """Several calls back to back on a GPU, as in a training loop, where the host runs ahead; one of what takes long."""
    return 5 if device.type == "cuda" and once(run, device) < 500 else 1


def once(run: Run, device: torch.device, *, calls: int = 1) -> float:
    """Milliseconds that a call takes, from an idle device to an idle device."""
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


def peak_mib(make: Callable[[], Run], device: torch.device) -> float | None:
    """What making and running it adds to the memory in use at its peak, in MiB; None on a CPU.

    A captured graph takes its memory while it is captured, so that is inside.
    """
    if device.type != "cuda":
        return None
    gc.collect()  # what came before is gone now, and not in the middle of this
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
    """The same switches for all that is compared: on a GPU those of training, also for the baselines; on a CPU IEEE."""
    fast = device.type == "cuda" and precision != "fp32"
    with current(device), fast_arithmetic() if fast else ieee_fp32(device):
        yield


def machine(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return {
        "device": f"{name} ({torch.backends.cpu.get_cpu_capability()})",
        "threads": torch.get_num_threads(),
    }
