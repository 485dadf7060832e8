"""The parts that all searches share, by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelpart.attacks.search import (
    Search,
    has_no_direction,
    initial_state,
    is_correct,
    keep_best,
    keys_of_try,
    run_search,
    target_classes,
)

Y = torch.tensor([0, 1, 2])


def rows(*values):
    """Images of one pixel with these values."""
    return torch.tensor(values).reshape(-1, 1, 1, 1)


def state_of(b=3, dtype=torch.float32, **given):
    x = torch.full((b, 1, 2, 2), 0.5, dtype=dtype)
    state = initial_state(x, Y[:b], torch.full((b, 1, 1, 1), 0.1, dtype=dtype), torch.arange(b), Y[:b])
    return state | given


# -- initial_state and keep_best


def test_keep_best_takes_the_larger_margin():
    zeros, labels = rows(0.0, 0.0, 0.0, 0.0), torch.tensor([0, 0, 1, 1])
    state = initial_state(zeros, labels, zeros + 1, labels, labels)
    first = keep_best(state, rows(0.1, 0.2, 0.3, 0.4), torch.tensor([[2.0, 1], [2, 1], [2, 1], [1, 1]]))
    assert first["margin"].tolist() == [-1, -1, 1, 0]
    assert torch.equal(first["x_adv"], rows(0.1, 0.2, 0.3, 0.4))
    assert first["hit"].tolist() == [False, False, True, True]  # a tie may be an error: the model decides
    second = keep_best(state | first, rows(0.5, 0.6, 0.7, 0.8), torch.tensor([[2.0, 1.5], [2, 1], [2, 1.5], [1, 1.0]]))
    assert second["margin"].tolist() == [-0.5, -1, 1, 0]
    assert torch.equal(second["x_adv"], rows(0.5, 0.2, 0.3, 0.4))  # better, equal, worse, equal
    assert second["hit"].tolist() == [False, False, True, True]


def test_a_hit_that_was_reset_returns_only_with_a_larger_margin():
    state = state_of(margin=torch.tensor([1.0, 1.0, -1.0]), hit=torch.tensor([False, True, False]))
    logits = torch.tensor([[0.0, 1, 0], [0, -9, 0], [0, 0, 1]])  # margins 1, 9, -1
    assert keep_best(state, state["x"], logits)["hit"].tolist() == [False, True, False]
    assert keep_best(state, state["x"], 3 * logits)["hit"].tolist() == [True, True, False]


def test_an_image_outside_the_ball_is_never_taken():
    state = state_of()
    logits = torch.tensor([[0.0, 5, 0], [5, 0, 0], [5, 0, 0]])
    kept = keep_best(state, state["x"] + 0.1, logits, inside=torch.tensor([True, False, True]))
    assert kept["hit"].tolist() == [True, False, True]
    assert kept["margin"].tolist() == [5, -torch.inf, 5]
    assert torch.equal(kept["x_adv"][1], state["x"][1])
    assert torch.equal(kept["x_adv"][::2], state["x"][::2] + 0.1)


def test_an_image_with_nan_logits_is_a_hit_unless_an_error_was_found_already():
    state = state_of(margin=torch.tensor([-torch.inf, -1.0, 0.0]))
    nan = torch.full((3, 3), torch.nan)
    kept = keep_best(state, state["x"] + 0.1, nan)
    assert torch.equal(kept["x_adv"], state["x"] + torch.tensor([0.1, 0.1, 0.0])[:, None, None, None])
    assert kept["hit"].tolist() == [True, True, False]
    assert torch.equal(kept["margin"], state["margin"])
    assert not keep_best(state, state["x"] + 0.1, nan, torch.tensor([False, False, False]))["hit"].any()


def test_the_margin_of_bf16_logits_is_computed_in_fp32():
    logits = torch.tensor([[1.0, 2**-9, -4]], dtype=torch.bfloat16)
    assert keep_best(state_of(1), state_of(1)["x"], logits)["margin"].item() == 2**-9 - 1


# -- small functions


def test_nan_logits_are_not_correct():
    logits = torch.tensor([[2.0, 1], [torch.nan, 1], [1, torch.nan], [1, 2], [torch.nan, torch.nan]])
    assert is_correct(logits, torch.zeros(5, dtype=torch.long)).tolist() == [True, False, False, False, False]
    assert is_correct(logits, torch.ones(5, dtype=torch.long)).tolist() == [False, False, False, True, False]


def test_a_gradient_without_a_finite_nonzero_entry_has_no_direction():
    grads = torch.tensor([[0.0, 0.0], [torch.nan, 0.0], [torch.inf, torch.nan], [torch.nan, 1e-30], [1.0, 0.0]])
    assert has_no_direction(grads.view(5, 1, 1, 2)).tolist() == [True, True, True, False, False]


def test_target_classes_are_the_wrong_classes_by_falling_logits():
    logits = torch.tensor([[1.0, 4, 3, 2], [1, 4, 3, 2], [5, 5, 5, 5]])
    y = torch.tensor([1, 0, 1])
    assert [target_classes(logits, y, rank).tolist() for rank in range(3)] == [[2, 1, 0], [3, 2, 2], [0, 3, 3]]
    assert target_classes(logits, y, torch.tensor([2, 0, 1])).tolist() == [0, 1, 2]


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5), st.integers(0, 20), st.integers(1, 7))
def test_a_key_contains_the_number_of_its_restart(keys, number, restarts):
    keys = torch.tensor(keys)
    changed = keys_of_try(keys, number, restarts)
    assert (changed % restarts == number % restarts).all()
    assert (changed // restarts == keys // restarts).all()
    assert torch.equal(keys_of_try(keys, torch.full_like(keys, number), restarts), changed)


@pytest.mark.parametrize(
    ("targets", "restarts", "classes", "tries"),
    [(0, 1, 10, 1), (0, 5, 10, 5), (9, 1, 10, 9), (9, 2, 10, 18), (9, 2, 3, 4), (3, 1, 2, 1), (0, 2, 2, 2)],
)
def test_the_number_of_tries(targets, restarts, classes, tries):
    assert Search(initial_state, lambda net, state: state, 1, targets, restarts).tries(classes) == tries


# -- run_search


class Recorded:
    """A search that adds 0.01 per step, and records how it was begun and how often it stepped."""

    def __init__(self, steps=3, propose=lambda state: state["x_adv"] + 0.01, **settings):
        self.begun, self.steps, self.propose = [], 0, propose
        self.search = Search(self.begin, self.advance, steps, **settings)

    def begin(self, x, y, budget, keys, target):
        self.begun.append({"x": x, "y": y, "budget": budget, "keys": keys, "target": target})
        return initial_state(x, y, budget, keys, target)

    def advance(self, net, state):
        self.steps += 1
        assert not torch.is_grad_enabled()
        x_new = self.propose(state)
        return state | keep_best(state, x_new, net(x_new)) | {"step": state["step"] + 1}


def rising(z):
    """Three classes; the margin of class 0 rises with the image."""
    up = z.mean(dim=(1, 2, 3))
    return torch.stack([-up, up, up / 2], dim=1)


def test_run_search_takes_the_steps_of_the_search():
    recorded = Recorded(steps=5)
    x_adv = run_search(recorded.search, rising, rows(0.5, 0.6), torch.tensor([0, 0]), 0.2)
    assert recorded.steps == 5
    torch.testing.assert_close(x_adv, rows(0.55, 0.65))
    (begun,) = recorded.begun
    assert torch.equal(begun["budget"], torch.full((2, 1, 1, 1), 0.2))
    assert torch.equal(begun["target"], begun["y"])  # untargeted
    assert len(begun["keys"].unique()) == 2


def test_run_search_tries_each_target_with_each_restart_and_other_keys():
    recorded = Recorded(targets=9, restarts=3)
    y = torch.tensor([0, 1])
    run_search(recorded.search, rising, rows(0.5, 0.6), y, 0.2)
    targets = [begun["target"].tolist() for begun in recorded.begun]
    assert targets == [[1, 2]] * 3 + [[2, 0]] * 3  # by the clean logits -u, u, u / 2
    keys = torch.stack([begun["keys"] for begun in recorded.begun])
    assert len(keys.unique()) == 12
    assert (keys % 3).tolist() == [[0, 0], [1, 1], [2, 2]] * 2


def test_run_search_keeps_the_best_of_the_tries_for_each_sample():
    """The restart's number in the key sets the change: the second is the largest for all samples except sample 1."""
    moves = torch.tensor([0.05, 0.2, 0.1, 0.2])

    def propose(state):
        change = moves[state["key"] % 4] * torch.where(state["x"].flatten() == 0.6, -1, 1)
        return state["x"] + change[:, None, None, None]

    recorded = Recorded(steps=2, propose=propose, restarts=4)
    x_adv = run_search(recorded.search, rising, rows(0.5, 0.6, 0.7), torch.tensor([0, 0, 0]), 0.2)
    torch.testing.assert_close(x_adv, rows(0.7, 0.55, 0.9))
