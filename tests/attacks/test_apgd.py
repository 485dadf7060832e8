"""Auto-PGD against its authors' code; test_norms.py has what is particular to l2 and l1."""

import pytest
import torch
from torch import nn

from pixelpart.attacks.apgd import apgd, apgd_search, mm3, mm3_search
from pixelpart.attacks.search import budget_per_sample, target_classes
from pixelpart.draws import hashed, hashed_normal
from pixelpart.errors import UserError
from pixelpart.losses import margin
from walks import NORMS, RADII, Watched, advanced, begun

KINDS = {"ce": {"loss": "ce"}, "dlr": {"loss": "dlr"}, "dlr-targeted": {"targets": 1}}


class Scripted:
    """Logits and gradients that depend only on the number of the call; the images are recorded."""

    def __init__(self, x, y, rising, *, steps):
        """From call to call the logit of y falls by 1/128, or stays, or rises by it; the others are 0, -1, -2, -3."""
        g = torch.Generator().manual_seed(0)
        moves = torch.rand(steps + 1, len(x), generator=g, dtype=x.dtype) < rising
        moves = torch.where(moves, 1.0, -torch.randint(2, moves.shape, generator=g, dtype=x.dtype))
        others = -torch.arange(5, dtype=x.dtype).expand(len(x), 5)
        others = others + (others < -y[:, None])  # one rank up behind y
        labelled = nn.functional.one_hot(y, 5).bool()
        walks = (moves.cumsum(0) - 20.5) / 128  # the loss takes values again, but no two logits are equal
        self.logits = [torch.where(labelled, -walk[:, None], others) for walk in walks]
        self.slopes = torch.randn(steps + 1, *x.shape, generator=g, dtype=x.dtype)
        self.y, self.seen = y, []

    def __call__(self, x):
        number = len(self.seen)
        self.seen.append(x.detach().clone())
        zero = ((x - x.detach()) * self.slopes[number]).flatten(1).sum(1)  # with a gradient
        return self.logits[number] - zero[:, None] * nn.functional.one_hot(self.y, 5)


@pytest.mark.parametrize("steps", [1, 7, 100])
@pytest.mark.parametrize(
    ("norm", "kind"),
    # not dlr in l2: where it is constant, we follow its rounding and the reference stays
    [("linf", kind) for kind in KINDS] + [(norm, kind) for norm in NORMS for kind in ("ce", "dlr-targeted")],
)
def test_visits_the_same_images_as_the_reference(norm, kind, steps, make_net, make_batch, authors_apgd):
    x, _, pixels = make_batch(32, dtype=torch.float64)
    budget = RADII.get(norm, pixels)
    ours, theirs = Watched(make_net(dtype=torch.float64)), Watched(make_net(dtype=torch.float64))
    for net in (ours.net, theirs.net):
        net.conv.weight.mul_(12)  # rough, so that samples get stuck at different points
    y = ours.net(x).argmax(1)
    search = apgd_search(steps=steps, norm=norm, **KINDS[kind])
    state = begun(search, ours.net, x, y, budget)
    x_best, correct, best_loss, _ = authors_apgd(theirs, x, y, budget, state, norm=norm, kind=kind, steps=steps)
    state = advanced(search, ours, state)

    tolerance = 1e-9 if norm == "l2" else 1e-12  # in l2 it adds 1e-12 to every length in a denominator
    torch.testing.assert_close(torch.stack(ours.seen), torch.stack(theirs.seen), atol=tolerance, rtol=0)
    torch.testing.assert_close(state["best"], x_best, atol=tolerance, rtol=0)
    torch.testing.assert_close(state["best_loss"], best_loss, atol=tolerance, rtol=1e-7)
    assert torch.equal(state["hit"], state["margin"] >= 0)
    if norm == "l1":  # ours also counts errors found in a larger ball
        assert not (~correct & ~state["hit"]).any()
    else:
        assert torch.equal(state["hit"], ~correct)
    if steps >= 20:  # the samples must differ, or the test shows little
        assert len(state["scale"].unique()) >= 2 + (norm != "l1")
        assert 0 < state["hit"].sum() < 32


@pytest.mark.parametrize(("norm", "draw", "name"), [("linf", hashed, "rand"), ("l2", hashed_normal, "randn")])
def test_the_start_is_that_of_the_reference_for_the_same_random_numbers(
    norm, draw, name, make_net, make_batch, authors_apgd, monkeypatch
):
    x, y, pixels = make_batch(dtype=torch.float64)
    budget = pixels if norm == "linf" else 0.5
    net, keys = Watched(make_net(dtype=torch.float64)), torch.tensor([5, 0, -3, 2**62])
    state = begun(apgd_search(norm=norm), net.net, x, y, budget, keys)
    drawn = draw(keys, 48).double().view_as(x)
    monkeypatch.setattr(torch, name, lambda shape: drawn)
    authors_apgd(net, x, y, budget, state, norm=norm, kind="ce", steps=1, start=False)
    torch.testing.assert_close(state["point"], net.seen[0], atol=1e-12, rtol=0)
    assert (state["point"][0] - state["point"][1]).abs().min() > 0


@pytest.mark.parametrize("steps", [7, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_those_of_the_reference_for_any_course_of_the_loss(kind, steps, make_batch, authors_apgd):
    x, y, budget = make_batch(64, dtype=torch.float64)
    rising = torch.linspace(0.5, 1, 64)
    ours, theirs = (Scripted(x, y, rising, steps=steps) for _ in range(2))
    search = apgd_search(steps=steps, **KINDS[kind])
    state = search.begin(x, y, budget, torch.arange(64), (y + 1) % 5)
    authors_apgd(theirs, x, y, budget, state, norm="linf", kind=kind, steps=steps)
    reached = advanced(search, ours, state)
    torch.testing.assert_close(torch.stack(ours.seen), torch.stack(theirs.seen), atol=1e-12, rtol=0)
    if steps > 20:
        assert len(reached["scale"].unique()) >= 3


def test_the_loss_of_bf16_logits_is_computed_in_fp32(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    search = apgd_search()
    state = begun(search, net, x, y, budget)
    loss = search.advance(lambda z: net(z).bfloat16(), state)["best_loss"]
    expected = nn.functional.cross_entropy(net(state["point"]).bfloat16().float(), y, reduction="none")
    torch.testing.assert_close(loss, expected)


def test_more_targets_and_restarts_never_make_it_weaker(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch(24)

    def reached(**settings):
        return margin(net(apgd(net, x, y, budget, steps=3, **settings)), y).detach()

    one, all_four, more_than_all = (reached(targets=n) for n in (1, 4, 9))
    assert (all_four >= one).all()
    assert (all_four > one).any()
    assert torch.equal(all_four, more_than_all)
    once, twice = (reached(restarts=n) for n in (1, 2))
    assert (twice >= once).all()
    assert (twice > once).any()


def test_mm3_keeps_the_best_of_three_targets(make_net, make_batch):
    net, (x, _, budget) = make_net().eval().requires_grad_(False), make_batch(64)
    net.conv.weight.mul_(12)
    y = net(x).argmax(1)
    search, g, found = mm3_search(steps=5), torch.Generator().manual_seed(0), []
    for rank in range(3):
        keys = torch.randint(2**62, (64,), generator=g)
        state = search.begin(x, y, budget_per_sample(budget, x), keys, target_classes(net(x), y, rank))
        found.append(advanced(search, net, state)["x_adv"])
    margins = torch.stack([margin(net(images), y) for images in found])
    best = margins.argmax(0)
    assert set(best.tolist()) == {0, 1, 2}  # every target wins somewhere, or the test shows little
    assert torch.equal(mm3(net, x, y, budget, steps=5), torch.stack(found)[best, torch.arange(64)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "cw"}, "unknown loss 'cw'; choose from ce, dlr"),
        ({"loss": "ce", "targets": 9}, "unknown loss with targets 'ce'; choose from dlr, margin"),
        ({"steps": -1}, "steps -1 must not be negative"),
        ({"loss": "dlr"}, "dlr needs at least 3 classes, not 2"),
        ({"norm": "l0"}, "unknown norm 'l0'; choose from l1, l2, linf"),
        ({"targets": -1}, "targets -1 must be at least 0, restarts 1 at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message, make_net, make_batch):
    net, (x, y, budget) = make_net(2), make_batch(classes=2)
    with pytest.raises(UserError, match=message):
        apgd(net, x, y, budget, **settings)
