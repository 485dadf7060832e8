"""Networks of other people: features and head are found, and every network trains."""

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import user_nets
from pixelpart import data, masks, models, recipes, train
from pixelpart.errors import UserError
from pixelpart.models import wrap
from pixelpart.models.find_parts import plain_tensors_to_buffers
from pixelpart.runtime.progress import Screen
from pixelpart.view.views import Folding, TrainingView

EVERY = pytest.mark.parametrize("name", user_nets.NETS)
POOLED = {"CifarResNet", "TorchvisionResNet", "WideResNet", "DenseNet", "SqueezeExcite", "Normalises", "sequential"}
UNTRACEABLE = {"Branches"}


def made(name, num_classes=5):
    torch.manual_seed(0)
    net = getattr(user_nets, name)(num_classes).train()
    net(torch.rand(8, 3, 32, 32))  # running statistics away from their initial values
    return net.eval()


def images(n=3):
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class LastCall(TorchFunctionMode):
    """Keeps the result of the last call of a torch function with one of these names."""

    def __init__(self, names):
        super().__init__()
        self.names, self.result = names, None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.__name__ in self.names and result.ndim == 4:
            self.result = result
        return result


def naive_gradcam(net, x, calls):
    """Grad-CAM as its paper has it: the gradient of the predicted class at the last activation, image by image."""
    found = []
    for image in x:
        # twice: some networks squeeze the batch
        with LastCall(calls) as last:
            scores = net(torch.stack([image, image]))
        acts = last.result
        (grads,) = torch.autograd.grad(scores[0].max(), acts)
        weights = grads[0].mean((1, 2))
        found.append((weights[:, None, None] * acts[0]).sum(0).clamp(min=0))
    return torch.stack(found).detach()


@EVERY
def test_head_of_features_is_the_network_and_the_map_is_its_gradcam(name):
    net, x = made(name), images()
    expected, gradcam = net(x).detach(), naive_gradcam(net, x, user_nets.NETS[name])
    model = wrap(net)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(model.head(model.features(x)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(masks.cam(model, x), gradcam, rtol=1e-3, atol=1e-5 * float(gradcam.max()))
    assert gradcam.max() > 0
    assert (model.pooled_linear is not None) == (name in POOLED | UNTRACEABLE)


@EVERY
def test_the_parts_are_traced_in_both_modes_and_follow_the_weights_of_a_copy(name):
    net, x = made(name), images()
    plain_tensors_to_buffers(net)
    model = copy.deepcopy(wrap(net))
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.zero_()
        expected = model.module(x)
        view = Folding(model)
        torch.testing.assert_close(view()(x), expected, rtol=1e-4, atol=1e-4)
        assert view.folded == (name not in UNTRACEABLE)
        if view.folded:
            model.train()
            torch.manual_seed(3)
            trained = TrainingView(model, dtype=torch.float32)(x)
            torch.manual_seed(3)
            torch.testing.assert_close(trained, model.module(x), rtol=1e-4, atol=1e-4)


@pytest.fixture
def few_images(monkeypatch):
    few = tuple(tensor[:40] for tensor in data.shapes.generate("test"))
    monkeypatch.setattr(data, "load", lambda name, **_: few)
    monkeypatch.setattr(models, "USER_MODELS", set())


def trained(method, name, out, **settings):
    small = {"epochs": 1, "burn_in": {"epochs": 0}, "probe": 8, "holdout": 8, "batch_size": 16, "attack": {"steps": 1}}
    config = recipes.shapes(method, model=models.use(f"user_nets:{name}"), **(small | settings))
    return train(config, out, screen=Screen(quiet=True))


@EVERY
def test_every_network_trains_with_at_and_with_part(name, tmp_path, few_images):
    for method, phase in (("at", "plain"), ("part", "mask")):
        run = trained(method, name, tmp_path / method)
        assert run.metrics[0]["phase"] == phase
        untrained = models.build(f"user_nets:{name}").state_dict()
        assert any(not torch.equal(tensor, untrained[key]) for key, tensor in run.model.state_dict().items())
        if phase == "mask" and name != "TimmResNet":
            assert "maps are read from " in (tmp_path / method / "log.txt").read_text()


@pytest.mark.parametrize("method", ["at", "trades", "mart"])
def test_a_network_without_features_and_head_trains_without_a_mask(method, tmp_path, few_images):
    assert len(trained(method, "FunctionalBranches", tmp_path / "run").metrics) == 1
    assert "torch.fx cannot trace" in (tmp_path / "run" / "log.txt").read_text()


def test_a_mask_on_it_is_an_error_with_the_lines_to_write(tmp_path, few_images):
    with pytest.raises(UserError, match=r"FunctionalBranches \(symbolically traced .*wrap\(net, features=f") as error:
        trained("part", "FunctionalBranches", tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    trained("part", "FunctionalBranches", tmp_path / "run", mask={"layer": "module.conv"})


class CountsFeatures(nn.Module):
    """As in PyTorch's tutorial on LeNet."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4 * 16 * 16, 10)

    def forward(self, x):
        x, n = self.conv(x).relu(), 1
        for size in x.size()[1:]:
            n *= size
        return self.fc(x.view(-1, n))


def test_of_a_long_message_of_torch_fx_the_error_has_the_first_sentence():
    with pytest.raises(UserError, match=r"found in CountsFeatures \(Proxy object cannot be iterated\); maps need them"):
        wrap(CountsFeatures())


class TwoTrunks(nn.Module):
    """Two trunks, each pooled: no activation has all that follows depend on it only."""

    def __init__(self, num_classes):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(3, 4, 5, 4, 2)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(torch.cat([self.fine(x).relu().mean((2, 3)), self.coarse(x).relu().amax((2, 3))], 1))


def test_a_network_without_features_and_head_trains_with_the_layer_that_the_error_asks_for(
    tmp_path, few_images, monkeypatch
):
    monkeypatch.setattr(user_nets, "TwoTrunks", TwoTrunks, raising=False)
    with pytest.raises(UserError, match=r"in training, --mask\.layer module\.NAME"):
        trained("part", "TwoTrunks", tmp_path / "none")
    run = trained("part", "TwoTrunks", tmp_path / "fine", mask={"layer": "module.fine"})
    assert run.metrics[-1]["phase"] == "mask"


def wrapped_with_functions(num_classes):
    net = user_nets.FunctionalBranches(num_classes)
    return wrap(net, features=lambda x: net.conv(x).relu(), head=lambda acts: net.fc(acts.mean((2, 3))))


def test_a_model_wrapped_with_functions_trains_as_the_same_model_with_modules(tmp_path, few_images, monkeypatch):
    monkeypatch.setattr(user_nets, "wrapped", wrapped_with_functions, raising=False)
    runs = [trained("part", name, tmp_path / name, ema=0.9).model for name in ("wrapped", "Branches")]
    for ours, theirs in zip(*(run.state_dict().values() for run in runs), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Tuple", r"Tuple\(10\) returns a tuple; it must return the logits only"),
        ("TupleInTrainMode", r"\(10\) returns a tuple in train mode; it must"),
        ("pools_pixels", r"pools_pixels\(10\) has no parameters to train"),
        ("frozen", r"frozen\(10\) has no parameters to train"),
        ("for_large_images", r"\(10\) on images of 32x32 fails with RuntimeError: .* size"),
        ("locked", "copying the network of user_nets:locked fails with TypeError"),
    ],
)
def test_networks_that_cannot_be_trained_are_errors_of_one_line(name, message, few_images):
    with pytest.raises(UserError, match=message) as error:
        models.build(models.use(f"user_nets:{name}"))
    assert "\n" not in str(error.value)


def test_a_transformer_has_no_activation_before_pooling():
    encoder = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.encoder, self.fc = torch.nn.Conv2d(3, 8, 8, 8), encoder, torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(self.encoder(self.embed(x).flatten(2).transpose(1, 2)).mean(1))

    with pytest.raises(UserError, match=r"its last layers act on tokens"):
        wrap(Small())
