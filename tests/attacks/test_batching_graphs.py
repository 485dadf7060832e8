"""Continuous batching with a stand-in for CUDA graphs: a replay runs the captured work on the same buffers."""

import pytest
import torch

from pixelpart.attacks import batching
from pixelpart.attacks.batching import Stepper
from pixelpart.attacks.search import Search
from pixelpart.view import capture
from toys import OnCuda, Toy, no_model, tries_of


@pytest.fixture
def captures(monkeypatch):
    """The captured graphs."""
    graphs = []

    class Graph:
        def __init__(self, work):
            self.work = work

        def replay(self):
            self.work()

    def record(work):
        for _ in range(capture.WARM_UPS):
            work()
        graphs.append(Graph(work))
        return graphs[-1], None

    monkeypatch.setattr(capture, "record", record)
    return graphs


def by_graph(steps, found, real, tries, slots, say=lambda line: None):
    toy = Toy(steps, found, real, cuda=True)
    return toy(tries, slots=slots, say=say), toy


# found images stay, since the host checks only every few steps
FOUND = {(0, 0): [1], (1, 1): [37], (2, 0): [41], (4, 2): [20], (5, 0): [7]}


@pytest.mark.parametrize("steps", [1, 20, 41])
@pytest.mark.parametrize("slots", [1, 3, 100])
def test_graphs_give_the_outcome_of_plain_steps(captures, steps, slots):
    found = {one: [step for step in finds if step <= steps] for one, finds in FOUND.items()}
    tries = tries_of(7, 3)
    plain = Toy(steps, found, found)
    expected = plain(tries, slots=slots)
    broken, toy = by_graph(steps, found, found, tries, slots)
    assert broken == expected == {one[0] for one, finds in found.items() if finds}
    assert set(toy.settled) >= {entry for entry in plain.settled if entry[0][0] not in broken}
    assert captures


def test_a_try_gets_no_more_steps_from_a_graph_than_from_plain_steps(captures):
    """A check after every third step of 41 would see what step 42 finds."""
    beyond = {(0, 0): [42], (1, 0): [43], (2, 0): [41]}
    broken, toy = by_graph(41, beyond, beyond, tries_of(3, 1), 3)
    assert broken == {2}
    assert toy.judged == [((0, 0), 0), ((1, 0), 0), ((2, 0), 41)]


def test_the_host_checks_after_every_twentieth_of_the_steps(captures):
    _, toy = by_graph(41, {}, {}, tries_of(2, 1), 2)
    replayed = len(toy.rows) - capture.WARM_UPS * len(captures)
    assert replayed == 42  # 14 checks, three steps apart
    assert len(toy.judged) == 2


@pytest.mark.parametrize(("cost", "sizes"), [(64 * 48, {64}), (32 * 32, {64, 32}), (0, {64, 48, 32, 16, 4})])
def test_a_smaller_graph_is_captured_if_it_saves_more_than_it_costs(captures, monkeypatch, cost, sizes):
    """A sample is broken at every step: at step 32, 32 rows and 32 steps are left, so 32 rows less save 32 * 32."""
    monkeypatch.setattr(batching, "GRAPH_COST", max(0, cost - 1))
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    _, toy = by_graph(64, found, found, tries_of(64, 1), 64)
    assert {len(batch) for batch in toy.rows} == sizes
    assert len(captures) == len(sizes)


def leaping(toy, slots, tries):
    """Runs the toy with leaps, each up to the next find; returns the outcome and the pairs (rows, steps ahead)."""
    leaps = set()

    def leap(net, state, ahead):
        leaps.add((len(state["step"]), ahead))
        first = state["x_adv"]
        for _ in range(ahead):
            due = (state["x_adv"] == first).flatten() & (state["step"] < toy.steps)
            new = toy.advance(net, state)
            for name in ("step", "hit", "x_adv"):
                mask = due.view(-1, *[1] * (new[name].ndim - 1))
                new[name] = torch.where(mask, new[name], state[name])
            state = new
        return state

    return toy(tries, slots=slots, leap=leap), leaps


@pytest.mark.parametrize("slots", [3, 100])
@pytest.mark.parametrize("steps", [1, 41])
def test_leaps_give_the_outcome_of_plain_steps(captures, steps, slots):
    found = {one: [step for step in finds if step <= steps] for one, finds in FOUND.items()}
    tries = tries_of(7, 3)
    expected = Toy(steps, found, found)(tries, slots=slots)
    toy = Toy(steps, found, found, cuda=True)
    broken, leaps = leaping(toy, slots, tries)
    assert broken == expected
    assert {one for one, _ in toy.settled} >= {one for one in tries if one[0] not in broken}
    assert all(ahead == min(batching.MAX_LEAP, slots // rows) > 1 for rows, ahead in leaps)
    assert bool(leaps) == (slots == 100)  # with fewer slots the batch is full, or nearly


def test_a_leap_fills_the_batch_of_few_rows(captures, monkeypatch):
    monkeypatch.setattr(batching, "GRAPH_COST", 0)
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, leaps = leaping(Toy(64, found, found, cuda=True), 64, tries_of(64, 1))
    assert broken == set(range(64))
    assert {(32, 2), (16, 4)} <= leaps <= {(32, 2), (16, 4), (4, 16), (1, 16)}


def test_padding_rows_are_ignored(captures):
    """The padding repeats the last row, which is broken; only that row counts."""
    found = {(6, 0): [3]}
    broken, toy = by_graph(20, found, found, tries_of(7, 1), 100)
    assert broken == {6}
    assert toy.settled[0] == ((6, 0), True)
    assert len(toy.settled) == 7


def swapping(net, state):
    """Returns its tensors under each other's names."""
    return state | {"step": state["step"] + 1, "a": state["b"], "b": state["a"], "c": state["a"][:]}


def test_a_search_may_return_a_tensor_under_another_name(captures):
    n = 3
    state = {
        "x": torch.zeros(n, 1, 1, 1).as_subclass(OnCuda),
        "x_adv": torch.zeros(n, 1, 1, 1),
        "margin": torch.zeros(n),
        "hit": torch.zeros(n, dtype=torch.bool),
        "step": torch.zeros(n, dtype=torch.long),
        "a": torch.full((n,), 1.0),
        "b": torch.full((n,), 2.0),
        "c": torch.zeros(n),
    }
    step = Stepper(Search(lambda *_: {}, swapping, steps=20), no_model, n, lambda line: None)
    once = step(state)
    assert [once[name].tolist() for name in "abc"] == [[2.0] * n, [1.0] * n, [1.0] * n]
    twice = step(dict(once))
    assert [twice[name].tolist() for name in "abc"] == [[1.0] * n, [2.0] * n, [2.0] * n]


def no_capture(work):
    raise RuntimeError("operation not permitted when stream is capturing\nand more lines")


def test_a_capture_that_fails_late_goes_on_from_its_state(captures, monkeypatch):
    """The first size is captured, the next one is not."""
    monkeypatch.setattr(batching, "GRAPH_COST", 0)
    said, good = [], capture.record
    monkeypatch.setattr(capture, "record", lambda work: no_capture(work) if captures else good(work))
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, toy = by_graph(64, found, found, tries_of(64, 1), 64, said.append)
    assert broken == set(range(64))
    assert dict(toy.settled) == {(sample, 0): True for sample in range(64)}
    assert said == [
        "CUDA graph capture of the search failed; it runs without: operation not permitted when stream is capturing"
    ]
