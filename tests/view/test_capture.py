"""CUDA graphs: here with a stand-in, on a GPU with real graphs."""

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
