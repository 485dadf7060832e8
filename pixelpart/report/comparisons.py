"""Which runs and methods differ, by their results on the same images."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pixelpart.comparison import compare as comparing
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import paired
from pixelpart.evaluation.store import read_flags
from pixelpart.experiments.common.results import Cell
from pixelpart.report.arms import ArmResults, by_method
from pixelpart.report.formatting import (
    NBSP,
    count,
    describe_eps,
    describe_images,
    enumerate_words,
    fraction,
    p_value,
    percent,
)
from pixelpart.report.run import Measurement, ReportedRun
from pixelpart.report.table import ResultRow

ABOUT_ARMS = (
    "Intervals of 95 %, over seeds and images. Other seeds change the order of close methods; the section on "
    "differences tests each pair."
)
ABOUT_MODELS, ABOUT_SEEDS = comparing.ABOUT_MODELS, comparing.ABOUT_SEEDS
MOST_IN_HEADLINE = 8  # with more runs or methods, tables and plots show them
MAX_ALL_PAIRS = 4  # with more runs, each is compared only with the run of highest accuracy
LEVEL = 0.05
RunMeasurement = tuple[ReportedRun, Measurement]


@dataclass(frozen=True)
class Pair:
    """Two runs, or two methods with all their seeds, under one attack."""

    attack: str
    conditions: str
    verdict: str


def compare_runs(table: Sequence[ResultRow]) -> list[Pair]:
    """Pairs of runs under the same attack on the same kind of checkpoint, the higher accuracy first.

    Two runs whose methods `compare_methods` compares are left out.
    """
    grouped = {run for seeds in group_by_method([row.run for row in table]) for run in seeds}
    groups: dict[tuple, dict[ReportedRun, Measurement]] = {}
    for row in table:
        for attack, m in row.cells.items():
            key = (attack, m.checkpoint, m.dataset, m.split, None if attack == "natural" else m.eps)
            other = groups.setdefault(key, {}).get(row.run)
            if other is None or (m.epoch or 0, m.n) > (other.epoch or 0, other.n):
                groups[key][row.run] = m
    pairs_found = []
    for key in sorted(groups, key=lambda key: key[0] != "natural"):
        attack, checkpoint, dataset, split, eps = key
        ranked = sorted(groups[key].items(), key=lambda item: -item[1].accuracy)
        pairs: Iterable = itertools.combinations(ranked, 2)
        if len(ranked) > MAX_ALL_PAIRS:
            pairs = ((ranked[0], other) for other in ranked[1:])
        at = "" if eps is None else f", {describe_eps(eps, ranked[0][1].settings)}"
        conditions = f"{checkpoint} checkpoint, {describe_images(dataset, split)}{at}"
        for high, low in pairs:
            if not {high[0], low[0]} <= grouped:
                accuracies = ", ".join(f"{run.label} {percent(m.accuracy)}" for run, m in (high, low))
                pairs_found.append(Pair(attack, conditions, f"{accuracies}. {difference(high, low)}"))
    return pairs_found


def difference(high: RunMeasurement, low: RunMeasurement, where: str = "") -> str:
    """Whether two results differ, by McNemar's test where both have flags for the same images."""
    points = 100 * high[1].accuracy - 100 * low[1].accuracy
    text = f"The difference of {points:.2f} points{where}"
    if (p := mcnemar_p(high, low)) is not None:
        significant = "is significant" if p < LEVEL else "is not significant"
        return f"{text} {significant} for these images (McNemar's test, {p_value(p)})."
    return f"{text} is not tested: the runs have no results for each image under the same conditions."


def mcnemar_p(one: RunMeasurement, other: RunMeasurement) -> float | None:
    """p of McNemar's test; None unless both runs have flags for the same images under the same attack."""
    a, b = one[1].entry, other[1].entry
    if a["dataset"] == "given" or any(a.get(name) != b.get(name) for name in comparing.CONDITIONS):
        return None
    flags = [read_flags(run.path, m.entry) for run, m in (one, other)]
    return None if flags[0] is None or flags[1] is None else paired(flags[0], flags[1]).p


def group_by_method(runs: Iterable[ReportedRun]) -> list[list[ReportedRun]]:
    """Runs that differ only in their seed, if there are at least two methods with at least two seeds each."""
    several = [group for group in by_method(list(dict.fromkeys(runs))) if len(group) > 1]
    return several if len(several) > 1 else []


def compare_methods(measured: ArmResults) -> list[Pair]:
    """Each two arms with several seeds, by checkpoint and attack; of many, each with the most robust one."""
    runs = {arm.label: [run for run in arm.runs if run.measurements] for arm in measured.arms}
    arms = [arm for arm in measured.arms if len(runs[arm.label]) > 1]
    pairs: Iterable = itertools.combinations(arms, 2)
    if len(arms) > MAX_ALL_PAIRS and (robust := measured.robust):
        means = {arm.label: cell.mean for arm in arms if (cell := measured.cell(arm, robust))}
        best = max(arms, key=lambda arm: means.get(arm.label, -1.0))
        pairs = ((best, other) for other in arms if other is not best)
    pairs_found = []
    for one, other in pairs:
        groups = {arm.label: [run.path for run in runs[arm.label]] for arm in (one, other)}
        measurements = [m for arm in (one, other) for run in runs[arm.label] for m in run.measurements]
        splits = {"given": "test"}
        for checkpoint, split in dict.fromkeys((m.checkpoint, splits.get(m.split, m.split)) for m in measurements):
            try:
                result = comparing.compare(groups, checkpoint=checkpoint, split=split)
            except UserError as error:
                names = enumerate_words(list(groups))
                pairs_found.append(Pair(names, f"{checkpoint} checkpoint", f"not compared: {error}."))
            else:
                pairs_found += [_method_pair(result, row) for row in result.rows]
    return pairs_found


def _method_pair(result: comparing.Comparison, row: comparing.ComparisonRow) -> Pair:
    about, d = row.conditions, row.difference
    at = "" if row.attack == "natural" else f", {describe_eps(about['eps'], about['settings'])}"
    means = [
        f"{name} {percent(side.mean)} over {len(side.accuracies)} seeds"
        for name, side in zip(result.groups, row.sides, strict=True)
    ]
    points = f"{100 * d.estimate:+z.2f} points (95{NBSP}% interval {100 * d.low:+z.2f} to {100 * d.high:+z.2f})"
    significant = "is significant" if d.p < LEVEL else "is not significant"
    verdict = f"{enumerate_words(means)}. The difference of {points} {significant} ({d.test}, {p_value(d.p)})."
    images = describe_images(about["dataset"], about["split"])
    return Pair(row.attack, f"{result.checkpoint} checkpoint, {images}{at}", verdict)


def arms_summary(measured: ArmResults) -> str:
    """The headline about methods with several seeds: the mean accuracy of each, natural and under `measured.robust`."""
    robust, natural = measured.robust, measured.natural
    if robust is None or natural is None or all(len(arm.runs) == 1 for arm in measured.arms):
        return ""
    means: list[tuple[float, str]] = []
    for arm in measured.arms:
        clean, attacked = (measured.cell(arm, column) for column in (natural, robust))
        if clean and attacked:
            seeds = count(len(attacked.values), "seed")
            both = f"{_with_interval(clean)} and {_with_interval(attacked)}"
            means.append((attacked.mean, f"“{arm.label}” {both} ({seeds})"))
    if len(means) > MOST_IN_HEADLINE:
        return ""
    ranked = "; ".join(text for _, text in sorted(means, key=lambda pair: -pair[0]))
    return f"Mean accuracy, natural and under {robust.name} ({measured.context}): {ranked}."


def _with_interval(cell: Cell) -> str:
    ends = [min(max(end, 0.0), 100.0) for end in cell.interval or ()]
    return percent(cell.mean / 100) + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def summary(table: Sequence[ResultRow], arms: ArmResults) -> tuple[str, str]:
    """The headline and, of two runs, how they differ.

    The headline has natural accuracy and that under the attack that was run on most models and, among those, lowers it
    most; and that single runs are about models, not methods. Attacks with their own eps are left out: the models were
    not trained for those.
    """
    results: dict[tuple, dict[ReportedRun, tuple[Measurement, Measurement | None]]] = {}
    for row in table:
        for attack, m in row.cells.items():
            if attack != "natural" and not m.own_eps:
                key = (attack, m.checkpoint, m.dataset, m.split, m.eps)
                results.setdefault(key, {}).setdefault(row.run, (m, row.cells.get("natural")))
    if not results:
        return "", ""
    mean = {key: sum(m.accuracy for m, _ in found.values()) / len(found) for key, found in results.items()}
    key = max(results, key=lambda k: (len(results[k]), -mean[k]))
    attack, _, dataset, split, eps = key
    ranked = sorted(results[key].items(), key=lambda item: -item[1][0].accuracy)
    accuracies = [
        f"“{run.label}” {percent(natural.accuracy) if natural else 'not measured'} and {percent(m.accuracy)}"
        for run, (m, natural) in ranked
    ]
    at = f"natural and under {attack} at eps {fraction(eps)}"
    text = f"Accuracy on {describe_images(dataset, split)}, {at}: {'; '.join(accuracies)}."
    if len(ranked) > 2 and (means := arms_summary(arms)):
        return means, ABOUT_ARMS if len(arms.arms) > 1 else ""
    if len(ranked) > MOST_IN_HEADLINE:
        return "", ""
    if len(ranked) != 2:
        alone = len(ranked) > 2 and not group_by_method(row.run for row in table)
        return f"{text} One run each: this is about these models, not about the methods." if alone else text, ""
    natural = [(run, m) for run, (_, m) in ranked if m]
    attacked = [(run, m) for run, (m, _) in ranked]
    differences = [
        difference(high, low, where)
        for where, pair in ((" in natural accuracy", natural), (f" under {attack}", attacked))
        if len(pair) == 2
        for high, low in [sorted(pair, key=lambda one: -one[1].accuracy)]
    ]
    return f"{text} {ABOUT_MODELS}", " ".join([*differences, ABOUT_SEEDS])
