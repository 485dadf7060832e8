"""Continuous batching on a search whose outcomes are given: which rows run when, and which images are judged."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.attacks.batching import Try, run_tries
from pixelpart.attacks.search import Search
from toys import Toy, no_model, tries_of

# -- a few samples by hand


def test_a_sample_runs_until_it_is_broken_and_no_further():
    toy = Toy(5, found={(0, 0): [2], (1, 1): [4]}, real={(0, 0): [2], (1, 1): [4]})
    assert toy(tries_of(3, 2), slots=3) == {0, 1}
    assert toy.took == {(0, 0): 2, (1, 0): 5, (2, 0): 5, (1, 1): 4, (2, 1): 5}
    assert toy.settled == [((0, 0), True), ((1, 0), False), ((2, 0), False), ((1, 1), True), ((2, 1), False)]


def test_a_waiting_try_takes_the_place_of_a_broken_sample_at_once():
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


def test_all_tries_of_a_sample_end_when_one_breaks_it():
    toy = Toy(6, found={(0, 1): [2]}, real={(0, 1): [2]})
    assert toy([(0, 0), (0, 1), (0, 2), (1, 0)], slots=4) == {0}
    assert toy.took == {(0, 0): 2, (0, 1): 2, (0, 2): 2, (1, 0): 6}
    assert toy.settled == [((0, 1), True), ((1, 0), False)]  # the other two did not finish


def test_a_try_goes_on_until_the_model_confirms_an_error():
    toy = Toy(6, found={(0, 0): [1, 3, 5], (1, 0): [2]}, real={(0, 0): [5]})
    assert toy(tries_of(2, 1), slots=2) == {0}
    assert toy.took == {(0, 0): 5, (1, 0): 6}
    assert toy.judged == [((0, 0), 1), ((1, 0), 2), ((0, 0), 3), ((0, 0), 5), ((1, 0), 2)]
    assert toy.settled == [((0, 0), True), ((1, 0), False)]


def test_the_last_image_of_a_try_is_judged_even_if_the_view_saw_no_error():
    toy = Toy(4, real={(1, 0): [0]})  # x_adv at the start
    assert toy(tries_of(2, 1), slots=2) == {1}
    assert toy.judged == [((0, 0), 0), ((1, 0), 0)]
    assert toy.settled == [((0, 0), False), ((1, 0), True)]


def test_no_tries_run_nothing():
    toy = Toy(4)
    assert toy([], slots=8) == set()
    assert (toy.begun, toy.rows, toy.settled) == ([], [], [])


@pytest.mark.parametrize(("tries", "slots", "rows"), [(10, 4, 4), (9, 8, 5), (8, 8, 8), (17, 8, 6), (3, 8, 3)])
def test_the_last_round_has_as_many_rows_as_the_others(tries, slots, rows):
    toy = Toy(1)
    toy(tries_of(tries, 1), slots=slots)
    rounds = [len(batch) for batch in toy.rows]
    assert rounds[0] == max(rounds) == rows
    assert len(rounds) == -(-tries // slots)


def test_the_caller_may_stop_at_any_settled_try():
    toy = Toy(3)
    search = Search(lambda *_: {}, toy.advance, steps=3)
    settled = run_tries(search, no_model, toy, [Try("toy", sample, 0) for sample in range(5)], slots=2)
    assert [one.sample for one, _ in islice(settled, 3)] == [0, 1, 2]
    assert [one for batch in toy.begun for one in batch] == [(0, 0), (1, 0), (2, 0), (3, 0)]


# -- random outcomes


@st.composite
def outcomes(draw):
    steps, samples, numbers = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    tries = tries_of(samples, numbers)
    some_steps = st.lists(st.integers(1, steps), max_size=3)
    found = {one: draw(some_steps) for one in draw(st.lists(st.sampled_from(tries), max_size=8))}
    real = {one: [step for step in found[one] if draw(st.booleans())] for one in found}
    for one in draw(st.lists(st.sampled_from(tries), max_size=2)):
        real.setdefault(one, []).append(0)
    return steps, tries, found, real


def judged_steps(one, found):
    """The steps whose images are judged in a try that runs to its end."""
    finds = set(found.get(one, ()))
    return finds | {max(finds, default=0)}


@settings(max_examples=25)
@given(outcomes(), st.integers(1, 30))
def test_every_sample_gets_all_its_tries_until_one_breaks_it(outcome, slots):
    steps, tries, found, real = outcome
    toy = Toy(steps, found, real)
    broken = toy(tries, slots=slots)
    breaking = {one for one in tries if judged_steps(one, found) & set(real.get(one, ()))}
    assert broken == {sample for sample, _ in breaking}
    settled = dict(toy.settled)
    assert len(settled) == len(toy.settled)
    assert all(was == (one in breaking) for one, was in toy.settled)
    assert {one for one in tries if one[0] not in broken} <= settled.keys()
    assert {sample for (sample, _), was in toy.settled if was} == broken
    assert all(toy.took[one] == steps for one, was in toy.settled if not was)
    assert all(count <= steps for count in toy.took.values())
    begun = [one for some in toy.begun for one in some]
    assert begun == [one for one in tries if one in set(begun)]
    assert len(set(begun)) == len(begun)


@settings(max_examples=25)
@given(outcomes(), st.integers(1, 30))
def test_the_batch_is_full_while_tries_wait_and_has_no_broken_samples(outcome, slots):
    """Replays the record: which samples were broken when a batch ran, and which tries waited."""
    steps, tries, found, real = outcome
    toy = Toy(steps, found, real)
    events = []
    advance, begin = toy.advance, toy.begin
    toy.advance = lambda net, state: events.append("step") or advance(net, state)
    toy.begin = lambda search, some: events.append([one[1:] for one in some]) or begin(search, some)
    search = Search(lambda *_: {}, toy.advance, steps=steps)
    named = [Try("toy", *one) for one in tries]
    events.extend((one[1:], broken) for one, broken in run_tries(search, no_model, toy, named, slots=slots))
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
