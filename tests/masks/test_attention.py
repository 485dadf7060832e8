"""Attention maps, and class activation maps of transformers, against loops over images."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pixelpart import masks
from pixelpart.errors import UserError
from pixelpart.models.vit import Deit, VisionTransformer

KINDS = pytest.mark.parametrize("kind", [VisionTransformer, Deit])
TARGET = torch.tensor([0, 3, 1])


def made(kind: type[VisionTransformer]) -> VisionTransformer:
    """Weights far enough from a new network's that attention is uneven."""
    model = kind(4, size=16, width=12, depth=3, heads=2)
    generator = torch.Generator().manual_seed(2)
    model.draw_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def images(n: int = 3) -> Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def read(mixed: np.ndarray, model: VisionTransformer) -> np.ndarray:
    return (mixed[0, 1:] if model.class_token else mixed.mean(0)).reshape(8, 8)


def naive_rollout(model: VisionTransformer, image: Tensor) -> np.ndarray:
    """One image, one block and one head at a time."""
    weights, _ = model.attentions(image[None])
    mixed = np.eye(weights[0].shape[-1])
    for layer in weights:
        heads = layer[0].detach().numpy()
        averaged = sum(heads[h] for h in range(len(heads))) / len(heads) + np.eye(heads.shape[-1])
        mixed = averaged / averaged.sum(-1, keepdims=True) @ mixed
    return read(mixed, model)


def naive_gradient_rollout(model: VisionTransformer, image: Tensor, target: int) -> np.ndarray:
    """One image at a time; the gradient is that of a zero added to the weights of one block's attention."""
    tokens = 64 + model.class_token
    mixed = np.eye(tokens)
    for chosen in range(len(model.blocks)):
        zero = torch.zeros(1, 2, tokens, tokens, dtype=image.dtype, requires_grad=True)
        x = model.embed(image[None])
        for i, block in enumerate(model.blocks):
            q, k, v = block.attn.qkv(block.norm1(x)).reshape(1, tokens, 3, 2, 6).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / 6**0.5).softmax(-1)
            if i == chosen:
                kept, weights = weights, weights + zero
            x = x + block.attn.proj((weights @ v).transpose(1, 2).reshape(1, tokens, 12))
            x = x + block.mlp(block.norm2(x))
        (grad,) = torch.autograd.grad(model.read(x)[0, target], zero)
        gain = np.maximum((grad * kept)[0].detach().numpy(), 0)
        mixed = mixed + (gain[0] + gain[1]) / 2 @ mixed
    return read(mixed - np.eye(tokens), model)


@KINDS
def test_rollout_equals_a_loop_over_images_and_is_the_same_for_every_class(kind: type[VisionTransformer]) -> None:
    model, x = made(kind).double(), images().double()
    expected = np.stack([naive_rollout(model, image) for image in x])
    assert expected.std() > 0.01 * expected.mean()
    np.testing.assert_allclose(masks.cam(model, x, method="rollout").numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(masks.cam(model, x, TARGET, method="rollout").numpy(), expected, rtol=1e-9)
    single = masks.cam(model.float(), x.float(), method="rollout")
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-4)


@KINDS
def test_gradient_rollout_equals_a_loop_over_images(kind: type[VisionTransformer]) -> None:
    model, x = made(kind).double().eval(), images().double()
    expected = np.stack(
        [naive_gradient_rollout(model, image, int(target)) for image, target in zip(x, TARGET, strict=True)]
    )
    assert (expected > 0).any()
    cam = masks.cam(model, x.clone().requires_grad_(), TARGET, method="gradient-rollout")
    assert not cam.requires_grad
    np.testing.assert_allclose(cam.numpy(), expected, rtol=1e-7, atol=1e-12)
    predicted = masks.cam(model, x, model(x).argmax(1), method="gradient-rollout")
    assert torch.equal(masks.cam(model, x, method="gradient-rollout"), predicted)
    single = masks.cam(model.float(), x.float(), TARGET, method="gradient-rollout")
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-3, atol=1e-5 * expected.max())


class ByHand(nn.Module):
    """One head, a class token, four patches; the score of class c is c + 1 times the last block's weight on patch c."""

    class_token = True

    def __init__(self) -> None:
        super().__init__()
        even = torch.full((5, 5), 0.2)
        last = even.clone()
        last[0] = torch.tensor([0.2, 0.1, 0.2, 0.1, 0.4])
        self.layers = even, last

    def attentions(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        zero = 0 * x.sum((1, 2, 3))[:, None, None, None]
        weights = [layer + zero.expand(-1, 1, 5, 5) for layer in self.layers]
        return weights, weights[-1][:, 0, 0, 1:] * torch.arange(1, 5) + 0 * weights[0].sum((1, 2, 3))[:, None]


def test_attention_maps_by_hand() -> None:
    x = torch.rand(2, 3, 4, 4)
    # half of the class token goes through the even block: row 0 of (last + I)/2 times (even + I)/2
    first = np.array([0.2, 0.1, 0.2, 0.1, 0.4]) / 2 + np.array([0.5, 0, 0, 0, 0])
    expected = (first / 2 + first.sum() * 0.2 / 2)[1:].reshape(2, 2)
    np.testing.assert_allclose(masks.cam(ByHand(), x, method="rollout")[1].numpy(), expected, rtol=1e-6)
    # the gradient is 3 at patch 2 of the last block, 0 elsewhere: 3 * 0.1; the other image explains class 3: 4 * 0.4
    cam = masks.cam(ByHand(), x, torch.tensor([2, 3]), method="gradient-rollout")
    torch.testing.assert_close(cam, torch.tensor([[[0.0, 0.0], [0.3, 0.0]], [[0.0, 0.0], [0.0, 1.6]]]))


@KINDS
@pytest.mark.parametrize("method", sorted(masks.MAPS))
def test_no_map_of_a_transformer_waits_for_the_device(kind: type[VisionTransformer], method: str) -> None:
    """On the meta device there are no values to read."""
    model, x = made(kind).to("meta"), torch.empty(2, 3, 16, 16, device="meta")
    assert masks.upscale(masks.cam(model, x, method=method), (16, 16)).shape == (2, 16, 16)


def test_tokens_are_arranged_on_their_grid_behind_class_tokens() -> None:
    acts = torch.arange(2 * 9 * 4.0).view(2, 9, 4)
    assert torch.equal(masks.maps.on_grid(acts), acts.transpose(1, 2).reshape(2, 4, 3, 3))
    with_others = torch.cat((torch.full((2, 2, 4), -1.0), acts), 1)
    assert torch.equal(masks.maps.on_grid(with_others), masks.maps.on_grid(acts))


@KINDS
@pytest.mark.parametrize("method", sorted(masks.CAMS))
@pytest.mark.parametrize("layer", ["features", "blocks.0"])
def test_cams_of_a_transformer_follow_their_formulas_at_any_block(
    kind: type[VisionTransformer], method: str, layer: str
) -> None:
    """Every image with every class, as tokens have either sign and a single map may be all below zero."""
    model, x = made(kind).double().eval(), images().double().repeat_interleave(4, 0)
    target = torch.arange(4).repeat(3)
    if layer == "features":
        acts = model.features(x).detach().requires_grad_()
        logits = model.head(acts)
    else:
        acts = model.blocks[0](model.embed(x)).detach().requires_grad_()
        logits = model.read(model.blocks[2](model.blocks[1](acts)))
    (grads,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), acts)
    a, g = (
        np.moveaxis(t.detach().numpy()[:, -64:], 1, 2) if t.ndim == 3 else t.detach().flatten(2).numpy()
        for t in (acts, grads)
    )
    weights = {
        "gradcam": g.mean(2, keepdims=True),
        "xgradcam": (g * a).sum(2, keepdims=True) / a.sum(2, keepdims=True),
        "layercam": np.maximum(g, 0),
    }[method]
    expected = np.maximum((weights * a).sum(1), 0).reshape(12, 8, 8)
    assert (expected.reshape(12, -1).max(1) > 0).sum() > 2
    cam = masks.cam(model, x, target, method=method, layer=layer)
    np.testing.assert_allclose(cam.numpy(), expected, rtol=1e-7, atol=1e-10)


def test_a_rollout_at_a_layer_or_of_another_network_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"cam 'rollout' reads all blocks; layer 'blocks.0' does not apply"):
        masks.cam(made(Deit), images(), method="rollout", layer="blocks.0")
    with pytest.raises(UserError, match=r"needs a transformer .*; for Linear choose from gradcam, layercam, xgradcam"):
        masks.cam(nn.Linear(3, 3), images(), method="gradient-rollout")
