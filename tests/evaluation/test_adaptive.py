"""The paper's adaptive attacks have the budget of the attacked model's own mask; ours stays inside the ball."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

from pixelpart import data, masks, models
from pixelpart.attacks import ATTACKS, ball
from pixelpart.attacks.batching import Try
from pixelpart.config import MaskConfig
from pixelpart.errors import UserError
from pixelpart.evaluation import adaptive
from pixelpart.evaluation.attack_spec import ATTACKS_PER_RESTART, parse_attack
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.images import ImageSet, start_images
from pixelpart.evaluation.measure import clean_logits, measure, try_steps
from pixelpart.evaluation.partial import PartialResult

HIGH, LOW = 12 / 255, 8 / 255
PLAIN = {"cam": "gradcam", "layer": "features", "rule": "mean", "target": "predicted"}
N = 24


@functools.cache
def shapes():
    return tuple(tensor[:N] for tensor in data.shapes.generate("test"))


@pytest.fixture
def images():
    """The middle of some images of shapes."""
    return shapes()[0][:, :, 8:24, 8:24].contiguous()


@pytest.fixture
def model(images):
    """A network that predicts several classes."""
    network = models.build("tiny-cnn", generator=torch.Generator().manual_seed(4)).eval()
    with torch.no_grad():
        network.linear.bias -= network(images / 255).mean(0)
    return network


@pytest.fixture
def given(model, images):
    """Images with the labels that the model predicts."""
    with torch.no_grad():
        return images, model(images / 255).argmax(1)


@pytest.fixture
def seen(monkeypatch):
    """Every call of an attack: its name, images, budget, settings and result."""
    calls = []

    def watch(kind):
        run = ATTACKS[kind].run

        def watched(model, x, y, budget, **settings):
            x_adv = run(model, x, y, budget, **settings)
            calls.append((kind, x, budget, settings, x_adv))
            return x_adv

        monkeypatch.setitem(ATTACKS, kind, dataclasses.replace(ATTACKS[kind], run=watched))

    for kind in ("pgd", "mma"):
        watch(kind)
    return calls


def fitted(name, **settings):
    return dataclasses.replace(parse_attack(name, search="fp32", **settings), mask=MaskConfig(rule="mean"))


# -- the paper's


@pytest.mark.parametrize("kind", ["pgd", "mma"])
def test_the_budget_follows_the_models_mask_of_the_clean_image(kind, model, given, seen):
    result = evaluate(model, data=given, attacks=[f"adaptive-{kind}3"], eps=1 / 255)
    x = given[0] / 255
    expected = masks.budget(masks.heatmap(model, x), eps=HIGH, eps_low=LOW, rule="mean")
    ((called, images, budget, settings, x_adv),) = seen
    assert called == kind
    assert images.equal(x)
    assert budget.equal(expected)
    assert sorted(budget.unique().tolist()) == pytest.approx([LOW, HIGH])
    assert settings["steps"] == 3
    start = settings["start"] if kind == "pgd" else settings["start"][2]
    assert ball.inside(start, x, budget).all()
    assert ((start - x).abs() > LOW).any()
    entry = result.entries[0]
    assert (entry["eps"], entry["settings"]["eps_low"], entry["settings"]["mask"]) == (HIGH, LOW, PLAIN)
    broken = (model(x_adv).argmax(1) != given[1]) & ball.inside(x_adv, x, budget)
    assert broken.any()
    assert (~broken).tolist() == result[f"adaptive-{kind}3"].right.tolist()


def test_a_result_outside_the_threat_model_has_a_warning(model, given):
    with torch.no_grad():
        for parameter in model.linear.parameters():
            parameter *= 5000  # as sure of its answers as a trained one
    result = evaluate(model, data=given, attacks=["adaptive-pgd6", "adaptive-in6", "adaptive-pgd5"])
    (warning,) = result["adaptive-pgd6"].warnings
    assert warning.startswith("outside the threat model: the budget is 12/255 where")
    assert warning.endswith("8/255 elsewhere")
    assert result["adaptive-in6"].warnings == []
    assert "(5 * 2/255 < 12/255)" in result["adaptive-pgd5"].warnings[1]


def test_images_are_judged_by_the_budget_of_their_mask(model, given, monkeypatch):
    def up(model, x, y, budget, **settings):
        return x + (HIGH if everywhere else budget)

    monkeypatch.setitem(ATTACKS, "pgd", dataclasses.replace(ATTACKS["pgd"], run=up))
    x, y = 0.9 * given[0] / 255, torch.full((N,), 10)  # not a class of the model: it errs everywhere
    attack = fitted("adaptive-pgd6"), model, model, torch.arange(N), x, y, 0
    everywhere = False
    assert try_steps(*attack).all()
    everywhere = True
    alive = int((~masks.is_dead(masks.heatmap(model, x))).sum())
    assert 0 < alive < N
    with pytest.raises(UserError, match=rf"attack pgd left the budget or \[0, 1\] in {alive} of {N} images"):
        try_steps(*attack)


# -- whose mask

OWN = {"cam": "layercam", "layer": "layer3", "rule": "quantile:0.7", "target": "label"}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(data.SETS, "shapes", dataclasses.replace(data.SETS["shapes"], load=lambda split, *_: shapes()))


def test_a_runs_own_mask_is_used(make_run, seen, few):
    run = make_run(mask={**OWN, "every": 2})
    result = evaluate(run, images=6, attacks=["adaptive-pgd2", "adaptive-in2"], device="cpu")
    assert [result[name].entry["settings"]["mask"] for name in result] == [OWN, OWN]
    x, y = (tensor[:6] for tensor in shapes())
    right = run.model(x / 255).argmax(1) == y
    heat = masks.heatmap(run.model, x[right] / 255, method="layercam", layer="layer3", target=y[right])
    if right.any():
        assert seen[0][2].equal(masks.budget(heat, eps=HIGH, eps_low=LOW, rule="quantile:0.7"))


@pytest.mark.parametrize(
    "mask",
    [
        {"source": "margin", "rule": "rank"},
        {"source": "object"},
        {"source": "blobs"},
        {"source": "gradcam", "rule": "rank"},
    ],
)
def test_a_mask_that_an_image_does_not_have_by_itself_is_refused(make_run, few, mask):
    with pytest.raises(
        UserError, match=r"adaptive attacks need a mask computed from each image alone; this run's is not \("
    ):
        evaluate(make_run(mask={"rule": "mean"} | mask), images=2, attacks=["adaptive-pgd1"], device="cpu")


@pytest.mark.parametrize("source", ["gradient:2", "centre", "quadrant:ul"])
def test_controls_and_means_of_training_do_not_change_the_attacked_mask(make_run, few, seen, source):
    for more in ({}, {"control": "inverted", "mean": "6/255"}):
        evaluate(make_run(mask={"source": source, "rule": "mean"} | more), images=20, attacks=["adaptive-pgd1"])
    (_, _, plain, *_), (_, _, controlled, *_) = seen
    assert torch.equal(plain, controlled)
    assert set(plain.unique().tolist()) == set(torch.tensor([LOW, HIGH]).tolist())


class Unsplit(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def test_a_model_without_features_and_head_is_refused_before_any_attack(model, given, seen, tmp_path):
    with pytest.raises(UserError, match=r"Unsplit has no features and head; .* adds them"):
        evaluate(Unsplit(model), data=given, attacks=["pgd2", "adaptive-pgd2"], out=tmp_path, name="unsplit")
    assert seen == []
    assert not list(tmp_path.iterdir())
    wrapped = models.wrap(Unsplit(model), features="model.layer4", head="model.linear")
    assert evaluate(wrapped, data=given, attacks=["adaptive-pgd2"])["adaptive-pgd2"].n == N


# -- inside the ball

SMALL = {"eps": 1 / 255, "step_size": 0.4 / 255}


def test_adaptive_in_breaks_all_that_pgd_and_mma_break(model, given):
    result = evaluate(model, data=given, attacks="pgd4x2,mma4x2,adaptive-in4x2,adaptive-in4", seed=3, **SMALL)
    left = result.flags["adaptive-in4x2"]
    assert 0 < left.sum() < N
    assert not (left & ~(result.flags["pgd4x2"] & result.flags["mma4x2"])).any()
    assert not (left & ~result.flags["adaptive-in4"]).any()


def test_adaptive_in_starts_where_pgd_and_mma_start(model, given, seen, monkeypatch):
    monkeypatch.setattr(adaptive, "errs_inside", lambda model, x, x_adv, y, *, eps: torch.zeros(len(x)).bool())
    evaluate(model, data=given, attacks=["adaptive-in2x2"], images=3, seed=3, **SMALL)
    index, x = torch.arange(3), given[0][:3] / 255
    for kind, calls in (("pgd", seen[0::5]), ("mma", seen[1::5])):
        for restart, call in enumerate(calls):
            start = start_images(index, x, SMALL["eps"], kind=kind, steps=2, seed=3, restart=restart)
            assert (call[0], call[3]["start"].equal(start)) == (kind, True)
        assert len(calls) == 2


def test_adaptive_in_never_leaves_the_ball(model, given, monkeypatch):
    made = []

    def judge(model, x, x_adv, y, *, eps):
        made.append(x_adv)
        assert eps == SMALL["eps"]
        assert ball.inside(x_adv, x, eps).all()
        return torch.zeros(len(x), dtype=torch.bool)

    monkeypatch.setattr(adaptive, "errs_inside", judge)
    assert evaluate(model, data=given, attacks=["adaptive-in3"], **SMALL)["adaptive-in3"].correct == N
    assert len(made) == ATTACKS_PER_RESTART
    assert len({tuple(x_adv.flatten().tolist()) for x_adv in made}) == ATTACKS_PER_RESTART  # four ways, four results


def test_the_third_way_changes_unimportant_pixels_first(model, given, seen, monkeypatch):
    monkeypatch.setattr(adaptive, "errs_inside", lambda model, x, x_adv, y, *, eps: torch.zeros(len(x)).bool())
    evaluate(model, data=given, attacks=["adaptive-in5"], **SMALL)
    assert [call[0] for call in seen] == ["pgd", "mma", "mma", "mma", "mma"]
    assert [call[3]["steps"] for call in seen] == [5, 5, 2, 3, 5]
    x, eps = given[0] / 255, SMALL["eps"]
    first, then = seen[2], seen[3]
    important = masks.budget(masks.heatmap(model, x), eps=1.0, eps_low=0.0, rule="mean") == 1
    assert first[2].equal(eps * (~important).float())
    change = (first[4] - x).abs()
    assert change.mul(important).max() == 0
    assert change.max() > 0
    assert then[3]["start"] is first[4]
    assert [call[2] for call in (seen[0], seen[1], then, seen[4])] == [eps] * 4


def test_the_fourth_way_recomputes_the_mask_at_every_step(model, given, monkeypatch):
    asked = []
    important = adaptive.important

    def watched(model, x, y, mask):
        asked.append(x)
        return important(model, x, y, mask)

    monkeypatch.setattr(adaptive, "important", watched)
    x, y = given[0][:4] / 255, given[1][:4]
    adaptive.try_inside(fitted("adaptive-in3"), model, model, torch.arange(4), x, y, 3)
    assert len(asked) == 3 * 3  # steps and targets
    assert not asked[0].equal(asked[1])
    first, second = asked[:2]
    moved = (second - first).abs()
    free = ((first - x).abs() < 3 / 255) & (first > 0.1) & (first < 0.9)  # neither step meets a bound
    step = torch.where(important(model, first, y, MaskConfig(rule="mean")).expand_as(x), 4 / 255, 2 / 255)
    near = (moved - step).abs() < 1e-6
    assert near[free].float().mean() > 0.9  # some gradients are zero
    assert free.any()


def test_every_way_of_every_restart_is_reported_as_settled(model, given, monkeypatch):
    monkeypatch.setattr(adaptive, "errs_inside", lambda model, x, x_adv, y, *, eps: torch.zeros(len(x)).bool())
    pictures, partial = ImageSet(given[0][:2], given[1][:2], torch.device("cpu")), PartialResult()
    measure(model, pictures, fitted("adaptive-in2x2"), clean_logits(model, pictures), partial=partial)
    tries = [Try("adaptive-in", sample, number) for sample in range(2) for number in range(2 * ATTACKS_PER_RESTART)]
    assert sorted(partial.settled) == tries


@pytest.mark.parametrize("rule", ["soft", "official", "zscore"])
def test_every_rule_gives_a_mask(rule, model, given):
    x, y = given[0][:4] / 255, given[1][:4]
    where = adaptive.important(model, x, y, MaskConfig(rule=rule))
    assert where.dtype == torch.bool
    assert where.any()
    assert not where.all()
