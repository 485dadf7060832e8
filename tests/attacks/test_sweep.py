"""The driver on a search whose outcomes are written down beforehand: who runs when, and what is judged."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pixelpart import graphs
from pixelpart.attacks import sweep
from pixelpart.attacks.search import Search
from pixelpart.attacks.sweep import Step, Sweep, timed_algorithms


def nobody(x):
    raise AssertionError("the toy asks no model")


class OnCuda(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@dataclass
class Toy:
    """A search of `steps` steps that finds something for a try at the steps written down, and notes what it is asked.

    x_adv is the number of the step, from 1, that found it last, 0 before. `real` has those that break the model.
    """

    steps: int
    found: dict = field(default_factory=dict)  # try -> steps, from 1
    real: dict = field(default_factory=dict)
    cuda: bool = False

    def __post_init__(self):
        self.begun, self.rows, self.took, self.judged, self.settled = [], [], Counter(), [], []

    def begin(self, tries):
        self.begun.append(list(tries))
        samples, numbers = torch.tensor(tries).unbind(1)
        x = torch.zeros(len(tries), 1, 1, 1)
        finds = torch.zeros(len(tries), self.steps + 50, dtype=torch.bool)
        for row, one in enumerate(tries):
            finds[row, list(self.found.get(one, ()))] = True
        return {
            "x": x.as_subclass(OnCuda) if self.cuda else x,
            "sample": samples,
            "number": numbers,
            "finds": finds,
            "step": torch.zeros_like(samples),
            "x_adv": x.clone(),
            "margin": torch.zeros(len(tries)),
            "hit": torch.zeros(len(tries), dtype=torch.bool),
        }

    def advance(self, net, state):
        tries = list(zip(state["sample"].tolist(), state["number"].tolist(), strict=True))
        self.rows.append(tries)
        self.took.update(tries)
        step = state["step"] + 1
        now = state["finds"].gather(1, step[:, None]).squeeze(1)
        x_adv = torch.where(now[:, None, None, None], step[:, None, None, None].float(), state["x_adv"])
        return state | {"step": step, "x_adv": x_adv, "hit": state["hit"] | now}

    def confirm(self, tries, x_adv):
        shown = [int(value) for value in x_adv.flatten()]
        self.judged += zip(tries, shown, strict=True)
        return torch.tensor([step in self.real.get(one, ()) for one, step in zip(tries, shown, strict=True)])

    def __call__(self, tries, slots, say=lambda line: None):
        search = Search(lambda *_: {}, self.advance, steps=self.steps)
        run = Sweep(search, nobody, self.begin, self.confirm, slots, say)
        return run(tries, lambda one, broken: self.settled.append((one, broken)))


def tries_of(samples, numbers):
    return [(sample, number) for number in range(numbers) for sample in range(samples)]


# -- a few samples by hand


def test_a_sample_runs_until_it_is_broken_and_no_further():
    toy = Toy(5, found={(0, 0): [2], (1, 1): [4]}, real={(0, 0): [2], (1, 1): [4]})
    assert toy(tries_of(3, 2), slots=3) == {0, 1}
    assert toy.took == {(0, 0): 2, (1, 0): 5, (2, 0): 5, (1, 1): 4, (2, 1): 5}
    assert toy.settled == [((0, 0), True), ((1, 0), False), ((2, 0), False), ((1, 1), True), ((2, 1), False)]


def test_the_place_of_a_broken_sample_is_taken_at_once_in_the_order_of_the_tries():
    toy = Toy(3, found={(0, 0): [1]}, real={(0, 0): [1]})
    toy(tries_of(4, 1), slots=2)
    assert toy.rows == [
        [(0, 0), (1, 0)],
        [(1, 0), (2, 0)],
        [(1, 0), (2, 0)],
        [(2, 0), (3, 0)],
        [(3, 0)],
        [(3, 0)],
    ]
    assert toy.begun == [[(0, 0), (1, 0)], [(2, 0)], [(3, 0)]]


def test_tries_of_one_sample_may_run_at_the_same_time_and_all_end_when_one_breaks_it():
    toy = Toy(6, found={(0, 1): [2]}, real={(0, 1): [2]})
    assert toy([(0, 0), (0, 1), (0, 2), (1, 0)], slots=4) == {0}
    assert toy.took == {(0, 0): 2, (0, 1): 2, (0, 2): 2, (1, 0): 6}
    assert toy.settled == [((0, 1), True), ((1, 0), False)]  # the other two came to no end


def test_two_tries_that_break_a_sample_in_the_same_step_are_both_settled():
    toy = Toy(3, found={(0, 0): [1], (0, 1): [1]}, real={(0, 0): [1], (0, 1): [1]})
    assert toy(tries_of(1, 2), slots=2) == {0}
    assert toy.settled == [((0, 0), True), ((0, 1), True)]


def test_what_the_model_does_not_confirm_goes_on_and_may_be_confirmed_later():
    toy = Toy(6, found={(0, 0): [1, 3, 5], (1, 0): [2]}, real={(0, 0): [5]})
    assert toy(tries_of(2, 1), slots=2) == {0}
    assert toy.took == {(0, 0): 5, (1, 0): 6}
    assert toy.judged == [((0, 0), 1), ((1, 0), 2), ((0, 0), 3), ((0, 0), 5), ((1, 0), 2)]
    assert toy.settled == [((0, 0), True), ((1, 0), False)]


def test_the_last_image_of_a_try_is_judged_though_the_searched_model_saw_no_error():
    toy = Toy(4, real={(1, 0): [0]})  # x_adv as it began
    assert toy(tries_of(2, 1), slots=2) == {1}
    assert toy.judged == [((0, 0), 0), ((1, 0), 0)]
    assert toy.settled == [((0, 0), False), ((1, 0), True)]


def test_an_error_at_the_very_last_step_counts():
    toy = Toy(4, found={(0, 0): [4]}, real={(0, 0): [4]})
    assert toy(tries_of(1, 1), slots=1) == {0}
    assert toy.took == {(0, 0): 4}
    assert toy.settled == [((0, 0), True)]


def test_nothing_to_try_asks_nobody():
    toy = Toy(4)
    assert toy([], slots=8) == set()
    assert (toy.begun, toy.rows, toy.settled) == ([], [], [])


@pytest.mark.parametrize(("tries", "slots", "rows"), [(10, 4, 4), (9, 8, 5), (8, 8, 8), (17, 8, 6), (3, 8, 3)])
def test_the_rows_are_as_many_in_the_last_turn_as_in_the_others(tries, slots, rows):
    toy = Toy(1)
    toy(tries_of(tries, 1), slots=slots)
    turns = [len(batch) for batch in toy.rows]
    assert turns[0] == max(turns) == rows
    assert len(turns) == -(-tries // slots)


def test_it_may_be_stopped_from_settle_and_nothing_settled_is_lost():
    toy, kept = Toy(3), []

    def settle(one, broken):
        kept.append(one)
        if len(kept) == 3:
            raise KeyboardInterrupt

    search = Search(lambda *_: {}, toy.advance, steps=3)
    with pytest.raises(KeyboardInterrupt):
        Sweep(search, nobody, toy.begin, toy.confirm, 2)(tries_of(5, 1), settle)
    assert kept == [(0, 0), (1, 0), (2, 0)]


# -- any outcomes


@st.composite
def worlds(draw):
    steps, samples, numbers = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    tries = tries_of(samples, numbers)
    some_steps = st.lists(st.integers(1, steps), max_size=3)
    found = {one: draw(some_steps) for one in draw(st.lists(st.sampled_from(tries), max_size=8))}
    real = {one: [step for step in found[one] if draw(st.booleans())] for one in found}
    for one in draw(st.lists(st.sampled_from(tries), max_size=2)):
        real.setdefault(one, []).append(0)
    return steps, tries, found, real


def shown(one, steps, found):
    """All that is judged of a try which runs to its end: what it finds, and what it has at the end."""
    finds = set(found.get(one, ()))
    return finds | {max(finds, default=0)}


@settings(max_examples=50)
@given(worlds(), st.integers(1, 30))
def test_every_sample_gets_all_its_tries_until_one_breaks_it_whatever_the_slots(world, slots):
    steps, tries, found, real = world
    toy = Toy(steps, found, real)
    broken = toy(tries, slots=slots)
    breaking = {one for one in tries if shown(one, steps, found) & set(real.get(one, ()))}
    assert broken == {sample for sample, _ in breaking}
    # who is settled, and how
    settled = dict(toy.settled)
    assert len(settled) == len(toy.settled)
    assert all(was == (one in breaking) for one, was in toy.settled)
    assert {one for one in tries if one[0] not in broken} <= settled.keys()
    assert {sample for (sample, _), was in toy.settled if was} == broken
    # steps taken
    assert all(toy.took[one] == steps for one, was in toy.settled if not was)
    assert all(count <= steps for count in toy.took.values())
    # one after the other, each once, in order
    begun = [one for some in toy.begun for one in some]
    assert begun == [one for one in tries if one in set(begun)]
    assert len(set(begun)) == len(begun)


@settings(max_examples=50)
@given(worlds(), st.integers(1, 30))
def test_a_batch_is_full_as_long_as_there_is_work_and_holds_no_sample_that_is_broken(world, slots):
    """Replays what was noted: who was broken when a batch ran, and who still waited."""
    steps, tries, found, real = world
    toy = Toy(steps, found, real)
    events = []
    advance, begin = toy.advance, toy.begin
    toy.advance = lambda net, state: events.append("step") or advance(net, state)
    toy.begin = lambda some: events.append(list(some)) or begin(some)
    search = Search(lambda *_: {}, toy.advance, steps=steps)
    Sweep(search, nobody, toy.begin, toy.confirm, slots)(tries, lambda one, broken: events.append((one, broken)))
    batches, begun, broken = iter(toy.rows), set(), set()
    most = max(map(len, toy.rows))
    assert most <= slots
    for event in events:
        if event == "step":
            batch = next(batches)
            waiting = [one for one in tries if one not in begun and one[0] not in broken]
            assert len(batch) == most or not waiting
            assert not {sample for sample, _ in batch} & broken
        elif isinstance(event, list):
            begun |= set(event)
            assert not {sample for sample, _ in event} & broken
        elif event[1]:
            broken.add(event[0][0])


@settings(max_examples=30)
@given(worlds(), st.integers(1, 30), st.integers(1, 30))
def test_outcomes_do_not_depend_on_the_slots(world, one, other):
    steps, tries, found, real = world
    assert Toy(steps, found, real)(tries, slots=one) == Toy(steps, found, real)(tries, slots=other)


# -- graphs, with a stand-in for CUDA: what is captured is not run, a replay runs it on the same buffers


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
        for _ in range(graphs.WARM_UPS):
            work()
        graphs_made.append(Graph(work))
        return graphs_made[-1], None

    monkeypatch.setattr(graphs, "record", record)
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
    monkeypatch.setattr(graphs, "record", no_capture)
    beyond = {(0, 0): [42], (1, 0): [43], (2, 0): [41]}
    assert by_graph(41, beyond, beyond, tries_of(3, 1), 3)[0] == {2}


def test_looks_are_a_twentieth_of_the_steps_apart(captures):
    _, toy = by_graph(41, {}, {}, tries_of(2, 1), 2)
    replayed = len(toy.rows) - graphs.WARM_UPS * len(captures)
    assert replayed == 42  # 14 looks, three steps apart
    assert len(toy.judged) == 2


def test_a_graph_is_made_once_for_each_of_a_few_sizes_and_rows_are_padded(captures):
    """Samples go one after the other, so that the batch shrinks from 64 rows to none."""
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, toy = by_graph(64, found, found, tries_of(64, 1), 64)
    assert broken == set(range(64))
    sizes = [len(batch) for batch in toy.rows]
    allowed = {1, 4, 16, 32, 48, 64}
    assert set(sizes) <= allowed
    assert len(captures) == len(set(sizes)) >= 4
    assert sizes == sorted(sizes, reverse=True)


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
    step = Step(Search(lambda *_: {}, swapping, steps=20), nobody, n, lambda line: None)
    once = step(state)
    assert [once[name].tolist() for name in "abc"] == [[2.0] * n, [1.0] * n, [1.0] * n]
    twice = step(dict(once))
    assert [twice[name].tolist() for name in "abc"] == [[1.0] * n, [2.0] * n, [2.0] * n]


def no_capture(work):
    raise RuntimeError("operation not permitted when stream is capturing\nand a long story about it")


def test_what_cannot_be_captured_is_said_once_and_goes_on_plainly(monkeypatch):
    monkeypatch.setattr(graphs, "record", no_capture)
    said = []
    broken, toy = by_graph(41, LASTING, LASTING, tries_of(7, 3), 4, said.append)
    assert broken == {one[0] for one in LASTING}
    assert said == [
        "the search cannot be captured as a graph, so it runs plainly: operation not permitted when stream is capturing"
    ]
    assert max(map(len, toy.rows)) <= 4


def test_a_capture_that_fails_late_goes_on_from_where_it_is(captures, monkeypatch):
    """The first size is captured, the next one is not."""
    said, good = [], graphs.record
    monkeypatch.setattr(graphs, "record", lambda work: no_capture(work) if captures else good(work))
    found = {(sample, 0): [sample + 1] for sample in range(64)}
    broken, toy = by_graph(64, found, found, tries_of(64, 1), 64, said.append)
    assert broken == set(range(64))
    assert dict(toy.settled) == {(sample, 0): True for sample in range(64)}
    assert len(said) == 1


def test_another_error_is_not_taken_for_a_failed_capture(monkeypatch):
    monkeypatch.setattr(graphs, "record", lambda work: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        by_graph(5, {}, {}, tries_of(2, 1), 2)


def test_the_switch_of_the_algorithms_is_put_back():
    before = torch.backends.cudnn.benchmark
    for wanted in (True, False):
        with timed_algorithms(wanted):
            assert torch.backends.cudnn.benchmark is wanted
        assert torch.backends.cudnn.benchmark is before
        with pytest.raises(ZeroDivisionError), timed_algorithms(not before):
            _ = 1 / 0
        assert torch.backends.cudnn.benchmark is before


def test_sizes_end_with_all_slots():
    assert sweep.SIZES[-1] == 1
    assert list(sweep.SIZES) == sorted(sweep.SIZES)
