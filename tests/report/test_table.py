"""What is read of a run folder, which results share a row, the verdicts of check, and corruptions on the page."""

import json

import numpy as np
import pytest

from pixelpart.evaluation.store import fingerprint, with_checksum
from pixelpart.report.run import read_runs
from pixelpart.report.table import columns, result_rows

L1 = {"search": "fp32", "norm": "l1"}


def read(folder):
    (run,) = read_runs([folder])
    return run


def table(run):
    return [(row.first.checkpoint, row.first.epoch, row.eps, sorted(row.cells)) for row in result_rows(run)]


def test_notes_say_what_is_missing(make_run, metrics_row, tmp_path):
    assert read(make_run("finished")).notes == []
    notes = read(make_run("corrupt", metrics=[metrics_row(1), metrics_row(2, natural=9.07), metrics_row(3)])).notes
    assert notes[0].startswith("metrics.jsonl: line 2 is corrupt (natural: Input should be less than or equal to 1")
    assert notes[1:] == ["metrics.jsonl: epochs without a row: 2; curves and times are without it"]
    assert read(make_run("short", metrics=[metrics_row(1)])).notes == ["unfinished: 1 of 3 epochs are done"]
    assert read(make_run("new", metrics=None, entries=None)).notes == [
        "unfinished: 0 of 3 epochs are done",
        f"not evaluated yet: run `pixelpart evaluate {tmp_path / 'new'}`",
    ]


def test_bad_entries_are_left_out_and_good_ones_kept(make_run, entry):
    good = with_checksum(entry())
    run = read(make_run(entries=[good, entry(accuracy=1.7), {"attack": "pgd7"}, good | {"accuracy": 0.53}]))
    assert [m.accuracy for m in run.measurements] == [0.43]
    assert len(run.notes) == 3
    assert "accuracy" in run.notes[0]
    assert run.notes[2] == "eval.json: an entry is left out (checksum mismatch)"


def test_labels_are_the_shortest_endings_that_differ(make_run):
    folders = [make_run("a/part"), make_run("b/part"), make_run("a/at")]
    assert [run.label for run in read_runs([*folders, folders[0]])] == ["a/part", "b/part", "at"]


def test_natural_joins_the_attacked_rows_of_the_same_weights(make_run, entry):
    run = read(make_run(entries=[entry("pgd20", seed=5), entry("pgd20", eps=4 / 255), entry("natural", eps=0.0)]))
    assert table(run) == [
        ("best", 3, "eps 8/255", ["natural", "pgd20"]),
        ("best", 3, "eps 4/255", ["natural", "pgd20"]),
    ]
    assert columns([run]) == ["natural", "pgd20"]


def test_checkpoints_have_their_own_rows_and_an_earlier_one_has_a_remark(make_run, entry):
    last = {"checkpoint": "last"}
    run = read(make_run(entries=[entry(), entry(**last, epoch=2), entry("natural", **last, epoch=3, weights="raw")]))
    rows = result_rows(run)
    assert [(row.first.checkpoint, row.first.epoch, row.eps) for row in rows] == [
        ("best", 3, "eps 8/255"), ("last", 2, "eps 8/255"), ("last", 3, "no attack"),
    ]  # fmt: skip
    assert [bool(row.remarks) for row in rows] == [False, True, False]


def test_natural_result_on_the_same_number_of_images_is_used(make_run, entry):
    run = read(make_run(entries=[entry("natural", 0.5, n=64), entry("natural", 0.8, n=2000), entry("pgd20", n=64)]))
    (row,) = result_rows(run)
    assert row.cells["natural"].accuracy == 0.5


def test_newer_result_with_the_same_settings_replaces_the_older(make_run, entry):
    run = read(make_run(entries=[entry(accuracy=0.1), entry(accuracy=0.2)]))
    (row,) = result_rows(run)
    assert row.cells["pgd20"].accuracy == 0.2
    assert run.notes == ["eval.json: 1 result not shown: older, or on fewer images, than another"]


def test_attacks_on_different_numbers_of_images_share_a_row_and_the_most_images_count(make_run, entry):
    entries = [entry("natural", n=300), entry("pgd20", 0.4, n=300), entry("pgd20", 0.9, n=50)]
    (row,) = result_rows(read(make_run(entries=[*entries, entry("autoattack", settings={"search": "fp32"}, n=200)])))
    assert {name: m.n for name, m in row.cells.items()} == {"natural": 300, "pgd20": 300, "autoattack": 200}
    assert row.cells["pgd20"].accuracy == 0.4


def test_attacks_with_their_own_eps_or_without_step_size_join_the_rows(make_run, entry):
    run = read(make_run(entries=[
        entry("apgd-l1", eps=12.0, settings=L1), entry("pgd20@16/255", eps=16 / 255), entry("natural"),
        entry("autoattack", settings={"search": "fp32"}), entry("pgd20"), entry("pgd20", eps=4 / 255),
        entry("pgd20", checkpoint="last"),
    ]))  # fmt: skip
    shared = ["apgd-l1", "natural", "pgd20", "pgd20@16/255"]
    assert table(run) == [
        ("best", 3, "eps 8/255", sorted([*shared, "autoattack"])),
        ("best", 3, "eps 4/255", shared),
        ("last", 3, "eps 8/255", ["pgd20"]),
    ]


def test_other_seeds_have_their_own_rows(make_run, entry):
    run = read(make_run(entries=[
        entry("pgd20"), entry("apgd-l1", eps=12.0, settings=L1, seed=2), entry("pgd20@16/255", eps=16 / 255, seed=1),
    ]))  # fmt: skip
    assert table(run) == [
        ("best", 3, "eps 8/255", ["pgd20"]),
        ("best", 3, "eps 16/255", ["pgd20@16/255"]),
        ("best", 3, "l1 eps 12", ["apgd-l1"]),
    ]


def test_engines_and_precisions_have_their_own_columns_and_commands(make_run, entry, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = [entry("autoattack", n=2000, settings={"engine": name}) for name in ("own", "reference")]
    pgd = entry("pgd20", n=2000)
    bf16 = entry("pgd20", n=2000, settings=pgd["settings"] | {"search": "bf16"})
    folder = make_run("two", entries=[entry("natural", n=2000), pgd, bf16, *engines])
    run = read(folder)
    (row,) = result_rows(run)
    assert list(row.cells) == ["pgd20", "pgd20, bf16", "autoattack", "autoattack, reference", "natural"]
    assert run.notes == []
    commands = page(folder).all("dl", "commands")[0].text
    assert "--attacks natural,pgd20,autoattack --checkpoint best pixelpart" in commands
    assert "--attacks autoattack --checkpoint best --engine reference" in commands
    assert "--attacks pgd20 --checkpoint best --search bf16" in commands


def test_row_says_if_its_images_are_not_of_the_runs_data_set(make_run, entry):
    sets = ("shapes", "cifar10", "given")
    rows = result_rows(read(make_run(entries=[entry(dataset=name) for name in sets])))
    assert [row.remarks for row in rows] == [[], ["test images of cifar10"], ["images passed as tensors"]]


# -- corruptions and checks

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


@pytest.mark.parametrize(("accuracy", "end"), [(0.42, "is 42.00%"), (0.0, "is 0.00%, which is no robustness")])
def test_a_check_that_found_nothing_is_shown_with_accuracy_under_pgd_and_is_not_green(make_run, page, accuracy, end):
    one_step = CHECK["behaviours"][0] | {"numbers": {"pgd20": accuracy}}
    folder = make_run()
    (folder / "check.json").write_text(json.dumps(CHECK | {"verdict": "as expected", "behaviours": [one_step]}))
    head = section(page(folder)).all("h3")[0]
    assert head.text.endswith(f"no sign of hidden gradients; accuracy under PGD-20 at 8/255 {end}")
    assert not head.all("span", "right")


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
