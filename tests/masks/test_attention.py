import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pixelpart import masks
from pixelpart.errors import UserError
from pixelpart.models.vit import Deit, VisionTransformer

KINDS = pytest.mark.parametrize("kind", [VisionTransformer, Deit])
ROLLOUTS = pytest.mark.parametrize("method", sorted(masks.ROLLOUTS))
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
    if model.class_token:
        return mixed[0, 1:].reshape(8, 8)
    return np.stack([np.mean([mixed[i, j] for i in range(64)]) for j in range(64)]).reshape(8, 8)


def naive_rollout(model: VisionTransformer, image: Tensor) -> np.ndarray:
    """One image, one block and one head at a time."""
    weights, _ = model.attentions(image[None])
    mixed = None
    for layer in weights:
        heads = layer[0].detach().numpy()
        averaged = sum(heads[h] for h in range(len(heads))) / len(heads) + np.eye(heads.shape[-1])
        averaged = averaged / averaged.sum(-1, keepdims=True)
        mixed = averaged if mixed is None else averaged @ mixed
    assert mixed is not None
    return read(mixed, model)


def naive_gradient_rollout(model: VisionTransformer, image: Tensor, target: int) -> np.ndarray:
    """One image at a time; the gradient is that of a zero that is added to the weights of one block's attention."""
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
def test_rollout_equals_a_loop_over_images(kind: type[VisionTransformer]) -> None:
    model, x = made(kind).double(), images().double()
    expected = np.stack([naive_rollout(model, image) for image in x])
    assert expected.std() > 0.01 * expected.mean()
    np.testing.assert_allclose(masks.cam(model, x, method="rollout").numpy(), expected, rtol=1e-9)
    single = masks.cam(model.float(), x.float(), method="rollout")
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-4)


@KINDS
def test_gradient_rollout_equals_a_loop_over_images(kind: type[VisionTransformer]) -> None:
    model, x = made(kind).double().eval(), images().double()
    expected = np.stack(
        [naive_gradient_rollout(model, image, int(target)) for image, target in zip(x, TARGET, strict=True)]
    )
    assert (expected > 0).any()
    cam = masks.cam(model, x, TARGET, method="gradient-rollout")
    np.testing.assert_allclose(cam.numpy(), expected, rtol=1e-7, atol=1e-12)
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


def test_maps_by_hand() -> None:
    x = torch.rand(2, 3, 4, 4)
    # half of the class token goes through the even block: row 0 of (last + I)/2 times (even + I)/2
    first = np.array([0.2, 0.1, 0.2, 0.1, 0.4]) / 2 + np.array([0.5, 0, 0, 0, 0])
    expected = (first / 2 + first.sum() * 0.2 / 2)[1:].reshape(2, 2)
    np.testing.assert_allclose(masks.cam(ByHand(), x, method="rollout")[1].numpy(), expected, rtol=1e-6)
    # the gradient is 3 at patch 2 of the last block, 0 elsewhere: 3 * 0.1; the other image explains class 3: 4 * 0.4
    cam = masks.cam(ByHand(), x, torch.tensor([2, 3]), method="gradient-rollout")
    torch.testing.assert_close(cam, torch.tensor([[[0.0, 0.0], [0.3, 0.0]], [[0.0, 0.0], [0.0, 1.6]]]))


@KINDS
def test_rows_of_a_rollout_sum_to_one(kind: type[VisionTransformer]) -> None:
    mixed = masks.ROLLOUTS["rollout"](made(kind).eval(), images(), None)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(mixed.shape[:2]))


@KINDS
def test_a_gradient_rollout_follows_each_images_class_and_a_rollout_none(kind: type[VisionTransformer]) -> None:
    model, x = made(kind).eval(), images(1).expand(4, -1, -1, -1)
    cams = {method: masks.cam(model, x, torch.arange(4), method=method) for method in masks.ROLLOUTS}
    assert torch.equal(cams["rollout"], cams["rollout"][:1].expand(4, -1, -1))
    assert len(cams["gradient-rollout"].flatten(1).unique(dim=0)) == 4
    predicted = model(x).argmax(1)
    by_default = masks.cam(model, x, method="gradient-rollout")
    assert torch.equal(by_default, masks.cam(model, x, predicted, method="gradient-rollout"))


@KINDS
@ROLLOUTS
def test_a_map_does_not_depend_on_the_rest_of_the_batch_and_carries_no_gradient(
    kind: type[VisionTransformer], method: str
) -> None:
    model, x = made(kind), images()
    whole = masks.cam(model, x.clone().requires_grad_(), TARGET, method=method)
    assert whole.shape == (3, 8, 8)
    assert not whole.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(
            masks.cam(model, x[1:2], TARGET[1:2], method=method), whole[1:2], rtol=1e-4, atol=1e-6
        )


@KINDS
@ROLLOUTS
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_before_also_after_an_exception(
    kind: type[VisionTransformer], method: str, fails: bool
) -> None:
    model = made(kind).train()
    model.norm.eval()
    model.linear.bias.requires_grad_(False)

    def facts() -> list[object]:
        modes = [module.training for module in model.modules()]
        hooks = [len(module._forward_hooks) for module in model.modules()]
        return [modes, hooks, [(p.requires_grad, p.grad is None) for p in model.parameters()]]

    before, rng = facts(), torch.get_rng_state()
    if fails:
        with pytest.raises(AssertionError):
            masks.cam(model, torch.rand(2, 3, 18, 18, generator=torch.Generator()), method=method)
    else:
        masks.heatmap(model, images(), method=method)
    assert facts() == before
    assert torch.equal(torch.get_rng_state(), rng)


@KINDS
@pytest.mark.parametrize("method", sorted(masks.MAPS))
def test_no_value_is_looked_at_on_the_way(kind: type[VisionTransformer], method: str) -> None:
    model, x = made(kind).to("meta"), torch.empty(2, 3, 16, 16, device="meta")
    assert masks.heatmap(model, x, method=method).shape == (2, 16, 16)


class Tokens(nn.Module):
    """Tokens of 3x3 patches behind a class token go through `tokens`, and are also made a grid, for torchcam's eyes."""

    def __init__(self, *, class_token: bool) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 5, stride=5), nn.Linear(6, 4)
        self.tokens, self.grid = nn.Identity(), nn.Identity()
        self.first = nn.Parameter(torch.randn(1, 1, 6)) if class_token else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).relu().flatten(2).transpose(1, 2)
        if self.first is not None:
            tokens = torch.cat((self.first.expand(len(x), -1, -1), tokens), 1)
        tokens = self.tokens(tokens)
        grid = self.grid(tokens[:, -9:].transpose(1, 2).unflatten(2, (3, 3)))
        mixed = grid.flatten(2).softmax(-1) @ grid.flatten(2).transpose(1, 2)
        return self.fc(mixed.sum(1) + tokens[:, 0])


@pytest.mark.parametrize("method", sorted(masks.CAMS))
def test_maps_of_tokens_equal_torchcams_of_their_grid(method: str) -> None:
    torchcam = pytest.importorskip("torchcam.methods")
    oracles = {"gradcam": torchcam.GradCAM, "xgradcam": torchcam.XGradCAM, "layercam": torchcam.LayerCAM}
    model, x = Tokens(class_token=True).eval(), torch.rand(3, 3, 15, 15)
    with oracles[method](model, "grid") as oracle:
        (expected,) = oracle(class_idx=TARGET.tolist(), scores=model(x), normalized=False)
    assert expected.any()
    cam = masks.cam(model, x, TARGET, method=method, layer="tokens")
    torch.testing.assert_close(cam, expected, rtol=1e-4, atol=1e-4)


def test_tokens_without_a_class_token_are_the_whole_grid() -> None:
    acts = torch.arange(2 * 9 * 4.0).view(2, 9, 4)
    assert torch.equal(masks.maps.on_grid(acts), acts.transpose(1, 2).reshape(2, 4, 3, 3))
    with_others = torch.cat((torch.full((2, 2, 4), -1.0), acts), 1)
    assert torch.equal(masks.maps.on_grid(with_others), masks.maps.on_grid(acts))


@KINDS
@pytest.mark.parametrize("method", sorted(masks.CAMS))
@pytest.mark.parametrize("layer", ["features", "blocks.0"])
def test_cams_can_be_read_off_a_transformer_at_any_block(
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


def test_a_layer_or_another_network_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="cam 'rollout' reads all blocks at once, so layer 'blocks"):
        masks.cam(made(Deit), images(), method="rollout", layer="blocks.0")
    with pytest.raises(
        UserError, match="needs a transformer, and Tokens is none; choose from gradcam, layercam, xgrad"
    ):
        masks.cam(Tokens(class_token=True), torch.rand(1, 3, 15, 15), method="gradient-rollout")
