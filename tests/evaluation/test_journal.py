"""What is read back is what was written, or less: never more and never something else."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.errors import UserError
from pixelpart.evaluation import journal as module
from pixelpart.evaluation.journal import Journal

ASKED, PROBE = "0f" * 32, [1.5, -2.25, 3e-05]
RECORDS = {
    (0, 0, 0): True,
    (0, 1, 0): False,
    (0, 10, 0): False,
    (1, 1, 3): True,
    (3, 9999, 44): False,
}


def write(path, records=RECORDS, *, asked=ASKED, probe=PROBE):
    with Journal(path, asked=asked, probe=probe) as journal:
        for (part, sample, number), broken in records.items():
            journal.settle(part, sample, number, broken)
    return path


def read(path, *, asked=ASKED, probe=PROBE):
    """What a later session knows, without leaving a trace in the file."""
    content = path.read_bytes()
    with Journal(path, asked=asked, probe=probe) as journal:
        found, seconds = dict(journal.done), journal.seconds
    path.write_bytes(content)
    return found, seconds


@pytest.fixture
def path(tmp_path):
    return tmp_path / "eval" / f"{ASKED[:32]}.journal"


def test_what_is_settled_is_known_to_the_next_session(path):
    write(path)
    with Journal(path, asked=ASKED, probe=PROBE) as journal:
        assert journal.done == RECORDS
        assert journal.broken(0) == {0}
        assert journal.broken(1) == {1}
        assert journal.broken(2) == set()
        journal.settle(2, 5, 0, True)
        assert journal.broken(2) == {5}
    assert read(path)[0] == RECORDS | {(2, 5, 0): True}


def test_without_a_path_nothing_is_kept_and_all_is_known_meanwhile():
    with Journal() as journal:
        journal.settle(0, 1, 2, True)
        assert journal.broken(0) == {1}
        assert journal.note_time() >= 0
        journal.discard()


def test_what_is_settled_is_in_the_file_at_once(path):
    """Nothing waits in a buffer for a process to end well."""
    with Journal(path, asked=ASKED, probe=PROBE) as journal:
        for count, (part, sample, number) in enumerate(RECORDS, start=1):
            journal.settle(part, sample, number, False)
            assert len(read(path)[0]) == count


def test_a_killed_process_leaves_what_it_had_settled(path):
    code = (
        "import os, signal, sys; from pathlib import Path; from pixelpart.evaluation.journal import Journal\n"
        f"journal = Journal(Path(sys.argv[1]), asked={ASKED!r}, probe={PROBE!r})\n"
        "for n in range(7): journal.settle(0, n, 0, n % 2 == 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert read(path)[0] == {(0, n, 0): n % 2 == 0 for n in range(7)}


def test_cut_off_at_any_byte_it_tells_the_records_before_the_cut(path):
    whole = write(path).read_bytes()
    head = whole.index(b"\n")
    ends = [i for i in range(len(whole)) if whole[i : i + 1] == b"\n"]  # a record is whole without its newline
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found, _ = read(path)
        complete = sum(end <= cut for end in ends[1:])
        assert list(found.items()) == list(RECORDS.items())[: complete if cut >= head else 0]


def test_what_is_settled_after_a_cut_is_not_lost_with_the_torn_line(path):
    whole = write(path).read_bytes()
    for cut in range(whole.index(b"\n"), len(whole)):
        path.write_bytes(whole[:cut])
        before, _ = read(path)
        with Journal(path, asked=ASKED, probe=PROBE) as journal:
            journal.settle(7, 7, 7, True)
        assert read(path)[0] == before | {(7, 7, 7): True}


@pytest.mark.parametrize("change", [0x01, 0x80, 0x20, 0x0A, 0xFF])
def test_a_flipped_byte_loses_records_and_makes_none(path, change):
    whole = write(path).read_bytes()
    head = whole.index(b"\n")
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= change
        path.write_bytes(bytes(damaged))
        found, _ = read(path)
        assert found.items() <= RECORDS.items()
        if place > head:
            assert len(found) >= len(RECORDS) - 2  # a newline joins two lines


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_any_byte_in_any_place_makes_no_record(tmp_path_factory, place, value):
    path = write(tmp_path_factory.mktemp("any") / "a.journal")
    damaged = bytearray(path.read_bytes())
    damaged[place % len(damaged)] = value
    path.write_bytes(bytes(damaged))
    found, seconds = read(path)
    assert found.items() <= RECORDS.items()
    assert 0 <= seconds < 5


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_what_is_no_journal_is_written_over(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("odd") / "a.journal"
    path.write_bytes(content)
    assert read(path)[0] == {}
    write(path)
    assert read(path)[0] == RECORDS


@pytest.mark.parametrize(
    "head",
    [
        "[]",
        "null",
        "3",
        '"asked"',
        "{}",
        json.dumps({"asked": ASKED}),
        json.dumps({"asked": ASKED, "probe": None}),
        json.dumps({"asked": ASKED, "probe": ["a", "b", "c"]}),
        json.dumps({"asked": ASKED, "probe": [[1.5], -2.25, 3e-05]}),
        json.dumps({"asked": ASKED, "probe": [float("nan"), -2.25, 3e-05]}),
        json.dumps({"asked": ASKED, "probe": [10**400, -2.25, 3e-05]}),
        json.dumps({"asked": ASKED, "probe": dict.fromkeys("abc", 1.0)}),
        "[" * 100_000,
    ],
)
def test_an_odd_first_line_makes_a_file_nobodys(path, head):
    _, rest = write(path).read_text().split("\n", 1)
    path.write_text(f"{head}\n{rest}")
    assert read(path) == ({}, 0)


@pytest.mark.parametrize(
    "other",
    [{"asked": "1f" + ASKED[2:]}, {"probe": [1.5, -2.25, 1.0]}, {"probe": [1.5, -2.25]}, {"probe": []}, {"asked": ""}],
)
def test_another_questions_or_models_journal_is_not_used(path, other):
    write(path)
    assert read(path, **other) == ({}, 0)
    assert read(path)[0] == RECORDS


def test_one_model_on_another_machine_goes_on(path):
    """The last bits of the logits differ there."""
    write(path)
    near = [value * (1 + 1e-6) for value in PROBE]
    assert read(path, probe=near)[0] == RECORDS
    write(path, {(9, 9, 9): True}, probe=near)
    assert read(path)[0] == RECORDS | {(9, 9, 9): True}


def test_lines_of_another_journal_are_not_believed(path, tmp_path):
    """Another model's process may still write to the file that this one's has taken over."""
    other = write(tmp_path / "other" / path.name, probe=[2.0, 2.0, 2.0])
    write(path, {(0, 0, 0): False})
    with path.open("ab") as file:
        file.write(b"".join(other.read_bytes().splitlines(keepends=True)[1:]))
    assert read(path)[0] == {(0, 0, 0): False}


def test_two_models_that_write_to_one_file_at_once_keep_their_own(path):
    first = Journal(path, asked=ASKED, probe=[2.0, 2.0, 2.0])
    first.settle(0, 1, 0, True)
    with Journal(path, asked=ASKED, probe=PROBE) as second:
        assert second.done == {}
        second.settle(0, 2, 0, False)
        first.settle(0, 3, 0, True)
    first.__exit__(None, None, None)
    assert read(path)[0] == {(0, 2, 0): False}


# -- seconds


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when told to."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_seconds_add_up_over_sessions(path, clock):
    for total in (7.0, 14.0, 21.0):
        with Journal(path, asked=ASKED, probe=PROBE) as journal:
            clock.now += 3
            assert journal.note_time() == pytest.approx(total - 4)
            clock.now += 4
        clock.now += 1000  # between sessions
        assert read(path)[1] == pytest.approx(total)


def test_asking_for_the_seconds_twice_counts_none_twice(path, clock):
    with Journal(path, asked=ASKED, probe=PROBE) as journal:
        clock.now += 2
        assert journal.note_time() == journal.note_time() == pytest.approx(2)


def test_a_killed_session_has_its_seconds_counted_but_for_the_last_few(path, clock):
    journal = Journal(path, asked=ASKED, probe=PROBE)
    for n in range(100):
        clock.now += 1
        journal.settle(0, n, 0, False)
    assert 100 - module.NOTE_AFTER - 1 <= read(path)[1] <= 100
    assert path.read_text().count("\n") < 115  # and there is not a line of them for every sample


# -- the file


def test_a_discarded_journal_is_gone_and_so_are_those_of_the_same_question(path):
    others = [path.with_name(f"{ASKED[:32]}.{rank}-of-2.journal") for rank in range(2)]
    stranger = path.with_name(f"{'ab' * 16}.journal")
    for one in (path, *others, stranger):
        write(one)
    with Journal(path, asked=ASKED, probe=PROBE) as journal:
        journal.discard()
    assert list(path.parent.iterdir()) == [stranger]


def test_an_answer_makes_journals_of_older_versions_moot(path):
    """The hash of all that an outcome depends on is another after a change of the code; the question is not."""
    older, stranger = path.with_name(f"{'cd' * 16}.journal"), path.with_name(f"{'ab' * 16}.journal")
    for one, question in ((older, "same"), (stranger, "another")):
        Journal(one, asked=one.stem, probe=PROBE, question=question).__exit__(None, None, None)
    for broken in ("", "[]", "\x00"):
        path.with_name(f"{len(broken)}.journal").write_text(broken)
    with Journal(path, asked=ASKED, probe=PROBE, question="same") as journal:
        journal.discard()
    assert sorted(path.parent.iterdir()) == sorted([stranger, *(path.with_name(f"{n}.journal") for n in (0, 1, 2))])


def test_every_process_of_a_world_knows_what_all_have_settled(path):
    files = [path.with_name(f"{ASKED[:32]}.{rank}-of-3.journal") for rank in range(3)]
    for rank, file in enumerate(files):
        write(file, {(0, rank, 0): rank == 1})
    everything = {(0, rank, 0): rank == 1 for rank in range(3)}
    for file in (*files, path, path.with_name(f"{ASKED[:32]}.0-of-2.journal")):
        with Journal(file, asked=ASKED, probe=PROBE) as journal:
            assert journal.done == everything
    for file in files:
        assert file.read_text().count("\n") < 8  # each still has its own lines alone


def test_a_folder_that_cannot_be_written_to_is_a_users_mistake(tmp_path):
    (tmp_path / "eval").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write results to .*eval: "):
        Journal(tmp_path / "eval" / "a.journal", asked=ASKED, probe=PROBE)
    (tmp_path / "other" / "a.journal").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write results to .*other: Is a directory"):
        Journal(tmp_path / "other" / "a.journal", asked=ASKED, probe=PROBE)


def test_no_file_is_left_open(path):
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        write(path)
        with pytest.raises(ZeroDivisionError), Journal(path, asked=ASKED, probe=PROBE):
            _ = 1 / 0
        with Journal(path, asked=ASKED, probe=PROBE) as journal:
            journal.discard()
    assert len(os.listdir("/dev/fd")) == before


def test_after_an_exception_what_was_settled_is_known(path):
    def stopped():
        with Journal(path, asked=ASKED, probe=PROBE) as journal:
            journal.settle(0, 4, 0, True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert read(path)[0] == {(0, 4, 0): True}


@settings(max_examples=50)
@given(
    st.dictionaries(st.tuples(*[st.integers(0, 10**6)] * 3), st.booleans(), max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_any_number_of_sessions_write_what_one_would(tmp_path_factory, records, stops):
    path = tmp_path_factory.mktemp("many") / "a.journal"
    bounds = [0, *sorted(stops), len(records)]
    items = list(records.items())
    for begin, end in itertools.pairwise(bounds):
        write(path, dict(items[begin:end]))
    assert read(path)[0] == records
