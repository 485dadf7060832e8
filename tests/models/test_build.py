import pytest
import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models import build
from pixelpart.view.views import Folding

SMALL = ["resnet18", "preactresnet18", "wrn-10-1", "tiny-cnn"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 11_173_962), ("preactresnet18", 11_172_170), ("wrn-28-10", 36_479_194), ("wrn-34-10", 46_160_474)],
)
def test_parameter_counts_equal_the_published_counts(name, count):
    assert sum(parameter.numel() for parameter in build(name).parameters()) == count


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_the_head_of_features_after_a_relu(name):
    model, x = build(name, num_classes=7).eval(), torch.rand(2, 3, 32, 32)
    acts = model.features(x)
    assert acts.ndim == 4
    assert acts.min() == 0
    assert acts.max() > 0
    logits = model(x)
    assert logits.shape == (2, 7)
    assert torch.equal(logits, model.head(acts))


@pytest.mark.parametrize("name", SMALL)
def test_the_head_is_average_pooling_and_a_linear_layer(name):
    model = build(name).eval()
    linear = model.pooled_linear
    assert linear is not None
    acts = torch.rand(2, linear.in_features, 3, 5)
    pooled = acts.flatten(2).sum(2) / 15
    torch.testing.assert_close(model.head(acts), pooled @ linear.weight.T + linear.bias)


@pytest.mark.parametrize(("name", "side"), [("resnet18", 28), ("preactresnet18", 28), ("wrn-34-10", 56)])
def test_large_images_work_in_the_papers_models(name, side):
    model = build(name, num_classes=100).to("meta")
    acts = model.features(torch.empty(2, 3, 224, 224, device="meta"))
    assert acts.shape[2:] == (side, side)
    assert model.head(acts).shape == (2, 100)


@pytest.mark.parametrize("name", [*SMALL, "vit-tiny"])
def test_weights_follow_from_the_given_generator_and_the_global_one_is_untouched(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = build(name, generator=torch.Generator().manual_seed(1)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = build(name, generator=torch.Generator().manual_seed(1)).state_dict()
    other = build(name, generator=torch.Generator().manual_seed(2)).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(tensor, other[key]) for key, tensor in first.items() if tensor.ndim > 1)


def test_weights_have_pytorchs_distribution():
    model, usual = build("resnet18"), nn.Conv2d(256, 512, 3)
    ours = dict(model.named_parameters())["layer4.0.conv1.weight"]
    torch.testing.assert_close(ours.std(), usual.weight.std(), rtol=0.01, atol=0)
    torch.testing.assert_close(ours.abs().max(), torch.tensor((256 * 9) ** -0.5), rtol=1e-3, atol=0)


def test_normalisation_is_inside_the_model_and_not_in_the_state_dict():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    plain, scaled = build("tiny-cnn").eval(), build("tiny-cnn", mean=mean, std=std).eval()
    x = torch.rand(2, 3, 32, 32)
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(scaled(x), plain(by_hand))
    assert list(scaled.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet81",
            "unknown model 'resnet81'; did you mean resnet18 or .* choose from deit-small, module:function, ",
        ),
        ("wrn-33-10", "unknown model 'wrn-33-10'; choose a depth of 10, 16"),
        ("wrn-34-0", "unknown model 'wrn-34-0'"),
        ("wrn-34", "unknown model 'wrn-34'"),
        ("wrn-DEPTH-WIDTH", "such as wrn-34-10"),
        ("wrn-10-9999", "wrn-10-9999 would have [0-9,]+ weights; the limit is 1,000,000,000"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_choices(name, message):
    with pytest.raises(UserError, match=message):
        build(name)


def test_invalid_settings_are_user_errors():
    with pytest.raises(UserError, match="num_classes 1 "):
        build("tiny-cnn", num_classes=1)
    with pytest.raises(UserError, match="std"):
        build("tiny-cnn", std=(1.0, 0.0, 1.0))


@pytest.mark.parametrize("name", SMALL)
def test_batch_norm_can_be_folded(name):
    model, x = build(name, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)), torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        model(x)  # changes the running statistics
    folding = Folding(model)
    assert folding.folded
    torch.testing.assert_close(folding()(x), model.eval()(x), rtol=1e-4, atol=1e-4)
