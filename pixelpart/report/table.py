"""The figures of eval.json as rows and columns, and what they can and cannot tell apart."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pixelpart.config import DEFAULT_STEP_SIZE, flat
from pixelpart.errors import UserError
from pixelpart.evaluation import compare as comparing
from pixelpart.evaluation.statistics import paired
from pixelpart.evaluation.store import read_flags
from pixelpart.report.reading import Entry, RunFiles
from pixelpart.report.words import bound, fraction, listed, percent

MOST_PAIRS = 4  # with more runs than this, each is compared with the highest alone
LEVEL = 0.05


@dataclass
class Row:
    """One checkpoint of one run under one set of settings; `cells` by attack and engine."""

    run: RunFiles
    cells: dict[str, Entry]
    remarks: list[str] = field(default_factory=list)

    @property
    def entry(self) -> Entry:
        """What the row has in common; an attacked figure knows more than a natural one."""
        return next((e for e in self.cells.values() if e.attack != "natural"), next(iter(self.cells.values())))

    @property
    def eps(self) -> str:
        return bound(self.entry.eps, self.entry.settings) if self.entry.attack != "natural" else "no attack"


@dataclass(frozen=True)
class Comparison:
    """Two runs under one attack; p is McNemar's where both were tried on the same images and their flags are there."""

    attack: str
    where: str
    high: tuple[str, Entry]
    low: tuple[str, Entry]
    p: float | None = None

    @property
    def overlap(self) -> bool:
        return self.high[1].interval[0] <= self.low[1].interval[1]

    @property
    def points(self) -> str:
        """The difference of the two figures as the table shows them."""
        high, low = (round(100 * entry.accuracy, 1) for _, entry in (self.high, self.low))
        return f"{high - low:.1f}"

    @property
    def verdict(self) -> str:
        """What the difference is worth, in a sentence."""
        if self.p is not None:
            tells = "more than the choice of test images explains" if self.p < LEVEL else "within what chance explains"
            return f"This difference of {self.points} points is {tells} (McNemar's test, {_chance(self.p)})."
        if self.overlap:
            tells = "overlap: this difference of {} points is within what the intervals cannot separate"
        else:
            tells = "do not overlap: this difference of {} points is more than the choice of test images explains"
        return f"The intervals {tells.format(self.points)}."


def columns(runs: Sequence[RunFiles]) -> list[str]:
    """Attack names: natural first, then as they come."""
    names = dict.fromkeys(entry.column for run in runs for entry in run.entries)
    return sorted(names, key=lambda name: name != "natural")


def rows(run: RunFiles) -> list[Row]:
    """A run's figures; those that share checkpoint, weights, eps, step size, seed and n share a row.

    An attack that has an eps of its own, or no step size, is not kept out of a row by that.
    """
    attacked: dict[tuple, Row] = {}
    natural: dict[tuple, list[Entry]] = {}
    older = 0
    for entry in sorted(run.entries, key=lambda e: (e.own_eps, "step_size" not in e.settings)):  # open ones come last
        if entry.attack == "natural":
            natural.setdefault(_context(entry), []).append(entry)
            continue
        eps = None if entry.own_eps else entry.eps
        key = ((*_context(entry), entry.seed, entry.n), eps, entry.settings.get("step_size"))
        homes = [row for its, row in attacked.items() if _agree(key, its)] or [attacked.setdefault(key, Row(run, {}))]
        older += any(entry.column in row.cells for row in homes)
        for row in homes:
            row.cells[entry.column] = entry
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


def _agree(key: tuple, other: tuple) -> bool:
    """Whether two keys are equal, but for what one of them leaves open."""
    return all(a == b or None in (a, b) for a, b in zip(key, other, strict=True))


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
        if entry.dataset != run.config.data_label:
            row.remarks.append("images that were given" if entry.dataset == "given" else f"{entry.dataset} images")
        if entry.seed:
            row.remarks.append(f"attack's seed {entry.seed}")
        if (step := entry.settings.get("step_size")) is not None and step != DEFAULT_STEP_SIZE:
            row.remarks.append(f"steps of {fraction(step)}")
        if entry.precision != "fp32":
            row.remarks.append(entry.precision)
    return found


def compare(table: Sequence[Row]) -> list[Comparison]:
    """Pairs of runs under the same attack on the same kind of checkpoint, the higher figure first.

    Pairs that `methods` speaks of are left to it: of two seeds of two methods the methods are what one asks about.
    """
    runs = {row.run.label: row.run for row in table}
    grouped = {run.label for seeds in methods_of(list(runs.values())) for run in seeds}
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
        at = "" if eps is None else f", {bound(eps, next(iter(figures.values())).settings)}"
        where = f"{checkpoint} checkpoint, {dataset} {split} images{at}"
        found += [
            Comparison(attack, where, high, low, same_images(runs[high[0]], high[1], runs[low[0]], low[1]))
            for high, low in pairs
            if not {high[0], low[0]} <= grouped
        ]
    return found


def same_images(run: RunFiles, entry: Entry, other: RunFiles, its: Entry) -> float | None:
    """McNemar's p for two runs' figures; None where they are not known to be about the same images, attacked alike."""
    alike = all(getattr(entry, name, None) == getattr(its, name, None) for name in comparing.CONDITIONS)
    if not alike or entry.dataset == "given":
        return None
    flags, theirs = (read_flags(one.path, of.model_dump()) for one, of in ((run, entry), (other, its)))
    return None if flags is None or theirs is None else paired(flags, theirs).p


def methods_of(runs: Sequence[RunFiles]) -> list[list[RunFiles]]:
    """Runs that differ in their seed alone, where there are two methods or more with two seeds or more."""
    groups: dict[str, dict[int, RunFiles]] = {}
    for run in runs:
        settings = {name: value for name, value in flat(run.config).items() if name not in comparing.SEED_FIELDS}
        groups.setdefault(json.dumps(settings, sort_keys=True), {}).setdefault(run.config.seed, run)
    several = [list(seeds.values()) for seeds in groups.values() if len(seeds) > 1]
    return several if len(several) > 1 else []


@dataclass(frozen=True)
class Methods:
    """Two methods under one attack, with all their seeds, in words."""

    attack: str
    where: str
    verdict: str


def methods(runs: Sequence[RunFiles]) -> list[Methods]:
    """What can be said of each two methods that have several seeds, by checkpoint and attack."""
    found = []
    for one, other in itertools.combinations(methods_of(runs), 2):
        groups = comparing.name_groups([run.path for run in one], [run.path for run in other])
        for checkpoint in dict.fromkeys(entry.checkpoint for run in (*one, *other) for entry in run.entries):
            try:
                result = comparing.compare(groups, checkpoint=checkpoint)
            except UserError as error:
                found.append(Methods(listed(list(groups)), f"{checkpoint} checkpoint", f"not compared: {error}."))
            else:
                found += [_methods(result, row) for row in result.rows]
    return found


def _methods(result: comparing.Comparison, row: comparing.ComparisonRow) -> Methods:
    asked, d = row.conditions, row.difference
    at = "" if row.attack == "natural" else f", {bound(asked['eps'], asked['settings'])}"
    where = f"{result.checkpoint} checkpoint, {asked['dataset']} {asked['split']} images{at}"
    means = [
        f"{name} {percent(side.mean)} over {len(side.accuracies)} seeds"
        for name, side in zip(result.groups, row.sides, strict=True)
    ]
    tells = "more than other seeds and images explain" if d.p < LEVEL else "within what other seeds and images would do"
    points = f"{100 * d.estimate:+.1f} points (95{chr(160)}% interval {100 * d.low:+.1f} to {100 * d.high:+.1f})"
    verdict = f"{listed(means)}. This difference of {points} is {tells} ({d.test}, {_chance(d.p)})."
    return Methods(row.attack, where, verdict)


def _chance(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def finding(table: Sequence[Row]) -> str:
    """One sentence on the attack that the most runs were put to and that costs them the most.

    An attack with an eps of its own, larger than what a model was made for or in another norm, is not what it is about.
    """
    figures: dict[tuple, dict[str, Entry]] = {}
    for row in table:
        for attack, entry in row.cells.items():
            if attack != "natural" and not entry.own_eps:
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
        (high, entry), (low, its) = ranked
        runs = {row.run.label: row.run for row in table}
        pair = Comparison(key[0], "", ranked[0], ranked[1], same_images(runs[high], entry, runs[low], its))
        if pair.p is not None:
            tail = "differ as models" if pair.p < LEVEL else "are not told apart by these images"
            return f"{text}; image by image, the two {tail} (McNemar's test, {_chance(pair.p)})."
        tail = "overlap, so these figures do not tell the two apart" if pair.overlap else "do not overlap"
        return f"{text}; the 95{chr(160)}% intervals {tail}."
    return f"{text}."
