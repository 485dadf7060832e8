import math

import pytest
import torch
import torch.nn.functional as F

from pixelpart.errors import UserError
from pixelpart.models import build, load_state
from pixelpart.models.vit import Attention, Deit, VisionTransformer, patch_for
from pixelpart.view.views import Folding, TrainingView

SIZES = {"width": 24, "depth": 3, "heads": 3}


def made(kind, *, size=32):
    """A small model with weights larger than those of a new model."""
    model = kind(5, size=size, **SIZES)
    generator = torch.Generator().manual_seed(1)
    model.draw_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


KINDS = pytest.mark.parametrize("kind", [VisionTransformer, Deit])


@pytest.mark.parametrize(("size", "patch"), [(32, 4), (64, 8), (224, 16), (96, 12)])
def test_the_patch_size_depends_on_the_image_size(size, patch):
    assert patch_for(size) == patch
    model = build("vit-tiny", size=size)
    with torch.no_grad():
        side = size // patch
        assert model.features(torch.rand(1, 3, size, size)).shape == (1, 64, side, side)


@pytest.mark.parametrize("size", [0, 7, 100])
def test_other_image_sizes_are_user_errors(size):
    with pytest.raises(UserError, match=f"images of {size} pixels cannot be divided"):
        build("vit-tiny", size=size)


@pytest.mark.parametrize("name", ["vit-small", "deit-small"])
@pytest.mark.parametrize("size", [32, 224])
def test_small_transformers_have_the_parameter_count_of_deit_small(name, size):
    model, patch = build(name, num_classes=1000, size=size), patch_for(size)
    tokens = (size // patch) ** 2 + (name == "deit-small")
    # of patch 16 and 197 tokens DeiT-S has 22,050,664 parameters
    expected = 22_050_664 + 384 * (3 * (patch**2 - 16**2) + tokens - 197) - 384 * (name == "vit-small")
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_weights_have_deits_names_except_the_head():
    keys = set(build("deit-small").state_dict())
    block = {f"{part}.{kind}" for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
             for kind in ("weight", "bias")}  # fmt: skip
    rest = {f"{part}.{kind}" for part in ("patch_embed.proj", "norm", "linear") for kind in ("weight", "bias")}
    assert keys == {"cls_token", "pos_embed"} | rest | {f"blocks.{i}.{name}" for i in range(12) for name in block}


def test_a_state_dict_of_deit_is_loaded():
    model = made(Deit)
    theirs = {name.replace("linear.", "head."): tensor for name, tensor in model.state_dict().items()}
    other = Deit(5, size=32, **SIZES)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load_state(other, theirs).eval()(x), model(x))


@KINDS
def test_logits_are_the_head_of_features_and_equal_those_of_attentions(kind):
    model, x = made(kind), torch.rand(2, 3, 32, 32)
    model.set_scaling((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
    weights, logits = model.attentions(x)
    assert torch.equal(model(x), model.head(model.features(x)))
    torch.testing.assert_close(logits, model(x))
    tokens = 64 + (kind is Deit)
    assert [tuple(layer.shape) for layer in weights] == [(2, 3, tokens, tokens)] * 3
    for layer in weights:
        torch.testing.assert_close(layer.sum(-1), torch.ones(2, 3, tokens))


def test_attention_equals_its_definition_and_torchs():
    layer, x = Attention(12, 3).requires_grad_(False), torch.randn(2, 7, 12)
    out, weights = layer(x)
    q, k, v = layer.qkv(x).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
    for b, h, i in ((0, 0, 0), (1, 2, 6), (1, 1, 3)):
        scores = [float(q[b, h, i] @ k[b, h, j]) / 2 for j in range(7)]
        total = sum(math.exp(score) for score in scores)
        assert weights[b, h, i].tolist() == pytest.approx([math.exp(score) / total for score in scores], abs=1e-6)
    expected = layer.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 7, 12))
    torch.testing.assert_close(out, expected)


@KINDS
def test_tokens_are_in_the_order_of_the_grid(kind):
    """A change in one patch moves its own token most, before any block mixes them."""
    model, x = made(kind), torch.rand(1, 3, 32, 32)
    changed = x.clone()
    changed[:, :, 8:12, 20:24] += 0.5  # row 2, column 5 of the grid
    moved = (model.embed(changed) - model.embed(x)).abs().sum(-1)[0, -64:]
    assert moved.nonzero().flatten().tolist() == [2 * 8 + 5]


@KINDS
def test_the_folded_view_equals_the_model_and_its_gradient(kind):
    model, x = made(kind), torch.rand(3, 3, 32, 32)
    folding = Folding(model)
    assert folding.folded
    assert torch.equal(folding()(x), model(x))
    grads = [
        torch.autograd.grad(run(leaf)[:, 1].sum(), leaf)[0]
        for run in (folding(), model)
        for leaf in [x.clone().requires_grad_()]
    ]
    torch.testing.assert_close(*grads)


@KINDS
def test_in_bf16_norms_tokens_and_head_are_fp32_and_products_are_bf16(kind, monkeypatch):
    model, x = made(kind), torch.rand(3, 3, 32, 32)
    view, norms, products = Folding(model, dtype=torch.bfloat16)(), [], []
    layer_norm, linear = F.layer_norm, F.linear

    def norm_seen(x, *rest):
        norms.append((x.dtype, rest[1].dtype))
        return layer_norm(x, *rest)

    def linear_seen(x, weight, bias):
        products.append((x.dtype, weight.dtype))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "layer_norm", norm_seen)
    monkeypatch.setattr(F, "linear", linear_seen)
    logits = view(x)
    assert set(norms) == {(torch.float32, torch.float32)}
    narrow, wide = (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)
    # the last block is part of DeiT's head, so it is fp32
    assert products == ([narrow] * 12 + [wide] if kind is VisionTransformer else [narrow] * 8 + [wide] * 5)
    expected = model(x)
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).abs().max() < 0.02 * expected.abs().max()


@KINDS
def test_training_in_bf16_has_nearly_the_gradients_of_fp32(kind):
    model, x, y = made(kind).train(), torch.rand(8, 3, 32, 32), torch.arange(8) % 5
    grads = []
    for network in (model, TrainingView(model, dtype=torch.bfloat16)):
        model.zero_grad()
        F.cross_entropy(network(x), y).backward()
        grads.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, exact in grads[0].items():
        close = F.cosine_similarity(exact.flatten(), grads[1][name].flatten(), dim=0)
        assert exact.any()
        assert close > 0.99 or name.endswith("qkv.bias"), name  # the gradient of the keys' bias is noise
