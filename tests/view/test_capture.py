"""CUDA graphs: here with stand-ins that record the order of events, on a GPU with real graphs."""

from contextlib import contextmanager

import pytest
import torch

from pixelpart.view import capture
from pixelpart.view.capture import WARM_UPS, Replayed, record


@pytest.fixture
def events(monkeypatch):
    """The list of events, in order."""
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


def test_work_is_warmed_up_on_a_side_stream_then_captured_once(events):
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


def test_an_error_of_the_work_is_raised(events):
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)
    assert "in graph of None" not in events


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
