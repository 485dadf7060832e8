"""The driver with a stand-in for CUDA: what is captured is not run, a replay runs it on the same buffers."""

import pytest
import torch

from pixelpart.attacks import batching
from pixelpart.attacks.batching import Stepper, cudnn_benchmark
from pixelpart.attacks.search import Search
from pixelpart.view import capture
from toys import OnCuda, Toy, no_model, tries_of


@pytest.fixture
def captures(monkeypatch):
    """What was captured."""
    graphs_made = []

    class Graph:
        def __init__(self, work):
            self.work = work

        def replay(self):
            self.work()

    def record(work):
        for _ in range(capture.WARM_UPS):
            work()
        graphs_made.append(Graph(work))
        return graphs_made[-1], None

    monkeypatch.setattr(capture, "record", record)
    return graphs_made


def by_graph(steps, found, real, tries, slots, say=lambda line: None):
    toy = Toy(steps, found, real, cuda=True)
    return toy(tries, slots=slots, say=say), toy


# what it finds is there to stay, since looks are a few steps apart
LASTING = {(0, 0): [1], (1, 1): [37], (2, 0): [41], (4, 2): [20], (5, 0): [7]}


@pytest.mark.parametrize("steps", [1, 7, 20, 40, 41, 45])
@pytest.mark.parametrize("slots", [1, 3, 8, 100])
def test_by_graphs_the_outcome_is_the_plain_one(captures, steps, slots):
    found = {one: [step for step in finds if step <= steps] for one, finds in LASTING.items()}
    tries = tries_of(7, 3)
    plain = Toy(steps, found, found)
    expected = plain(tries, slots=slots)
    broken, toy = by_graph(steps, found, found, tries, slots)
    assert broken == expected == {one[0] for one, finds in found.items() if finds}
    assert set(toy.settled) >= {entry for entry in plain.settled if entry[0][0] not in broken}
    assert captures


def test_no_try_gets_more_steps_from_a_graph_than_it_would_plainly(captures):
    """A look after every third step of 41 would see what step 42 finds."""
    beyond = {(0, 0): [42], (1, 0): [43], (2, 0): [41]}
    broken, toy = by_graph(41, beyond, beyond, tries_of(3, 1), 3)
    assert broken == {2}
    assert toy.judged == [((0, 0), 0), ((1, 0), 0), ((2, 0), 41)]


def test_nor_does_it_where_graphs_have_failed(monkeypatch):
    monkeypatch.setattr(capture, "record", no_capture)
    beyond = {(0, 0): [42], (1, 0): [43], (2, 0): [41]}
    assert by_graph(41, beyond, beyond, tries_of(3, 1), 3)[0] == {2}


def test_looks_are_a_twentieth_of_the_steps_apart(captures):
    _, toy = by_graph(41, {}, {}, tries_of(2, 1), 2)
    replayed = len(toy.rows) - capture.WARM_UPS * len(captures)
    assert replayed == 42  # 14 looks, three steps apart
    assert len(toy.judged) == 2


def test_a_graph_is_made_once_for_each_of_a_few_sizes_and_rows_are_padded(captures, monkeypatch):
    """Samples go one after the other, so that the batch shrinks from 64 rows to none."""
    monkeypatch.setattr(batching, "GRAPH_COST", 0)
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, toy = by_graph(64, found, found, tries_of(64, 1), 64)
    assert broken == set(range(64))
    sizes = [len(batch) for batch in toy.rows]
    allowed = {1, 4, 16, 32, 48, 64}
    assert set(sizes) <= allowed
    assert len(captures) == len(set(sizes)) >= 4
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("worth", "sizes"), [(64 * 48, {64}), (32 * 32, {64, 32}), (0, {64, 48, 32, 16, 4})])
def test_a_smaller_graph_is_made_where_it_saves_more_than_it_costs(captures, monkeypatch, worth, sizes):
    """A sample falls at every step: at step 32, 32 rows are left and 32 steps to go, so 32 rows less save 32 * 32."""
    monkeypatch.setattr(batching, "GRAPH_COST", max(0, worth - 1))
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    _, toy = by_graph(64, found, found, tries_of(64, 1), 64)
    assert {len(batch) for batch in toy.rows} == sizes


def leaping(toy, slots, tries):
    """The toy with leaps, each row's up to what it finds; the outcome, and how many rows went how many steps ahead."""
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


@pytest.mark.parametrize("slots", [1, 3, 8, 100])
@pytest.mark.parametrize("steps", [1, 20, 41, 45])
def test_with_leaps_the_outcome_is_the_plain_one(captures, steps, slots):
    found = {one: [step for step in finds if step <= steps] for one, finds in LASTING.items()}
    tries = tries_of(7, 3)
    expected = Toy(steps, found, found)(tries, slots=slots)
    toy = Toy(steps, found, found, cuda=True)
    broken, leaps = leaping(toy, slots, tries)
    assert broken == expected
    assert {one for one, _ in toy.settled} >= {one for one in tries if one[0] not in broken}
    assert all(ahead == min(batching.MAX_LEAP, slots // rows) > 1 for rows, ahead in leaps)
    assert bool(leaps) == (slots == 100)  # fewer are always full, or nearly


def test_a_leap_makes_a_full_batch_of_few_rows(captures, monkeypatch):
    monkeypatch.setattr(batching, "GRAPH_COST", 0)
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, leaps = leaping(Toy(64, found, found, cuda=True), 64, tries_of(64, 1))
    assert broken == set(range(64))
    assert {(32, 2), (16, 4)} <= leaps <= {(32, 2), (16, 4), (4, 16), (1, 16)}


def test_looks_are_as_far_apart_with_leaps(captures):
    """500 steps, a look after 25 of them or more, one row in ten: it leaps 10 of them three times."""
    toy = Toy(500, {}, {}, cuda=True)
    leaping(toy, 10, tries_of(1, 1))
    looked = len(toy.rows) - 10 * capture.WARM_UPS
    assert looked == 10 * 3 * 17


def test_a_batch_is_never_wider_than_the_slots(captures):
    _, toy = by_graph(5, {}, {}, tries_of(9, 1), 4)
    assert max(map(len, toy.rows)) <= 4


def test_rows_beyond_those_in_use_do_not_speak(captures):
    """The padding repeats the last row, which finds something; it must be said of that row alone."""
    found = {(6, 0): [3]}
    broken, toy = by_graph(20, found, found, tries_of(7, 1), 100)
    assert broken == {6}
    assert toy.settled[0] == ((6, 0), True)
    assert len(toy.settled) == 7


def swapping(net, state):
    """Hands its old point on under another name, and back."""
    return state | {"step": state["step"] + 1, "a": state["b"], "b": state["a"], "c": state["a"][:]}


def test_a_search_may_hand_a_tensor_on_by_another_name(captures):
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
    raise RuntimeError("operation not permitted when stream is capturing\nand a long story about it")


def test_what_cannot_be_captured_is_said_once_and_goes_on_plainly(monkeypatch):
    monkeypatch.setattr(capture, "record", no_capture)
    said = []
    broken, toy = by_graph(41, LASTING, LASTING, tries_of(7, 3), 4, said.append)
    assert broken == {one[0] for one in LASTING}
    assert said == [
        "CUDA graph capture of the search failed; it runs without: operation not permitted when stream is capturing"
    ]
    assert max(map(len, toy.rows)) <= 4


def test_a_capture_that_fails_late_goes_on_from_where_it_is(captures, monkeypatch):
    """The first size is captured, the next one is not."""
    monkeypatch.setattr(batching, "GRAPH_COST", 0)
    said, good = [], capture.record
    monkeypatch.setattr(capture, "record", lambda work: no_capture(work) if captures else good(work))
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, toy = by_graph(64, found, found, tries_of(64, 1), 64, said.append)
    assert broken == set(range(64))
    assert dict(toy.settled) == {(sample, 0): True for sample in range(64)}
    assert len(said) == 1


def test_another_error_is_not_taken_for_a_failed_capture(monkeypatch):
    monkeypatch.setattr(capture, "record", lambda work: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        by_graph(5, {}, {}, tries_of(2, 1), 2)


def test_the_switch_of_the_algorithms_is_put_back():
    before = torch.backends.cudnn.benchmark
    for wanted in (True, False):
        with cudnn_benchmark(wanted):
            assert torch.backends.cudnn.benchmark is wanted
        assert torch.backends.cudnn.benchmark is before
        with pytest.raises(ZeroDivisionError), cudnn_benchmark(not before):
            _ = 1 / 0
        assert torch.backends.cudnn.benchmark is before


def test_sizes_end_with_all_slots():
    assert batching.GRAPH_SIZES[-1] == 1
    assert list(batching.GRAPH_SIZES) == sorted(batching.GRAPH_SIZES)
