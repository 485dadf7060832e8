"""Which runs and methods differ."""

import json

import numpy as np
import pytest

from pixelpart import recipes
from pixelpart.evaluation.statistics import crossed_bootstrap, wilson
from pixelpart.evaluation.store import fingerprint
from pixelpart.report.arms import collect, find_arms
from pixelpart.report.comparisons import compare_methods, compare_runs
from pixelpart.report.comparisons import summary as page_summary
from pixelpart.report.run import read_runs
from pixelpart.report.table import result_rows


def rows(*folders):
    return [row for run in read_runs(folders) for row in result_rows(run)]


def summary(*folders):
    return page_summary(rows(*folders), collect(find_arms(read_runs(folders))))


def pairs(*folders):
    return compare_runs(rows(*folders))


def test_of_several_runs_the_higher_accuracy_comes_first(make_run, entry):
    folders = [make_run(n, entries=[entry(accuracy=a)]) for n, a in {"a": 0.5, "b": 0.6, "c": 0.7}.items()]
    found = [pair.verdict.replace("\u00a0", " ").partition(" is not tested")[0] for pair in pairs(*folders)]
    assert found == [
        "c 70.00 %, b 60.00 %. The difference of 10.00 points",
        "c 70.00 %, a 50.00 %. The difference of 20.00 points",
        "b 60.00 %, a 50.00 %. The difference of 10.00 points",
    ]


def test_results_with_other_eps_or_checkpoint_are_not_compared(make_run, entry):
    changes = {"a": {}, "b": {"eps": 4 / 255}, "c": {"checkpoint": "last"}}
    assert pairs(*[make_run(name, entries=[entry(**change)]) for name, change in changes.items()]) == []


def test_pairs_in_other_norms_name_the_norm_and_the_summary_leaves_them_out(make_run, entry):
    l1 = {"eps": 12.0, "settings": {"search": "fp32", "norm": "l1"}}
    folders = [make_run(name, entries=[entry(), entry("apgd-l1@12", 0.1, **l1)]) for name in "ab"]
    (pair,) = (pair for pair in pairs(*folders) if pair.attack == "apgd-l1@12")
    assert pair.conditions == "best checkpoint, test images of shapes, l1 eps 12"
    assert summary(*folders)[0].startswith("Accuracy on test images of shapes, natural and under pgd20 at eps 8/255: ")


def test_summary_is_about_the_strongest_attack(make_run, entry):
    folder = make_run(entries=[entry("natural", 0.1), entry("pgd20", 0.4), entry("pgd100", 0.3)])
    headline, details = summary(folder)
    assert headline.replace("\u00a0", " ") == (
        "Accuracy on test images of shapes, natural and under pgd100 at eps 8/255: “part” 10.00 % and 30.00 %."
    )
    assert not details


def test_summary_of_several_seeds_has_the_mean_of_each_method_and_of_many_runs_there_is_none(make_run, entry):
    def run(name, accuracy, **fields):
        entries = [entry(accuracy=accuracy), entry("natural", eps=0.0, accuracy=0.8)]
        return make_run(name, config=recipes.RECIPES["shapes-at"](**fields), entries=entries)

    at = [run(f"at-{seed}", accuracy, seed=seed) for seed, accuracy in enumerate((0.3, 0.4))]
    low = [run(f"low-{seed}", accuracy, seed=seed, eps="4/255") for seed, accuracy in enumerate((0.1, 0.2))]
    headline = summary(*at, *low)[0].replace("\u00a0", " ")
    assert headline.endswith(  # Student with 1 degree of freedom: 12.706 x 5 points
        "“at” 80.00 % [80.00, 80.00] and 35.00 % [0.00, 98.53] (2 seeds); "
        "“low” 80.00 % [80.00, 80.00] and 15.00 % [0.00, 78.53] (2 seeds)."
    )
    single = [run(f"eps-{n}", 0.4, eps=n / 255) for n in range(1, 10)]
    assert summary(*single[:8])[0].count("“") == 8
    assert summary(*single) == ("", "")


def test_summary_of_two_runs_has_both_accuracies_and_says_that_it_is_about_two_models(make_run, entry):
    for robust in (0.43, 0.9):  # whatever the digits
        at = make_run(f"at-{robust}", entries=[entry("natural", 0.8), entry("pgd20", 0.4)])
        part = make_run(f"part-{robust}", entries=[entry("natural", 0.85), entry("pgd20", robust)])
        headline, details = summary(at, part)
        assert headline.replace("\u00a0", " ").endswith(
            f": “part-{robust}” 85.00 % and {100 * robust:.2f} %; “at-{robust}” 80.00 % and 40.00 %. "
            "One run a side: this is about these two models, not about the methods."
        )
        assert "The difference of 5.00 points in natural accuracy " in details
        assert f"The difference of {100 * robust - 40:.2f} points under pgd20 " in details
        assert "another seed of the same method changes the accuracy too" in details
    numbers = {"x": (0.8615, 0.4825), "y": (0.8625, 0.4830)}  # rounded to one digit, they and their difference disagree
    x, y = (make_run(n, entries=[entry("natural", a), entry("pgd20", b)]) for n, (a, b) in numbers.items())
    headline, details = summary(x, y)
    assert "“y” 86.25 % and 48.30 %; “x” 86.15 % and 48.25 %." in headline.replace("\u00a0", " ")
    assert "The difference of 0.10 points in natural accuracy " in details
    assert "The difference of 0.05 points under pgd20 " in details
    third = make_run("trades", entries=[entry("pgd20", 0.41)])
    headline, details = summary(at, part, third)
    assert "“trades” not measured and 41.00 %" in headline.replace("\u00a0", " ")
    assert headline.endswith("One run each: this is about these models, not about the methods.")
    assert not details


@pytest.fixture
def measured(make_run, entry):
    """Makes a run folder with a pgd20 result and its flags."""

    def make(name, right, *, recipe="shapes-part", seed=0, **changes):
        key, correct, n = name.encode().hex().ljust(32, "0")[:32], int(right.sum()), len(right)
        facts = {"correct": correct, "n": n, "key": key, "fingerprint": fingerprint(right), "subject": None}
        found = entry(accuracy=correct / n, interval=list(wilson(correct, n)), **facts | changes)
        folder = make_run(name, config=recipes.RECIPES[recipe](seed=seed), entries=json.loads(json.dumps([found])))
        (folder / "eval").mkdir()
        np.save(folder / "eval" / f"{key}.npy", right)
        return folder

    return make


def right(a_only, b_only, both=400, n=1000):
    order = np.arange(n)
    return order < both + a_only, (order < both) | (order >= n - b_only)


@pytest.mark.parametrize(
    ("a_only", "b_only", "verdict"),
    [
        (31, 1, "The difference of 3.00 points is significant for these images (McNemar's test, p < 0.001)."),
        (60, 50, "The difference of 1.00 points is not significant for these images (McNemar's test, p = 0.39)."),
    ],
)
def test_runs_with_flags_are_compared_by_mcnemars_test(measured, a_only, b_only, verdict):
    a, b = right(a_only, b_only)
    folders = measured("a", a), measured("b", b)
    (pair,) = pairs(*folders)
    assert pair.verdict.endswith(f"%. {verdict}")
    assert verdict.replace("points", "points under pgd20") in summary(*folders)[1]


def test_runs_without_common_flags_are_not_compared(measured):
    a, b = right(31, 1)
    folder = measured("a", a)
    other = measured("d", b)
    for path in (other / "eval").glob("*.npy"):
        path.unlink()
    for run in (measured("b", b, seed=1, settings={"steps": 9}), measured("c", b[:-1]), other):
        (pair,) = pairs(folder, run)
        assert "points is not tested: the runs have no results for each image" in pair.verdict


def test_seeds_of_a_method_are_compared_together(measured, page):
    draw = np.random.default_rng(0)
    sides = {recipe: draw.random((3, 500)) < p for recipe, p in (("shapes-at", 0.5), ("shapes-part", 0.7))}
    folders = [
        measured(f"{recipe}-{seed}", flags, recipe=recipe, seed=seed)
        for recipe, side in sides.items()
        for seed, flags in enumerate(side)
    ]
    (found,) = compare_methods(collect(find_arms(read_runs(folders))))
    expected = crossed_bootstrap(*sides.values())
    assert expected.p < 0.05
    assert (found.attack, found.conditions) == ("pgd20", "best checkpoint, test images of shapes, eps 8/255")
    assert f"The difference of {100 * expected.estimate:+.2f} points" in found.verdict
    assert f"is significant ({expected.test}, p" in found.verdict
    assert pairs(*folders) == []
    single = measured("trades", draw.random(500) < 0.5, recipe="shapes-trades")
    assert all("trades " in pair.verdict for pair in pairs(*folders, single))
    assert pairs(*folders, single)
    shown = page(*folders)
    assert "shapes-at" in shown.all("ul", "methods")[0].all("li")[0].text
    assert shown.all("ul", "comparisons") == []


def test_methods_measured_differently_are_not_compared(measured):
    flags = np.random.default_rng(0).random((4, 100)) < 0.5
    folders = [measured(f"at-{seed}", flags[seed], recipe="shapes-at", seed=seed) for seed in range(2)]
    folders += [measured(f"part-{seed}", flags[2 + seed], seed=seed, eps=4 / 255) for seed in range(2)]
    (found,) = compare_methods(collect(find_arms(read_runs(folders))))
    assert found.verdict.startswith("not compared: ")
    assert "eps: " in found.verdict
