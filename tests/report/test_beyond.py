"""Warnings, check's verdicts and corruptions stand on the page as the files have them."""

import json

import numpy as np
import pytest

from pixelpart.evaluation.store import fingerprint, sealed
from pixelpart.report import write_report

CHECK = {
    "schema_version": 1, "verdict": "suspicious", "checkpoint": "best", "epoch": 3, "eps": 8 / 255, "n": 500,
    "behaviours": [
        {"name": "one step", "found": "80 % after one, 40 % after 20", "rule": "r", "verdict": "as expected"},
        {"name": "unbounded", "found": "12 % left at eps 1", "rule": "r", "verdict": "suspicious"},
    ],
    "warnings": ["<b>two</b> passes differ"],
}  # fmt: skip


@pytest.fixture
def corrupt(entry):
    """Writes a corruptions.json with the flags of each version, and the clean ones."""

    def write(folder, versions):
        entries = []
        (folder / "eval").mkdir(exist_ok=True)
        for number, ((name, severity), right) in enumerate(versions.items()):
            key = f"{number:032x}"
            np.save(folder / "eval" / f"{key}.npy", right)
            settings = {"corruption": name, "severity": severity, "source": "generated"}
            share = int(right.sum()) / len(right)
            facts = {"n": len(right), "settings": settings, "key": key, "fingerprint": fingerprint(right)}
            entries.append(entry(f"{name}-{severity}", share, correct=int(right.sum()), **facts))
        (folder / "corruptions.json").write_text(json.dumps({"schema_version": 1, "entries": entries}))

    return write


def page(parse, tmp_path, *folders):
    return parse(write_report(list(folders), tmp_path / "report.html"))


def test_a_doubted_figure_has_a_star_and_the_doubt_below(make_run, parse, tmp_path, entry):
    warning = "Square, which needs no gradient, broke 9 of 1000 images"
    folder = make_run(entries=[entry("natural", 0.71), entry("autoattack", 0.43, warnings=[warning])])
    found = page(parse, tmp_path, folder)
    cells = [cell.text for cell in found.all("td", "figure")]
    assert ["*" in cell for cell in cells] == [False, True]
    (told,) = found.all("ul", "warnings")
    assert told.text.strip() == f"{warning} (part, autoattack)"
    assert not page(parse, tmp_path, make_run("other")).all("ul", "warnings")


def test_verdicts_of_check_are_shown_as_text(make_run, parse, tmp_path):
    folder = make_run()
    (folder / "check.json").write_text(json.dumps(CHECK))
    found = page(parse, tmp_path, folder)
    (section,) = [one for one in found.all("section") if one.attrs["id"] == "beyond"]
    rows = [[cell.text.strip() for cell in row.children if hasattr(cell, "tag")] for row in section.all("tr")]
    assert rows[1:] == [[one["name"], one["verdict"], one["found"]] for one in CHECK["behaviours"]]
    assert section.all("h3")[0].text.split()[-1] == "suspicious"
    assert section.all("ul", "warnings")[0].text.strip() == CHECK["warnings"][0]


def test_the_mean_of_corruptions_is_that_of_all_versions_with_images_as_draws(make_run, parse, tmp_path, corrupt):
    folder, n = make_run(), 400
    always, half = np.arange(n) < 200, np.arange(n) % 2 == 0
    corrupt(
        folder, {("clean", 0): np.ones(n, bool), ("fog", 1): always, ("fog", 5): always, ("snow", 5): half & always}
    )
    found = page(parse, tmp_path, folder)
    (section,) = [one for one in found.all("section") if one.attrs["id"] == "beyond"]
    clean, mean, lowest = (cell.text for cell in section.all("td"))
    shares = np.stack([always, always, half & always]).mean(0)
    reach = 1.96 * shares.std(ddof=1) / n**0.5
    assert clean.strip() == "100.0 %"
    assert mean.strip() == f"41.7 % {100 * (shares.mean() - reach):.1f} to {100 * (shares.mean() + reach):.1f}"
    assert lowest.strip() == "snow 25.0 %"
    assert "two corruptions at severity 1, 5, generated" in section.text
    (folder / "eval" / f"{1:032x}.npy").unlink()
    mean = page(parse, tmp_path, folder).all("section")[1].all("td")[1].text
    assert mean.strip() == "41.7 %"  # without the flags there is no interval


@pytest.mark.parametrize("name", ["check.json", "corruptions.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 9}', '{"schema_version": 1, "entries": [{}]}'])
def test_a_file_that_cannot_be_used_is_a_note(make_run, parse, tmp_path, name, content):
    folder = make_run()
    (folder / name).write_text(content)
    assert name in page(parse, tmp_path, folder).all("ul", "notes")[0].text


def test_a_damaged_verdict_or_corruption_is_not_shown(make_run, parse, tmp_path, entry):
    folder = make_run()
    (folder / "check.json").write_text(json.dumps(sealed(CHECK) | {"verdict": "as expected"}))
    settings = {"corruption": "fog", "severity": 1, "source": "generated"}
    spoilt = sealed(entry("fog-1", 0.4, settings=settings)) | {"accuracy": 0.8}
    (folder / "corruptions.json").write_text(json.dumps({"schema_version": 1, "entries": [spoilt]}))
    found = page(parse, tmp_path, folder)
    told = found.all("ul", "notes")[0].text
    assert "check.json is damaged" in told
    assert "corruptions.json: the entry of fog-1 is damaged" in told
    assert not [one for one in found.all("section") if one.attrs["id"] == "beyond"]
