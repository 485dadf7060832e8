"""Graphs, with stand-ins for CUDA that note the order of things; on a GPU, with the real ones."""

from contextlib import contextmanager

import pytest
import torch

from pixelpart.view import capture
from pixelpart.view.capture import WARM_UPS, Replayed, record


@pytest.fixture
def events(monkeypatch):
    """What happens, in order. While a graph is captured work is noted, on a GPU it would not run."""
    seen = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            seen.append(f"{self.name} waits for {other.name}")

    main = Stream("main")

    @contextmanager
    def within(name):
        seen.append(f"in {name}")
        yield
        seen.append(f"out of {name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: within(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool=None: within(f"{graph} of {pool}"))
    return seen


def test_work_is_warmed_up_beside_the_main_stream_then_captured_once(events):
    def work():
        events.append("work")
        return len(events)

    graph, result = record(work, pool="pool", between=lambda: events.append("between"))
    assert events == [
        "side waits for main",
        "in side",
        *["work"] * WARM_UPS,
        "out of side",
        "main waits for side",
        "between",
        "in graph of pool",
        "work",
        "out of graph of pool",
    ]
    assert graph == "graph"
    assert result == len(events) - 1  # what the captured run returned, not a warm-up


def test_an_error_of_the_work_comes_through(events):
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)
    assert "in graph of None" not in events


@pytest.fixture
def recorded(monkeypatch):
    """Each graph made; a replay runs the work again, into the tensor that the capture returned."""
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


def test_a_replayed_function_is_the_function(recorded):
    replayed = Replayed(lambda a, b: a * 2 + b)
    for value in range(3):
        a, b = torch.full((2, 3), float(value)), torch.arange(3.0)
        assert torch.equal(replayed(a, b), a * 2 + b)
    assert len(recorded) == 1


def test_a_replayed_function_leaves_its_inputs_and_overwrites_its_result(recorded):
    replayed = Replayed(lambda a: a + 1)
    first, second = torch.zeros(2), torch.ones(2)
    result = replayed(first)
    assert result.tolist() == [1, 1]
    assert replayed(second) is result
    assert result.tolist() == [2, 2]
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


def test_every_shape_layout_and_type_has_a_graph_of_its_own(recorded):
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
def test_on_a_gpu_what_is_captured_runs_at_replays_alone():
    count = torch.zeros((), device="cuda")
    graph, _ = record(lambda: count.add_(1), between=lambda: count.zero_())
    torch.cuda.synchronize()
    assert count.item() == 0
    graph.replay()
    graph.replay()
    assert count.item() == 2
