"""The ranks of a run share every batch out among them."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelpart.runtime.world import World, joined, local_device

SIZES = st.integers(1, 16)


@given(st.integers(0, 500), SIZES)
def test_the_shares_follow_each_other_and_cover_every_row_once(n, size):
    rows = [row for rank in range(size) for row in range(n)[World(rank, size).slice(n)]]
    assert rows == list(range(n))


@given(st.integers(0, 500), SIZES)
def test_no_share_is_more_than_one_row_larger_than_another(n, size):
    lengths = [len(range(n)[World(rank, size).slice(n)]) for rank in range(size)]
    assert max(lengths) - min(lengths) <= 1


def test_one_process_alone_leads_and_takes_everything():
    assert World().leads
    assert World().slice(7) == slice(0, 7)


def test_only_rank_zero_leads():
    assert [World(rank, 4).leads for rank in range(4)] == [True, False, False, False]


def test_alone_unless_torchrun_says_otherwise(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    for size in ("1", "4"):
        monkeypatch.setenv("WORLD_SIZE", size)
        with joined() as world:
            assert world == World(0, 1)
    flags = torch.tensor([True, False])
    assert world.any_of(flags) is flags


TALK = """
import torch
from pathlib import Path
from pixelpart.runtime.world import joined
with joined() as world:
    flags = torch.tensor([world.rank == 0, world.rank == 1, False])
    with joined() as again:
        again.wait()
    said = f"{again} {world.any_of(flags).tolist()} {world.total(torch.arange(3)).tolist()}"
    Path(f"{world.rank}.said").write_text(said)  # what both print may mix
"""


@pytest.mark.slow
def test_processes_that_torchrun_starts_find_each_other(tmp_path):
    (tmp_path / "talk.py").write_text(TALK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "talk.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    lines = [path.read_text() for path in sorted(tmp_path.glob("*.said"))]
    assert lines == [f"World(rank={rank}, size=2) [True, True, False] [0, 2, 4]" for rank in range(2)]


def test_a_process_has_the_gpu_of_its_number_if_there_are_so_many(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_device() is None
    for rank, device in (("0", "cuda:0"), ("1", "cuda:1"), ("2", None)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert local_device() == device


@pytest.mark.parametrize("work", [lambda world: world.total(torch.ones(2)), lambda world: world.wait()])
def test_that_another_process_has_ended_is_one_line(monkeypatch, work):
    def closed(*_):
        raise RuntimeError("Connection closed by peer\nmore of it")

    for name in ("all_reduce", "barrier"):
        monkeypatch.setattr(torch.distributed, name, closed)
    with pytest.raises(ConnectionError, match=r"^another process has ended: Connection closed by peer$"):
        work(World(1, 2))
