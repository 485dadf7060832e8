import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pixelpart.attacks.search import (
    Search,
    budget_per_sample,
    initial_state,
    keep_best,
    keys_of_try,
    run_search,
    target_classes,
)
from pixelpart.errors import UserError
from pixelpart.view.views import Folding

Y = torch.tensor([0, 1, 2])


def rows(*values):
    """Images of one pixel with these values."""
    return torch.tensor(values).reshape(-1, 1, 1, 1)


def opened(b=3, dtype=torch.float32, **given):
    x = torch.full((b, 1, 2, 2), 0.5, dtype=dtype)
    state = initial_state(x, Y[:b], torch.full((b, 1, 1, 1), 0.1, dtype=dtype), torch.arange(b), Y[:b])
    return state | given


# initial_state and keep


def test_a_state_opens_at_x_with_nothing_reached():
    x, y, budget, keys, target = rows(0.1, 0.2, 0.3), Y, rows(0.0, 0.1, 0.2), torch.tensor([7, 8, 9]), Y.roll(1)
    state = initial_state(x, y, budget, keys, target)
    assert all(len(tensor) == 3 for tensor in state.values())
    for name, handed in {"x": x, "y": y, "budget": budget, "key": keys, "target": target, "x_adv": x}.items():
        assert torch.equal(state[name], handed)
    assert state["x_adv"].data_ptr() != x.data_ptr()
    assert state["margin"].tolist() == [-torch.inf] * 3
    assert state["step"].tolist() == [0] * 3
    assert state["hit"].tolist() == [False] * 3


def test_keep_takes_what_has_the_larger_margin_by_hand():
    state = initial_state(
        rows(0.0, 0.0, 0.0, 0.0), torch.tensor([0, 0, 1, 1]), rows(1.0, 1.0, 1.0, 1.0), Y[[0] * 4], Y[[0] * 4]
    )
    first = keep_best(state, rows(0.1, 0.2, 0.3, 0.4), torch.tensor([[2.0, 1], [2, 1], [2, 1], [1, 1]]))
    assert first["margin"].tolist() == [-1, -1, 1, 0]
    assert torch.equal(first["x_adv"], rows(0.1, 0.2, 0.3, 0.4))
    assert first["hit"].tolist() == [False, False, True, True]  # a tie may be an error: it is worth a look
    second = keep_best(state | first, rows(0.5, 0.6, 0.7, 0.8), torch.tensor([[2.0, 1.5], [2, 1], [2, 1.5], [1, 1.0]]))
    assert second["margin"].tolist() == [-0.5, -1, 1, 0]
    assert torch.equal(second["x_adv"], rows(0.5, 0.2, 0.3, 0.4))  # better, equal, worse, equal
    assert second["hit"].tolist() == [False, False, True, True]


def test_hit_stays_down_once_taken_back_until_something_better_comes():
    state = opened(margin=torch.tensor([1.0, 1.0, -1.0]), hit=torch.tensor([False, True, False]))
    logits = torch.tensor([[0.0, 1, 0], [0, -9, 0], [0, 0, 1]])  # margins 1, 9, -1
    assert keep_best(state, state["x"], logits)["hit"].tolist() == [False, True, False]
    assert keep_best(state, state["x"], 3 * logits)["hit"].tolist() == [True, True, False]


def test_what_lies_outside_is_not_taken_however_good():
    state = opened()
    logits = torch.tensor([[0.0, 5, 0], [5, 0, 0], [5, 0, 0]])
    kept = keep_best(state, state["x"] + 0.1, logits, inside=torch.tensor([True, False, True]))
    assert kept["hit"].tolist() == [True, False, True]
    assert kept["margin"].tolist() == [5, -torch.inf, 5]
    assert torch.equal(kept["x_adv"][1], state["x"][1])
    assert torch.equal(kept["x_adv"][::2], state["x"][::2] + 0.1)


def test_an_image_with_logits_that_are_not_numbers_is_worth_a_look_unless_there_is_an_error_already():
    state = opened(margin=torch.tensor([-torch.inf, -1.0, 0.0]))
    for inside in (None, torch.tensor([True, True, True])):
        kept = keep_best(state, state["x"] + 0.1, torch.full((3, 3), torch.nan), inside)
        assert torch.equal(kept["x_adv"], state["x"] + torch.tensor([0.1, 0.1, 0.0])[:, None, None, None])
        assert kept["hit"].tolist() == [True, True, False]
        assert torch.equal(kept["margin"], state["margin"])
    kept = keep_best(state, state["x"] + 0.1, torch.full((3, 3), torch.nan), torch.tensor([False, False, False]))
    assert torch.equal(kept["x_adv"], state["x"])
    assert not kept["hit"].any()


@pytest.mark.parametrize("images", [torch.float32, torch.float64])
@pytest.mark.parametrize("logits", [torch.float32, torch.float64, torch.bfloat16])
def test_keep_changes_no_type(images, logits):
    state = opened(dtype=images)
    kept = keep_best(state, state["x"], torch.eye(3, dtype=logits))
    assert {name: tensor.dtype for name, tensor in kept.items()} == {name: state[name].dtype for name in kept}


def test_the_margin_of_bf16_logits_is_not_rounded_to_bf16():
    state = opened(1)
    logits = torch.tensor([[1.0, 2**-9, -4]], dtype=torch.bfloat16)
    assert keep_best(state, state["x"], logits)["margin"].item() == 2**-9 - 1


# budgets, targets, keys


def test_a_budget_is_spread_over_the_rows():
    x = torch.zeros(3, 3, 4, 4, dtype=torch.float64)
    assert torch.equal(budget_per_sample(0.1, x), torch.full((3, 1, 1, 1), 0.1, dtype=torch.float64))
    for budget in (torch.rand(3, 1, 4, 4), torch.rand(3, 3, 4, 4)):
        assert torch.equal(budget_per_sample(budget, x), budget)


def test_targets_by_hand():
    logits = torch.tensor([[1.0, 4, 3, 2], [1, 4, 3, 2], [5, 5, 5, 5]])
    y = torch.tensor([1, 0, 1])
    assert [target_classes(logits, y, rank).tolist() for rank in range(3)] == [[2, 1, 0], [3, 2, 2], [0, 3, 3]]
    assert target_classes(logits, y, torch.tensor([2, 0, 1])).tolist() == [0, 1, 2]


@given(st.integers(2, 12), st.integers(0, 100))
def test_targets_of_all_ranks_are_all_wrong_classes_by_falling_logits(classes, seed):
    g = torch.Generator().manual_seed(seed)
    logits, y = torch.randn(5, classes, generator=g), torch.randint(classes, (5,), generator=g)
    targets = torch.stack([target_classes(logits, y, rank) for rank in range(classes - 1)], dim=1)
    for row, label, z in zip(targets.tolist(), y.tolist(), logits.tolist(), strict=True):
        assert row == sorted((k for k in range(classes) if k != label), key=lambda k: -z[k])


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5), st.integers(0, 20), st.integers(1, 7))
def test_a_key_tells_its_restart_and_hardly_moves(keys, number, restarts):
    keys = torch.tensor(keys)
    moved = keys_of_try(keys, number, restarts)
    assert (moved % restarts == number % restarts).all()
    assert (moved // restarts == keys // restarts).all()
    assert torch.equal(keys_of_try(keys, torch.full_like(keys, number), restarts), moved)


def test_how_often_a_sample_is_tried():
    def tries(targets, restarts, classes):
        return Search(initial_state, lambda net, state: state, 1, targets, restarts).tries(classes)

    assert [tries(0, 1, 10), tries(0, 5, 10), tries(9, 1, 10), tries(9, 2, 10)] == [1, 5, 9, 18]
    assert [tries(9, 2, 3), tries(3, 1, 2), tries(0, 2, 2)] == [4, 1, 2]


# run


class Recorded:
    """A search that walks up by 0.01 a step, and remembers what it was begun with and how often it stepped."""

    def __init__(self, steps=3, towards=None, **settings):
        self.begun, self.steps, self.grad, self.towards = [], 0, [], towards
        self.search = Search(self.begin, self.advance, steps, **settings)

    def begin(self, x, y, budget, keys, target):
        self.begun.append({"x": x, "y": y, "budget": budget, "keys": keys, "target": target})
        return initial_state(x, y, budget, keys, target)

    def advance(self, net, state):
        self.steps += 1
        self.grad.append(torch.is_grad_enabled())
        x_new = state["x_adv"] + 0.01 if self.towards is None else self.towards(state)
        return state | keep_best(state, x_new, net(x_new)) | {"step": state["step"] + 1}


def rising(z):
    """Three classes; the margin of each rises with the image."""
    up = z.mean(dim=(1, 2, 3))
    return torch.stack([-up, up, up / 2], dim=1)


def test_run_takes_the_steps_that_the_search_says():
    recorded = Recorded(steps=5)
    x_adv = run_search(recorded.search, rising, rows(0.5, 0.6), torch.tensor([0, 0]), 0.2)
    assert recorded.steps == 5
    assert recorded.grad == [False] * 5
    torch.testing.assert_close(x_adv, rows(0.55, 0.65))
    (begun,) = recorded.begun
    assert torch.equal(begun["budget"], torch.full((2, 1, 1, 1), 0.2))
    assert torch.equal(begun["target"], begun["y"])  # it aims at none
    assert len(begun["keys"].unique()) == 2


def test_without_steps_run_gives_x():
    x = rows(0.5, 0.6)
    assert torch.equal(run_search(Recorded(steps=0).search, rising, x, torch.tensor([0, 0]), 0.2), x)


def test_run_tries_each_target_with_each_restart_and_other_keys():
    recorded = Recorded(targets=9, restarts=3)
    y = torch.tensor([0, 1])
    run_search(recorded.search, rising, rows(0.5, 0.6), y, 0.2)
    targets = [begun["target"].tolist() for begun in recorded.begun]
    assert targets == [[1, 2]] * 3 + [[2, 0]] * 3  # by the clean logits -u, u, u / 2
    keys = torch.stack([begun["keys"] for begun in recorded.begun])
    assert len(keys.unique()) == 12
    assert (keys % 3).tolist() == [[0, 0], [1, 1], [2, 2]] * 2
    assert all(torch.equal(begun["y"], y) for begun in recorded.begun)


def test_run_keeps_the_best_of_the_tries_sample_by_sample():
    """The restart's number in the key says how far a try moves: the second goes furthest for all but sample 1."""
    moves = torch.tensor([0.05, 0.2, 0.1, 0.2])

    def towards(state):
        far = moves[state["key"] % 4] * torch.where(state["x"].flatten() == 0.6, -1, 1)
        return state["x"] + far[:, None, None, None]

    recorded = Recorded(steps=2, towards=towards, restarts=4)
    x_adv = run_search(recorded.search, rising, rows(0.5, 0.6, 0.7), torch.tensor([0, 0, 0]), 0.2)
    torch.testing.assert_close(x_adv, rows(0.7, 0.55, 0.9))


def test_of_equal_tries_run_keeps_the_first():
    recorded = Recorded(
        steps=1, towards=lambda state: state["x"] + 0.01 * (state["key"] % 3)[:, None, None, None], restarts=3
    )
    x_adv = run_search(recorded.search, lambda z: torch.zeros(len(z), 3), rows(0.5, 0.6), torch.tensor([0, 0]), 0.2)
    assert torch.equal(x_adv, rows(0.5, 0.6))


def test_run_draws_its_keys_from_the_generator_and_none_is_seed_zero():
    def keys(**given):
        recorded = Recorded(restarts=2)
        run_search(recorded.search, rising, rows(0.5, 0.6), torch.tensor([0, 0]), 0.2, **given)
        return torch.stack([begun["keys"] for begun in recorded.begun])

    before = torch.get_rng_state()
    assert torch.equal(keys(), keys(generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(keys(), keys(generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), before)


def test_run_lends_the_model_in_eval_mode_and_puts_it_back(make_net, make_batch):
    net, (x, y, budget), seen = make_net().train(), make_batch(), []

    def towards(state):
        seen.append((net.training, any(p.requires_grad for p in net.parameters())))
        if len(seen) == 3:
            raise RuntimeError("fault")
        return state["x"]

    with pytest.raises(RuntimeError, match="fault"):
        run_search(Recorded(steps=4, towards=towards).search, net, x, y, budget)
    assert seen == [(False, False)] * 3
    assert net.training
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    ("x", "budget", "message"),
    [
        (torch.full((2, 1, 2, 2), 255.0), 0.1, r"images are in \[255.0, 255.0\]"),
        (torch.full((2, 1, 2, 2), 0.5), 8.0, r"budget 8.0 is not in \[0, 1\]"),
        (torch.full((2, 1, 2, 2), 0.5), torch.full((2, 1, 2, 2), -0.1), "the budget is in"),
    ],
)
def test_run_refuses_what_no_attack_can_begin_with(x, budget, message):
    recorded = Recorded()
    with pytest.raises(UserError, match=message):
        run_search(recorded.search, rising, x, torch.tensor([0, 0]), budget)
    assert recorded.begun == []


def test_run_takes_a_frozen_view_as_it_takes_the_model(make_batch):
    x, y, budget = make_batch()

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(48, 5)

        def features(self, z):
            return z

        def head(self, acts):
            return self.linear(acts.flatten(1))

        def forward(self, z):
            return self.head(self.features(z))

    model = Linear()
    results = [run_search(Recorded(steps=3).search, net, x, y, budget) for net in (model, Folding(model)())]
    torch.testing.assert_close(*results)
