"""Every warning has a model made to raise it, and a sound model raises none."""

import functools
import re

import pytest
import torch
from torch import nn

from pixelpart import data, models
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.result import Outcome, Result


class Light(nn.Module):
    """Says 1 where the image is lighter than the middle, of what `change` makes of it."""

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


def looks(model, pictures):
    return [*sanity.model_warnings(model.eval(), pictures), *sanity.gradient_warnings(model, pictures)]


SOUND = {
    "light": Light,
    "steep": lambda: Light(sharpness=150.0),
    "wrong about all": lambda: Light(sharpness=-20.0),
    "normalised inside": lambda: Light(lambda x: (x - 0.5) / 0.2, 0.0, 4.0),
    "small logits": lambda: Light(sharpness=1e-6),
}


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_model_raises_no_doubt(case, light):
    assert looks(SOUND[case](), light) == []


@functools.cache
def shapes():
    x, y = data.load("shapes", split="test")
    return ImageSet(x[:200], y[:200], torch.device("cpu"))


@pytest.mark.parametrize("name", ["tiny-cnn", "wrn-10-1"])
@pytest.mark.parametrize("seed", range(3))
def test_nor_does_an_untrained_network(name, seed):
    model = models.build(name, generator=torch.Generator().manual_seed(seed)).eval()
    assert looks(model, shapes()) == []


# -- scale

IMAGENET = [torch.tensor(values)[:, None, None] for values in sanity.STATISTICS["ImageNet's mean and deviation"]]
SCALES = {
    "bytes": (lambda x: x / 255, 50, "100 when pixels run from 0 to 255: was it trained on those?"),
    "from -1 to 1": (lambda x: (x + 1) / 2, 0, "100 when normalised (by 0.5 and 0.5): does it lack its normalisation?"),
    "normalised": (lambda x: x * IMAGENET[1] + IMAGENET[0], 50, "deviation): does it lack its normalisation?"),
    "normalised twice": (
        lambda x: (x - IMAGENET[0]) / IMAGENET[1],
        50,
        "100 when a normalisation is undone beforehand (by ImageNet's mean and deviation): does it normalise twice?",
    ),
}


class Band(Light):
    """Says 1 where the image is as light as the light ones, neither more nor less."""

    def forward(self, x):
        score = 0.04 - (self.change(x).mean((1, 2, 3)) - 0.65).abs()
        return torch.stack((-score, score), 1)


@pytest.mark.parametrize("case", SCALES)
def test_a_model_for_another_scale_is_found_out(case, light):
    change, right, message = SCALES[case]
    assert looks(Band(), light) == []
    (warning,) = looks(Band(change), light)
    assert warning.startswith(f"of 100 images the model gets {right} right as they are, and 100 when ")
    assert warning.endswith(message)


class Somewhat(nn.Module):
    """Right where the second channel is below 0.33, and below 0.45 if pixels run from 0 to 255; the first is y / 10."""

    def forward(self, x):
        full = x.max() > 2
        tenths, luck = (x.mean((2, 3)) / (255 if full else 1)).unbind(1)
        wrong = luck > (0.45 if full else 0.33)
        return 10 * nn.functional.one_hot(((10 * tenths).round().long() + wrong) % 10, 10).float()


def test_a_model_that_is_somewhat_better_on_another_scale_is_found_out():
    """As a small robust network was that normalised twice."""
    y, luck = torch.arange(1000) % 10, torch.rand(1000, generator=torch.Generator().manual_seed(0))
    x = torch.stack((y / 10, luck), 1)[:, :, None, None].expand(-1, -1, 2, 2).contiguous()
    (warning,) = sanity.model_warnings(Somewhat(), ImageSet(x, y, torch.device("cpu")))
    assert "0 to 255" in warning


def test_a_model_that_refuses_other_scales_is_not_asked_twice(light):
    def strict(x):
        assert x.min() >= 0
        assert x.max() <= 1
        return x

    assert looks(Light(strict), light) == []


def test_one_class_for_all_is_no_better_answer(light):
    assert looks(Light(lambda x: x - 1), light) == []  # right on half of them on every scale
    only = ImageSet(light.images[50:], light.labels[50:], light.device)
    assert looks(Light(lambda x: x / 255), only) == []  # and here the one class is that of all images


def test_grey_images_have_a_scale_too(light):
    grey = ImageSet(light.images[:, :1], light.labels, light.device)
    assert looks(Light(), grey) == []
    (warning,) = looks(Light(lambda x: x / 255), grey)
    assert "0 to 255" in warning


@pytest.mark.parametrize(("wins", "losses", "better"), [(10, 0, True), (9, 0, False), (20, 3, True), (20, 5, False)])
def test_the_sign_test_is_exact(wins, losses, better):
    a = torch.tensor([True] * wins + [False] * losses + [True, False])
    b = torch.tensor([False] * wins + [True] * losses + [True, False])
    assert sanity._better(a, b) is better  # 2**-10 = 0.00098, 2**-9 = 0.002; 0.00024, 0.00204


# -- randomness and batches


@pytest.mark.parametrize("size", [0.5, 1e-3])
def test_a_random_model_is_found_out(size, light):
    noisy = Light(lambda x: x + size * torch.randn_like(x))
    assert sanity.RANDOM in looks(noisy, light)


def test_dropout_that_eval_mode_does_not_reach_is_found_out(light):
    assert sanity.RANDOM in looks(Light(lambda x: nn.functional.dropout(x, 0.1, training=True)), light)


def test_a_model_that_looks_at_its_batch_is_found_out(light):
    model = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), Light(middle=0.0))
    assert sanity.model_warnings(model.eval(), light) == [sanity.BATCH]


def test_a_model_that_looks_at_an_image_s_place_is_found_out(light):
    def noisy(x):
        return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    assert sanity.model_warnings(Light(noisy), light) == [sanity.BATCH]


def test_outputs_of_a_sigmoid_are_taken_for_no_logits(light):
    assert sanity.model_warnings(nn.Sequential(Light(), nn.Sigmoid()), light) == [sanity.SQUASHED]
    assert sanity.model_warnings(nn.Sequential(Light(), nn.LogSigmoid()), light) == []


def test_one_image_is_enough_to_look_at(light):
    one = ImageSet(light.images[:1], light.labels[:1], light.device)
    assert looks(Light(), one) == []


# -- gradients


def stairs(x):
    return (16 * x).round() / 16 + 0 * x


def test_a_masked_gradient_is_counted(light):
    warnings = looks(Light(stairs), light)
    assert [re.search("of the (.*) is zero or NaN at (.*):", warning).groups() for warning in warnings] == [
        ("cross-entropy", "64 of 64 images that are right"),
        ("margin", "64 of 64 images that are right"),
    ]


def test_a_saturated_softmax_masks_the_cross_entropy_alone(light):
    (warning,) = looks(Light(sharpness=5000.0), light)
    assert "cross-entropy is zero or NaN at 64 of 64" in warning


def test_images_that_are_wrong_to_begin_with_do_not_count(light):
    partly = Light(lambda x: torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 0 * x, x))
    assert looks(partly, light) == []  # light images are taken for dark, and no gradient is needed there
    (first, second) = looks(Light(lambda x: torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 1 + 0 * x, x)), light)
    assert "32 of 64" in first
    assert "32 of 64" in second


def test_a_gradient_that_is_not_a_number_counts_as_none(light):
    broken = Light(lambda x: x + 0 * (x - x).sqrt())
    assert any("cross-entropy is zero or NaN at 64 of 64" in warning for warning in looks(broken, light))


class Told(torch.autograd.Function):
    """The image itself, with a gradient that `tell` makes of the true one."""

    @staticmethod
    def forward(ctx, x, tell):
        ctx.tell = tell
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.tell(grad), None


@pytest.mark.parametrize(
    ("tell", "falls"),
    [
        (lambda grad: -grad, 64),
        (lambda grad: grad * torch.arange(len(grad)).remainder(2).sub(0.5)[:, None, None, None], 32),
        (lambda grad: 1e-20 * grad, 0),
    ],
)
def test_a_gradient_that_leads_down_is_found_out(tell, falls, light):
    warnings = looks(Light(lambda x: Told.apply(x, tell)), light)
    told = f"the cross-entropy falls by a small step along its gradient at {falls} of 64 images that are right"
    assert [warning.partition(":")[0] for warning in warnings if "cross-entropy" in warning] == [told] * (falls > 0)


@pytest.mark.parametrize(
    ("tell", "off"),
    [
        (lambda grad: grad, 0),
        (lambda grad: 0.8 * grad, 0),
        (lambda grad: 0.5 * grad, 64),  # FAB goes as far as the gradient's size tells
        (lambda grad: grad.flip(3) * torch.linspace(0, 4, 6), 64),
        (lambda grad: torch.where(torch.arange(len(grad))[:, None, None, None] < 16, -1, 1) * grad, 0),
        (lambda grad: torch.where(torch.arange(len(grad))[:, None, None, None] < 17, -1, 1) * grad, 17),
    ],
)
def test_a_gradient_of_another_function_is_found_out(tell, off, light):
    warnings = looks(Light(lambda x: Told.apply(x, tell)), light)
    told = f"the margin does not rise along its gradient as that tells at {off} of 64 images that are right"
    assert [warning.partition(":")[0] for warning in warnings if "margin" in warning] == [told] * (off > 0)


def test_a_model_that_is_sure_of_all_is_not_led_astray_by_rounding(light):
    assert looks(Light(sharpness=150.0), light) == []  # cross-entropies of 1e-8 and less


class Bands(nn.Module):
    """Says how light an image is, in four bands."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return -self.scale * (x.mean((1, 2, 3))[:, None] - torch.linspace(0.2, 0.8, 4)) ** 2


@pytest.mark.parametrize(("scale", "faint"), [(1000.0, False), (10.0, False), (1.0, True), (1e-3, True)])
def test_logits_scaled_down_are_found_out(scale, faint):
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(80) % 4
    x = torch.linspace(0.2, 0.8, 4)[y][:, None, None, None] + 0.02 * torch.rand(80, 3, 6, 6, generator=generator)
    warnings = looks(Bands(scale), ImageSet(x, y, torch.device("cpu")))
    assert [warning.partition(" and ")[0] for warning in warnings] == [
        "the model is right about 100% of the images"
    ] * faint
    few = torch.where(torch.arange(80) % 5 < 2, y, (y + 1) % 4)
    assert looks(Bands(scale), ImageSet(x, few, torch.device("cpu"))) == []  # 40 % right, as by chance


# -- mode and settings


@pytest.mark.parametrize(
    ("layer", "warned"),
    [
        (nn.BatchNorm2d(3), True),
        (nn.BatchNorm2d(3, track_running_stats=False), False),
        (nn.InstanceNorm2d(3), False),
        (nn.Dropout2d(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.ReLU(), False),
    ],
)
def test_train_mode_is_told_where_it_matters(layer, warned):
    model = nn.Sequential(layer, nn.Flatten())
    assert sanity.mode_warnings(model.train()) == ([sanity.TRAIN_MODE] if warned else [])
    assert sanity.mode_warnings(model.eval()) == []
    assert sanity.mode_warnings(nn.Sequential(model.train(), nn.Flatten().eval()).eval()) == []


@pytest.mark.parametrize(
    ("eps", "settings", "warned"),
    [
        (8 / 255, {"steps": 3, "step_size": 2 / 255}, True),
        (8 / 255, {"steps": 4, "step_size": 2 / 255}, False),
        (7 / 255, {"steps": 11, "step_size": 7 / 255 / 11}, False),  # below eps by rounding alone
        (0.3, {"steps": 1, "step_size": 0.29}, True),
        (1.0, {"queries": 5000}, False),
        (0.0, {}, False),
    ],
)
def test_steps_that_cannot_cross_the_ball_are_told(eps, settings, warned):
    assert bool(sanity.settings_warnings(eps, settings)) is warned


def test_the_words_about_steps_have_the_numbers():
    (warning,) = sanity.settings_warnings(8 / 255, {"steps": 3, "step_size": 2 / 255})
    assert "(3 * 2/255 < 8/255)" in warning


# -- on the way to the figures


def test_doubts_go_into_the_entries_they_are_about(net, pair, tmp_path):
    settings = {"data": pair, "eps": 0.03, "step_size": 0.01, "out": tmp_path}
    result = evaluate(net.train(), attacks=["natural", "pgd3", "pgd2"], **settings)
    assert result["natural"].warnings == result["pgd3"].warnings == [sanity.TRAIN_MODE]
    assert result["pgd2"].warnings == [
        sanity.TRAIN_MODE,
        *sanity.settings_warnings(0.03, {"steps": 2, "step_size": 0.01}),
    ]
    assert result.entries[2]["warnings"] == result["pgd2"].warnings


def test_doubts_come_with_a_reused_result_and_are_not_looked_for_again(net, pair, tmp_path, monkeypatch):
    settings = {"data": pair, "attacks": ["natural", "pgd2"], "eps": 0.03, "step_size": 0.01, "out": tmp_path}
    first = evaluate(net, **settings)
    assert [first[name].warnings == [] for name in first] == [True, False]
    monkeypatch.setattr(sanity, "model_warnings", None)
    monkeypatch.setattr(sanity, "gradient_warnings", None)
    again = evaluate(net, **settings)
    assert all(again[name].reused for name in again)
    assert again.entries == first.entries


def test_the_mode_is_that_of_this_call_not_of_an_earlier_one(net, pair, tmp_path):
    settings = {"data": pair, "attacks": ["natural"], "out": tmp_path}
    for mode, warnings in ((True, [sanity.TRAIN_MODE]), (False, []), (True, [sanity.TRAIN_MODE])):
        assert evaluate(net.train(mode), **settings)["natural"].warnings == warnings


def test_a_natural_figure_needs_no_gradient(light):
    result = evaluate(Light(stairs), data=(light.images, light.labels), attacks=["natural", "pgd4"])
    assert result["natural"].warnings == []
    assert len(result["pgd4"].warnings) == 2


def test_looking_leaves_the_model_and_the_figures_as_they_are(net, pair, monkeypatch):
    expected = evaluate(net, data=pair, attacks="natural,pgd3", eps=0.03).flags
    monkeypatch.setattr(sanity, "model_warnings", lambda model, pictures: [])
    monkeypatch.setattr(sanity, "gradient_warnings", lambda model, pictures: [])
    found = evaluate(net, data=pair, attacks="natural,pgd3", eps=0.03).flags
    assert all((expected[name] == found[name]).all() for name in expected)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_table_stars_what_is_doubted_and_says_why_below():
    def outcome(warnings):
        entry = {"accuracy": 0.5, "interval": [0.4, 0.6], "correct": 1, "n": 2, "warnings": warnings, "seconds": 1.0}
        return Outcome(entry, None, reused=False)

    text = str(Result({"natural": outcome([]), "pgd2": outcome(["a", "b"]), "mma2": outcome(["b"])}))
    rows = text.splitlines()
    assert [row.endswith(" *") for row in rows[:3]] == [False, True, True]
    assert rows[3:] == ["* pgd2: a", "* pgd2, mma2: b"]
