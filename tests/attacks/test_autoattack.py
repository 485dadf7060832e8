"""AutoAttack where the outcome is known, and against its authors' code."""

import copy

import pytest
import torch
from torch import nn

import pixelpart as pp
from pixelpart.attacks.autoattack import SEARCHES, VERSIONS, autoattack
from pixelpart.attacks.ball import inside
from pixelpart.attacks.batching import Samples, Try
from pixelpart.errors import UserError
from planes import Plane, right_labels

pytestmark = pytest.mark.usefixtures("short_versions")
FULL = {version: dict(parts) for version, parts in VERSIONS.items()}


# -- known outcomes


@pytest.mark.parametrize(
    ("classes", "kind"),
    [(2, "float"), (4, "float"), (10, "float"), (5, "sample"), (5, "pixel"), (3, "channel")],
)
def test_exactly_the_samples_that_no_change_breaks_remain_correct_for_a_linear_model(classes, kind, make_batch):
    plane = Plane(classes)
    x, _, pixels = make_batch(24, classes=classes)
    y = right_labels(plane, x)
    budget = {
        "float": 0.06,
        "sample": torch.linspace(0, 0.12, 24).view(-1, 1, 1, 1),
        "pixel": 1.2 * pixels,
        "channel": pixels * torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1),
    }[kind]
    slack = plane.slack(x, y, budget)
    robust = autoattack(plane, x, y, budget)
    sure = slack.abs() > 1e-3
    assert sure.sum() >= 22
    assert torch.equal(robust[sure], slack[sure] > 0)
    assert 2 <= int(robust.sum()) <= 19
    assert not robust[:3].any()


@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_the_model_errs_on_an_image_inside_the_budget_for_every_broken_sample(make_net, make_batch, search):
    """Every image that the model itself is called with is recorded."""
    net, seen = make_net().eval(), []

    class Recording(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            if type(x) is torch.Tensor:
                seen.append(x.detach().clone())
            return self.net(x)

    x, _, budget = make_batch(16)
    y = right_labels(net, x, wrong=0)
    robust = autoattack(Recording(), x, y, budget, search=search)
    assert 0 < int(robust.sum()) < 16
    visited = torch.cat(seen)
    wrong = net(visited).argmax(1)
    for i in (~robust).nonzero()[:, 0].tolist():
        near = inside(visited, x[i].expand_as(visited), budget[i].expand(len(visited), 1, 4, 4))
        assert (near & (wrong != y[i])).any()


@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_out_receives_an_adversarial_image_of_each_that_was_broken(make_net, make_batch, search):
    net = make_net().eval().requires_grad_(False)
    x, _, budget = make_batch(16)
    y = right_labels(net, x)
    out = x.clone()
    robust = autoattack(net, x, y, budget, search=search, out=out)
    assert torch.equal(robust, autoattack(net, x, y, budget, search=search))
    assert 0 < int(robust.sum()) < 16
    correct = net(x).argmax(1) == y
    assert inside(out, x, budget).all()
    assert (net(out).argmax(1) != y)[correct & ~robust].all()
    assert torch.equal(out[robust | ~correct], x[robust | ~correct])
    with pytest.raises(UserError, match=r"out is .* torch.float64 on cpu; it must be like x"):
        autoattack(net, x, y, budget, out=x.double())


def test_out_receives_one_image_of_a_sample_that_several_tries_broke_at_once():
    x, wrong = torch.zeros(1, 1, 1, 1), lambda x: torch.stack((-x, x)).flatten(1).T
    found, tries = x.clone(), [Try("s", 0, number) for number in range(3)]
    samples = Samples(
        lambda index: (x[index], torch.zeros(len(index), dtype=torch.long)), 1.0, torch.zeros(1, 2), wrong, 0, found
    )
    errs = samples.broken_by(torch.tensor([0.2, 0.0, 0.4]).view(3, 1, 1, 1), SEARCHES["square"], tries)
    assert errs.tolist() == [True, False, True]
    assert found.item() in torch.tensor([0.2, 0.4]).tolist()


# -- the authors' code


def reference(net, x, y, eps, *, version, seed, steps=10, queries=30, restarts=2):
    pyautoattack = pytest.importorskip("pyautoattack")
    attack = pyautoattack.AutoAttack(net, norm="Linf", eps=eps, version=version, seed=seed, device="cpu")
    targets = min(9, net(x[:1]).shape[1] - 1)
    for part in (attack.apgd, attack.apgd_targeted, attack.fab):
        part.n_iter = steps
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = targets
    if version == "plus":
        attack.apgd.n_restarts = attack.fab.n_restarts = restarts
    attack.square.n_queries = queries
    rng = torch.get_rng_state()
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    torch.set_rng_state(rng)
    return (net(x).argmax(1) == y) & (net(x_adv).argmax(1) == y)


@pytest.mark.parametrize(("version", "classes"), [("standard", 10), ("plus", 5)])
def test_the_same_samples_remain_correct_as_under_the_authors_code(make_net, make_batch, version, classes):
    """Where their outcome does not depend on the seed, ours is the same."""
    net = make_net(classes).eval().requires_grad_(False)
    x, _, _ = make_batch(24, classes=classes)
    y = right_labels(net, x)
    theirs = torch.stack([reference(net, x, y, 0.06, version=version, seed=seed) for seed in range(2)])
    always, never = theirs.all(0), ~theirs.any(0)
    assert min(int(always.sum()), int(never.sum())) >= 4
    assert int((always | never).sum()) >= 22
    ours = autoattack(net, x, y, 0.06, version=version)
    assert ours[always].all()
    assert not ours[never].any()


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_the_versions_have_the_searches_and_settings_of_the_authors(make_net, version):
    pyautoattack = pytest.importorskip("pyautoattack")
    theirs = pyautoattack.AutoAttack(make_net(), norm="Linf", eps=0.1, version=version, seed=0)
    ours = FULL[version]
    assert list(ours) == theirs.attacks_to_run
    for name, search in ours.items():
        part = {"apgd-t": theirs.apgd_targeted, "fab": theirs.fab, "fab-t": theirs.fab}.get(name, theirs.apgd)
        if name == "square":
            assert (search.steps, search.restarts) == (theirs.square.n_queries + 1, theirs.square.n_restarts)
            continue
        assert search.steps == part.n_iter + name.startswith("apgd")
        assert search.restarts == (1 if name == "fab-t" else part.n_restarts)
        assert search.targets == (part.n_target_classes if name.endswith("-t") else 0)
    assert all(search.norm == "linf" for search in ours.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_full_standard_on_a_trained_network_agrees_with_the_authors_code(tmp_path, monkeypatch):
    """After adversarial training, where most samples remain correct."""
    monkeypatch.setitem(VERSIONS, "standard", FULL["standard"])
    run = pp.train(pp.recipes.shapes("at", epochs=3), out=tmp_path, device="cpu")
    x, y = pp.data.load("shapes", split="test")
    x, y = x[:20].float() / 255, y[:20].long()
    net = run.model.eval().requires_grad_(False)
    ours = autoattack(net, x, y, 8 / 255)
    theirs = reference(net, x, y, 8 / 255, version="standard", seed=0, steps=100, queries=5000)
    assert 0 < int(theirs.sum()) < 20
    assert int((ours != theirs).sum()) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_on_a_gpu_the_same_samples_remain_correct(make_net, make_batch, search):
    net = make_net(10).eval()
    x, _, _ = make_batch(64, classes=10)
    y = right_labels(net, x)
    here = autoattack(net, x, y, 0.06)
    there = autoattack(copy.deepcopy(net).cuda(), x.cuda(), y.cuda(), 0.06, search=search, slots=16)
    assert 8 < int(here.sum()) < 56
    assert int((here != there.cpu()).sum()) <= 2
