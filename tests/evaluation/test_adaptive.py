"""The paper's adaptive attacks have the budget of the attacked model's own mask; ours stays inside the ball."""

import dataclasses
import functools
import json

import pytest
import torch
from torch import nn

from pixelpart import data, masks, models
from pixelpart.attacks import ATTACKS, ball
from pixelpart.cli.main import main
from pixelpart.config import Config, MaskConfig
from pixelpart.errors import UserError
from pixelpart.evaluation import adaptive
from pixelpart.evaluation.accuracy import start_images
from pixelpart.evaluation.attack_spec import facts_of, parse_attack
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.report.formatting import describe_eps
from pixelpart.report.run import Measurement

HIGH, LOW = 12 / 255, 8 / 255
PLAIN = {"cam": "gradcam", "layer": "features", "rule": "mean", "target": "predicted"}
N = 24


@functools.cache
def shapes():
    return tuple(tensor[:N] for tensor in data.shapes.generate("test"))


@pytest.fixture
def images():
    """The middle of some images."""
    return shapes()[0][:, :, 8:24, 8:24].contiguous()


@pytest.fixture
def model(images):
    """A network that does not say the same of all images."""
    network = models.build("tiny-cnn", generator=torch.Generator().manual_seed(4)).eval()
    with torch.no_grad():
        network.linear.bias -= network(images / 255).mean(0)
    return network


@pytest.fixture
def given(model, images):
    """Images with the labels that the model gives target: all are right to begin with."""
    with torch.no_grad():
        return images, model(images / 255).argmax(1)


@pytest.fixture
def seen(monkeypatch):
    """Every call of an attack: its name, images, budget, settings and what came of it."""
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


# -- names


@pytest.mark.parametrize(
    ("name", "kind", "steps", "restarts", "eps"),
    [
        ("adaptive-pgd20", "adaptive-pgd", 20, 1, HIGH),
        ("adaptive-mma100x2", "adaptive-mma", 100, 2, HIGH),
        ("adaptive-in20", "adaptive-in", 20, 1, None),
        ("adaptive-in40x3@4/255", "adaptive-in", 40, 3, 4 / 255),
    ],
)
def test_names_are_taken_apart(name, kind, steps, restarts, eps):
    attack = parse_attack(name)
    assert (attack.kind, attack.steps, attack.restarts, attack.eps) == (kind, steps, restarts, eps)


def test_the_papers_budget_is_not_to_be_changed():
    with pytest.raises(UserError, match=r"sets the budget of adaptive-mma20, 12/255 and 8/255 .* has no eps"):
        parse_attack("adaptive-mma20@16/255")


@pytest.mark.parametrize("name", ["adaptive", "adaptive-pgd", "adaptive-fab20", "adaptive-in0"])
def test_others_are_told_the_choices(name):
    with pytest.raises(UserError, match="adaptive-pgdK, adaptive-mmaK, adaptive-inK"):
        parse_attack(name)


# -- the paper's


@pytest.mark.parametrize("kind", ["pgd", "mma"])
def test_the_budget_is_high_where_the_models_own_mask_of_the_clean_image_is(kind, model, given, seen):
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


def test_the_figure_says_that_it_is_outside_the_threat_model(model, given):
    with torch.no_grad():
        for parameter in model.linear.parameters():
            parameter *= 5000  # as sure of its answers as a trained one
    result = evaluate(model, data=given, attacks=["adaptive-pgd6", "adaptive-in6", "adaptive-pgd5"])
    (warning,) = result["adaptive-pgd6"].warnings
    assert warning.startswith("outside the threat model: the budget is 12/255 where")
    assert warning.endswith("8/255 elsewhere")
    assert result["adaptive-in6"].warnings == []
    assert "(5 * 2/255 < 12/255)" in result["adaptive-pgd5"].warnings[1]


def test_the_report_tells_the_two_levels():
    attacked = {"steps": 20, "eps_low": LOW}
    entry = Measurement.model_construct(attack="adaptive-pgd20", settings=attacked)
    assert entry.own_eps
    assert describe_eps(HIGH, attacked) == "eps 12/255 and 8/255"


@pytest.mark.parametrize("everywhere", [False, True])
def test_what_leaves_the_budget_does_not_count(everywhere, model, given, monkeypatch):
    def up(model, x, y, budget, **settings):
        return x + (HIGH if everywhere else budget)

    monkeypatch.setitem(ATTACKS, "pgd", dataclasses.replace(ATTACKS["pgd"], run=up))
    levels = Config(eps=HIGH, eps_low=LOW, mask=MaskConfig(rule="mean"))
    attempt = adaptive.through_mask(model, model, "pgd", levels, step_size=2 / 255, steps=6, seed=0)
    x = 0.9 * given[0] / 255
    broken = attempt(torch.arange(N), x, torch.full((N,), 10), 0)  # no class of the model's: it errs everywhere
    dead = masks.dead(masks.heatmap(model, x))
    assert 0 < dead.sum() < N
    assert broken.tolist() == (dead.tolist() if everywhere else [True] * N)


def test_a_dead_map_gets_the_high_budget_everywhere(model, given, seen):
    with torch.no_grad():
        model.linear.weight.copy_(-model.linear.weight.abs())
    x = given[0]
    evaluate(model, data=(x, model(x / 255).argmax(1)), attacks=["adaptive-pgd2"])
    assert (seen[0][2] == HIGH).all()


# -- whose mask

OWN = {"cam": "layercam", "layer": "layer3", "rule": "quantile:0.7", "target": "label"}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(
        data.SETS, "shapes", dataclasses.replace(data.SETS["shapes"], load=lambda split, root: shapes())
    )


def test_a_run_brings_its_own_mask(make_run, seen, few):
    run = make_run(mask={**OWN, "every": 2})
    result = evaluate(run, images=6, attacks=["adaptive-pgd2", "adaptive-in2"], device="cpu")
    assert [result[name].entry["settings"]["mask"] for name in result] == [OWN, OWN]
    x, y = (tensor[:6] for tensor in shapes())
    right = run.model(x / 255).argmax(1) == y
    heat = masks.heatmap(run.model, x[right] / 255, method="layercam", layer="layer3", target=y[right])
    if right.any():
        assert seen[0][2].equal(masks.budget(heat, eps=HIGH, eps_low=LOW, rule="quantile:0.7"))


def test_a_run_without_a_mask_and_a_plain_model_get_gradcam_and_mean(make_run):
    for config in (None, make_run().config, make_run(mask={"cam": "layercam"}).config):
        assert adaptive.settings_of("adaptive-in", config) == {"mask": PLAIN}


def test_another_mask_is_another_question():
    def facts(kind, **mask):
        settings = {"eps": LOW, "step_size": 2 / 255, "seed": 0, "search": "fp32", "engine": "own"}
        return facts_of(parse_attack(f"{kind}20"), **settings, config=Config(mask=MaskConfig(**mask)))

    for kind in adaptive.ADAPTIVE:
        plain = facts(kind, rule="mean")
        assert facts(kind) == plain
        assert facts(kind, rule="mean", every=10) == plain
        others = [facts(kind, **{"rule": "mean", name: value}) for name, value in OWN.items()]
        assert all(other != plain for other in others)
    assert facts("pgd", rule="mean") == facts("pgd", rule="zscore")


def test_outcomes_are_kept_and_had_again(model, given, tmp_path):
    names = ["adaptive-pgd2", "adaptive-in2"]
    first = evaluate(model, data=given, attacks=names, out=tmp_path)
    again = evaluate(model, data=given, attacks=names, out=tmp_path)
    assert all(again[name].reused for name in names)
    assert again.entries == first.entries


class Unsplit(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def test_a_model_without_features_and_head_is_told_so_before_anything_runs(model, given, seen, tmp_path):
    with pytest.raises(UserError, match=r"Unsplit has no features and head; .* adds them"):
        evaluate(Unsplit(model), data=given, attacks=["pgd2", "adaptive-pgd2"], out=tmp_path)
    assert seen == []
    assert not list(tmp_path.iterdir())
    wrapped = models.wrap(Unsplit(model), features="model.layer4", head="model.linear")
    assert evaluate(wrapped, data=given, attacks=["adaptive-pgd2"])["adaptive-pgd2"].n == N


def test_the_command_line_takes_them(run, few, capsys):
    names = "adaptive-pgd20,adaptive-mma10,adaptive-in10"
    assert main(["evaluate", str(run.dir), "--attacks", names, "--images", "3", "--device", "cpu", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["attack"] for entry in entries] == names.split(",")
    assert [entry["eps"] for entry in entries] == [HIGH, HIGH, LOW]


# -- inside the ball

SMALL = {"eps": 1 / 255, "step_size": 0.4 / 255}


def test_inside_breaks_what_pgd_and_mma_of_the_same_steps_break(model, given):
    result = evaluate(model, data=given, attacks="pgd4x2,mma4x2,adaptive-in4x2,adaptive-in4", seed=3, **SMALL)
    left = result.flags["adaptive-in4x2"]
    assert 0 < left.sum() < N
    assert not (left & ~(result.flags["pgd4x2"] & result.flags["mma4x2"])).any()
    assert not (left & ~result.flags["adaptive-in4"]).any()


def test_its_starts_are_those_of_pgd_and_mma_restart_by_restart(model, given, seen, monkeypatch):
    monkeypatch.setattr(adaptive, "errs_inside", lambda model, x, x_adv, y, *, eps: torch.zeros(len(x)).bool())
    evaluate(model, data=given, attacks=["adaptive-in2x2"], images=3, seed=3, **SMALL)
    index, x = torch.arange(3), given[0][:3] / 255
    for kind, calls in (("pgd", seen[0::5]), ("mma", seen[1::5])):
        for restart, call in enumerate(calls):
            start = start_images(index, x, SMALL["eps"], kind=kind, steps=2, seed=3, restart=restart)
            assert (call[0], call[3]["start"].equal(start)) == (kind, True)
        assert len(calls) == 2


def test_inside_never_leaves_the_ball(model, given, monkeypatch):
    made = []

    def judge(model, x, x_adv, y, *, eps):
        made.append(x_adv)
        assert eps == SMALL["eps"]
        assert ball.inside(x_adv, x, eps).all()
        return torch.zeros(len(x), dtype=torch.bool)

    monkeypatch.setattr(adaptive, "errs_inside", judge)
    assert evaluate(model, data=given, attacks=["adaptive-in3"], **SMALL)["adaptive-in3"].correct == N
    assert len(made) == adaptive.WAYS
    assert len({tuple(x_adv.flatten().tolist()) for x_adv in made}) == adaptive.WAYS  # four ways, four results


def test_the_third_way_spends_on_what_the_mask_spares_before_the_rest(model, given, seen, monkeypatch):
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


def test_the_fourth_way_asks_at_every_step_where_the_model_looks_now(model, given, monkeypatch):
    asked = []
    important = adaptive.important

    def watched(model, x, y, mask):
        asked.append(x)
        return important(model, x, y, mask)

    monkeypatch.setattr(adaptive, "important", watched)
    attempt = adaptive.within_ball(
        model, model, Config(eps=8 / 255, mask=MaskConfig(rule="mean")), step_size=2 / 255, steps=3, seed=0
    )
    x, y = given[0][:4] / 255, given[1][:4]
    attempt(torch.arange(4), x, y, 3)
    assert len(asked) == 3 * 3  # steps and targets
    assert not asked[0].equal(asked[1])
    first, second = asked[:2]
    moved = (second - first).abs()
    free = ((first - x).abs() < 3 / 255) & (first > 0.1) & (first < 0.9)  # neither step meets a bound
    step = torch.where(important(model, first, y, MaskConfig(rule="mean")).expand_as(x), 4 / 255, 2 / 255)
    near = (moved - step).abs() < 1e-6
    assert near[free].float().mean() > 0.9  # some gradients are zero
    assert free.any()


def test_every_way_of_every_restart_is_written_down(model, given, monkeypatch):
    monkeypatch.setattr(adaptive, "errs_inside", lambda model, x, x_adv, y, *, eps: torch.zeros(len(x)).bool())
    journal, right = Journal(), torch.ones(2, dtype=torch.bool)
    settings = {"kind": "adaptive-in", "eps": 0.01, "step_size": 0.01, "steps": 2, "restarts": 2, "mask": PLAIN}
    pictures = ImageSet(given[0][:2], given[1][:2], torch.device("cpu"))
    adaptive.under_adaptive(
        model, pictures, right=right, seed=0, batch_size=2, report=lambda *news: None, journal=journal, **settings
    )
    assert sorted(journal.done) == [(0, sample, number) for sample in range(2) for number in range(2 * adaptive.WAYS)]


@pytest.mark.parametrize("rule", ["soft", "official", "zscore"])
def test_every_rule_has_a_mask_for_it(rule, model, given):
    x, y = given[0][:4] / 255, given[1][:4]
    where = adaptive.important(model, x, y, MaskConfig(rule=rule))
    assert where.dtype == torch.bool
    assert where.any()
    assert not where.all()
