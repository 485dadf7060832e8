"""The figures of eval.json as rows and columns, and what their intervals can and cannot tell apart."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pixelpart.defaults import STEP_SIZE
from pixelpart.report.reading import Entry, RunFiles
from pixelpart.report.words import fraction, listed, percent

MOST_PAIRS = 4  # with more runs than this, each is compared with the highest alone


@dataclass
class Row:
    """One checkpoint of one run under one set of settings; `cells` by attack."""

    run: RunFiles
    cells: dict[str, Entry]
    remarks: list[str] = field(default_factory=list)

    @property
    def entry(self) -> Entry:
        """What the row has in common; an attacked figure knows more than a natural one."""
        return next((e for e in self.cells.values() if e.attack != "natural"), next(iter(self.cells.values())))

    @property
    def eps(self) -> str:
        return f"eps {fraction(self.entry.eps)}" if self.entry.attack != "natural" else "no attack"


@dataclass(frozen=True)
class Comparison:
    attack: str
    where: str
    high: tuple[str, Entry]
    low: tuple[str, Entry]

    @property
    def overlap(self) -> bool:
        return self.high[1].interval[0] <= self.low[1].interval[1]

    @property
    def points(self) -> str:
        """The difference of the two figures as the table shows them."""
        high, low = (round(100 * entry.accuracy, 1) for _, entry in (self.high, self.low))
        return f"{high - low:.1f}"


def columns(runs: Sequence[RunFiles]) -> list[str]:
    """Attack names: natural first, then as they come."""
    names = dict.fromkeys(entry.attack for run in runs for entry in run.entries)
    return sorted(names, key=lambda name: name != "natural")


def rows(run: RunFiles) -> list[Row]:
    """A run's figures; those that share checkpoint, weights, eps, step size, seed and n share a row."""
    attacked: dict[tuple, Row] = {}
    natural: dict[tuple, list[Entry]] = {}
    older = 0
    for entry in run.entries:
        if entry.attack == "natural":
            natural.setdefault(_context(entry), []).append(entry)
            continue
        key = (*_context(entry), entry.eps, entry.settings.get("step_size"), entry.seed, entry.n)
        row = attacked.setdefault(key, Row(run, {}))
        older += entry.attack in row.cells
        row.cells[entry.attack] = entry
    for row in attacked.values():
        if same := natural.get(_context(row.entry)):
            row.cells["natural"] = _nearest(same, row.entry.n)
    alone = natural.keys() - {_context(row.entry) for row in attacked.values()}
    found = list(attacked.values())
    found += [Row(run, {"natural": _nearest(same, None)}) for key, same in natural.items() if key in alone]
    if older:
        noun = "older figure of the same settings is" if older == 1 else "older figures of the same settings are"
        run.notes.append(f"eval.json: {older} {noun} not shown")
    return _remarked(run, found)


def _context(entry: Entry) -> tuple:
    return entry.checkpoint, entry.epoch, entry.weights, entry.dataset, entry.split, entry.precision


def _nearest(entries: list[Entry], n: int | None) -> Entry:
    return next((e for e in reversed(entries) if e.n == n), max(reversed(entries), key=lambda e: e.n))


def _remarked(run: RunFiles, found: list[Row]) -> list[Row]:
    newest: dict[str, int] = {"last": run.epochs_done}
    for row in found:
        newest[row.entry.checkpoint] = max(newest.get(row.entry.checkpoint, 0), row.entry.epoch or 0)
    for row in found:
        entry = row.entry
        if entry.epoch is not None and entry.epoch < newest[entry.checkpoint]:
            row.remarks.append(
                f"an earlier {entry.checkpoint}: the run has gone on since, the command measures the new one"
            )
        if entry.seed:
            row.remarks.append(f"attack's seed {entry.seed}")
        if (step := entry.settings.get("step_size")) is not None and step != STEP_SIZE:
            row.remarks.append(f"steps of {fraction(step)}")
        if entry.precision != "fp32":
            row.remarks.append(entry.precision)
    return found


def compare(table: Sequence[Row]) -> list[Comparison]:
    """Pairs of runs under the same attack on the same kind of checkpoint, the higher figure first."""
    groups: dict[tuple, dict[str, Entry]] = {}
    for row in table:
        for attack, entry in row.cells.items():
            eps = None if attack == "natural" else entry.eps
            key = (attack, entry.checkpoint, entry.dataset, entry.split, eps)
            held = groups.setdefault(key, {}).get(row.run.label)
            if held is None or (entry.epoch or 0, entry.n) > (held.epoch or 0, held.n):
                groups[key][row.run.label] = entry
    found = []
    for key in sorted(groups, key=lambda key: key[0] != "natural"):
        (attack, checkpoint, dataset, split, eps), figures = key, groups[key]
        ranked = sorted(figures.items(), key=lambda item: -item[1].accuracy)
        pairs: Iterable = itertools.combinations(ranked, 2)
        if len(ranked) > MOST_PAIRS:
            pairs = ((ranked[0], other) for other in ranked[1:])
        at = "" if eps is None else f", eps {fraction(eps)}"
        where = f"{checkpoint} checkpoint, {dataset} {split} images{at}"
        found += [Comparison(attack, where, high, low) for high, low in pairs]
    return found


def finding(table: Sequence[Row]) -> str:
    """One sentence on the attack that the most runs were put to and that costs them the most."""
    figures: dict[tuple, dict[str, Entry]] = {}
    for row in table:
        for attack, entry in row.cells.items():
            if attack != "natural":
                key = (attack, entry.checkpoint, entry.dataset, entry.eps)
                figures.setdefault(key, {}).setdefault(row.run.label, entry)
    if not figures:
        return ""
    key = max(figures, key=lambda k: (len(figures[k]), -sum(e.accuracy for e in figures[k].values()) / len(figures[k])))
    ranked = sorted(figures[key].items(), key=lambda item: -item[1].accuracy)
    shares = [f"{percent(entry.accuracy)} for “{label}”" for label, entry in ranked]
    text = f"Under {key[0]} at eps {fraction(key[3])}, the share of {key[2]} test images classified right is "
    text += listed(shares)
    if len(ranked) < 2:
        return f"{text}."
    if len(ranked) == 2:
        pair = Comparison(key[0], "", ranked[0], ranked[1])
        tail = "overlap, so these figures do not tell the two apart" if pair.overlap else "do not overlap"
        return f"{text}; the 95{chr(160)}% intervals {tail}."
    return f"{text}."
