"""Tries read back from disk are those that were written, or fewer: a corrupt file never adds one."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.attacks.batching import Try
from pixelpart.errors import UserError
from pixelpart.evaluation import partial as module
from pixelpart.evaluation.partial import PartialResult, agree

DIGEST, PROBE = "0f" * 16, [1.5, -2.25, 3e-05]
TRIES = {
    Try("apgd-ce", 0, 0): True,
    Try("apgd-ce", 1, 0): False,
    Try("apgd-ce", 10, 0): False,
    Try("apgd-t", 1, 3): True,
    Try("square", 9999, 44): False,
}


def write(path, tries=TRIES, *, digest=DIGEST, probe=PROBE):
    with PartialResult(path, digest=digest, probe=probe) as partial:
        for one, broken in tries.items():
            partial.add(one, broken)
    return path


def read(path, *, digest=DIGEST, probe=PROBE):
    """The tries that a later session knows; the file is left as it was."""
    content = path.read_bytes()
    with PartialResult(path, digest=digest, probe=probe) as partial:
        found = dict(partial.settled)
    path.write_bytes(content)
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "eval" / f"{DIGEST}.partial"


def test_the_next_session_knows_what_was_settled(path):
    write(path)
    write(path, {Try("fab-t", 5, 0): True})
    assert read(path) == TRIES | {Try("fab-t", 5, 0): True}


def test_without_a_path_tries_are_kept_in_memory_only():
    with PartialResult() as partial:
        partial.add(Try("pgd", 1, 2), True)
        assert partial.settled == {Try("pgd", 1, 2): True}
        assert partial.write_seconds() >= 0
        partial.discard()


def test_a_killed_process_leaves_every_try_that_it_added(path):
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from pixelpart.attacks.batching import Try; from pixelpart.evaluation.partial import PartialResult\n"
        f"partial = PartialResult(Path(sys.argv[1]), digest={DIGEST!r}, probe={PROBE!r})\n"
        "for n in range(7): partial.add(Try('pgd', n, 0), n % 2 == 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert read(path) == {Try("pgd", n, 0): n % 2 == 0 for n in range(7)}


def test_a_file_cut_at_any_byte_gives_the_tries_before_the_cut_and_can_be_continued(path):
    content = write(path).read_bytes()
    head = content.index(b"\n")
    ends = [i for i in range(len(content)) if content[i : i + 1] == b"\n"]
    for cut in [*range(0, len(content), 3), len(content)]:
        path.write_bytes(content[:cut])
        complete = sum(end <= cut for end in ends[1:]) if cut >= head else 0
        expected = dict(list(TRIES.items())[:complete])
        assert read(path) == expected
        if cut % 7 == 0:
            write(path, {Try("new", 7, 7): True})
            assert read(path) == expected | {Try("new", 7, 7): True}


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_loses_tries_and_adds_none(tmp_path_factory, place, change):
    path = write(tmp_path_factory.mktemp("any") / "a.partial")
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(bytes(content))
    found = read(path)
    assert found.items() <= TRIES.items()
    if place % len(content) > content.index(b"\n"):
        assert len(found) >= len(TRIES) - 2  # a changed newline joins two lines


@pytest.mark.parametrize(
    "head",
    ["", "[]", "null", "{}", '{"key": 3}', "\x00", "[" * 100_000,
     json.dumps({"key": DIGEST, "probe": None}),
     json.dumps({"key": DIGEST, "probe": ["a", "b", "c"]}),
     json.dumps({"key": DIGEST, "probe": [float("nan"), -2.25, 3e-05]}),
     json.dumps({"key": DIGEST, "probe": [10**400, -2.25, 3e-05]})],
)  # fmt: skip
def test_a_file_with_another_first_line_is_overwritten(path, head):
    _, rest = write(path).read_text().split("\n", 1)
    path.write_text(f"{head}\n{rest}")
    assert read(path) == {}
    write(path)
    assert read(path) == TRIES


@pytest.mark.parametrize("other", [{"digest": "1f" * 16}, {"probe": [1.5, -2.25, 1.0]}, {"probe": [1.5, -2.25]}])
def test_tries_of_another_attack_or_model_are_not_used(path, other):
    write(path)
    assert read(path, **other) == {}
    assert read(path) == TRIES


def test_logits_that_differ_by_rounding_are_the_same_model(path):
    near = [value * (1 + 1e-6) for value in PROBE]
    write(path)
    write(path, {Try("new", 9, 9): True}, probe=near)
    assert read(path) == TRIES | {Try("new", 9, 9): True}
    assert not agree(PROBE, [*PROBE[:2], 0.1])
    assert not agree([1.0, float("nan")], [1.0, 2.0])


def test_lines_of_another_models_file_are_ignored(path, tmp_path):
    other = write(tmp_path / "other" / path.name, probe=[2.0, 2.0, 2.0])
    write(path, {Try("apgd-ce", 0, 0): False})
    with path.open("ab") as file:
        file.write(b"".join(other.read_bytes().splitlines(keepends=True)[1:]))
    assert read(path) == {Try("apgd-ce", 0, 0): False}


def test_seconds_add_up_over_sessions(path, monkeypatch):
    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    for total in (7.0, 14.0):
        with PartialResult(path, digest=DIGEST, probe=PROBE) as partial:
            clock.now += 3
            assert partial.write_seconds() == partial.write_seconds() == pytest.approx(total - 4)
            clock.now += 4
        clock.now += 1000  # between sessions
    partial = PartialResult(path, digest=DIGEST, probe=PROBE)  # as if killed: never closed
    for n in range(30):
        clock.now += 1
        partial.add(Try("pgd", n, 0), False)
    with PartialResult(path, digest=DIGEST, probe=PROBE) as last:
        assert 14 + 30 - module.SECONDS_EVERY - 1 <= last.write_seconds() <= 44
    partial.close()


def test_discard_removes_the_files_of_all_processes_and_no_others(path):
    others = [path.with_name(f"{DIGEST}.{rank}-of-2.partial") for rank in range(2)]
    stranger = path.with_name(f"{'ab' * 16}.partial")
    for file in (path, *others, stranger):
        write(file)
    with PartialResult(path, digest=DIGEST, probe=PROBE) as partial:
        partial.discard()
    assert list(path.parent.iterdir()) == [stranger]


def test_every_process_knows_the_tries_of_all(path):
    files = [path.with_name(f"{DIGEST}.{rank}-of-3.partial") for rank in range(3)]
    for rank, file in enumerate(files):
        write(file, {Try("pgd", rank, 0): rank == 1})
    for file in (*files, path):
        with PartialResult(file, digest=DIGEST, probe=PROBE) as partial:
            assert partial.settled == {Try("pgd", rank, 0): rank == 1 for rank in range(3)}


def test_a_folder_that_cannot_be_written_is_a_user_error_and_no_file_stays_open(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write results to .*file: "):
        PartialResult(tmp_path / "file" / "a.partial", digest=DIGEST, probe=PROBE)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(ZeroDivisionError), PartialResult(path, digest=DIGEST, probe=PROBE):
        _ = 1 / 0
    assert len(os.listdir("/dev/fd")) == before
