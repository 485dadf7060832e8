"""The page as a browser gets it."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from pixelpart import recipes
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.report import write_report
from pixelpart.report.explorer import SCRIPT


def results(found):
    """The table of results as rows of texts."""
    (table,) = found.all("table", "results")
    return [[cell.text for cell in row.children if getattr(cell, "tag", "") in ("th", "td")] for row in table.all("tr")]


def test_every_result_is_in_its_row_and_column(make_run, page, entry):
    at = make_run("at", config=recipes.RECIPES["shapes-at"](epochs=3), entries=[
        entry("natural", 0.8, n=2000, seconds=0.5, eps=0.0), entry("pgd20", 0.4125, n=2000, interval=[0.39, 0.434]),
    ])  # fmt: skip
    part = make_run("part", entries=[entry("pgd20", 0.5), entry("pgd100x2", 0.25, seconds=61.0)])
    head, first, second = results(page(at, part))
    assert head == ["run", "natural", "pgd20", "pgd100x2"]
    assert first == [
        "●atbest checkpoint, epoch 3, averaged weights, eps 8/255",
        "80.00 % 77.00 to 83.00 n = 2,000, 0.5 s",
        "41.25 % 39.00 to 43.40 n = 2,000, 1.25 s",
        "not measured",
    ]
    assert second[1:] == [
        "not measured",
        "50.00 % 47.00 to 53.00 n = 1,000, 1.25 s",
        "25.00 % 22.00 to 28.00 n = 1,000, 61 s",
    ]


def test_commands_reproduce_the_results(make_run, page, tmp_path, monkeypatch, entry):
    monkeypatch.chdir(tmp_path)
    config = recipes.RECIPES["shapes-part"](seed=4, eps_low="6/255")
    entries = [entry("natural"), entry("pgd20"), entry("pgd20", dataset="given", split="given")]
    found = page(make_run("part", config=config, entries=entries))
    (commands,) = found.all("dl", "commands")
    assert "".join(commands.all("code")[0].children).split("\n")[:2] == [
        "pixelpart train shapes-part --seed 4 --eps-low 6/255 --out part",
        "pixelpart evaluate part --attacks natural,pgd20 --checkpoint best --images 1000",
    ]
    assert commands.text.count("pixelpart evaluate") == 1
    assert "images that were passed as tensors have no command" in commands.text
    assert "pixelpart report part --out r.html" in found.all("footer")[0].text


def test_differences_are_in_a_list_and_below_the_headline(make_run, page, entry):
    at = make_run("at", entries=[entry("natural", 0.9), entry("pgd20", 0.40)])
    part = make_run("part", entries=[entry("natural", 0.7), entry("pgd20", 0.43)])
    found = page(at, part)
    natural, pgd = (item.text for item in found.all("ul", "comparisons")[0].all("li"))
    assert "at 90.00 %, part 70.00 %. The difference of 20.00 points" in natural
    assert "part 43.00 %, at 40.00 %. The difference of 3.00 points" in pgd
    header = found.all("header")[0]
    assert "about these two models, not about the methods" in header.all("p", "summary")[0].text
    assert "The difference of 3.00 points under pgd20 is not tested" in header.text


def test_folder_is_named_in_words(make_run, page, entry):
    config = recipes.RECIPES["folder-at"](
        dataset="folder:my pics", size=32, skip_bad=True, channels=3, classes=("a", "b")
    )
    entries = [entry(attack, dataset=config.data_label) for attack in ("natural", "pgd20")]
    found = page(*(make_run(name, config=config, entries=entries) for name in "xy"))
    named = "folder my pics (32 pixels, bad files skipped)"
    assert found.all("p", "lead")[0].text.startswith(f"2 classifiers on {named}: accuracy")
    assert f"Accuracy on test images of {named}, natural and under" in found.all("p", "summary")[0].text
    assert f"(best checkpoint, test images of {named})" in found.all("ul", "comparisons")[0].text
    assert "@32" not in found.text


def test_all_runs_are_shown_on_the_same_image_with_predictions_as_text(make_run, page):
    images = page(make_run("at"), make_run("part")).all("table", "image")
    assert [table.all("caption")[0].text for table in images] == ["Test image 10: disc", "Test image 11: disc"]
    for table in images:
        assert len(table.all("img")) == 2 * 5
        assert [th.text for th in table.all("th") if th.attrs.get("scope") == "rowgroup"] == ["●at", "■part"]
        assert [span.text for span in table.all("span", "right")] == ["right: ✓ disc"] * 2
        assert [span.text for span in table.all("span", "wrong")] == ["wrong: ✗ ring"] * 2
        assert "91 %" in table.text
        assert "62 %" in table.text


@pytest.mark.usefixtures("all_panels")
def test_page_is_self_contained_and_accessible(make_run, page, tmp_path):
    found = page(make_run("at"), make_run("part"))
    text = (tmp_path / "r.html").read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?:|url\((?!#)|@import|<script src|xmlns", text)
    for tag in ("img", "link", "use", "iframe", "a"):
        for node in found.all(tag):
            for value in (node.attrs.get("src"), node.attrs.get("href")):
                assert value is None or value.startswith(("data:", "#")), value
    assert all(image.attrs.get("alt") for image in found.all("img"))
    assert all(th.attrs.get("scope") for th in found.all("th"))
    assert all(table.all("caption") for table in found.all("table"))
    assert all(div.attrs.get("aria-label") for div in found.all("div") if div.attrs.get("role") == "img")
    assert len(found.all("style")) == 1  # a style of matplotlib would apply to the whole page
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)


def test_strings_are_escaped(make_run, page, entry, metrics_row, explained):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=y>"
    config = Config(recipe=evil, dataset=evil, model=evil, init_from=f"{evil}@1", mask={"source": evil}, epochs=3)
    run = make_run(
        "<b>&'x\"", config=config,
        metrics=[metrics_row(1, phase=evil), metrics_row(2), metrics_row(3)],
        entries=[entry(evil, 0.3, checkpoint=evil, weights=evil, dataset=evil, machine=evil, precision=evil)],
        explain=explained(classes=[evil, "b", "c"], checkpoint=evil, object={"n": 1, "object_area": 0.2}),
    )  # fmt: skip
    found = page(run, title=evil)
    script, content = found.all("script")
    assert script.text == " ".join(SCRIPT.split())
    assert content.attrs["type"] == "application/json"
    assert json.loads(content.text)["sets"][0]["classes"][0] == evil
    digest = base64.b64encode(hashlib.sha256("".join(script.children).encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in found.all("meta")[3].attrs["content"]
    assert all(image.attrs["src"].startswith("data:image/png;base64,") for image in found.all("img"))
    assert found.all("title")[0].text == found.all("h1")[0].text == evil
    assert not [node for node in found.all("b") if node.text.startswith("&")]


@pytest.mark.usefixtures("all_panels")
def test_new_run_has_a_page_that_says_what_is_missing(make_run, page):
    bare = make_run("bare", metrics=None, entries=None, explain=None, tensors=None)
    found = page(bare)
    for text in ("No run has been evaluated yet", "No epoch is finished yet.", "There are no pictures yet."):
        assert text in found.text
    found = page(make_run("full"), bare)
    assert all("no pictures of this run yet" in table.text for table in found.all("table", "image"))
    assert results(found)[-1] == ["■bare", "not evaluated yet"]
    assert "(no epoch finished yet)" in found.all("ul", "legend")[0].text


def test_share_of_the_high_budget_on_the_object(make_run, page, explained):
    on = {"n": 512, "dead": 3, "object_area": 0.2, "high_budget_on_object": 0.5, "heat_on_object": 0.6}
    part = make_run("part", explain=explained(object=on))
    uniform = explained(object=on | {"high_budget_on_object": 0.2})
    at = make_run("at", config=recipes.RECIPES["shapes-at"](epochs=3), explain=uniform)
    first, second = (item.text for item in page(part, at).all("ul", "object")[0].all("li"))
    assert "50.0 % of the high-budget pixels are on the object; the object covers 20.0 % of the area" in first
    assert "2.5 times its share" in first
    assert "3 images with a heat map of zeros left out" in first
    assert "the budget is the same at all pixels" in second


@pytest.mark.usefixtures("all_panels")
def test_same_input_gives_the_same_bytes_and_a_failed_report_keeps_them(make_run, tmp_path):
    run, out = make_run(), tmp_path / "r.html"
    first = write_report([run], out).read_bytes()
    assert write_report([run], out).read_bytes() == first
    (run / "config.json").write_text(json.dumps({"epochs": "many"}))
    with pytest.raises(UserError, match="epochs"):
        write_report([run], out)
    assert out.read_bytes() == first


def test_wrong_arguments_are_user_errors(make_run, tmp_path):
    (tmp_path / "stray").mkdir()
    (tmp_path / "file").write_text("")
    run = make_run()
    for folders, out, message in (
        ([], "r.html", "at least one"),
        ([tmp_path / "stray"], "r.html", "stray is not a run folder"),
        ([tmp_path / "nowhere"], "r.html", "nowhere is not a run folder"),
        ([run], ".", "it is a folder"),
        ([run], "file/r.html", "cannot write"),
    ):
        with pytest.raises(UserError, match=message):
            write_report(folders, tmp_path / out)
    assert not (tmp_path / "r.html").exists()


def test_a_file_that_is_not_a_page_is_not_overwritten(make_run, tmp_path):
    run, out = make_run(), tmp_path / "report.html"
    write_report([run], out)
    write_report([run], out)  # a page is
    (run / "notes.txt").write_text("mine")
    for path in (run / "notes.txt", run / "config.json", Path("/dev/null")):
        with pytest.raises(UserError, match="it exists and is not a page"):
            write_report([run], path)
    assert (run / "notes.txt").read_text() == "mine"
