"""Every experiment writes its table, its JSON and its figure, from made-up runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pixelpart import experiments
from pixelpart.comparison.frontier import Distance
from pixelpart.data.corruptions import CORRUPTIONS
from pixelpart.evaluation.statistics import Variances
from pixelpart.experiments.common import distances, plots
from pixelpart.experiments.common.experiment import Runner, load
from pixelpart.experiments.common.results import RunResult
from pixelpart.experiments.common.tables import Table, all_tables, latex, markdown

N = 200
HEAT_MAPS = {"gaussian": 1.5, "dead": {"2": 0}, "index": [0, 1, 2, 3], "maps": {"2": [[[0.0, 1.0], [1.0, 0.0]]] * 4}}
MEASURES = {"heat_maps": HEAT_MAPS, "gradients": {"verdict": "suspicious", "suspicious": ["random"]}}


def made_up(runner, arms):
    """Results with two runs of each arm: values for all columns, and flags for those of attacks and corruptions."""
    results, draw = runner.results(arms, {label: [] for label in arms}), np.random.default_rng(0)
    attacked = {*runner.attacks, *(read for read in runner.experiment.reads if not read.startswith("frost-drawn"))}
    for place, label in enumerate(arms):
        for seed in range(100, 102):
            difficulty = draw.random(N)
            flags = {column: difficulty < 0.9 - 0.03 * place - 0.2 * (column != "natural") for column in attacked}
            values = {column: 50.0 + draw.normal() for column in results.columns}
            values |= {column: 100 * float(right.mean()) for column, right in flags.items()}
            run = RunResult(seed, Path(), values, {}, flags, MEASURES, 8.0 - 0.2 * place, 2.0, N)
            results.runs[label].append(run)
    return results


@pytest.mark.parametrize("scale", ["paper", "demo"])
@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
def test_table_json_and_figure_of_made_up_runs(name, scale, tmp_path, monkeypatch):
    monkeypatch.setattr(distances, "STUDIES", 5)
    own = load(name)
    arms = own.arms(own.scales[scale])
    runner = Runner(name, own, own.scales[scale], tmp_path, range(100, 102), settings={"device": "cpu"})
    monkeypatch.setattr(runner, "more", lambda arms, **request: made_up(runner, arms))
    results = made_up(runner, arms)
    tables = all_tables(results, own.analyse(results, runner))
    table = markdown(results, tables)
    rows = [line.split(" | ")[0] for line in table.splitlines()]
    assert all(f"| {label.replace('|', chr(92) + '|')}" in rows for label in arms)
    content = json.loads(json.dumps(results.as_json(), allow_nan=False))
    assert content["arms"].keys() == arms.keys()
    assert own.plot(results).axes
    assert latex(tables).count(r"\begin{tabular}") == len(tables)


def test_the_search_for_eps_low_halves_the_candidates_and_forks_those_that_are_left(tmp_path, monkeypatch):
    own = load("eps-low")
    runner = Runner("eps-low", own, own.scales["demo"], tmp_path, range(1), settings={"device": "cpu"})
    rungs = []

    def more(arms, **request):
        rungs.append({label: config.init_from.rpartition("@")[2] for label, config in arms.items()})
        assert (request["split"], request["seeds"]) == ("held-out", 1)
        results = made_up(runner, arms)
        for label, runs in results.runs.items():  # the best of all is 8|2, then 8|3, 8|1, 8|4
            for run in runs:
                run.values.update(natural=50.0, apgd=40 - abs(int(label[-1]) - 2.2))
        return results

    monkeypatch.setattr(runner, "more", more)
    results = made_up(runner, own.arms(own.scales["demo"]))
    own.analyse(results, runner)
    assert rungs == [
        dict.fromkeys([f"8|{low}" for low in (7, 6, 5, 4, 3, 2, 1, 0)], ""),
        dict.fromkeys([f"8|{low}" for low in (2, 3, 1, 4)], "2"),
        dict.fromkeys(["8|2", "8|3"], "3"),
    ]
    assert results.analysis["chosen"] == "8|2"


def test_mean_over_corruptions_is_a_share_per_image(tmp_path):
    own = load("corruptions")
    runner = Runner("corruptions", own, own.scales["demo"], tmp_path, range(1), settings={"device": "cpu"})
    results = made_up(runner, own.arms(own.scales["demo"]))
    own.analyse(results, runner)
    run = results.runs["AT"][0]
    expected = np.mean([run.flags[f"{name}-1"] for name in CORRUPTIONS], axis=0)
    assert run.values["severity 1"] == pytest.approx(100 * expected.mean())
    assert run.values["severity 1 - natural"] == pytest.approx(100 * (expected.mean() - run.flags["natural"].mean()))


def test_latex_of_a_table_escapes_what_latex_reads():
    rows = [["8|7 CAM", "1.00 ± 0.10 & more"], ["PART-T - AT", "-0.24 [-.3, 1e-2]"]]
    table = Table("share in %", ["arm", "a_b, %"], rows)
    assert table.latex().splitlines() == [
        "% share in %",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"arm & a\_b, \% \\",
        r"\midrule",
        r"8\textbar{}7 CAM & 1.00 $\pm$ 0.10 \& more \\",
        r"PART-T - AT & $-$0.24 [$-$.3, 1e-2] \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert replace(table, notes=["a_b < 1, -.3"]).latex().splitlines()[-4:] == [
        "", r"{\footnotesize", r"a\_b $<$ 1, $-$.3\par", "}",
    ]  # fmt: skip


def collapsed(tmp_path, name="table1"):
    """Made-up results in which one run of AT has a warning about PGD-20."""
    own = load(name)
    runner = Runner(name, own, own.scales["paper"], tmp_path, range(100, 102), settings={"device": "cpu"})
    results = made_up(runner, own.arms(runner.scale))
    results.runs["AT"][1].warnings["pgd20"] = ["one class_3"]
    return results


def test_results_with_warnings_have_a_star_and_a_note_in_all_files(tmp_path):
    results = collapsed(tmp_path)
    tables = all_tables(results)
    mean, minus, apart = ({row[0]: row for row in table.rows} for table in tables)
    column = tables[0].head.index("pgd20")
    assert mean["AT"][column].endswith("]*")
    assert minus["AT"][2].endswith("]*")
    assert apart["PART s=1 - AT"][tables[2].head.index("pgd20")].endswith("]*")
    assert sum("*" in cell for table in tables for row in table.rows for cell in row) == 4
    assert [table.notes[-1] for table in tables] == ["(*) pgd20: one class_3"] * 3
    assert markdown(results, tables).count("- (*) pgd20: one class_3\n") == 3
    assert latex(tables).count("(*) pgd20: one class\\_3\\par\n}") == 3
    content = results.as_json()
    assert content["arms"]["AT"]["cells"]["pgd20"]["warnings"] == ["one class_3"]
    assert content["arms"]["AT"]["cells"]["natural"]["warnings"] == []
    claims = [(claim["arm"], claim["column"]) for claim in content["claims"] if claim["warnings"]]
    assert claims == [("PART s=1", "pgd20"), ("PART s=10", "pgd20")]


def test_a_mean_over_corruptions_has_the_warnings_of_its_corruptions(tmp_path):
    results = collapsed(tmp_path, "corruptions")
    results.runs["AT"][0].warnings["fog-1"] = ["fog"]
    load("corruptions").analyse(results, None)
    assert results.cell("AT", "severity 1").warnings == ["fog"]
    assert results.cell("AT", "all severities - natural").warnings == ["fog"]
    assert results.cell("MART", "severity 1").warnings == []


def test_tables_and_json_say_at_which_eps_and_on_which_images_attacks_were_run(tmp_path):
    results = collapsed(tmp_path)
    about = "attacks at eps 8/255; n = 200 test images; last checkpoint"
    assert all_tables(results)[0].notes[0] == about
    content = results.as_json()
    assert (content["checkpoint"], content["split"], content["eps"]["pgd20"]) == ("last", "test", 8 / 255)
    assert content["eps"].keys() == {"pgd20", "mma20", "autoattack"}


def test_the_heading_of_a_figure_has_eps_images_and_what_the_intervals_are_over(tmp_path):
    results = collapsed(tmp_path)
    attacked = "attacks at eps 8/255; n = 200 test images"

    def lines():
        return plots.heading(results).splitlines()[1:]

    assert lines() == ["cifar10, 2 seeds, 95 % intervals over seeds and images", attacked]
    assert plots.heading(results, intervals=False).splitlines()[1:] == ["cifar10, 2 seeds", attacked]
    results.runs["AT"].pop()
    assert lines()[0].endswith("1 to 2 seeds, 95 % intervals over images, and over seeds where there are several")
    results.runs = {arm: runs[:1] for arm, runs in results.runs.items()}
    assert lines()[0] == "cifar10, 1 seed, 95 % intervals over images"


@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
def test_notes_of_an_experiment_are_paragraphs_of_table_tex_in_characters_that_latex_has(name):
    notes = load(name).notes
    text = latex([], notes)
    assert text.count("\\par\n") == len(notes)
    assert text.isascii()


def test_a_share_of_broken_images_is_not_called_an_accuracy(tmp_path):
    own = load("gradients")
    runner = Runner("gradients", own, own.scales["demo"], tmp_path, range(1), settings={"device": "cpu"})
    (axes,) = own.plot(made_up(runner, own.arms(runner.scale))).axes
    assert axes.get_ylabel() == "accuracy or share broken, %"
    assert "broken by random points only" in [" ".join(label.get_text().split()) for label in axes.get_xticklabels()]


def test_a_distance_that_rounds_to_zero_has_no_minus():
    d = Distance(-1e-5, Variances(seeds=1e-12, images=1e-12, interaction=0, df=5))
    assert d.interval(0.9)[1] < 0
    assert (str(d), distances.ends(d, 0.9)) == ("+0.00 [+0.00, +0.00]", "[+0.00, +0.00]")
