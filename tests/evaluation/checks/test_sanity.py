"""Every warning has a model made to cause it, and sound models cause none."""

from itertools import chain

import pytest
import torch
from torch import nn

from pixelpart import data, models
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.images import MODE_WARNING, ImageSet, mode_warnings
from pixelpart.evaluation.results import Outcome, Result


class Light(nn.Module):
    """Class 1 where the image, after `change`, is lighter than the middle."""

    def __init__(self, change=lambda x: x, middle=0.5, sharpness=20.0):
        super().__init__()
        self.change, self.middle, self.sharpness = change, middle, sharpness

    def forward(self, x):
        score = self.sharpness * (self.change(x).mean((1, 2, 3)) - self.middle)
        return torch.stack((-score, score), 1)


@pytest.fixture
def light():
    """100 images, each darker or lighter than the middle, sorted by that."""
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(100) // 50
    x = 0.2 * torch.rand(100, 3, 6, 6, generator=generator) + torch.where(y == 1, 0.55, 0.25)[:, None, None, None]
    return ImageSet(x, y, torch.device("cpu"))


def warnings_of(model, pictures):
    of_losses = sanity.gradient_warnings(model.eval(), pictures).values()
    return [*sanity.model_warnings(model, pictures), *chain.from_iterable(of_losses)]


def in_unit_range(x):
    assert 0 <= x.min() <= x.max() <= 1
    return x


@pytest.mark.parametrize(
    "model",
    [
        Light(),
        Light(sharpness=150.0),  # cross-entropies of 1e-8 and less
        Light(lambda x: (x - 0.5) / 0.2, 0.0, 4.0),  # normalises its input
        Light(sharpness=1e-6),  # small logits, but of two classes
        Light(in_unit_range),  # fails on other scales
    ],
)
def test_a_sound_model_causes_no_warning(model, light):
    assert warnings_of(model, light) == []
    assert warnings_of(model, ImageSet(light.images[:1], light.labels[:1], light.device)) == []


def test_a_model_that_is_right_less_often_than_guessing_is_reported(light):
    (warning,) = warnings_of(Light(sharpness=-20.0), light)
    assert warning == (
        "the model gets 0 of 100 images right, fewer than guessing among its 2 classes: does label k mean output k?"
    )
    few = ImageSet(light.images[:8], light.labels[:8], light.device)  # p = .5^8 = .004
    assert warnings_of(Light(sharpness=-20.0), few) == []


@pytest.mark.parametrize(("name", "seed"), [("tiny-cnn", 0), ("tiny-cnn", 1), ("wrn-10-1", 0)])
def test_an_untrained_network_that_predicts_one_class_is_only_warned_of_as_that(name, seed):
    x, y = data.load("shapes", split="test")
    model = models.build(name, generator=torch.Generator().manual_seed(seed)).eval()
    (warning,) = warnings_of(model, ImageSet(x[:64], y[:64], torch.device("cpu")))
    assert warning.startswith("all 64 images examined are predicted as class")


def test_one_class_for_all_images_is_detected_where_labels_differ(light):
    dark = Light(lambda x: x - 1)  # class 0 for every image
    (warning,) = warnings_of(dark, light)
    assert warning.startswith("all 100 images examined are predicted as class 0")
    few = ImageSet(light.images[:59], light.labels[:59], light.device)  # nine of class 1
    assert warnings_of(dark, few) == []


# -- scale

MEAN, STD = (torch.tensor(values)[:, None, None] for values in sanity.STATISTICS["ImageNet's mean and std"])


class Band(Light):
    """Class 1 where the image is as light as the light ones, neither more nor less."""

    def forward(self, x):
        score = 0.04 - (self.change(x).mean((1, 2, 3)) - 0.65).abs()
        return torch.stack((-score, score), 1)


@pytest.mark.parametrize(
    ("change", "correct", "message"),
    [
        (lambda x: x / 255, 50, "if pixels range from 0 to 255: was it trained on those?"),
        (lambda x: (x + 1) / 2, 0, "if they are normalised by mean 0.5 and std 0.5: is its normalisation missing?"),
        (lambda x: x * STD + MEAN, 50, "is its normalisation missing?"),
        (lambda x: (x - MEAN) / STD, 50, "by ImageNet's mean and std is undone first: does it normalise twice?"),
    ],
)
def test_a_model_trained_on_another_scale_is_detected(change, correct, message, light):
    assert warnings_of(Band(), light) == []
    (warning,) = warnings_of(Band(change), light)
    assert warning.startswith(f"the model gets {correct} of 100 images right, but 100 if ")
    assert warning.endswith(message)


class Somewhat(nn.Module):
    """Correct where the second channel is below 0.33, and below 0.45 if pixels range to 255; the first is y / 10."""

    def forward(self, x):
        full = x.max() > 2
        tenths, luck = (x.mean((2, 3)) / (255 if full else 1)).unbind(1)
        wrong = luck > (0.45 if full else 0.33)
        return 10 * nn.functional.one_hot(((10 * tenths).round().long() + wrong) % 10, 10).float()


def test_a_model_that_is_somewhat_better_on_another_scale_is_detected():
    """Like a small robust network that normalises twice."""
    y, luck = torch.arange(1000) % 10, torch.rand(1000, generator=torch.Generator().manual_seed(0))
    x = torch.stack((y / 10, luck), 1)[:, :, None, None].expand(-1, -1, 2, 2).contiguous()
    (warning,) = sanity.model_warnings(Somewhat(), ImageSet(x, y, torch.device("cpu")))
    assert "0 to 255" in warning


def test_grey_images_are_checked_and_one_class_for_all_is_not_better(light):
    grey = ImageSet(light.images[:, :1], light.labels, light.device)
    assert warnings_of(Light(), grey) == []
    (warning,) = warnings_of(Light(lambda x: x / 255), grey)
    assert "0 to 255" in warning
    only = ImageSet(light.images[50:], light.labels[50:], light.device)
    assert sanity.scale_warnings(Light(lambda x: x / 255), only.images, only.labels) == []


@pytest.mark.parametrize(("wins", "losses", "better"), [(10, 0, True), (9, 0, False), (20, 3, True), (20, 5, False)])
def test_the_sign_test_is_exact(wins, losses, better):
    a = torch.tensor([True] * wins + [False] * losses + [True, False])
    b = torch.tensor([False] * wins + [True] * losses + [True, False])
    assert sanity._better(a, b) is better  # 2**-10 = 0.00098, 2**-9 = 0.002; 0.00024, 0.00204


# -- randomness, batches, probabilities


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.5 * torch.randn_like(x),
        lambda x: x + 1e-3 * torch.randn_like(x),
        lambda x: nn.functional.dropout(x, 0.1, training=True),
    ],
)
def test_a_random_model_is_detected(change, light):
    assert sanity.RANDOM in warnings_of(Light(change), light)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), Light(middle=0.0)),
        Light(lambda x: x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))),  # by position
    ],
)
def test_a_model_that_depends_on_the_batch_is_detected(model, light):
    assert sanity.model_warnings(model.eval(), light) == [sanity.BATCH]


def test_the_outputs_of_a_sigmoid_are_detected(light):
    assert sanity.model_warnings(nn.Sequential(Light(), nn.Sigmoid()), light) == [sanity.PROBABILITIES]
    assert sanity.model_warnings(nn.Sequential(Light(), nn.LogSigmoid()), light) == []


# -- gradients


def stairs(x):
    return (16 * x).round() / 16 + 0 * x


def constant_if_light(x):
    return torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 1 + 0 * x, x)


@pytest.mark.parametrize(
    ("model", "names", "count"),
    [
        (Light(stairs), ["cross-entropy", "margin"], 64),
        (Light(lambda x: x + 0 * (x - x).sqrt()), ["cross-entropy", "margin"], 64),  # NaN
        (Light(sharpness=5000.0), ["cross-entropy"], 64),  # a saturated softmax
        (Light(constant_if_light), ["cross-entropy", "margin"], 32),
        (Light(lambda x: torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 0 * x, x)), [], 0),  # zero only where wrong
    ],
)
def test_zero_and_nan_gradients_are_counted(model, names, count, light):
    found = [warning.partition(":")[0] for warning in warnings_of(model, light) if "zero or NaN" in warning]
    assert found == [f"the gradient of the {name} is zero or NaN at {count} of 64 correct images" for name in names]


class WithGradient(torch.autograd.Function):
    """The image itself, with `replace(grad)` as its gradient."""

    @staticmethod
    def forward(ctx, x, replace):
        ctx.replace = replace
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.replace(grad), None


def negated(first):
    return lambda grad: torch.where(torch.arange(len(grad))[:, None, None, None] < first, -1, 1) * grad


@pytest.mark.parametrize(
    ("replace", "falls", "misled"),
    [
        (lambda grad: grad, 0, 0),
        (lambda grad: 0.8 * grad, 0, 0),
        (lambda grad: 0.5 * grad, 0, 64),  # FAB goes as far as the gradient's length predicts
        (lambda grad: grad.flip(3) * torch.linspace(0, 4, 6), 0, 64),
        (lambda grad: -grad, 64, 64),
        (negated(16), 0, 0),
        (negated(17), 17, 17),
    ],
)
def test_a_wrong_gradient_is_detected(replace, falls, misled, light):
    found = warnings_of(Light(lambda x: WithGradient.apply(x, replace)), light)
    margin = f"the margin does not rise as its gradient predicts at {misled} of 64 correct images"
    entropy = f"a step of 1/255 along its gradient lowers the cross-entropy at {falls} of 64 correct images"
    assert [warning.partition(":")[0] for warning in found] == [entropy] * (falls > 0) + [margin] * (misled > 0)


class Bands(nn.Module):
    """Classifies how light an image is, in four bands."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return -self.scale * (x.mean((1, 2, 3))[:, None] - torch.linspace(0.2, 0.8, 4)) ** 2


@pytest.mark.parametrize(("scale", "warned"), [(1000.0, False), (10.0, False), (1.0, True), (1e-3, True)])
def test_logits_that_are_scaled_down_are_detected(scale, warned):
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(80) % 4
    x = torch.linspace(0.2, 0.8, 4)[y][:, None, None, None] + 0.02 * torch.rand(80, 3, 6, 6, generator=generator)
    found = warnings_of(Bands(scale), ImageSet(x, y, torch.device("cpu")))
    assert [warning.startswith("the model's accuracy is 100% and its mean confidence") for warning in found] == [
        True
    ] * warned
    mostly_wrong = torch.where(torch.arange(80) % 5 < 2, y, (y + 1) % 4)
    assert warnings_of(Bands(scale), ImageSet(x, mostly_wrong, torch.device("cpu"))) == []


# -- mode and settings


@pytest.mark.parametrize(
    ("layer", "warned"),
    [
        (nn.BatchNorm2d(3), True),
        (nn.BatchNorm2d(3, track_running_stats=False), False),
        (nn.InstanceNorm2d(3), False),
        (nn.Dropout2d(0.1), True),
        (nn.Dropout(0.0), False),
    ],
)
def test_train_mode_is_reported_where_it_matters(layer, warned):
    model = nn.Sequential(layer, nn.Flatten())
    assert mode_warnings(model.train()) == ([MODE_WARNING] if warned else [])
    assert mode_warnings(model.eval()) == []


@pytest.mark.parametrize(
    ("eps", "settings", "warning"),
    [
        (8 / 255, {"steps": 3, "step_size": 2 / 255}, "(3 * 2/255 < 8/255)"),
        (8 / 255, {"steps": 4, "step_size": 2 / 255}, None),
        (7 / 255, {"steps": 11, "step_size": 7 / 255 / 11}, None),  # below eps only by rounding
        (0.3, {"steps": 1, "step_size": 0.29}, "steps * step_size < eps (1 * "),
        (2 / 255, {"steps": 20, "step_size": 2 / 255}, "step_size >= eps (2/255 >= 2/255)"),
        (2 / 255, {"steps": 20, "step_size": 1 / 255}, None),
        (2 / 255, {"steps": 1, "step_size": 2 / 255}, None),  # FGSM
        (1.0, {"queries": 5000}, None),
        (12 / 255, {"eps_low": 7 / 255}, "outside the threat model: the budget is 12/255"),
    ],
)
def test_settings_that_weaken_an_attack_are_reported(eps, settings, warning):
    found = sanity.settings_warnings(eps, settings)
    assert len(found) == (warning is not None)
    assert all(warning in text for text in found)


@pytest.mark.parametrize(
    ("left", "broken"),
    [
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 446}, 3),
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 447}, 0),  # 0.2 %
        ({"apgd-ce": 500, "square": 300, "apgd-t": 299}, 0),  # a white-box attack breaks as many after it
        ({"apgd-ce": 500, "square": 300, "apgd-t": 310}, 10),
        ({"square": 10}, 0),
        ({"apgd-ce": 500, "apgd-t": 450}, 0),
    ],
)
def test_square_must_not_break_images_that_white_box_attacks_do_not(left, broken):
    found = [warning.partition(" images")[0] for warning in sanity.square_warnings(left, 1000)]
    assert found == [f"Square, which uses no gradient, broke {broken} of 1000"] * (broken > 0)


# -- in evaluate


def test_warnings_are_stored_with_the_results_that_they_are_about(net, pair, light):
    settings = {"data": pair, "eps": 0.03, "step_size": 0.01}
    result = evaluate(net.train(), attacks=["natural", "pgd3", "pgd2"], **settings)
    assert result["natural"].warnings == result["pgd3"].warnings == [MODE_WARNING]
    short = sanity.settings_warnings(0.03, {"steps": 2, "step_size": 0.01})
    assert result["pgd2"].warnings == result.entries[2]["warnings"] == [MODE_WARNING, *short]
    masked = evaluate(Light(stairs), data=(light.images, light.labels), attacks=["natural", "pgd4"])
    assert [len(masked[name].warnings) for name in ("natural", "pgd4")] == [0, 2]


def test_attacks_by_the_margin_have_no_warning_about_the_cross_entropy(light):
    confident = nn.Sequential(Light(sharpness=1e5))  # every cross-entropy rounds to 0, and so does its gradient
    assert [warning.split(" is ")[0] for warning in warnings_of(confident, light)] == [
        "the gradient of the cross-entropy"
    ]
    found = evaluate(confident, data=(light.images, light.labels), attacks="pgd8,apgd-ce,mma8,mm3,apgd,fab-t", eps=0.03)
    assert {name: len(found[name].warnings) for name in found} == {
        "pgd8": 1, "apgd-ce": 1, "mma8": 0, "mm3": 0, "apgd": 0, "fab-t": 0,
    }  # fmt: skip


def test_stored_warnings_are_reused_except_for_the_mode_of_this_call(net, pair, tmp_path, monkeypatch):
    settings = {"data": pair, "attacks": ["natural", "pgd2"], "eps": 0.03, "step_size": 0.01}
    stored = {"out": tmp_path, "name": "net"}
    first = evaluate(net.train(), **settings, **stored)
    assert [len(first[name].warnings) for name in first] == [1, 2]
    monkeypatch.setattr(sanity, "model_warnings", None)
    monkeypatch.setattr(sanity, "gradient_warnings", None)
    assert evaluate(net.train(), **settings, **stored).entries == first.entries
    again = evaluate(net.eval(), **settings, **stored)
    assert all(again[name].reused for name in again)
    assert [again[name].warnings for name in again] == [[], first["pgd2"].warnings[1:]]


def test_the_checks_change_neither_model_nor_numbers(net, pair, monkeypatch):
    expected = evaluate(net, data=pair, attacks="natural,pgd3", eps=0.03).flags
    monkeypatch.setattr(sanity, "model_warnings", lambda model, pictures: [])
    monkeypatch.setattr(sanity, "gradient_warnings", lambda model, pictures: {"cross-entropy": [], "margin": []})
    found = evaluate(net, data=pair, attacks="natural,pgd3", eps=0.03).flags
    assert all((expected[name] == found[name]).all() for name in expected)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_table_marks_numbers_with_warnings_and_lists_these_below():
    def outcome(warnings, low=0.4):
        entry = {"accuracy": 0.5, "interval": [low, 0.6], "correct": 1, "n": 2, "split": "test"}
        entry |= {"warnings": warnings, "seconds": 1.0}
        return Outcome(entry, None, reused=False)

    rows = str(Result({"natural": outcome([]), "pgd2": outcome(["a", "b"], 0.04), "mma2": outcome(["b"])})).splitlines()
    assert [row.endswith(" *") for row in rows[:3]] == [False, True, True]
    assert rows[3:] == ["* pgd2: a", "* pgd2, mma2: b"]
    assert len({row.index("n = ") for row in rows[:3]}) == 1
