"""The slices of the processes, and how processes find each other."""

import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelpart.errors import UserError
from pixelpart.runtime.world import World, joined, local_device


@given(st.integers(0, 500), st.integers(1, 16))
def test_slices_cover_every_row_once_and_differ_by_at_most_one_row(n, size):
    slices = [range(n)[World(rank, size).slice(n)] for rank in range(size)]
    assert [row for rows in slices for row in rows] == list(range(n))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@given(st.integers(1, 500), st.integers(1, 16))
def test_rows_of_a_batch_cover_it_once_start_at_even_rows_and_are_all_of_a_small_one(n, size):
    slices = [range(n)[World(rank, size).rows(n)] for rank in range(size)]
    if n < 2 * size - 1:
        assert slices == [range(n)] * size
        return
    assert [row for rows in slices for row in rows] == list(range(n))
    assert all(rows and rows[0] % 2 == 0 for rows in slices)
    assert max(map(len, slices)) - min(map(len, slices)) <= 3
    assert n < 2 * size or min(map(len, slices)) > 1  # see check_last_batch


def test_one_process_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for size in (None, "1"):
        if size:
            monkeypatch.setenv("WORLD_SIZE", size)
        with joined() as world:
            assert world == World(0, 1)
    flags = torch.tensor([True, False])
    assert world.any_of(flags) is flags


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("RANK=0", "RANK is set, but WORLD_SIZE is not"),
        ("WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not"),
        ("RANK=a WORLD_SIZE=2", "variable RANK is 'a'"),
        ("RANK=-1 WORLD_SIZE=2", "variable RANK is '-1'"),
        ("RANK=0 WORLD_SIZE=0", "variable WORLD_SIZE is '0'"),
        ("RANK=0 WORLD_SIZE=²", "variable WORLD_SIZE is '²'"),
        ("RANK=2 WORLD_SIZE=2", "RANK is 2, but WORLD_SIZE is 2: ranks are 0 to 1"),
        ("RANK=0 WORLD_SIZE=2", "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "WORLD_SIZE is 2, but MASTER_PORT is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=x", "variable MASTER_PORT is 'x'"),
    ],
)
def test_variables_of_torchrun_that_do_not_fit_are_named(monkeypatch, variables, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(UserError, match=re.escape(message)), joined():
        pass


def test_local_rank_that_is_not_a_number_is_named(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "q")
    with pytest.raises(UserError, match="variable LOCAL_RANK is 'q'"):
        local_device()


PROGRAM = """
import torch
from pathlib import Path
from pixelpart.errors import UserError
from pixelpart.runtime.world import joined
with joined() as world:
    flags = torch.tensor([world.rank == 0, world.rank == 1, False])
    with joined() as again:
        again.wait()
    text = f"{again} {world.any_of(flags).tolist()} {world.total(torch.arange(3)).tolist()}"
    Path(f"{world.rank}.txt").write_text(text)  # not printed: the output of two processes may mix
"""


@pytest.mark.slow
def test_processes_started_by_torchrun_are_connected(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "program.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    lines = [path.read_text() for path in sorted(tmp_path.glob("*.txt"))]
    assert lines == [f"World(rank={rank}, size=2) [True, True, False] [0, 2, 4]" for rank in range(2)]


def test_process_uses_the_gpu_of_its_local_rank_if_it_exists(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_device() is None
    for rank, device in (("0", "cuda:0"), ("1", "cuda:1"), ("2", None)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert local_device() == device


@pytest.mark.parametrize("work", [lambda world: world.total(torch.ones(2)), lambda world: world.wait()])
def test_end_of_another_process_is_an_error_of_one_line(monkeypatch, work):
    def closed(*_):
        raise RuntimeError("Connection closed by peer\nmore of it")

    for name in ("all_reduce", "barrier"):
        monkeypatch.setattr(torch.distributed, name, closed)
    with pytest.raises(ConnectionError, match=r"^another process has ended: Connection closed by peer$"):
        work(World(1, 2))
