"""Models of user code: made if the caller names them, never because a file does."""

import sys

import pytest
import torch
from torch import nn

from pixelpart import data, models, recipes, train
from pixelpart.errors import UserError
from pixelpart.models import Classifier
from pixelpart.runs import Run

CODE = """
import torch
from torch import nn
import pixelpart as pp

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))

class Split(Net):
    def features(self, x):
        return self.body(x)

    def head(self, acts):
        return self.fc(acts.mean((2, 3)))

def wrapped(num_classes):
    print("not a result")
    return pp.models.wrap(Net(num_classes), features="body", head="fc")

def split(num_classes):
    return Split(num_classes)

def bare(num_classes):
    return Net(num_classes)

def seven(num_classes):
    return split(7)

def nothing(num_classes):
    return None

def broken(num_classes):
    raise RuntimeError("no weights here")

def large_images_alone(num_classes):
    net = pp.models.wrap(Net(num_classes), features="body", head="fc")
    net.module.body.append(nn.AvgPool2d(20))
    return net

def ten():
    return Net(10)

def like_timm(pretrained=False, **kwargs):
    assert not pretrained
    return Net(**kwargs)

def second(width=8, num_classes=1000):
    assert width == 8
    return Net(num_classes)

ready = Net(10)

def shared(num_classes):
    return ready
"""


@pytest.fixture
def mynets(tmp_path, monkeypatch):
    (tmp_path / "mynets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "USER_MODELS", set())
    sys.modules.pop("mynets", None)  # of the docs' test
    yield
    sys.modules.pop("mynets", None)


def built(function, **settings):
    return models.build(models.use(f"mynets:{function}"), **settings)


def test_the_number_of_classes_is_passed_as_the_function_takes_it(mynets):
    for function, classes in {"bare": 5, "like_timm": 5, "second": 5, "Net": 5, "ten": 10}.items():
        assert built(function, num_classes=classes)(torch.rand(2, 3, 32, 32)).shape == (2, classes)
    with pytest.raises(UserError, match=r"gives logits \(2, 10\) for 2 images; they must be \(2, 5\)"):
        built("ten", num_classes=5)


@pytest.mark.parametrize("function", ["wrapped", "split", "bare"])
def test_a_user_model_is_a_classifier_with_features_and_head(mynets, function, capsys):
    model = built(function, num_classes=5, size=20)
    assert isinstance(model, Classifier)
    assert model.training
    x = torch.rand(3, 3, 20, 20)
    assert torch.equal(model.eval().head(model.features(x)), model(x))
    assert model(x).shape == (3, 5)
    assert capsys.readouterr().out == ""  # stdout is for results


def test_weights_follow_from_the_generator_and_the_global_one_is_restored(mynets):
    before = torch.get_rng_state()
    first, again, other = (
        built("wrapped", generator=torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["module.fc.weight"], other["module.fc.weight"])


def test_training_does_not_change_a_network_that_the_function_keeps(mynets, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **_: tuple(tensor[:48] for tensor in data.shapes.generate("test")))
    name = models.use("mynets:shared")
    kept = sys.modules["mynets"].ready
    before = {key: tensor.clone() for key, tensor in kept.state_dict().items()}
    config = recipes.shapes("at", model=name, epochs=1, probe=16, holdout=8, batch_size=20)
    run = train(config, tmp_path / "run")
    assert kept.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in kept.state_dict().items())
    assert not torch.equal(run.model.module.fc.weight, kept.fc.weight)


def test_pixel_scaling_is_set_if_requested(mynets):
    x = torch.rand(2, 3, 16, 16)
    plain, scaled = built("split").eval(), built("split", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)).eval()
    torch.testing.assert_close(scaled(x), plain((x - 0.5) / 0.2))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("seven", r"mynets:seven\(10\) gives logits \(2, 7\) for 2 images; they must be \(2, 10\)"),
        ("nothing", "mynets:nothing returned a NoneType; it must return an nn.Module"),
        ("broken", r"mynets:broken fails with RuntimeError: no weights here \(mynets.py:\d+\)"),
        ("large_images_alone", r"mynets:large_images_alone\(10\) on images of 32x32 fails with RuntimeError"),
        ("ready", "mynets:ready is a Net; name a function of the number of classes"),
        ("missing", "mynets has no 'missing'"),
    ],
)
def test_mistakes_are_errors_of_one_line(mynets, function, message):
    with pytest.raises(UserError, match=message) as error:
        built(function)
    assert "\n" not in str(error.value)


def test_user_code_is_never_run_without_use(mynets):
    with pytest.raises(
        UserError, match=r"'mynets:wrapped' is user code and is never loaded from a config.*pp.models.use"
    ):
        models.build("mynets:wrapped")
    assert "mynets" not in sys.modules


def test_a_run_with_a_user_model_trains_and_opens_only_after_use(mynets, tmp_path, monkeypatch):
    few = tuple(tensor[:96] for tensor in data.shapes.generate("test"))
    monkeypatch.setattr(data, "load", lambda name, **_: few)
    name = models.use("mynets:wrapped")
    config = recipes.shapes("part", model=name, epochs=2, burn_in={"epochs": 1}, probe=16, holdout=16, batch_size=40)
    run = train(config, tmp_path / "run")
    assert [row["phase"] for row in run.metrics] == ["burn-in", "mask"]
    assert isinstance(run.model.module.fc, nn.Linear)
    models.USER_MODELS.clear()
    with pytest.raises(UserError, match="--model mynets:wrapped"):
        Run(tmp_path / "run").model  # noqa: B018
    with pytest.raises(UserError, match="is user code"):
        train(config, tmp_path / "run")
