"""A run on disk: every write leaves the old file or the new one, one process at a time, and foreign files alone."""

import errno
import json
import os
import re
import subprocess
import sys
import threading

import pytest
import torch

from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.runs import RunFolder, load_checkpoint, read_facts, save_checkpoint


def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


# -- one file


def test_a_write_makes_its_folders_and_holds_what_was_given(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    atomic_write(path, "grüße")
    assert path.read_bytes() == "grüße".encode()
    atomic_write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, call):
    atomic_write(tmp_path / "file", "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    done = []
    for call in ("fsync", "replace"):
        original = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, call=call, original=original: (done.append(call), original(*a))[1])
    atomic_write(tmp_path / "file", "new")
    assert done == ["fsync", "replace", "fsync"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, contents, seen = tmp_path / "file", ["a" * 100_000, "b" * 100_000], set()
    atomic_write(path, contents[0])
    writer = threading.Thread(target=lambda: [atomic_write(path, contents[i % 2]) for i in range(40)])
    writer.start()
    while writer.is_alive():
        seen.add(path.read_text())
    writer.join()
    assert seen <= set(contents)


# -- checkpoints


@pytest.fixture
def tensors():
    return {
        "a": torch.arange(6.0).view(2, 3).t(),  # not contiguous
        "b": torch.tensor(7),
        "c": torch.rand(2, 2, dtype=torch.float64).requires_grad_(),
        "d": torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last),
    }


def test_a_checkpoint_gives_back_tensors_and_facts(tmp_path, tensors):
    facts = {"config": "abc", "position": {"step": 3, "best_robust_ce": None}}
    save_checkpoint(tmp_path / "x.safetensors", tensors, facts)
    loaded, found = load_checkpoint(tmp_path / "x.safetensors")
    assert found == facts == read_facts(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach())
        assert loaded[name].dtype == tensor.dtype


def test_equal_content_gives_equal_bytes_in_whatever_order(tmp_path, tensors):
    save_checkpoint(tmp_path / "x", tensors, {"a": 1, "b": 2})
    save_checkpoint(tmp_path / "y", dict(reversed(tensors.items())), {"b": 2, "a": 1})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_a_file_cut_anywhere_is_a_user_error_that_names_it(tmp_path, tensors):
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, tensors, {"epoch": 1})
    whole = path.read_bytes()
    for length in (0, 4, 8, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"x\.safetensors is truncated or not a checkpoint") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path, tensors):
    """In the header, in the facts, in a weight; without its name the sum is not found, but all else is as it was."""
    path, facts = tmp_path / "x.safetensors", {"config": "abc", "position": {"step": 3}}
    save_checkpoint(path, tensors, facts)
    whole, unnoticed, said = path.read_bytes(), 0, []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :])
        try:
            loaded, found = load_checkpoint(path)
        except UserError as error:
            said.append(str(error))
        else:
            unnoticed += 1
            assert found.items() >= facts.items()
            assert all(torch.equal(loaded[name], tensor.detach()) for name, tensor in tensors.items())
    assert unnoticed <= len("sum")
    assert all(re.match(r".*x\.safetensors is (damaged|truncated)", line) and "\n" not in line for line in said)


def test_a_checkpoint_without_a_sum_is_read(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x", metadata={"pixelpart": '{"epoch": 1}'})
    assert load_checkpoint(tmp_path / "x")[1] == {"epoch": 1}


def test_a_safetensors_file_of_someone_else_is_a_user_error(tmp_path, tensors):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="not a checkpoint of pixelpart"):
        load_checkpoint(tmp_path / "x.safetensors")


def test_a_pickle_is_refused_and_not_run(tmp_path):
    """A checkpoint as other tools write it: loading one would run its code."""

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"a": Evil()}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "x.safetensors")
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_that_is_not_there_is_a_user_error(tmp_path):
    for read in (load_checkpoint, read_facts):
        with pytest.raises(UserError, match=f"no checkpoint at {tmp_path / 'none'}"):
            read(tmp_path / "none")


# -- the folder


def test_a_new_folder_takes_the_config_and_the_same_config_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for _ in range(2):
        folder.check(Config(seed=4))
        folder.claim(Config(seed=4))
    assert folder.read_config() == Config(seed=4)
    assert json.loads(folder.config_file.read_text())["schema_version"] == 1


def test_another_config_is_refused_with_the_fields_that_differ_and_the_old_one_stays(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(Config(seed=4))
    before = folder.config_file.read_bytes()
    with pytest.raises(UserError, match=r"another config \(seed: 4 there, 0 here; mask.every: 0 there, 1 here\)"):
        folder.check(Config(mask={"every": 1}))
    folder.claim(Config(mask={"every": 1}))
    assert folder.config_file.read_bytes() == before


def test_a_config_of_a_newer_version_is_refused_rather_than_misread(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config_file.write_text(json.dumps(json.loads(Config().to_json()) | {"schema_version": 99}))
    with pytest.raises(UserError, match="schema_version 99 is not 1"):
        folder.check(Config())


def test_a_folder_with_other_files_is_not_claimed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and not a run folder"):
        RunFolder(tmp_path).check(Config())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_is_no_run_says_so(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder: it has no config\.json"):
        RunFolder(tmp_path).read_config()


def test_a_second_lock_is_refused_and_the_next_one_after_release_is_not(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.locked(), pytest.raises(UserError, match="another process is working in"), second.locked():
        pass
    with RunFolder(tmp_path / "run").locked():
        pass


def test_a_lock_is_released_by_an_exception(tmp_path):
    with pytest.raises(KeyError), RunFolder(tmp_path).locked():
        raise KeyError
    with RunFolder(tmp_path).locked():
        pass


def test_a_lock_dies_with_its_process(tmp_path):
    code = "import sys, fcntl, os; f = open(sys.argv[1], 'a+'); fcntl.flock(f, 2); print('held', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="another process"), RunFolder(tmp_path).locked():
        pass
    child.kill()
    child.communicate()
    with RunFolder(tmp_path).locked():
        pass


def test_a_file_where_the_folder_should_be_is_a_user_error(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match=r"cannot use .*run as a run folder"), RunFolder(tmp_path / "run").locked():
        pass
    assert (tmp_path / "run").read_text() == "a file"


def test_metrics_come_back_as_written_and_a_torn_last_line_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": 1 / 3}]
    folder.write_metrics(rows)
    assert folder.read_metrics() == rows
    with open(folder.metrics_file, "a") as file:
        file.write('{"epoch": 3, "lo')
    assert folder.read_metrics() == rows


def test_the_log_gains_one_line_at_a_time(tmp_path):
    folder = RunFolder(tmp_path)
    folder.log("erste Zeile – ü")
    folder.log("second\n")
    assert folder.log_file.read_text(encoding="utf-8") == "erste Zeile – ü\nsecond\n"


def test_what_is_no_row_of_metrics_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_bytes(b'{"epoch": 1}\n\xff\xfe\n3\n{"loss": 2}\n{"epoch": 2, "lo')
    assert folder.read_metrics() == [{"epoch": 1}]


def test_a_mistake_inside_the_lock_leaves_no_folder_behind(tmp_path):
    with pytest.raises(UserError), RunFolder(tmp_path / "new").locked():
        raise UserError("a mistake")
    assert not (tmp_path / "new").exists()
