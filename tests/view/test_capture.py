"""CUDA graphs: here with a stand-in, on a GPU with real graphs."""

import os
import stat

import pytest
import torch

from pixelpart.view import capture
from pixelpart.view.capture import Replayed, record


@pytest.fixture
def recorded(monkeypatch):
    """The list of graphs; a replay runs the work again, into the tensor that the capture returned."""
    made = []

    class Graph:
        def __init__(self, work):
            self.work, self.result = work, torch.full_like(work(), torch.nan)

        def replay(self):
            self.result.copy_(self.work())

    def stand_in(work):
        made.append(Graph(work))
        return made[-1], made[-1].result

    monkeypatch.setattr(capture, "record", stand_in)
    return made


def test_a_replay_copies_its_inputs_and_overwrites_its_result(recorded):
    replayed = Replayed(lambda a, b: a * 2 + b)
    a, b = torch.zeros(2), torch.ones(2)
    result = replayed(a, b)
    assert result.tolist() == [1, 1]
    assert replayed(b, b) is result
    assert result.tolist() == [3, 3]
    assert (a.tolist(), b.tolist()) == ([0, 0], [1, 1])
    assert len(recorded) == 1


def test_every_shape_layout_and_type_has_its_own_graph(recorded):
    replayed = Replayed(lambda a: a + 1)
    square = torch.rand(2, 2)
    for a in (square, torch.rand(2, 3), square.double(), square.T, torch.rand(2, 2), torch.rand(2, 3)):
        made = replayed(a)
        assert torch.equal(made, a + 1)
        assert made.dtype == a.dtype
    assert len(recorded) == 4


def test_compiled_code_is_kept_in_a_folder_of_the_user(monkeypatch, tmp_path):
    """Not in torch's default below a /tmp that others can write to: what is there is loaded as code."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    capture._private_cache.cache_clear()
    try:
        (folder := tmp_path / ".cache" / "pixelpart" / "compiled").mkdir(parents=True)
        folder.chmod(0o777)
        capture.compiled(lambda: 1)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
        capture.compiled(lambda: 1)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    finally:
        capture._private_cache.cache_clear()


@pytest.mark.gpu
def test_on_a_gpu_a_replay_gives_the_bits_of_the_function():
    weight = torch.rand(64, 64, device="cuda")
    replayed = Replayed(lambda a: (a @ weight).tanh())
    for n in (3, 5, 3):
        a = torch.rand(n, 64, device="cuda")
        assert torch.equal(replayed(a), (a @ weight).tanh())


@pytest.mark.gpu
def test_on_a_gpu_captured_work_runs_only_at_replays():
    count = torch.zeros((), device="cuda")
    graph, _ = record(lambda: count.add_(1), between=lambda: count.zero_())
    torch.cuda.synchronize()
    assert count.item() == 0
    graph.replay()
    graph.replay()
    assert count.item() == 2
