"""What the page reads of a run folder."""

from pixelpart.evaluation.store import sealed
from pixelpart.report.run import read_runs


def read(folder):
    (run,) = read_runs([folder])
    return run


def test_notes_say_what_is_missing(make_run, metrics_row):
    assert read(make_run("finished")).notes == []
    assert read(make_run("short", metrics=[metrics_row(1)])).notes == ["unfinished: 1 of 3 epochs are done"]
    assert read(make_run("new", metrics=None, entries=None)).notes == [
        "unfinished: 0 of 3 epochs are done",
        "not evaluated yet: run `pixelpart evaluate RUN`",
    ]


def test_bad_entries_are_left_out_and_good_ones_kept(make_run, entry):
    good = sealed(entry())
    run = read(make_run(entries=[good, entry(accuracy=1.7), {"attack": "pgd7"}, good | {"accuracy": 0.53}]))
    assert [m.accuracy for m in run.measurements] == [0.43]
    assert len(run.notes) == 2
    assert "accuracy" in run.notes[0]


def test_labels_are_the_shortest_endings_that_differ(make_run):
    folders = [make_run("a/part"), make_run("b/part"), make_run("a/at")]
    assert [run.label for run in read_runs([*folders, folders[0]])] == ["a/part", "b/part", "at"]
