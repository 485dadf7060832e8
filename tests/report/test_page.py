"""Claims about the page as a reader's browser gets it."""

import json
import re

import pytest

from pixelpart import recipes
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.report import write_report


def figures(page):
    """The table of figures as a list of rows of texts."""
    (table,) = page.all("table", "figures")
    return [[cell.text for cell in row.children if getattr(cell, "tag", "") in ("th", "td")] for row in table.all("tr")]


def test_every_figure_stands_in_its_row_and_column(make_run, parse, tmp_path, entry):
    at = make_run("at", config=recipes.RECIPES["shapes-at"](epochs=3), entries=[
        entry("natural", 0.8, n=2000, seconds=0.5, eps=0.0), entry("pgd20", 0.4125, n=2000, interval=[0.39, 0.434]),
    ])  # fmt: skip
    part = make_run("part", entries=[entry("pgd20", 0.5), entry("pgd100x2", 0.25, seconds=61.0)])
    head, first, second = figures(parse(write_report([at, part], tmp_path / "r.html")))
    assert head == ["run", "natural", "pgd20", "pgd100x2"]
    assert first[0] == "●atbest checkpoint, epoch 3, averaged weights, eps 8/255"
    assert first[1:] == [
        "80.0 % 77.0 to 83.0 n = 2,000, 0.5 s",
        "41.2 % 39.0 to 43.4 n = 2,000, 1.25 s",
        "not measured",
    ]
    assert second[1:] == [
        "not measured",
        "50.0 % 47.0 to 53.0 n = 1,000, 1.25 s",
        "25.0 % 22.0 to 28.0 n = 1,000, 61 s",
    ]


def test_commands_that_make_the_figures_are_given(make_run, parse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = recipes.RECIPES["shapes-part"](seed=4, eps_low="6/255")
    page = parse(write_report([make_run("part", config=config)], tmp_path / "r.html"))
    (block,) = page.all("pre")
    lines = "".join(block.all("code")[0].children).split("\n")
    assert lines[:2] == [
        "pixelpart train shapes-part --seed 4 --eps-low 6/255 --out part",
        "pixelpart evaluate part --attacks natural,pgd20 --checkpoint best --images 1000",
    ]
    assert "pixelpart report part --out r.html" in page.all("footer")[0].text


def test_figures_on_given_tensors_have_words_instead_of_a_command(make_run, parse, tmp_path, monkeypatch, entry):
    monkeypatch.chdir(tmp_path)
    entries = [entry("pgd20"), entry("pgd20", dataset="given", split="given")]
    page = parse(write_report([make_run("part", entries=entries)], tmp_path / "r.html"))
    (commands,) = page.all("dl", "commands")
    assert commands.text.count("pixelpart evaluate") == 1
    assert "No command makes the figures on images that were given as tensors again" in commands.text
    assert "No command" not in parse(write_report([make_run("other")], tmp_path / "s.html")).text


def test_overlapping_intervals_are_said_to_separate_nothing(make_run, parse, tmp_path, entry):
    at = make_run("at", entries=[entry("natural", 0.9), entry("pgd20", 0.40)])
    part = make_run("part", entries=[entry("natural", 0.7), entry("pgd20", 0.43)])
    page = parse(write_report([at, part], tmp_path / "r.html"))
    natural, pgd = (item.text for item in page.all("ul", "comparisons")[0].all("li"))
    assert natural.startswith("natural")
    assert "do not overlap: this difference of 20.0 points" in natural
    assert "part 43.0 %, at 40.0 %" in pgd
    assert "difference of 3.0 points is within what the intervals cannot separate" in pgd
    assert "do not tell the two apart" in page.all("p", "finding")[0].text


def test_each_run_answers_for_the_same_image_and_right_or_wrong_is_in_words(make_run, parse, tmp_path):
    runs = [make_run("at"), make_run("part")]
    page = parse(write_report(runs, tmp_path / "r.html"))
    subjects = page.all("table", "subject")
    assert [table.all("caption")[0].text for table in subjects] == ["Test image 10: disc", "Test image 11: disc"]
    for table in subjects:
        assert len(table.all("img")) == 2 * 5
        assert [th.text for th in table.all("th") if th.attrs.get("scope") == "rowgroup"] == ["●at", "■part"]
        assert [span.text for span in table.all("span", "right")] == ["right: ✓ disc"] * 2
        assert [span.text for span in table.all("span", "wrong")] == ["wrong: ✗ ring"] * 2
        assert "91 %" in table.text
        assert "62 %" in table.text


def test_page_is_self_contained_and_accessible(make_run, parse, tmp_path):
    path = write_report([make_run("at"), make_run("part")], tmp_path / "r.html")
    text, page = path.read_text(), parse(path)
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?:|url\((?!#)|@import|<script|xmlns", text)
    for tag in ("img", "link", "use", "iframe", "a"):
        for node in page.all(tag):
            for value in (node.attrs.get("src"), node.attrs.get("href")):
                assert value is None or value.startswith(("data:", "#")), value
    assert all(image.attrs.get("alt") for image in page.all("img"))
    assert all(th.attrs.get("scope") for th in page.all("th"))
    assert all(table.all("caption") for table in page.all("table"))
    assert all(div.attrs.get("aria-label") for div in page.all("div") if div.attrs.get("role") == "img")
    assert len(page.all("style")) == 1  # one of matplotlib's would restyle the whole page
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    for wanted in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert wanted in ids


def test_hostile_strings_stay_text(make_run, parse, tmp_path, entry, metrics_row, explained):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=y>"
    config = Config(recipe=evil, dataset=evil, model=evil, init_from=evil, mask={"cam": evil}, epochs=3)
    run = make_run(
        "<b>&'x\"", config=config,
        metrics=[metrics_row(1, measured_on=evil, phase=evil), metrics_row(2), metrics_row(3)],
        entries=[entry(evil, 0.3, checkpoint=evil, weights=evil, dataset=evil, machine=evil, precision=evil)],
        explain=explained(classes=[evil, "b", "c"], checkpoint=evil, object={"n": 1, "object_area": 0.2}),
    )  # fmt: skip
    path = write_report([run], tmp_path / "r.html", title=evil)
    page = parse(path)
    assert not page.all("script")
    assert all(image.attrs["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert page.all("title")[0].text == page.all("h1")[0].text == evil
    assert not [node for node in page.all("b") if node.text.startswith("&")]


@pytest.mark.parametrize("missing", ["metrics", "entries", "explain", "tensors", "all"])
def test_missing_pieces_are_said_in_words(make_run, parse, tmp_path, missing):
    gone = {"metrics", "entries", "explain", "tensors"} if missing == "all" else {missing}
    page = parse(write_report([make_run("new", **dict.fromkeys(gone))], tmp_path / "r.html"))
    notes, text = page.all("ul", "notes")[0].text, page.text
    made = "`pixelpart explain RUN` makes"
    pictures = f"no explained images yet: {made} them" if "explain" in gone else f"explain.safetensors is not; {made}"
    said = {
        "metrics": ("no metrics.jsonl", "No epoch is finished yet, so there are no curves."),
        "entries": ("not evaluated yet", "No run has been evaluated yet"),
        "explain": (pictures, "there are no pictures: pixelpart explain RUN makes them"),
        "tensors": (pictures, "No run has explained images yet"),
    }
    for part in gone:
        note, words = said[part]
        assert note in notes
        assert words in text
    for part in said.keys() - gone - {"explain", "tensors"}:
        assert said[part][0] not in notes
        assert said[part][1] not in text


def test_one_run_without_pictures_is_said_beside_the_other(make_run, parse, tmp_path):
    full, bare = make_run("full"), make_run("bare", explain=None, tensors=None, metrics=None, entries=None)
    page = parse(write_report([full, bare], tmp_path / "r.html"))
    assert all("no pictures of this run yet" in table.text for table in page.all("table", "subject"))
    assert figures(page)[-1] == ["■bare", "not evaluated yet"]
    assert "(no epoch finished yet)" in page.all("ul", "legend")[0].text


def test_share_of_high_budget_on_the_object(make_run, parse, tmp_path, explained):
    on = {"n": 512, "dead": 3, "object_area": 0.2, "high_budget_on_object": 0.5, "heat_on_object": 0.6}
    part = make_run("part", explain=explained(object=on))
    at = make_run(
        "at",
        config=recipes.RECIPES["shapes-at"](epochs=3),
        explain=explained(object=on | {"high_budget_on_object": 0.2}),
    )
    first, second = (
        item.text for item in parse(write_report([part, at], tmp_path / "r.html")).all("ul", "object")[0].all("li")
    )
    assert "50.0 % of the high-budget pixels lie on the object; the object covers 20.0 % of the area" in first
    assert "2.5 times its share" in first
    assert "Left out: three images" in first
    assert "the budget is the same at all pixels" in second


def test_settings_mark_what_differs(make_run, parse, tmp_path):
    runs = [make_run(f"s{seed}", config=recipes.RECIPES["shapes-part"](seed=seed, epochs=4)) for seed in (0, 7)]
    page = parse(write_report(runs, tmp_path / "r.html"))
    marked = [row.text for row in page.all("table", "settings")[1].all("tr") if "≠" in row.text]
    assert marked == ["seed ≠7"]
    assert "eps8/255" in [row.text for row in page.all("table", "settings")[0].all("tr")]


def test_same_input_gives_the_same_bytes(make_run, tmp_path):
    run = make_run()
    first = write_report([run], tmp_path / "r.html").read_bytes()
    assert write_report([run], tmp_path / "r.html").read_bytes() == first


def test_no_run_is_the_users_mistake(make_run, tmp_path):
    (tmp_path / "stray").mkdir()
    out = tmp_path / "r.html"
    for folders, named in (([], "at least one"), ([tmp_path / "stray"], "stray"), ([tmp_path / "nowhere"], "nowhere")):
        with pytest.raises(UserError, match=named):
            write_report(folders, out)
    with pytest.raises(UserError, match="folder"):
        write_report([make_run()], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_report([tmp_path / "part"], tmp_path / "file" / "r.html")
    assert not out.exists()


def test_a_failed_report_leaves_the_old_page(make_run, tmp_path):
    run, out = make_run(), tmp_path / "r.html"
    write_report([run], out)
    old = out.read_bytes()
    (run / "config.json").write_text(json.dumps({"epochs": "many"}))
    with pytest.raises(UserError, match="epochs"):
        write_report([run], out)
    assert out.read_bytes() == old


def test_three_channel_budgets_and_many_runs(make_run, parse, tmp_path, arrays):
    runs = [make_run(f"r{k}", tensors=arrays(channels=3)) for k in range(9)]
    page = parse(write_report(runs, tmp_path / "r.html"))
    assert "mean over the colour channels" in page.text
    assert len(page.all("ul", "comparisons")[0].all("li")) == 2 * 8
