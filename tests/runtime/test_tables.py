"""What a notebook shows: tables, plain text, and names to complete."""

import pickle
import pydoc
from html.parser import HTMLParser

import numpy as np

import pixelpart as pp
from metrics_rows import metrics_row
from pixelpart.config import Config
from pixelpart.evaluation.results import Outcome, Result
from pixelpart.runs import RunFolder


class Cells(HTMLParser):
    """The rows of a table, and the text after it."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.notes, self.tags = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.tags[-1] in ("th", "td") and data.strip():
            self.rows[-1].append(data)
        elif self.tags[-1] == "p" and data.strip():
            self.notes.append(data)


def test_run_shows_its_config_and_last_epoch(tmp_path):
    folder = RunFolder(tmp_path / "<b>a&b")
    folder.write_config(Config(recipe="shapes-part", model="tiny-cnn", seed=3, epochs=7))
    folder.write_metrics([metrics_row(1), metrics_row(2, natural=0.8125, pgd=0.25)])
    run = pp.Run(folder.path)
    found = Cells(run._repr_html_())
    assert dict(found.rows) == {
        "run": str(folder.path), "recipe": "shapes-part", "model": "tiny-cnn", "data": "shapes", "seed": "3",
        "epochs": "2 of 7", "last epoch": "natural 81.2%, pgd 25.0% (held-out images)",
    }  # fmt: skip
    assert "b" not in found.tags
    assert repr(run).startswith(f"Run({str(folder.path)!r}), recipe: shapes-part; model: tiny-cnn; ")


def test_run_without_an_attack_shows_no_pgd_accuracy(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config(Config(eps=0))
    folder.write_metrics([metrics_row(1, natural=0.8125)])
    assert repr(pp.Run(tmp_path)).endswith("last epoch: natural 81.2% (held-out images)")


def test_folder_that_is_not_a_run_shows_why(tmp_path):
    assert "no such folder" in repr(pp.Run(tmp_path / "none"))
    assert "no such folder" in pp.Run(tmp_path / "none")._repr_html_()
    RunFolder(tmp_path).write_config(Config(epochs=5))
    assert repr(pp.Run(tmp_path)).endswith("epochs: 0 of 5")


def outcome(attack, correct, **changes):
    entry = {
        "attack": attack, "accuracy": correct / 200, "interval": [0.25, 0.75], "correct": correct, "n": 200,
        "dataset": "shapes", "split": "test", "seconds": 1.25, "warnings": [],
    } | changes  # fmt: skip
    return Outcome(entry, np.arange(200) < correct, reused=False)


def test_result_is_a_table_with_a_row_per_attack():
    pgd = outcome("pgd20", 90, warnings=["a <script> & more"], dataset="given", split="given")
    result = Result({"natural": outcome("natural", 150), "pgd20": pgd})
    found = Cells(result._repr_html_())
    assert found.rows == [
        ["attack", "accuracy", "95 % interval", "images", "time"],
        ["natural", "75.00%", "25.00% to 75.00%", "200 shapes test", "1.2 s"],
        ["pgd20", "45.00% *", "25.00% to 75.00%", "200", "1.2 s"],
    ]
    assert found.notes == ["* pgd20: a <script> & more"]
    assert "script" not in found.tags
    assert Cells(pgd._repr_html_()).rows == [found.rows[0], found.rows[2]]
    assert repr(result) == str(result)
    assert repr(pgd) == str(Result({"pgd20": pgd}))
    assert result._ipython_key_completions_() == ["natural", "pgd20"]


def test_dir_lists_what_there_is_and_nothing_else():
    assert set(dir(pp)) == {*pp.__all__, "__version__"}
    for package in (pp.attacks, pp.data, pp.masks, pp.models, pp.objectives):
        assert set(dir(package)) == set(package.__all__)
    assert {"shapes_part", "cifar10_part_t", "cifar10_at_fast"} < set(dir(pp.recipes))
    for name in dir(pp.recipes):
        assert getattr(pp.recipes, name) is not None
    assert len(dir(pp.recipes)) == 1 + len(pp.recipes.RECIPES)


def test_help_of_a_recipe_says_what_it_is_and_how_to_change_a_field():
    text = pydoc.render_doc(pp.recipes.shapes_part, renderer=pydoc.plaintext)
    assert "shapes_part(**fields" in text
    assert pp.recipes.shapes.__doc__.strip() in text
    assert 'mask={"rule": "soft"}' in text
    assert pickle.loads(pickle.dumps(pp.recipes.shapes_part)) is pp.recipes.shapes_part
