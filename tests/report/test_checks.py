"""Warnings, the verdicts of check, and corruptions on the page."""

import json

import numpy as np
import pytest

from pixelpart.evaluation.store import fingerprint, with_checksum

CHECK = {
    "schema_version": 1, "verdict": "suspicious", "checkpoint": "best", "epoch": 3, "eps": 8 / 255, "n": 500,
    "behaviours": [
        {"name": "one step", "found": "80 % after one, 40 % after 20", "rule": "r", "verdict": "as expected"},
        {"name": "unbounded", "found": "12 % left at eps 1", "rule": "r", "verdict": "suspicious"},
    ],
    "warnings": ["<b>two</b> passes differ"],
}  # fmt: skip


def section(found):
    sections = [node for node in found.all("section") if node.attrs["id"] == "checks"]
    return sections[0] if sections else None


def test_result_with_a_warning_has_a_star(make_run, page, entry):
    warning = "Square, which needs no gradient, broke 9 of 1000 images"
    found = page(make_run(entries=[entry("natural", 0.71), entry("autoattack", 0.43, warnings=[warning])]))
    assert ["*" in cell.text for cell in found.all("td", "result")] == [False, True]
    (shown,) = found.all("ul", "warnings")
    assert shown.text.strip() == f"{warning} (part, autoattack)"
    assert not page(make_run("other")).all("ul", "warnings")


def test_verdicts_of_check_are_shown(make_run, page):
    folder = make_run()
    (folder / "check.json").write_text(json.dumps(CHECK))
    shown = section(page(folder))
    rows = [[cell.text.strip() for cell in row.children if hasattr(cell, "tag")] for row in shown.all("tr")]
    assert rows[1:] == [[b["name"], b["verdict"], b["found"]] for b in CHECK["behaviours"]]
    assert shown.all("h3")[0].text.split()[-1] == "suspicious"
    assert shown.all("ul", "warnings")[0].text.strip() == CHECK["warnings"][0]


def test_interval_of_corruptions_treats_the_versions_of_an_image_as_one_sample(make_run, page, entry):
    folder, n = make_run(), 400
    always, half = np.arange(n) < 200, np.arange(n) % 2 == 0
    versions = {("clean", 0): np.ones(n, bool), ("fog", 1): always, ("fog", 5): always, ("snow", 5): half & always}
    entries = []
    (folder / "eval").mkdir()
    for number, ((name, severity), right) in enumerate(versions.items()):
        key, correct = f"{number:032x}", int(right.sum())
        np.save(folder / "eval" / f"{key}.npy", right)
        settings = {"corruption": name, "severity": severity, "source": "generated"}
        facts = {"n": n, "correct": correct, "settings": settings, "key": key, "fingerprint": fingerprint(right)}
        entries.append(entry(f"{name}-{severity}", correct / n, **facts))
    (folder / "corruptions.json").write_text(json.dumps({"schema_version": 1, "entries": entries}))
    clean, mean, lowest = (cell.text.strip() for cell in section(page(folder)).all("td"))
    # 100 images are always right, 100 in two of three versions: variance 0.1875, z²/n = 0.009604,
    # (0.416667 + 0.004802 ± sqrt(0.009604 (0.1875 + 0.002401))) / 1.009604
    assert (clean, mean, lowest) == ("100.00 %", "41.67 % 37.52 to 45.98", "snow 25.00 %")
    (folder / "eval" / f"{1:032x}.npy").unlink()
    shown = section(page(folder))
    assert shown.all("td")[1].text.strip() == "41.67 %"  # no interval without all flags
    assert "2 corruptions at severity 1, 5, generated" in shown.text


@pytest.mark.parametrize("name", ["check.json", "corruptions.json", "eval.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 9}', '{"schema_version": 1, "entries": [{}]}'])
def test_unusable_file_becomes_a_note(make_run, page, name, content):
    folder = make_run()
    (folder / name).write_text(content)
    assert name in page(folder).all("ul", "notes")[0].text


def test_content_with_a_checksum_mismatch_is_not_shown(make_run, page, entry):
    folder = make_run()
    (folder / "check.json").write_text(json.dumps(with_checksum(CHECK) | {"verdict": "as expected"}))
    settings = {"corruption": "fog", "severity": 1, "source": "generated"}
    changed = with_checksum(entry("fog-1", 0.4, settings=settings)) | {"accuracy": 0.8}
    (folder / "corruptions.json").write_text(json.dumps({"schema_version": 1, "entries": [changed]}))
    found = page(folder)
    assert "check.json is not shown: checksum mismatch" in found.all("ul", "notes")[0].text
    assert section(found) is None
