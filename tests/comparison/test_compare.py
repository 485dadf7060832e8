import json

import numpy as np
import pytest

from pixelpart.cli.main import main
from pixelpart.comparison.compare import compare, name_groups
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import BOOTSTRAP, MCNEMAR, crossed_bootstrap, mcnemar, wilson
from pixelpart.runs import Run
from run_results import write_run


def flags(accuracy, seed, n=200):
    return np.random.default_rng([seed, int(1000 * accuracy)]).random(n) < accuracy


@pytest.fixture
def make(tmp_path):
    def make(name, number=0, results=None, *, config=None, **changes):
        results = results or {"natural": flags(0.8, number), "pgd20": flags(0.5, number)}
        return write_run(tmp_path / name, results, config={"seed": number} | (config or {}), **changes)

    return make


@pytest.fixture
def groups(make):
    others = [{"natural": flags(0.7, seed), "pgd20": flags(0.55, seed)} for seed in range(2)]
    return {
        "at": [make(f"at-{seed}", seed) for seed in range(3)],
        "part": [make(f"part-{seed}", seed, results) for seed, results in enumerate(others)],
    }


@pytest.fixture
def pair(make):
    return {"at": [make("at-0")], "part": [make("part-0", results={"natural": flags(0.7, 0), "pgd20": flags(0.55, 0)})]}


def test_several_seeds_are_compared_by_the_bootstrap(groups):
    found = compare(groups)
    assert [row.attack for row in found.rows] == ["natural", "pgd20"]
    for row, p, q in zip(found.rows, (0.8, 0.5), (0.7, 0.55), strict=True):
        a, b = (np.stack([flags(share, seed) for seed in range(k)]) for share, k in ((p, 3), (q, 2)))
        assert row.difference == crossed_bootstrap(a, b)
        assert row.difference.test == BOOTSTRAP
        assert row.sides[0].accuracies == a.mean(1).tolist()
        assert row.sides[0].mean == pytest.approx(a.mean())
        assert row.sides[0].deviation == pytest.approx(a.mean(1).std(ddof=1))
        assert row.sides[0].intervals == [wilson(int(run.sum()), 200) for run in a]


def test_two_single_runs_are_compared_by_mcnemar(pair):
    (row,) = compare(pair, attacks=["pgd20"]).rows
    a, b = flags(0.5, 0), flags(0.55, 0)
    assert row.difference.p == mcnemar(int((a & ~b).sum()), int((b & ~a).sum()))
    assert row.difference.test == MCNEMAR
    assert row.sides[0].intervals == [wilson(int(a.sum()), 200)]
    assert row.sides[0].deviation is None


def test_runs_are_compared_as_their_folders(pair):
    opened = {name: [Run(folder) for folder in folders] for name, folders in pair.items()}
    assert str(compare(opened)) == str(compare(pair))


def test_corruptions_are_compared_only_if_named(make, pair):
    for name, accuracy in (("at-0", 0.6), ("part-0", 0.7)):
        make(name, results={"fog-3": flags(accuracy, 0)}, file="corruptions.json", pixels="ab")
    assert [row.attack for row in compare(pair).rows] == ["natural", "pgd20"]
    (row,) = compare(pair, attacks=["fog-3"]).rows
    assert row.sides[1].mean == flags(0.7, 0).mean()
    with pytest.raises(UserError, match="no snow-1 of the best checkpoint"):
        compare(pair, attacks=["snow-1"])


def test_the_table_has_conditions_accuracies_difference_p_and_test(groups, pair):
    lines = str(compare(groups)).splitlines()
    assert lines[0] == f"at: {', '.join(map(str, groups['at']))}"
    head, natural, pgd = lines[3:6]
    assert head.split() == ["attack", "eps", "n", "at", "part", "at", "-", "part", "p", "test"]
    assert natural.endswith(BOOTSTRAP)
    assert pgd.split()[:3] == ["pgd20", "8/255", "200"]
    assert "± is the standard deviation between seeds" in lines[-1]
    assert "±" not in str(compare(pair))


def test_two_single_runs_are_said_to_be_two_models_and_not_two_methods(groups, pair):
    found = compare(pair)
    assert "about these two models, not about the methods" in str(found).splitlines()[-1]
    assert found.as_json()["note"] == found.note == str(found).splitlines()[-1]
    assert "two models" not in str(compare(groups))
    assert compare(groups).as_json()["note"] == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [("dataset", "cifar10"), ("split", "train"), ("eps", 4 / 255), ("seed", 7), ("precision", "bf16"),
     ("settings", {"steps": 50}), ("n", 100)],
)  # fmt: skip
def test_results_under_other_conditions_are_rejected_with_folder_and_field(make, field, value):
    a, b = make("at-0"), make("part-0", **{field: value})
    with pytest.raises(UserError, match=f"has other settings in {b} than in {a} .*{field}: ") as caught:
        compare({"at": [a], "part": [b]})
    assert f"{value!r} instead of" in str(caught.value)


@pytest.mark.parametrize("n", [200, 190])
def test_that_pictures_have_changed_is_said_in_words(make, n):
    a, b = make("at-0", pixels="cd"), make("part-0", pixels="ab", n=n)
    words = f"other pictures in {b} \\(n = {n}\\) than in {a} \\(n = 200\\): evaluate both again, on the same pictures"
    with pytest.raises(UserError, match=words):
        compare({"at": [a], "part": [b]})


def test_all_conditions_that_all_runs_share_have_a_row(make, pair):
    make("at-0", results={"pgd20": flags(0.6, 0)}, eps=4 / 255)
    assert len(compare(pair).rows) == 2
    make("part-0", results={"pgd20": flags(0.6, 1)}, eps=4 / 255)
    found = [(row.attack, row.conditions["eps"] * 255) for row in compare(pair).rows]
    assert found == [("natural", 0), ("pgd20", 8), ("pgd20", 4)]


def test_the_table_names_the_images_where_runs_were_evaluated_on_several_sets(make, pair):
    assert "images" not in str(compare(pair)).splitlines()[3]
    for name in ("at-0", "part-0"):
        make(name, results={"natural": flags(0.6, 0)}, dataset="folder:new@32")
    head, first, second = str(compare(pair)).splitlines()[3:6]
    assert head.split()[:4] == ["attack", "eps", "images", "n"]
    assert (first.split()[1], second.split()[1]) == ("shapes", "folder:new@32")


def test_an_attack_that_some_runs_lack_is_left_out_and_reported(make):
    a, b = make("at-0"), make("part-0", results={"natural": flags(0.8, 0)})
    found = compare({"at": [a], "part": [b]})
    assert [row.attack for row in found.rows] == ["natural"]
    assert str(found).splitlines()[-1] == f"left out: pgd20, not in {b}"
    with pytest.raises(UserError, match=f"no pgd20 of the best checkpoint in {b}; choose from natural, pgd20"):
        compare({"at": [a], "part": [b]}, attacks=["pgd20"])
    many = make("many-0", results={f"pgd{steps}": flags(0.5, 0) for steps in range(1, 96)})
    with pytest.raises(UserError, match=r"no mma20 .* choose from natural, pgd20, pgd1, .*, pgd18, \.\.\.$"):
        compare({"at": [a], "many": [many]}, attacks=["mma20"])
    with pytest.raises(UserError, match=r"no results of the last checkpoint in .*at-0, .*part-0; see pixelpart eva"):
        compare({"at": [a], "part": [b]}, checkpoint="last")


def test_warnings_are_shown_and_corrupt_flags_give_no_number(make, pair):
    pair["at"] = [make("at-1", warnings=["gradients are zero"])]
    text = str(compare(pair, attacks=["pgd20"]))
    assert "McNemar, exact *" in text
    assert text.endswith("* pgd20: gradients are zero")
    folder = pair["part"][0]
    for path in (folder / "eval").glob("*.npy"):
        np.save(path, ~np.load(path))
    with pytest.raises(UserError, match=f"flags of natural in {folder} are missing or corrupt"):
        compare(pair)


def test_wrong_groups_are_rejected(make, groups):
    at, part = groups["at"], groups["part"]
    longer, again = make("at-9", 9, config={"epochs": 7}), make("at-again", 1)
    for wrong, message in (
        ({"at": at}, "two groups of run folders, not 1"),
        ({"at": at, "part": []}, "two groups of run folders, not 1"),
        ({"at": at[:1], "again": [str(at[0])]}, "at-0 is given twice"),
        ({"at": at, "part": part[:1]}, "3 against 1 runs: a single run"),
        ({"at": [*at, longer], "part": part}, f"{longer} and {at[0]} differ in more than their seed .*epochs: "),
        ({"at": [*at, again], "part": part}, f"{again} and {at[1]} have the same seed, 1"),
    ):
        with pytest.raises(UserError, match=message):
            compare(wrong)
    forked = make("at-8", 8, config={"init_from": "runs/burn@3", "recipe": "other"})
    assert compare({"at": [*at, forked], "part": part}).rows


def test_groups_are_named_by_the_common_start_of_their_folders(tmp_path):
    def names(first, second):
        return list(name_groups([tmp_path / name for name in first], [tmp_path / name for name in second]))

    assert names(["at-0", "at-1"], ["part-0", "part-1"]) == ["at", "part"]
    assert names(["at-10", "at-11"], ["cifar10-0", "cifar10-1"]) == ["at", "cifar10"]
    assert names(["at-0"], ["part-0"]) == ["at-0", "part-0"]
    assert names(["a", "b"], ["c", "d"]) == names(["x/0"], ["y/0"]) == ["first", "second"]


# -- the command


def test_the_command_prints_the_table_or_json(groups, capsys):
    args = [*map(str, groups["at"]), "--with", *map(str, groups["part"])]
    assert main(["compare", *args]) == 0
    assert capsys.readouterr().out == f"{compare(groups)}\n"
    assert main(["compare", "--json", "--attacks", "pgd20", *args]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == compare(groups, attacks=["pgd20"]).as_json() | {"rows": content["rows"]}
    (row,) = content["rows"]
    assert (row["attack"], row["n"], row["eps"]) == ("pgd20", 200, 8 / 255)
    expected = compare(groups)["pgd20"]
    assert row["difference"] == json.loads(json.dumps(expected.difference.as_json()))
    assert row["accuracy"]["at"]["accuracies"] == expected.sides[0].accuracies


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "write `compare RUN ... --with RUN ...`"),
        (["--with", "a"], "write `compare RUN"),
        (["a", "--with"], "--with: expected at least one argument"),
        (["a", "--with", "b"], "a is not a run folder"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_exit_code_2(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_stored_results_of_another_model_are_compared_by_their_name(make, tmp_path, capsys):
    part = make("part-0")
    before = {"natural": flags(0.7, 5), "pgd20": flags(0.1, 5)}
    evals = write_run(tmp_path / "evals", before, subject="before", checkpoint=None)
    (evals / "config.json").unlink()
    found = compare({"before": evals / "before", "part": part})
    assert found.rows[1].difference == compare({"a": make("same-0", results=before), "b": [part]}).rows[1].difference
    assert main(["compare", str(evals / "before"), "--with", str(part)]) == 0
    assert capsys.readouterr().out.startswith(f"before: {evals / 'before'}\n")
    assert main(["compare", str(evals / "after"), "--with", str(part)]) == 2
    with pytest.raises(UserError, match="not a run"):
        compare({"before": [evals / "before", part], "part": [part]})
    with pytest.raises(UserError, match="a run is named by its folder, not by a Comparison"):
        compare({"before": [found], "part": [part]})
