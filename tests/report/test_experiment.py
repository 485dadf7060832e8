"""The pages of experiments, from the files that `pixelpart experiment` writes."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from pixelpart import recipes
from pixelpart.errors import UserError
from pixelpart.experiments.common.tables import Table
from pixelpart.report import write_report
from pixelpart.report.experiment import read_markdown

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def experiment(measured, tmp_path):
    """An experiment of two arms: result.json, table.md, figure.png and runs."""
    runs = {
        arm: measured(
            f"demo/runs/{place:016d}", {"natural": np.arange(100) < natural, "pgd20": np.arange(100) < 40},
            config=recipes.RECIPES[recipe](epochs=3, burn_in={"epochs": 0}), checkpoint="last",
        )
        for place, (arm, recipe, natural) in enumerate((("AT", "shapes-at", 80), ("PART 8|7", "shapes-part", 82)))
    }  # fmt: skip

    def write(name="table1", *, title="Nine methods", arms=runs, head=("arm", "natural", "paper")):
        folder = tmp_path / "demo" / name
        folder.mkdir()
        content = {
            "experiment": name, "title": title, "number": "table 1", "scale": "demo", "data": "shapes",
            "arms": {arm: {"requested": 1, "seeds": [0], "runs": [str(path)]} for arm, path in arms.items()},
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(content))
        table = Table("Mean [95 % interval]", head, [["AT", "80.00", "82.58"], ["PART 8|7", "82.00", "83.42"]])
        (folder / "table.md").write_text(f"# {title}\n\ntable 1; scale demo, shapes\n\n{table}\n\n- A note, {EVIL}.\n")
        Image.new("RGB", (100, 4)).save(folder / "figure.png")
        return folder

    return write


def rows(table):
    return [[cell.text for cell in row.children if getattr(cell, "tag", "") in ("th", "td")] for row in table.all("tr")]


def test_figure_table_papers_numbers_and_runs_are_on_the_page(experiment, page):
    found = page(experiment())
    assert found.all("h1")[0].text == "Nine methods"
    assert found.all("p", "lead")[0].text == "Table 1; scale demo, shapes."
    (figure,) = found.all("img")
    assert figure.attrs["src"].startswith("data:image/png;base64,")
    assert figure.attrs["width"] == "70"
    table, runs = found.all("table", "grid")
    assert rows(table) == [["arm", "natural", "paper"], ["AT", "80.00", "82.58"], ["PART 8|7", "82.00", "83.42"]]
    assert [cell.text for cell in table.all("td", "paper")] == ["82.58", "83.42"]
    assert {"AT", "PART 8|7"} == {arm.text[1:] for arm in found.all("ul", "legend")[0].all("li")}
    assert [row[1] for row in rows(runs)] == ["arm", "AT seed=0", "PART 8|7 seed=0"]
    assert [row[-2:] for row in rows(runs)] == [["natural", "PGD-20 at 8/255"], ["80.00", "40.00"], ["82.00", "40.00"]]
    assert found.all("figure", "plot")[0].attrs["class"] == "plot plot-plane"
    assert "pixelpart experiment table1 --scale demo --seeds 1" in found.text


def test_runs_are_found_next_to_an_experiment_that_was_moved_and_may_be_gone(experiment, page, tmp_path):
    folder = experiment()
    moved = tmp_path / "moved"
    shutil.move(folder.parent, moved)
    assert len(page(moved / folder.name).all("table", "grid")) == 2
    shutil.rmtree(moved / "runs")
    found = page(moved / folder.name)
    assert len(found.all("table", "grid")) == 1
    assert not found.all("figure", "plot")


def test_a_folder_of_experiments_has_one_page_in_the_order_of_the_command(experiment, page):
    experiment("theory", title=EVIL, arms={})
    folder = experiment().parent
    found = page(folder)
    assert found.all("h1")[0].text == "Experiments demo"
    assert [link.text for link in found.all("ol")[0].all("a")] == ["Nine methods", EVIL]  # table1 is listed first
    assert len(found.all("img")) == 2
    assert not found.all("script")
    assert f"A note, {EVIL}." in found.text


def test_tables_survive_markdown():
    tables = [Table("A|b", ["x", "y|z"], [["1", ""], ["2|3", "a [b, c]"]]), Table("None", ["x"], [])]
    text = "\n\n".join(["# Title", "lead", *map(str, tables), "- one\n- two"]) + "\n"
    lead, found, notes = read_markdown(text)
    assert (lead, notes) == ("lead", ["one", "two"])
    assert [(one.title, one.head, one.rows) for one in found] == [(one.title, one.head, one.rows) for one in tables]
    assert read_markdown("") == ("", [], [])


def test_notes_below_tables_are_listed_once():
    tables = [Table(title, ["x"], [["1*"]], notes) for title, notes in (("A", ["(*) x: y"]), ("B", ["(*) x: y", "z"]))]
    assert read_markdown("\n\n".join([*map(str, tables), "- w"]))[2] == ["(*) x: y", "z", "w"]


def test_mistakes_are_one_line(experiment, measured, tmp_path):
    folder, run = experiment(), measured("run", {"natural": np.arange(100) < 50})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/result.json").write_text('{"experiment": "table1"}')
    for folders, message in (
        ([folder, run], "is the folder of an experiment, which has a page of its own"),
        ([run, folder.parent], "is the folder of experiments, which has"),
        ([tmp_path / "broken"], "is not the result of an experiment"),
        ([tmp_path / "demo/runs"], "demo/runs is not a run folder; .*demo/runs/[*] means the runs below it"),
    ):
        with pytest.raises(UserError, match=message) as error:
            write_report(folders, tmp_path / "r.html")
        assert "\n" not in str(error.value)
