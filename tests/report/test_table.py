import numpy as np
import pytest

from pixelpart import recipes
from pixelpart.evaluation import store
from pixelpart.evaluation.statistics import crossed_bootstrap, mcnemar, wilson
from pixelpart.report import write_report
from pixelpart.report.reading import read_run, read_runs
from pixelpart.report.table import columns, compare, finding, methods, rows


def table(run):
    return [(row.entry.checkpoint, row.entry.epoch, row.eps, sorted(row.cells)) for row in rows(run)]


def test_natural_joins_the_attacked_row_of_the_same_weights_whatever_its_eps_and_seed(make_run, entry):
    run = read_run(
        make_run(entries=[entry("natural", eps=0.0, seed=0), entry("pgd20", seed=5), entry("pgd20", eps=4 / 255)])
    )
    assert table(run) == [
        ("best", 3, "eps 8/255", ["natural", "pgd20"]),
        ("best", 3, "eps 4/255", ["natural", "pgd20"]),
    ]


def test_checkpoints_have_rows_of_their_own_and_an_earlier_one_is_marked(make_run, entry):
    run = read_run(make_run(entries=[
        entry(), entry(checkpoint="last", epoch=2), entry("natural", checkpoint="last", epoch=3, weights="raw"),
    ]))  # fmt: skip
    found = rows(run)
    assert [(row.entry.checkpoint, row.entry.epoch, row.eps) for row in found] == [
        ("best", 3, "eps 8/255"), ("last", 2, "eps 8/255"), ("last", 3, "no attack"),
    ]  # fmt: skip
    assert [bool(row.remarks) for row in found] == [False, True, False]


def test_the_natural_figure_of_the_same_n_is_taken(make_run, entry):
    run = read_run(make_run(entries=[entry("natural", 0.5, n=64), entry("natural", 0.8, n=2000), entry("pgd20", n=64)]))
    (row,) = rows(run)
    assert row.cells["natural"].accuracy == 0.5


def test_a_second_figure_for_the_same_settings_replaces_the_first_with_a_note(make_run, entry):
    run = read_run(make_run(entries=[entry(accuracy=0.1), entry(accuracy=0.2)]))
    (row,) = rows(run)
    assert row.cells["pgd20"].accuracy == 0.2
    assert run.notes == ["eval.json: 1 older figure of the same settings is not shown"]


L1 = {"search": "fp32", "norm": "l1"}


def test_attacks_with_an_eps_of_their_own_or_no_step_size_join_the_row(make_run, entry):
    run = read_run(make_run(entries=[
        entry("apgd-l1", eps=12.0, settings=L1), entry("pgd20@16/255", eps=16 / 255), entry("natural"),
        entry("autoattack", settings={"search": "fp32"}), entry("pgd20"), entry("pgd20", checkpoint="last"),
    ]))  # fmt: skip
    every = ["apgd-l1", "autoattack", "natural", "pgd20", "pgd20@16/255"]
    assert table(run) == [("best", 3, "eps 8/255", every), ("last", 3, "eps 8/255", ["pgd20"])]


def test_other_seeds_and_counts_keep_their_rows(make_run, entry):
    run = read_run(make_run(entries=[
        entry("pgd20"), entry("apgd-l1", eps=12.0, settings=L1, n=64), entry("pgd20@16/255", eps=16 / 255, seed=1),
    ]))  # fmt: skip
    assert table(run) == [
        ("best", 3, "eps 8/255", ["pgd20"]),
        ("best", 3, "eps 16/255", ["pgd20@16/255"]),
        ("best", 3, "l1 eps 12", ["apgd-l1"]),
    ]


def test_two_eps_keep_their_rows_and_both_show_an_attack_with_its_own(make_run, entry):
    run = read_run(make_run(entries=[
        entry("pgd20"), entry("pgd20", eps=4 / 255), entry("autoattack", eps=4 / 255, settings={"search": "fp32"}),
        entry("apgd-l2@1", eps=1.0, settings={"search": "fp32", "norm": "l2"}),
    ]))  # fmt: skip
    assert table(run) == [
        ("best", 3, "eps 8/255", ["apgd-l2@1", "pgd20"]),
        ("best", 3, "eps 4/255", ["apgd-l2@1", "autoattack", "pgd20"]),
    ]


def test_names_with_an_eps_are_columns_of_the_page(make_run, entry, tmp_path):
    folders = [
        make_run(name, entries=[entry(), entry("apgd-l1@12", accuracy, eps=12.0, settings=L1)])
        for name, accuracy in (("a", 0.1), ("b", 0.2))
    ]
    found = [row for run in read_runs(folders) for row in rows(run)]
    (pair,) = (pair for pair in compare(found) if pair.attack == "apgd-l1@12")
    assert pair.where == "best checkpoint, shapes test images, l1 eps 12"
    assert finding(found).startswith("Under pgd20 at eps 8/255")  # not under what the models were not made for
    page = write_report(folders, tmp_path / "report.html").read_text()
    assert '<th scope="col" class="figure">apgd-l1@12</th>' in page


def test_two_engines_have_columns_and_commands_of_their_own(make_run, entry, parse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = [entry("autoattack", n=2000, settings={"engine": name}) for name in ("own", "reference")]
    folder = make_run("two", entries=[entry("natural", n=2000), entry("pgd20", n=2000), *engines])
    run = read_run(folder)
    (row,) = rows(run)
    assert list(row.cells) == ["pgd20", "autoattack", "autoattack, reference", "natural"]
    assert run.notes == []
    commands = parse(write_report([folder], tmp_path / "r.html")).all("dl", "commands")[0].text
    assert "--attacks natural,pgd20,autoattack --checkpoint best pixelpart" in commands
    assert "--attacks autoattack --checkpoint best --engine reference" in commands


def test_an_attack_with_gradients_in_bf16_has_a_column_and_a_command_of_its_own(make_run, entry, parse, tmp_path):
    searched = entry("autoattack", n=2000, settings={"engine": "own", "search": "bf16"})  # the same in either precision
    found = entry("pgd20", n=2000)
    narrow = entry("pgd20", n=2000, settings=found["settings"] | {"search": "bf16"})
    folder = make_run("two", entries=[entry("natural", n=2000), found, searched, narrow])
    (row,) = rows(read_run(folder))
    assert list(row.cells) == ["pgd20", "pgd20, bf16", "autoattack", "natural"]
    commands = parse(write_report([folder], tmp_path / "r.html")).all("dl", "commands")[0].text
    assert "--attacks natural,pgd20,autoattack --checkpoint best pixelpart" in commands
    assert "--attacks pgd20 --checkpoint best --search bf16" in commands


def test_a_row_says_if_its_images_are_not_those_of_the_run_s_set(make_run, entry):
    sets = ("shapes", "cifar10", "given")
    found = rows(read_run(make_run(entries=[entry(dataset=name) for name in sets])))
    assert [row.remarks for row in found] == [[], ["cifar10 images"], ["images that were given"]]


def test_columns_put_natural_first(make_run, entry):
    assert columns([read_run(make_run(entries=[entry("pgd20"), entry("pgd5"), entry("natural")]))]) == [
        "natural",
        "pgd20",
        "pgd5",
    ]


def test_touching_intervals_overlap_and_parted_ones_do_not(make_run, entry):
    runs = read_runs([
        make_run("a", entries=[entry(accuracy=0.5, interval=[0.45, 0.55])]),
        make_run("b", entries=[entry(accuracy=0.6, interval=[0.55, 0.65])]),
        make_run("c", entries=[entry(accuracy=0.7, interval=[0.651, 0.75])]),
    ])  # fmt: skip
    pairs = {(p.high[0], p.low[0]): p.overlap for p in compare([row for run in runs for row in rows(run)])}
    assert pairs == {("c", "b"): False, ("c", "a"): False, ("b", "a"): True}


def test_figures_of_different_eps_or_checkpoint_are_not_compared(make_run, entry):
    runs = read_runs([
        make_run("a", entries=[entry()]), make_run("b", entries=[entry(eps=4 / 255)]),
        make_run("c", entries=[entry(checkpoint="last")]),
    ])  # fmt: skip
    assert compare([row for run in runs for row in rows(run)]) == []


def test_the_finding_is_about_the_attack_that_costs_most(make_run, entry):
    run = read_run(make_run(entries=[entry("natural", 0.1), entry("pgd20", 0.4), entry("pgd100", 0.3)]))
    assert finding(rows(run)).replace("\u00a0", " ") == (
        "Under pgd100 at eps 8/255, the share of shapes test images classified right is 30.0 % for “part”."
    )


# -- flags by image


@pytest.fixture
def measured(make_run, entry):
    """Makes a run folder whose pgd20 has flags."""

    def make(name, right, *, recipe="shapes-part", seed=0, **changes):
        folder = make_run(name, config=recipes.RECIPES[recipe](seed=seed), entries=[])
        key = name.encode().hex().ljust(32, "0")[:32]
        figures = {"correct": int(right.sum()), "n": len(right), "key": key, "fingerprint": store.fingerprint(right)}
        interval = {"interval": list(wilson(int(right.sum()), len(right))), "subject": None}
        store.add(folder, entry(accuracy=right.mean(), **figures, **interval, **changes), right)
        return folder

    return make


def right(a_only, b_only, both=400, n=1000):
    order = np.arange(n)
    return order < both + a_only, (order < both) | (order >= n - b_only)


def pairs(*folders):
    return compare([row for run in read_runs(list(folders)) for row in rows(run)])


def test_two_runs_on_the_same_images_are_told_apart_image_by_image(measured):
    """The intervals of 43 % and 40 % overlap; 31 images to 1 are clear all the same."""
    a, b = right(31, 1)
    folders = measured("a", a), measured("b", b)
    (pair,) = pairs(*folders)
    assert pair.overlap
    assert pair.p == mcnemar(31, 1)
    assert pair.verdict == (
        "This difference of 3.0 points is more than the choice of test images explains (McNemar's test, p < 0.001)."
    )
    text = finding([row for run in read_runs(list(folders)) for row in rows(run)])
    assert text.endswith("image by image, the two differ as models (McNemar's test, p < 0.001).")


def test_a_difference_that_chance_explains_is_called_so(measured):
    a, b = right(60, 50)
    folders = measured("a", a), measured("b", b)
    (pair,) = pairs(*folders)
    assert "within what chance explains (McNemar's test, p = 0.39)" in pair.verdict
    text = finding([row for run in read_runs(list(folders)) for row in rows(run)])
    assert text.endswith("the two are not told apart by these images (McNemar's test, p = 0.39).")


def test_without_the_same_question_or_without_flags_the_intervals_speak(measured):
    a, b = right(31, 1)
    folder = measured("a", a)
    assert pairs(folder, measured("b", b, seed=1, settings={"steps": 9}))[0].p is None
    assert pairs(folder, measured("c", b[:-1]))[0].p is None
    other = measured("d", b)
    for path in (other / "eval").glob("*.npy"):
        path.unlink()
    (pair,) = pairs(folder, other)
    assert pair.p is None
    assert "The intervals overlap" in pair.verdict


def test_seeds_of_one_method_are_taken_together(measured, parse, tmp_path):
    draw = np.random.default_rng(0)
    sides = {recipe: draw.random((3, 500)) < p for recipe, p in (("shapes-at", 0.5), ("shapes-part", 0.7))}
    folders = [
        measured(f"{recipe}-{seed}", flags, recipe=recipe, seed=seed)
        for recipe, side in sides.items()
        for seed, flags in enumerate(side)
    ]
    runs = read_runs(folders)
    (told,) = methods(runs)
    expected = crossed_bootstrap(*sides.values())
    assert expected.p < 0.05
    assert told.attack == "pgd20"
    assert told.where == "best checkpoint, shapes test images, eps 8/255"
    assert f"This difference of {100 * expected.estimate:+.1f} points" in told.verdict
    assert "is more than other seeds and images explain (bootstrap over seeds and images, p" in told.verdict
    assert pairs(*folders) == []
    page = parse(write_report(folders, tmp_path / "r.html"))
    (item,) = page.all("ul", "methods")[0].all("li")
    assert "shapes-at" in item.text
    assert page.all("ul", "comparisons") == []


def test_a_single_run_beside_two_methods_is_still_compared(measured):
    draw = np.random.default_rng(0)
    named = [("shapes-at", 0), ("shapes-at", 1), ("shapes-part", 0), ("shapes-part", 1), ("shapes-trades", 0)]
    folders = [measured(f"{recipe}-{s}", draw.random(300) < 0.5, recipe=recipe, seed=s) for recipe, s in named]
    found = pairs(*folders)
    assert found
    assert all("shapes-trades-0" in (pair.high[0], pair.low[0]) for pair in found)


def test_methods_that_answered_different_questions_say_so(measured):
    flags = np.random.default_rng(0).random((4, 100)) < 0.5
    folders = [measured(f"at-{seed}", flags[seed], recipe="shapes-at", seed=seed) for seed in range(2)]
    folders += [measured(f"part-{seed}", flags[2 + seed], seed=seed, eps=4 / 255) for seed in range(2)]
    (told,) = methods(read_runs(folders))
    assert told.verdict.startswith("not compared: pgd20 in ")
    assert "eps: " in told.verdict
