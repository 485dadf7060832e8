"""What `evaluate` hands back."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pixelpart.evaluation.store import Entry, FlagArray


@dataclass(frozen=True)
class Outcome:
    """What one attack left: the entry of eval.json, which samples are still right, and whether it was known before."""

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
        """Why the figure may not mean what it seems to, in words."""
        return self.entry["warnings"]


@dataclass(frozen=True)
class Result:
    """The outcome of every attack asked for, by name and in that order: `result["pgd20"].accuracy`."""

    outcomes: dict[str, Outcome] = field(repr=False)

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

    def __str__(self) -> str:
        """A line for each attack, with the seconds it took, "kept" if it was known, and a star where it is warned.

        Below them every warning.
        """
        lines: list[str] = []
        wide = max([12, *map(len, self.outcomes)])
        warned: dict[str, list[str]] = {}
        for name, outcome in self.outcomes.items():
            low, high = outcome.interval
            spent = "kept" if outcome.reused else f"{outcome.entry['seconds']:.1f} s"
            figures = f"{outcome.accuracy:7.2%}  [{low:.2%}, {high:.2%}]  n = {outcome.n}"
            line = f"{name:<{wide}} {figures}  {spent:>9}"
            lines.append(f"{line} *" if outcome.warnings else line)
            for warning in outcome.warnings:
                warned.setdefault(warning, []).append(name)
        return "\n".join([*lines, *(f"* {', '.join(names)}: {warning}" for warning, names in warned.items())])
