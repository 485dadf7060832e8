"""What `evaluate` returns."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pixelpart.evaluation.entries import Entry
from pixelpart.runtime.tables import html_table, warning_lines

FlagArray = NDArray[np.bool_]  # (n,): which samples are classified correctly


@dataclass(frozen=True)
class Outcome:
    """The result of one attack: its entry in eval.json, which samples remain correct, and whether it was reused."""

    entry: Entry
    right: FlagArray
    reused: bool

    @property
    def accuracy(self) -> float:
        return self.entry["accuracy"]

    @property
    def interval(self) -> tuple[float, float]:
        low, high = self.entry["interval"]
        return low, high

    @property
    def correct(self) -> int:
        return self.entry["correct"]

    @property
    def n(self) -> int:
        return self.entry["n"]

    @property
    def warnings(self) -> list[str]:
        """Reasons why the number may be unreliable."""
        return self.entry["warnings"]

    def __repr__(self) -> str:
        return repr(self._alone)

    def _repr_html_(self) -> str:
        return self._alone._repr_html_()

    @property
    def _alone(self) -> "Result":
        return Result({self.entry["attack"]: self})


@dataclass(frozen=True)
class Result:
    """The outcome of every requested attack, by name and in that order: `result["pgd20"].accuracy`."""

    outcomes: dict[str, Outcome]

    def __getitem__(self, attack: str) -> Outcome:
        return self.outcomes[attack]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def entries(self) -> list[Entry]:
        return [outcome.entry for outcome in self.outcomes.values()]

    @property
    def flags(self) -> dict[str, FlagArray]:
        return {name: outcome.right for name, outcome in self.outcomes.items()}

    def _repr_html_(self) -> str:
        rows: list[list[object]] = []
        notes: list[str] = []
        for name, outcome in self.outcomes.items():
            entry, (low, high) = outcome.entry, outcome.interval
            images = f"{outcome.n} {entry['dataset']} {entry['split']}" if entry["dataset"] != "given" else outcome.n
            spent = "reused" if outcome.reused else f"{entry['seconds']:.1f} s"
            star = " *" if outcome.warnings else ""
            rows.append([name, f"{outcome.accuracy:.2%}{star}", f"{low:.2%} to {high:.2%}", images, spent])
            notes += [f"* {name}: {warning}" for warning in outcome.warnings]
        return html_table(rows, head=["attack", "accuracy", "95 % interval", "images", "time"], notes=notes)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.outcomes)

    def __str__(self) -> str:
        """One line per attack, with its seconds or "reused", and a star if there are warnings; then the warnings."""
        lines: list[str] = []
        width = max([12, *map(len, self.outcomes)])
        for name, outcome in self.outcomes.items():
            low, high = outcome.interval
            spent = "reused" if outcome.reused else f"{outcome.entry['seconds']:.1f} s"
            of = " held-out" if outcome.entry["split"] == "held-out" else ""
            interval = f"[{low:.2%}, {high:.2%}]"
            numbers = f"{outcome.accuracy:7.2%}  {interval:<16}  n = {outcome.n}{of}"
            line = f"{name:<{width}} {numbers}  {spent:>9}"
            lines.append(f"{line} *" if outcome.warnings else line)
        notes = warning_lines((name, outcome.warnings) for name, outcome in self.outcomes.items())
        return "\n".join([*lines, *notes])

    __repr__ = __str__
