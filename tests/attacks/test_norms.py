"""Auto-PGD in l2 and l1, where the budget is a radius."""

import math

import pytest
import torch
from torch import nn

from pixelpart.attacks.apgd import apgd, apgd_search
from pixelpart.attacks.autoattack import run_searches
from pixelpart.attacks.ball import length, project_l1
from pixelpart.attacks.batching import Samples
from pixelpart.attacks.norms import L1
from pixelpart.attacks.search import Search, initial_state, keep_best
from pixelpart.draws import hashed_normal
from pixelpart.errors import UserError
from walks import NORMS, RADII, begun, by_number


def test_the_l1_start_is_normal_noise_projected_onto_the_largest_ball(make_net, make_batch):
    x, y, _ = make_batch(dtype=torch.float64)
    keys = torch.tensor([5, 0, -3, 2**62])
    point = begun(apgd_search(norm="l1"), make_net(dtype=torch.float64), x, y, 1.5, keys)["point"]
    torch.testing.assert_close(point, project_l1(x + hashed_normal(keys, 48).double().view_as(x), x, 4.5))
    torch.testing.assert_close(length(point - x, "l1"), torch.full((4, 1, 1, 1), 4.5, dtype=torch.float64))


def test_the_balls_of_l1_by_hand():
    assert L1.of(100) == L1(103, (0, 31, 62), (3.0, 2.0, 1.0), (1, 1, 1))
    assert L1.of(1000) == L1(1003, (0, 301, 602), (3.0, 2.0, 1.0), (12, 12, 16))
    assert L1.of(3) == L1(6, (0, 2, 4), (3.0, 2.0, 1.0), (1, 1, 1))
    assert L1.of(2) == L1(3, (0,), (1.0,), (1,))
    assert L1.of(0) == L1(1, (0,), (1.0,), (1,))
    balls, steps = L1.of(3), torch.arange(8)
    assert balls.of_step(steps, balls.first_steps).tolist() == [0, 0, 2, 2, 4, 4, 4, 4]
    assert balls.is_first(steps).tolist() == [True, False, True, False, True, False, False, False]


# -- the worst image


@pytest.mark.parametrize("kind", [{"loss": "ce"}, {"targets": 1}])
@pytest.mark.parametrize("norm", NORMS)
def test_finds_the_worst_image_of_a_linear_model_where_the_box_does_not_bind(norm, kind):
    """By Hoelder: radius w / |w|_2 in l2, and in l1 all of it at the largest |w|; w the difference of two classes."""
    g = torch.Generator().manual_seed(0)
    x, y = 0.4 + 0.2 * torch.rand(6, 3, 4, 4, generator=g), torch.arange(6) % 2
    w = torch.randn(2, 48, generator=g)
    lead = (w[1 - y] - w[y]).view_as(x)
    worst = {
        "l2": 0.3 * lead / length(lead, "l2"),
        "l1": 0.3 * lead.sign() * (lead.abs() == lead.abs().amax((1, 2, 3), keepdim=True)),
    }[norm]
    x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, 0.3, steps=50, norm=norm, **kind)
    gained, best = ((change * lead).flatten(1).sum(1) for change in (x_adv - x, worst))
    assert (gained <= best * (1 + 1e-5)).all()
    if norm == "l2":
        assert (gained >= best * (1 - 1e-5)).all()
    else:  # a step changes at least two pixels, as in the reference
        second = lead.abs().flatten(1).sort(dim=1).values[:, -2]
        assert (gained >= 0.3 * second * (1 - 1e-5)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_follows_a_gradient_whose_square_underflows(norm, make_batch):
    """A confident network has such gradients in fp32."""
    x, y, _ = make_batch(classes=2)
    w = 1e-25 * torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, 0.5, steps=20, norm=norm)
    assert (length(x_adv - x, norm) > 0.45).all()


@pytest.mark.parametrize(
    ("radius", "message"),
    [
        (-0.1, "not negative"),
        (math.nan, "not negative"),
        (math.inf, "must be finite"),
        (torch.full((4, 1, 1, 1), -1.0), "not negative"),
        (torch.zeros(4, 1, 4, 4), r"the l1 radius has shape \(4, 1, 4, 4\); it must be a number or \(b, 1, 1, 1\)"),
    ],
)
def test_a_wrong_radius_is_refused(radius, message, make_net, make_batch):
    x, y, _ = make_batch()
    with pytest.raises(UserError, match=message):
        apgd(make_net(), x, y, radius, norm="l1")


# -- in the driver


@pytest.mark.parametrize(
    ("norm", "budget", "broken"),
    [("linf", 0.5, {0, 1, 2}), ("linf", 0.499, set()), ("l2", 1.0, {1, 2}), ("l1", 1.0, {2})],
)
def test_an_error_counts_only_inside_the_ball_of_the_norm(norm, budget, broken):
    """Changes of 0.5 at 16, 4 and 1 of 16 pixels."""
    changes = torch.zeros(3, 1, 4, 4)
    for i, pixels in enumerate((16, 4, 1)):
        changes[i].view(-1)[:pixels] = 0.5

    def advance(net, state):
        x_new = state["x"] + changes[state["y"]]
        return state | keep_best(state, x_new, net(x_new)) | {"step": state["step"] + 1}

    search = Search(initial_state, advance, 1, norm=norm)
    x, y = torch.zeros(3, 1, 4, 4), torch.arange(3)

    def errs_when_changed(z):
        changed = (z.flatten(1).amax(1, keepdim=True) > 0).float()
        return nn.functional.one_hot(torch.arange(3), 3)[: len(z)] * (0.5 - changed)

    correct, model = torch.ones(3, dtype=torch.bool), errs_when_changed
    samples = Samples(by_number(x, y), budget, model(x), model, 0)
    left, counts = run_searches({"jump": search}, model, samples, correct, slots=3)
    assert {i for i in range(3) if not left[i]} == broken
    assert counts == {"jump": 3 - len(broken)}


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
def test_on_a_gpu_the_step_is_captured_and_breaks_the_same_samples(norm, make_net, make_batch):
    net, (x, _, _) = make_net().eval().requires_grad_(False), make_batch(24)
    y = net(x).argmax(1)
    search, said, broken = apgd_search(steps=20, norm=norm, targets=4), [], {}
    for device in ("cpu", "cuda"):
        images, labels, model = x.to(device), y.to(device), net.to(device)
        samples = Samples(by_number(images, labels), RADII[norm] / 3, model(images), model, 0)
        correct = torch.ones(24, dtype=torch.bool)
        left, _ = run_searches({"a": search}, model, samples, correct, slots=7, say=said.append)
        broken[device] = {i for i in range(24) if not left[i]}
    assert said == []  # it reports a capture that fails
    assert len(broken["cpu"] ^ broken["cuda"]) <= 1
