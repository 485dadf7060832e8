"""Continuous batching on a search whose outcomes are given: which rows run when, and which images are judged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toys import Toy, tries_of

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


@pytest.mark.parametrize(("tries", "slots", "rows"), [(10, 4, 4), (9, 8, 5), (8, 8, 8), (17, 8, 6), (3, 8, 3)])
def test_the_last_round_has_as_many_rows_as_the_others(tries, slots, rows):
    toy = Toy(1)
    toy(tries_of(tries, 1), slots=slots)
    rounds = [len(batch) for batch in toy.rows]
    assert rounds[0] == max(rounds) == rows
    assert len(rounds) == -(-tries // slots)


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
