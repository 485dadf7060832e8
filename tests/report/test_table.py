"""What is read of a run folder, and which results share a row."""

from pixelpart.evaluation.store import with_checksum
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
    assert run.notes == ["eval.json: 1 older result with the same settings not shown"]


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


def test_other_seeds_and_numbers_of_images_have_their_own_rows(make_run, entry):
    run = read(make_run(entries=[
        entry("pgd20"), entry("apgd-l1", eps=12.0, settings=L1, n=64), entry("pgd20@16/255", eps=16 / 255, seed=1),
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
