import json
import math

import numpy as np
from safetensors.numpy import save_file

from pixelpart.evaluation.store import sealed
from pixelpart.report.reading import number, read_run, read_runs


def test_a_torn_metrics_line_is_left_out_with_a_note(make_run):
    folder = make_run()
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole + '{"epoch": 4, "lo')
    run = read_run(folder)
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3]
    assert run.notes == ["metrics.jsonl: 1 line could not be read and left out"]


def test_lines_that_are_no_rows_are_left_out(make_run, metrics_row):
    folder = make_run()
    (folder / "metrics.jsonl").write_bytes(
        b'[]\n{"loss": 1}\n\xff\n\n{"epoch": "x"}\n' + json.dumps(metrics_row(3)).encode()
    )
    run = read_run(folder)
    assert [row["epoch"] for row in run.metrics] == [3]
    assert "4 lines" in run.notes[0]


def test_an_epoch_written_twice_counts_once_the_later(make_run, metrics_row):
    run = read_run(
        make_run(metrics=[metrics_row(2), metrics_row(1, loss=5.0), metrics_row(1, loss=1.0), metrics_row(3)])
    )
    assert [(row["epoch"], row["loss"]) for row in run.metrics] == [(1, 1.0), (2, 1.0), (3, 2 / 3)]


def test_an_unfinished_run_says_how_far_it_is(make_run, metrics_row):
    assert read_run(make_run(metrics=[metrics_row(1)])).notes == ["unfinished: 1 of 3 epochs are done"]


def test_a_finished_run_has_no_notes(make_run):
    assert read_run(make_run()).notes == []


def test_bad_entries_are_left_out_by_name_and_good_ones_kept(make_run, entry):
    run = read_run(make_run(entries=[entry(), entry(accuracy=1.7), {"attack": "pgd7"}, "stray"]))
    assert [e.accuracy for e in run.entries] == [0.43]
    assert len(run.notes) == 3
    assert "accuracy" in run.notes[0]


def test_a_damaged_entry_is_left_out_by_name(make_run, entry):
    sound = sealed(entry())
    run = read_run(make_run(entries=[sound, sound | {"attack": "mma20", "accuracy": 0.53}]))
    assert [e.accuracy for e in run.entries] == [0.43]
    assert run.notes == ["eval.json: the entry of mma20 is damaged and left out; evaluate it again"]


def test_unreadable_files_are_notes(make_run):
    folder = make_run()
    (folder / "eval.json").write_text("{")
    (folder / "explain.safetensors").write_bytes(b"nothing")
    run = read_run(folder)
    assert run.entries == []
    assert run.arrays == {}
    assert [note.split(" cannot")[0] for note in run.notes] == ["eval.json", "no pictures: explain.safetensors"]


def test_files_of_another_schema_are_notes(make_run, entry, explained):
    folder = make_run(explain=explained(schema_version=9))
    (folder / "eval.json").write_text(json.dumps({"schema_version": 2, "entries": [entry()]}))
    run = read_run(folder)
    assert (run.entries, run.explained) == ([], None)
    assert all("schema" in note for note in run.notes)


def test_arrays_that_do_not_fit_are_notes(make_run, arrays):
    good = arrays()
    wrong = [
        good | {"heat": good["heat"][:1]},
        good | {"budget": good["budget"].repeat(2, 1)},
        {name: array for name, array in good.items() if name != "heat"},
        good | {"picture": np.full_like(good["picture"], np.nan)},
    ]
    for k, tensors in enumerate(wrong):
        folder = make_run(f"r{k}", tensors=None)
        save_file(
            {name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "explain.safetensors"
        )
        run = read_run(folder)
        assert run.arrays == {}
        assert run.notes[0].startswith("no pictures")


def test_class_numbers_without_a_name_are_a_note(make_run, explained):
    run = read_run(make_run(explain=explained(classes=["disc"])))
    assert run.explained is None
    assert "a class number has no name" in run.notes[0]


def test_labels_are_the_shortest_ends_that_differ(make_run):
    folders = [make_run("a/part"), make_run("b/part"), make_run("a/at")]
    assert [run.label for run in read_runs([*folders, folders[0]])] == ["a/part", "b/part", "at"]


def test_number_is_nan_where_there_is_none():
    assert number({"a": 2}, "a") == 2.0
    assert all(math.isnan(number(row, "a")) for row in ({}, {"a": None}, {"a": "x"}, {"a": True}, {"a": math.nan}))
