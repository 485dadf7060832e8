"""Robust accuracy against plain loops and known truth; fp32 decides, inside the ball."""

import dataclasses
import functools
import itertools

import pytest
import torch
from torch import nn

from pixelpart import attacks, data, draws, models
from pixelpart.attacks import ATTACKS, SEARCHES, VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.autoattack import autoattack
from pixelpart.attacks.batching import Try
from pixelpart.attacks.square import square_search
from pixelpart.errors import UserError
from pixelpart.evaluation import measure as measure_module
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.images import ImageSet, errs_inside, start_images, start_noise
from pixelpart.evaluation.measure import clean_logits, measure, natural
from pixelpart.evaluation.partial import PartialResult
from pixelpart.evaluation.store import NOT_STORED
from pixelpart.view.borrow import FrozenView
from searches import CPU, EPS, plane_truth, short

pytestmark = pytest.mark.usefixtures("short_searches")


def flags(model, pair, name="pgd5", *, batch_size=16, report=None, **changes):
    """The samples that remain correct under a step attack with eps 0.03 and steps of 0.01."""
    spec = parse_attack(name, eps=0.03, step_size=0.01, search="fp32")
    spec = dataclasses.replace(spec, **changes)
    pictures = ImageSet(*pair, CPU, batch_size)
    clean = clean_logits(model, pictures)
    progress = (lambda *news: report.append(news)) if report is not None else measure_module.silent
    return measure(model, pictures, spec, clean, progress=progress).correct


# -- step attacks


def test_natural_equals_a_plain_loop_also_for_uint8_images(net, pair):
    x, y = (pair[0] * 255).byte(), pair[1]
    expected = [int(net(x[i : i + 1] / 255).argmax()) == int(y[i]) for i in range(len(x))]
    for images in (x, x.float() / 255):
        assert natural(net, ImageSet(images, y, CPU, batch_size=7)).tolist() == expected


@pytest.mark.parametrize("kind", ["pgd", "mma"])
def test_step_attacks_equal_a_plain_loop_over_single_images(kind, net, pair):
    expected = []
    for i, (x, y) in enumerate(zip(*pair, strict=True)):
        a, b = x[None], y[None]
        noise = [
            2 * torch.rand(a.shape, generator=draws.generator(0, f"attack/{kind}5", number, i)) - 1
            for number in range(ATTACKS[kind].starts)
        ]
        start = a + 0.03 * (noise[0] if kind == "pgd" else torch.stack(noise))
        adv = ATTACKS[kind].run(net, a, b, 0.03, step_size=0.01, steps=5, start=start)
        expected.append(bool(net(a).argmax() == b) and bool(net(adv).argmax() == b))
    assert flags(net, pair, f"{kind}5").tolist() == expected
    assert 0 < sum(expected) < 40


def test_robust_accuracy_of_a_plane_is_known_in_every_norm(plane, pair):
    """By Hoelder the score w.x falls by at most eps times the dual norm of w: |w|_1, |w|_2 or max |w|."""
    x, y = pair
    score = (plane(x)[:, 0] * torch.where(y == 0, 1, -1)).detach()
    w = plane.linear.weight.detach()
    falls = {
        "pgd8": 0.02 * w.abs().sum(),
        "pgd8@0.04": 0.04 * w.abs().sum(),
        "apgd-ce-l2@0.3": 0.3 * w.norm(),
        "apgd-ce-l1@0.2": 0.2 * w.abs().max(),
    }
    result = evaluate(plane, data=pair, attacks=["natural", *falls], eps=0.02, step_size=0.01)
    assert result["natural"].correct == int((score > 0).sum())
    for name, fall in falls.items():
        tolerance = 0.03 * fall if "l1" in name else 1e-4  # in l1 the attack may spend part on a second pixel
        robust, correct = score > fall, torch.from_numpy(result.flags[name])
        sure = (score - fall).abs() > tolerance
        assert torch.equal(correct[sure], robust[sure])
        assert not (robust & ~correct).any()
    assert result["pgd8@0.04"].correct < result["pgd8"].correct < result["natural"].correct


def test_outcomes_do_not_depend_on_the_batch_size_or_on_other_images(net, pair):
    expected = flags(net, pair, "pgd5x3", batch_size=40)
    assert flags(net, pair, "pgd5x3", batch_size=3).equal(expected)
    assert flags(net, tuple(part[:9] for part in pair), "pgd5x3").equal(expected[:9])


def test_restarts_attack_only_the_samples_left_and_only_break_more(net, pair, monkeypatch):
    weak = {"eps": 0.05, "step_size": 0.001}
    left = [flags(net, pair, f"pgd1x{restarts}", **weak) for restarts in (1, 2, 3, 8)]
    assert all(not (more & ~fewer).any() for fewer, more in itertools.pairwise(left))
    assert left[-1].sum() < left[0].sum()
    sizes = []

    def watched(model, x, y, budget, **settings):
        sizes.append(len(x))
        return attacks.pgd(model, x, y, budget, **settings)

    monkeypatch.setitem(ATTACKS, "pgd", attacks.Attack(watched))
    flags(net, pair, "pgd1x3", batch_size=40, **weak)
    correct = net(pair[0]).argmax(1) == pair[1]
    assert sizes == [int(flags.sum()) for flags in (correct, left[0], left[1])]


def test_start_noise_differs_by_sample_number_stream_and_seed():
    x, index = torch.zeros(2, 3, 8, 8), torch.tensor([4, 9])
    same = {"stream": "attack/pgd20", "seed": 0, "number": 0}
    noise = start_noise(index, x, **same)
    others = [start_noise(index, x, **same | change) for change in ({"seed": 1}, {"number": 1}, {"stream": "other"})]
    assert not any(noise.equal(other) for other in (*others, noise.flip(0)))
    assert noise.equal(start_noise(index.flip(0), x, **same).flip(0))
    assert -1 <= noise.min() < -0.9 < 0.9 < noise.max() <= 1
    start = start_images(index, x + 0.5, 0.03, kind="mma", steps=20, seed=0, restart=1)
    for number, images in enumerate(start, start=3):  # restart 0 used 0, 1 and 2
        noise = start_noise(index, x, stream="attack/mma20", seed=0, number=number)
        assert images.equal(attacks.start_point(x + 0.5, 0.03, noise, kind="uniform"))


def test_an_input_outside_the_ball_or_outside_0_1_breaks_nothing(plane):
    x = torch.full((5, 3, 6, 6), 0.5)
    x[3:] = 0.001
    y = plane(x).argmax(1)
    worst = torch.where(y == 0, -1, 1)[:, None, None, None] * plane.linear.weight.sign().view(1, 3, 6, 6)
    lengths = torch.tensor([0.05, 0.05 + 5e-7, 0.0501, 0.05, 0.05])[:, None, None, None]
    x_adv = x + lengths * worst
    x_adv[4] = x_adv[4].clamp(0, 1)
    assert (plane(x_adv).argmax(1) != y)[:3].all()
    broken = errs_inside(plane, x, x_adv, y, eps=0.05)
    assert broken[:4].tolist() == [True, True, False, False]
    assert bool(broken[4]) == bool(plane(x_adv).argmax(1)[4] != y[4])


def test_progress_counts_images_and_ends_at_the_accuracy(net, pair):
    news = []
    correct = flags(net, pair, batch_size=8, report=news)
    done = [count for _, count, _, _ in news]
    assert done == sorted(done)
    assert len(done) > 2
    assert news[-1] == ("pgd5", 40, 40, f"{float(correct.double().mean()):.2%} correct")
    wrong = 1 - net(pair[0]).argmax(1).clamp(max=1)
    flags(net, (pair[0], wrong), report=news)
    assert news[-1][1:3] == (40, 40)


# -- attacks of the user's own


def own(run):
    """An attack's entry that has only the documented arguments."""

    def attack(model, x, y, budget, *, step_size, steps, start):
        return run(model, x, y, budget, start)

    return attacks.Attack(attack)


def shift_images_of(images):
    """An attack that leaves the budget at the first images."""

    def run(model, x, y, budget, start):
        return torch.where(torch.arange(len(x))[:, None, None, None] < images, x + 2 * budget, start)

    return run


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda model, x, y, budget, start: x * torch.nan,
            r"attack own returned NaN or infinite pixels in (\d+) of \1",
        ),
        (
            lambda model, x, y, budget, start: x[1:],
            r"attack own returned float32 \(\d+, 3, 6, 6\); it must return images",
        ),
        (lambda model, x, y, budget, start: None, "attack own returned NoneType; it must return images"),
        (shift_images_of(1), r"attack own left the budget or \[0, 1\] in 1 of \d+ images; end it with .*project"),
        (lambda model, x, y, budget, start: x + 2 * budget, r"attack own left the budget or \[0, 1\] in (\d+) of \1"),
    ],
)
def test_an_attack_that_returns_no_images_inside_the_budget_is_named(net, pair, monkeypatch, run, message):
    monkeypatch.setitem(ATTACKS, "own", own(run))
    with pytest.raises(UserError, match=message):
        flags(net, pair, "own3")


def test_draws_from_the_global_generator_repeat_with_the_seed_and_leave_no_trace(net, pair, monkeypatch):
    drawn = []

    def run(model, x, y, budget, start):
        drawn.append(torch.rand(3).tolist())
        return start

    monkeypatch.setitem(ATTACKS, "own", own(run))

    def draws_of(**settings):
        drawn.clear()
        before = torch.get_rng_state()
        flags(net, pair, "own3x2", **settings)
        assert torch.get_rng_state().equal(before)
        return list(drawn)

    first = draws_of()
    torch.rand(1)
    assert draws_of() == first
    assert len(set(map(tuple, first))) == len(first) > 2  # by restart and batch
    assert draws_of(seed=1) != first


# -- searches


@pytest.mark.parametrize("name", ["autoattack", "apgd-ce", "apgd-t", "fab-t", "mm3"])
def test_the_robust_samples_of_a_plane_are_found(plane, pair, name):
    result = evaluate(plane, data=pair, attacks=[name], eps=EPS)
    expected = plane_truth(plane, *pair, EPS)
    assert result.flags[name].tolist() == expected.tolist()
    assert 0 < expected.sum() < 40


def test_evaluate_and_the_attack_itself_break_the_same_samples(net, labelled):
    generator, same = (torch.Generator().manual_seed(0) for _ in range(2))
    seed = int(torch.randint(2**62, (), generator=same))
    result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, seed=seed, batch_size=7)
    assert result.flags["autoattack"].tolist() == autoattack(net, *labelled, EPS, generator=generator).tolist()
    assert 0 < result["autoattack"].correct < 18


def test_apgd_is_apgd_ce_and_then_apgd_t(net, labelled):
    result = evaluate(net, data=labelled, attacks="natural,apgd-ce,apgd-t,apgd", eps=EPS)
    ce, targeted, both = (result.flags[name] for name in ("apgd-ce", "apgd-t", "apgd"))
    assert (both == (ce & targeted)).all()
    assert 0 < both.sum() < result.flags["natural"].sum()


def test_plus_leaves_out_the_search_that_needs_three_classes(plane, pair, monkeypatch):
    searches = {"apgd-ce": apgd_search(steps=3), "apgd-dlr": apgd_search(loss="dlr", steps=3)}
    monkeypatch.setitem(VERSIONS, "plus", searches)
    said = []
    result = evaluate(plane, data=pair, attacks="autoattack-plus", eps=EPS, say=said.append)
    assert result.flags["autoattack-plus"].tolist() == plane_truth(plane, *pair, EPS).tolist()
    assert list(result["autoattack-plus"].entry["settings"]["parts"]) == ["apgd-ce"]
    assert said == [NOT_STORED, "autoattack-plus runs without apgd-dlr, which needs 3 classes; there are 2"]


def test_progress_of_each_search_ends_at_the_share_still_correct(net, labelled):
    news = []
    result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, progress=lambda *item: news.append(item))
    for name in short():
        own = [item[1:] for item in news if item[0] == f"autoattack {name}"]
        done, totals = [count for count, _, _ in own], {total for _, total, _ in own}
        assert done == sorted(done)
        assert (len(totals), done[0], done[-1]) == (1, 0, totals.pop())
    assert news[-1][3] == f"{result['autoattack'].accuracy:.2%} correct"


def test_nothing_is_attacked_if_no_image_is_correct(net, pair, driver):
    wrong = (net(pair[0]).argmax(1) + 1) % 5
    assert evaluate(net, data=(pair[0], wrong), attacks="autoattack")["autoattack"].correct == 0
    assert driver["started"] == []


@pytest.mark.parametrize("attack", ["autoattack", "apgd-ce", "square", "pgd3"])
def test_nan_during_an_attack_is_an_error_and_not_a_robust_sample(net, labelled, attack, monkeypatch):
    class NaNElsewhere(nn.Module):
        """NaN at every image but the given ones."""

        def forward(self, x):
            new = ~(x.detach().flatten(1)[:, None] == labelled[0].flatten(1)).all(2).any(1)
            return net(x) + torch.where(new, torch.nan, 0.0)[:, None]

    monkeypatch.setattr("pixelpart.evaluation.images.DEFAULT_EPS", 0.0)  # the probes' noise moves images too
    monkeypatch.setattr(sanity, "scale_warnings", lambda *_: [])
    with pytest.raises(UserError, match=r"NaN or infinite logits for \d+ of \d+ adversarial images"):
        evaluate(NaNElsewhere().eval(), data=labelled, attacks=attack, eps=EPS, step_size=0.01)


def test_tries_of_other_processes_do_not_change_this_processs_samples(net, labelled):
    pictures, spec = ImageSet(*labelled, CPU), parse_attack("autoattack", eps=EPS, search="fp32")
    clean = clean_logits(net, pictures)
    others = {Try("apgd-ce", sample, 0): True for sample in range(20) if clean[sample].argmax() != labelled[1][sample]}
    assert others
    partial = PartialResult()
    partial.settled |= others
    plain, more = (measure(net, pictures, spec, clean, partial=known) for known in (None, partial))
    assert plain.correct.tolist() == more.correct.tolist()


class Closed(nn.Module):
    """A network without gradients."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def test_square_runs_on_a_model_without_gradients(net, pair, monkeypatch):
    monkeypatch.setitem(SEARCHES, "square", square_search(100))
    settings = {"data": pair, "attacks": ["natural", "square"], "eps": 0.02}
    closed, opened = evaluate(Closed(net), **settings), evaluate(net, **settings)
    assert closed.flags["square"].tolist() == opened.flags["square"].tolist()
    assert 0 < closed["square"].correct < closed["natural"].correct
    with pytest.raises(UserError, match=r"no gradient reaches the model's input.*only natural and square can run"):
        evaluate(Closed(net), **settings | {"attacks": ["natural", "square", "pgd20"]})


# -- precision


class Branching(nn.Module):
    """A model that torch.fx cannot trace."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x) if x.mean() > -1 else self.net(2 * x)


@pytest.mark.parametrize("attack", ["autoattack", "pgd5"])
def test_a_model_without_a_bf16_view_is_searched_in_fp32_and_the_entry_says_so(net, labelled, attack):
    said, settings = [], {"data": labelled, "attacks": attack, "eps": EPS}
    fp32 = evaluate(Branching(net).eval(), **settings, search="fp32", say=said.append)
    assert said == [NOT_STORED]
    bf16 = evaluate(Branching(net).eval(), **settings, search="bf16", say=said.append)
    assert bf16.flags[attack].tolist() == evaluate(net, **settings).flags[attack].tolist()
    assert ["cannot trace" in line for line in said[2:]] == [True]
    assert bf16[attack].entry["settings"] == fp32[attack].entry["settings"] | (
        {"search": "fp32"} if attack == "autoattack" else {}
    )


@pytest.mark.parametrize("attack", ["autoattack", "pgd5"])
def test_a_wrong_view_breaks_nothing_that_fp32_does_not_confirm(plane, pair, monkeypatch, attack):
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    monkeypatch.setattr(measure_module, "trusted_view", lambda *_: (wrong, None))
    left = evaluate(plane, data=pair, attacks=attack, eps=EPS, search="bf16").flags[attack]
    assert not (plane_truth(plane, *pair, EPS) & ~left).any()


@pytest.mark.parametrize("name", ["pgd3", "mma3", "adaptive-pgd3", "adaptive-in3"])
def test_bf16_gradients_come_from_the_view_and_the_model_decides(name, monkeypatch):
    small = models.build("tiny-cnn", generator=torch.Generator().manual_seed(4)).eval()
    images = data.load("shapes", split="test")[0][:24]
    with torch.no_grad():
        small.linear.bias -= small(images / 255).mean(0)
        given = images, small(images / 255).argmax(1)
    seen, kinds = [], {"pgd": attacks.pgd, "mma": attacks.mma}

    def watched(kind, model, *args, **settings):
        seen.append(model)
        return kinds[kind](model, *args, **settings)

    for kind in kinds:
        entry = dataclasses.replace(ATTACKS[kind], run=functools.partial(watched, kind))
        monkeypatch.setitem(ATTACKS, kind, entry)
    fp32, bf16 = (evaluate(small, data=given, attacks=name, eps=0.002, search=search) for search in ("auto", "bf16"))
    half = len(seen) // 2
    assert all(model is small for model in seen[:half])
    assert all(isinstance(model, FrozenView) for model in seen[half:])
    assert seen[-1].features(images[:1] / 255).dtype == torch.bfloat16
    assert bf16[name].entry["settings"] == fp32[name].entry["settings"] | {"search": "bf16"}
    assert abs(bf16[name].correct - fp32[name].correct) <= 1
