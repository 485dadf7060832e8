"""Every experiment builds valid arms at both scales; the paper's numbers and the baselines are those of arms."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from command_line import few
from metrics_rows import metrics_row
from pixelpart import data, experiments, recipes
from pixelpart.cli.main import main
from pixelpart.config import Config
from pixelpart.engine.plan import build_plan
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.experiments import replication
from pixelpart.experiments.common import paper, tables
from pixelpart.experiments.common.experiment import FOUR, load, run_experiment
from pixelpart.experiments.common.paper import minus_paper
from pixelpart.experiments.common.results import Claim, Results, RunResult, all_epochs, read_run_result
from pixelpart.experiments.common.scales import SCALES, Scale
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.jobs import run_jobs
from pixelpart.sweeps.work import Job
from run_results import write_run

CASES = [(name, scale) for name in experiments.EXPERIMENTS for scale in ("paper", "demo")]


def scales_of(name: str, scale: str) -> list[Scale]:
    own = load(name)
    chosen = own.scales[scale]
    others = own.data if scale == "paper" else ()
    return [chosen, *(Scale(**vars(chosen) | {"data": one}) for one in others)]


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_arms_are_valid_configs_and_no_two_are_one_run(name, scale):
    for chosen in scales_of(name, scale):
        arms = load(name).arms(chosen)
        for config in arms.values():
            assert Config.model_validate(config.model_dump()) == config
            if chosen.data in ("cifar10", "shapes"):  # all names are known; a small network, to be quick
                build_plan(config.model_copy(update={"model": "tiny-cnn"}))
        ids = [identity(config) for config in arms.values()]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_paper_numbers_and_baselines_are_those_of_arms_and_columns(name, scale):
    own = load(name)
    for chosen in scales_of(name, scale):
        arms = own.arms(chosen)
        for attack in own.attacks:
            parse_attack(attack)
        assert {label for pair in own.baselines(arms) for label in pair} <= arms.keys()
        columns = {*(own.columns(chosen) if own.columns else own.attacks), *own.reads}
        if scale == "paper":
            assert own.paper(chosen).keys() <= arms.keys()
            assert {column for row in own.paper(chosen).values() for column in row} <= columns


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_measures_exist(name, scale):
    for measure in load(name).measures:
        module, _, function = measure.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_at_and_the_uniform_budget_of_8_255_are_one_run_that_keeps_the_checkpoints_of_heat_maps(scale):
    assert scale.uniform(8 / 255) == scale.method("AT")
    assert scale.method("AT").keep == scale.keep


def test_paper_numbers_of_one_method_agree_between_tables():
    first = paper.TABLE1["cifar10"]
    same = {"AT, pgd": "AT", "PART s=1, pgd": "PART s=1", "gradcam": "PART s=1", "10 steps": "PART s=1"}
    for table in (paper.GENERATION, paper.CAMS, paper.TRAIN_ITERATIONS):
        for arm in table.keys() & same.keys():
            assert {c: n[0] for c, n in table[arm].items()} == {c: n[0] for c, n in first[same[arm]].items()}
    assert paper.GRADIENTS["PART s=1"]["pgd20"][0] == first["PART s=1"]["pgd20"][0]


# -- statistics


def test_policies_by_the_gradient_are_of_the_cross_entropy_of_the_label():
    policies = load("policies")
    masks = [config.mask for config in policies.arms(policies.scales["paper"]).values()]
    assert [mask.target for mask in masks if mask.source.startswith("gradient")] == ["label"] * 4


def test_minus_paper_by_hand():
    # one seed against three: 1.96 * .30 * sqrt(1 + 1/3) = .679
    assert minus_paper(83.0, 1, "natural", (82.58, 0.14)) == pytest.approx((0.42, -0.2590, 1.0990), abs=1e-4)
    assert minus_paper(83.0, 1, "seconds", (82.58, 0.14)) is None


@pytest.mark.parametrize(
    ("ours", "paper", "seeds", "expected"),
    [
        ((0.9, 0.2, 1.6), 0.84, 3, "replicated"),
        ((-0.9, -1.6, -0.2), -0.84, 3, "replicated"),
        ((0.5, 0.2, 0.8), 0.84, 3, "replicated, smaller"),
        ((-1.2, -1.5, -0.9), -0.84, 3, "replicated, larger"),
        ((0.9, 0.2, 1.6), 0.84, 2, "undecided (few seeds)"),
        ((0.5, -0.2, 1.2), 0.84, 3, "undecided"),
        ((-0.1, -0.8, 0.6), 0.84, 3, "contradicted"),
        ((-0.9, -1.6, -0.2), 0.84, 3, "contradicted"),  # significant, on the other side
        (None, 0.84, 3, ""),
        ((0.9, 0.2, 1.6), None, 3, ""),
    ],
)
def test_verdict_on_a_difference_of_the_paper(ours, paper, seeds, expected):
    assert replication.verdict(Claim("a", "b", "natural", ours, paper, [*range(seeds)])) == expected


def test_cells_of_the_paper_are_consistent_within_the_interval_of_the_difference():
    def arm(value):
        return [RunResult(0, Path(), {"natural": value}, {}, {}, {}, 8.0, 1.0, 100)]

    scale = SCALES["paper"]
    runs = {"AT": arm(82.0), "PART s=1": arm(84.2), "TRADES": arm(77.4), "MART": []}  # ±.679; paper 82.58, 83.42, 78.16
    arms = {name: scale.method(name) for name in runs}
    results = Results("", "", "-", "paper", "cifar10", ["natural"], arms, runs, replication.numbers(scale), [], {})
    cells, _ = replication.analyse(results, None)
    assert cells.rows == [["AT", "consistent"], ["PART s=1", "differs"], ["TRADES", "differs"], ["MART", ""]]
    (panel,) = replication.plot(results).axes
    points = [line for line in panel.lines if line.get_marker() == "o"]  # filled where the cell differs
    assert [round(float(point.get_xdata()[0]), 2) for point in points] == [-0.58, 0.78, -0.76]
    assert [point.get_markerfacecolor() == "white" for point in points] == [True, False, False]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["AT", "PART s=1", "TRADES"]


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((0.561, 0.188, 0.934), "+0.56 [+0.19, +0.93]"),
        ((-0.57, -1.1358, -0.0042), "-0.570 [-1.136, -0.004]"),
        ((0.2, 0.0, 0.4), "+0.20 [+0.00, +0.40]"),
        ((-0.004, -0.05, 0.2), "+0.00 [-0.05, +0.20]"),
    ],
)
def test_an_interval_shows_whether_it_includes_zero(values, written):
    assert tables.signed(*values) == written


def test_epochs_of_a_fork_start_with_those_of_its_parent(tmp_path):
    configs = {"at": SCALES["demo"].config("at"), "part": SCALES["demo"].config("part", init_from="runs/at@2")}
    for name, epochs in {"at": (1, 2, 3, 4), "part": (3, 4)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(configs[name].to_json())
        rows = [json.dumps(metrics_row(epoch, seconds=float(len(name)))) for epoch in epochs]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(rows))
    assert [(row["epoch"], row["seconds"]) for row in all_epochs(tmp_path / "part")] == [
        (1, 2), (2, 2), (3, 4), (4, 4),
    ]  # fmt: skip


# -- the command


@pytest.mark.usefixtures("_tiny")
def test_only_the_named_arms_are_trained_and_others_are_shown_if_there(tmp_path, capsys):
    command = ["experiment", "gradients", "--out", str(tmp_path), "--device", "cpu", "--json"]

    def seeds() -> dict[str, list[int]]:
        return {arm: found["seeds"] for arm, found in json.loads(capsys.readouterr().out)["arms"].items()}

    assert main([*command, "--arms", "AT"]) == 0
    assert seeds() == {"AT": [0], "PART s=1": []}
    assert not list(tmp_path.glob("runs/*/measures"))  # one of them compares the two arms
    assert main([*command, "--arms", "PART s=1"]) == 0
    assert seeds() == {"AT": [0], "PART s=1": [0]}
    assert len(list(tmp_path.glob("runs/*/measures"))) == 2
    assert main([*command, "--arms", "PART s=2"]) == 2
    assert "unknown arm 'PART s=2'; did you mean PART s=1? choose from AT, PART s=1" in capsys.readouterr().err


@pytest.fixture
def _tiny(monkeypatch):
    small = {"holdout": 10, "probe": 16, "attack": {"steps": 1, "step_size": "8/255"}}
    monkeypatch.setitem(data.SETS, "shapes", few())
    for method in ("at", "part"):
        recipe = lambda method=method, **given: recipes.shapes(method, **small | given)  # noqa: E731
        monkeypatch.setitem(recipes.RECIPES, f"shapes-{method}", recipe)
    monkeypatch.setitem(SCALES, "demo", Scale(**vars(SCALES["demo"]) | {"epochs": 2, "images": 60, "keep": (2,)}))


@pytest.mark.usefixtures("_tiny")
def test_experiment_trains_measures_and_draws_and_a_second_call_starts_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["experiment", "gradients", "--out", str(out), "--device", "cpu"]
    assert main(command) == 0
    table, progress = capsys.readouterr()
    assert [text in progress for text in ("burn-in of AT, seed 0: done", "2/2 PART s=1, seed 0: done")] == [True, True]
    folder = out / "gradients"
    assert table.rstrip("\n") == (folder / "table.md").read_text().rstrip("\n")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((folder / "result.json").read_text())
    assert result["arms"].keys() == {"AT", "PART s=1"}
    cells = result["arms"]["PART s=1"]["cells"]
    assert all(cells[column]["mean"] is not None and cells[column]["interval"] for column in result["columns"])
    assert cells["unbounded"]["interval"] == pytest.approx([0, 100 * (z := 1.959964**2 / 60) / (1 + z)])  # 0 of 60
    assert cells["pgd20"]["paper"][0] == 43.65
    trained = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*.json*")}
    assert len({path.parent for path in trained}) == 2

    assert main(command) == 0
    assert capsys.readouterr().out == table
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*.json*")} == trained

    again = ["experiment", "gradients", "--from", str(out / "runs"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    assert capsys.readouterr().out == table
    assert not (tmp_path / "again" / "runs").exists()


@pytest.mark.usefixtures("_tiny")
def test_measures_are_taken_on_the_chosen_device(tmp_path, capsys):
    command = ["experiment", "damage", "--out", str(tmp_path), "--quiet", "--device"]
    assert main([*command, "cuda:98"]) == 2
    assert capsys.readouterr().err == "pixelpart: no device 'cuda:98' here; choose from cpu\n"
    assert not (tmp_path / "damage").exists()
    assert main([*command, "cpu"]) == 0
    (measured,) = tmp_path.glob("runs/*/measures/damage.json")
    measured.unlink()
    assert main([*command, "cuda:99"]) == 2  # the run is there: only the measure uses the device
    assert "no device 'cuda:99' here" in capsys.readouterr().err


@pytest.mark.usefixtures("_tiny")
def test_runs_of_other_experiments_are_found_with_their_seeds_unless_the_number_is_given(tmp_path, capsys):
    sweep = run_experiment("gradients", out=tmp_path / "out", screen=Screen(quiet=True))
    run_jobs([Job(sweep.results.configs["AT"].model_copy(update={"seed": 1}), ("natural",), "last", 60)],
             tmp_path / "out", screen=Screen(quiet=True))  # fmt: skip
    again = ["experiment", "gradients", "--from", str(tmp_path / "out" / "runs"), "--out", str(tmp_path / "again")]

    def row() -> list[str]:
        assert main(again) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| AT |"))
        return [cell.strip() for cell in line.split("|")[2:]]

    found = row()
    assert (found[0], "seed" in found[3], found[4].endswith("]*, seed 0")) == (
        "seeds 0, 1",
        False,
        True,
    )  # natural, pgd1
    again += ["--seeds", "1"]
    assert (row()[0], "seed" in " ".join(row()[1:])) == ("seed 0", False)
    (tmp_path / "out/runs/fork").mkdir()
    (tmp_path / "out/runs/fork/config.json").write_text(Config(init_from="runs/gone@1").to_json())
    assert main(again) == 0
    assert "runs/fork, a fork of runs/gone@1: runs/gone is not a run folder" in capsys.readouterr().err


@pytest.mark.usefixtures("_tiny")
def test_cells_without_runs_are_empty(tmp_path, capsys):
    (tmp_path / "nothing").mkdir()
    assert main(["experiment", "cams", "--from", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| gradcam |"))
    assert row.split("|")[2:6] == ["  ", "  ", "  ", "  "]
    assert "83.42 ± 0.26" in row


def test_an_accuracy_on_fewer_images_than_others_is_left_out(tmp_path):
    flags = {"natural": np.ones(60, bool), "pgd20": np.ones(60, bool), "autoattack": np.ones(10, bool)}
    write_run(tmp_path, flags, interval=[0.5, 1.0])
    found = read_run_result(Job(Config()), tmp_path, [*flags])
    assert (found.values, found.n) == ({"natural": 100.0, "pgd20": 100.0}, 60)


def test_warnings_of_results_are_read_with_them(tmp_path):
    right = np.ones(60, bool)
    write_run(tmp_path, {"natural": right}, interval=[0.5, 1.0])
    write_run(tmp_path, {"pgd20": right}, interval=[0.5, 1.0], warnings=["gradients are zero"])
    assert read_run_result(Job(Config()), tmp_path, ["natural", "pgd20"]).warnings == {
        "natural": [], "pgd20": ["gradients are zero"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table"], "unknown experiment 'table'; did you mean table1? choose from adaptive, "),
        (["table1", "--scale", "large"], "unknown scale 'large'; choose from demo, paper"),
        (["table1", "--data", "svhn"], "scale demo uses shapes; --data svhn needs --scale paper"),
        (["cams", "--scale", "paper", "--data", "svhn"], "unknown data set 'svhn'; choose from cifar10"),
        (["cams", "--from", "nowhere"], "no folder nowhere"),
    ],
)
def test_mistakes_are_reported_in_one_line(args, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pixelpart: {message}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_list_names_every_experiment_with_its_number_in_the_paper(capsys):
    assert main(["experiment"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines[1 : 1 + len(experiments.EXPERIMENTS)]]
    assert names == list(experiments.EXPERIMENTS)
    assert "table 1" in lines[1]


def test_docs_list_every_experiment_as_the_command_does():
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    rows = [
        f"| `{name}` | {one.number} | {one.title} | {one.demo} | {one.paper} |"
        for name, one in experiments.EXPERIMENTS.items()
    ]
    assert [row for row in rows if row not in page.splitlines()] == []


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [([], ""), ([0], "seed 0"), ([0, 1], "seeds 0, 1"), ([5, 6, 7], "seeds 5 to 7"), ([0, 2, 3], "seeds 0, 2, 3")],
)
def test_seeds_are_named_and_three_or_more_in_a_row_by_the_first_and_the_last(seeds, expected):
    assert tables.named_seeds(seeds) == expected


def test_a_claim_is_made_on_the_seeds_for_which_both_sides_have_flags():
    def run(seed, *columns, right=20):
        flags = {column: np.arange(50) < right + seed for column in columns}
        return RunResult(seed, Path(), {"natural": 40.0 + 2 * seed}, {}, flags, {}, 8.0, 1.0, 50)

    runs = {"a": [run(0, "natural", "autoattack"), run(1, "natural"), run(2, "natural"), run(4)]}
    runs["b"] = [run(0, "autoattack", right=15), *(run(k, "natural", "autoattack", right=15) for k in range(1, 5))]
    results = Results("replication", "", "-", "paper", "cifar10", [*FOUR], {}, runs, {}, [("a", "b")], {})
    claims = {column: results.claim("a", "b", column) for column in FOUR}
    assert {column: claim.seeds for column, claim in claims.items() if claim.ours} == {
        "natural": [1, 2], "autoattack": [0],
    }  # fmt: skip
    assert [claims[column].ours[0] for column in ("natural", "autoattack")] == pytest.approx([10, 10])  # 5 of 50
    (table,) = tables.claims(results)
    assert table.head == ["difference", "seeds", "natural", "autoattack"]
    assert table.rows[0][:2] == ["a - b", "seeds 0 to 2"]
    assert [cell.partition("], ")[2] for cell in table.rows[0][2:]] == ["seeds 1, 2", "seed 0"]
    assert tables.SEED_NOTE in tables.markdown(results, [table])
    runs["b"][1].flags["natural"] = np.ones(40, bool)  # of fewer images than the others
    assert results.claim("a", "b", "natural").ours is None
