"""Rules, controls and scales compiled, and budgets of captured steps, against the plain ones.

test_fast.py runs this file with PIXELPART_TYPES=0, as it does compiled_steps.py; by hand:
`PIXELPART_TYPES=0 pytest tests/engine/compiled_policies.py -m gpu`.
"""

import functools
import itertools

import pytest
import torch
from torch._dynamo.utils import counters

from pixelpart import masks
from pixelpart.data.loader import Loader
from pixelpart.engine.fast import CapturedStep, compile_policy
from pixelpart.engine.step import train_step
from pixelpart.runtime.precision import ieee_fp32
from steps import budgets_of, plan_for, state_for

RULES = ["mean", "zscore", "quantile:0.7", "soft", "official", "rank", "power:0.5"]
PAIRS = list(zip(RULES, itertools.cycle(masks.CONTROLS), strict=False))
SOURCES = ["gradcam", "gradient:2", "margin", "centre", "quadrant:ul", "blobs", "object"]
OF_MODEL = ["gradcam", "gradient:2", "margin"]
SLOW = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


def compiled_and_plain(rule, control, device, *, over="image"):
    """Budget and share of both, of random maps of which one is dead; asserts that nothing is compiled twice."""
    settings = {"mean": 7 / 255, "mean_over": over} if control != "none" else {}
    policy = masks.budget_policy(rule=rule, control=control, eps=8 / 255, eps_low=4 / 255, **settings)
    fast = compile_policy(policy)
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)
        maps, noise = torch.rand(6, 4, 4, generator=g), torch.randn(6, 4, 4, generator=g)
        maps[2] = 0
        found = []
        for made in (fast, policy):
            share, dead = made.share(maps.to(device), (32, 32))
            assert dead.tolist() == [False, False, True, False, False, False]
            found += made.control_and_scale(share, dead, noise.to(device))
        assert counters["stats"]["unique_graphs"] == 2
        assert not counters["graph_break"]
    return found


@pytest.mark.parametrize(
    ("rule", "control", "backend"),
    [(*pair, "eager") for pair in PAIRS]
    + [pytest.param(RULES[-1], control, "inductor", marks=SLOW) for control in masks.CONTROLS],
)
def test_a_compiled_policy_gives_the_plain_budgets(monkeypatch, rule, control, backend):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    budget, share, plain_budget, plain_share = compiled_and_plain(rule, control, "cpu")
    torch.testing.assert_close(budget, plain_budget, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(share, plain_share, rtol=1e-5, atol=1e-6)


# -- on a GPU


def loader_and_objects(n=32):
    g = torch.Generator().manual_seed(3)
    images = torch.randint(256, (n, 3, 32, 32), generator=g, dtype=torch.uint8)
    objects = torch.rand(n, 32, 32, generator=g) < 0.3
    return Loader(images, torch.arange(n) % 10, batch_size=16, seed=0, device="cuda"), objects.cuda()


def budgets_of_both(source, control, *, compiled, **mask):
    """The budgets of captured and of plain steps in epochs 1, 2 and the last, while eps goes from 4/255 to 8/255.

    The weights do not move, so that rounding does not add up. Without `compiled` the step is captured as it is.
    """
    mask = {"source": source, "rule": "rank" if source == "margin" else "mean", "control": control} | mask
    settings = {"epochs": 5, "eps_from": "4/255", "eps_low": "6/255", "batch_size": 16, "augment": "crop-flip"}
    plan = plan_for(mask=mask, attack={"steps": 1}, **settings)
    fast, plain = (state_for(plan, dtype=torch.float32, device="cuda", size=32, rate=0.0) for _ in range(2))
    loader, objects = loader_and_objects()
    maps, said = objects if source == "object" else None, []
    step = CapturedStep(fast, batch_size=16 if compiled else 0, say=said.append)
    if not compiled:
        fast.attack_view.interpret()
    with ieee_fp32(torch.device("cuda")):
        mine = budgets_of(step, fast, plan, loader, maps, epochs=(0, 1, 4))
        theirs = budgets_of(train_step, plain, plan, loader, maps, epochs=(0, 1, 4))
    assert said == []
    assert len(step._graphs) == 1  # eps is a tensor, so one graph serves all epochs
    assert [budget.mean().item() for budget in theirs] == sorted(budget.mean().item() for budget in theirs)
    return zip(mine, theirs, strict=True)


@pytest.mark.gpu
@pytest.mark.parametrize("control", masks.CONTROLS)
@pytest.mark.parametrize("source", SOURCES)
def test_captured_budgets_are_the_plain_ones_in_every_epoch(source, control):
    for mine, theirs in budgets_of_both(source, control, compiled=False):
        if source in OF_MODEL:
            assert ((mine - theirs).abs() < 1e-6).float().mean() > 0.98  # rounding moves a pixel over the mean
        else:
            assert torch.equal(mine, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("source", "control", "mask"),
    [("gradient:2", "blobs", {"rule": "power:0.5", "mean": "8/255"}), ("object", "shuffled", {})],
)
def test_compiled_and_captured_budgets_are_the_plain_ones_in_every_epoch(source, control, mask):
    for mine, theirs in budgets_of_both(source, control, compiled=True, **mask):
        assert ((mine - theirs).abs() < 1e-6).float().mean() > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "rank"])
def test_public_budgets_can_be_compiled_as_one_graph(rule):
    """For training loops of others: no value is read there, not even by the checks."""
    heat = torch.cat([torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 8, 8)])
    budget = functools.partial(masks.budget, eps=8 / 255, eps_low=4 / 255, rule=rule)
    compiled = torch.compile(budget, fullgraph=True, backend="eager")
    assert torch.equal(compiled(heat), budget(heat))


@pytest.mark.gpu
@pytest.mark.parametrize(("rule", "control"), PAIRS)
def test_a_compiled_policy_gives_the_plain_budgets_on_a_gpu(rule, control):
    budget, share, plain_budget, plain_share = compiled_and_plain(rule, control, "cuda", over="batch")
    assert ((budget - plain_budget).abs() < 1e-6).float().mean() > 0.98
    assert ((share - plain_share).abs() < 1e-5).float().mean() > 0.98
