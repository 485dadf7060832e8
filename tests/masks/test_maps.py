"""Class activation maps by hand and against torchcam."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from pixelpart import masks
from pixelpart.errors import UserError
from pixelpart.view.views import Folding

METHODS = sorted(masks.CAMS)


class Net(nn.Module):
    """Small, with batch norm, an in-place ReLU and either kind of head; features come after their ReLU."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer1 = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5))
        self.act = nn.ReLU(inplace=True)
        self.layer2 = nn.Sequential(nn.Conv2d(5, 6, 3), nn.ReLU())
        self.fc = nn.Linear(6 if pooled else 6 * 25, 4)
        self.pooled = pooled
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.4, generator=generator)

    @property
    def pooled_linear(self) -> nn.Linear | None:
        return self.fc if self.pooled else None

    def features(self, x: Tensor) -> Tensor:
        return self.layer2(self.act(self.layer1(x)))

    def head(self, acts: Tensor) -> Tensor:
        return self.fc(acts.mean((2, 3)) if self.pooled else torch.tanh(acts).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def images(n: int = 4, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, 3, 15, 15, generator=torch.Generator().manual_seed(seed)).to(dtype)


TARGET = torch.tensor([0, 3, 1, 1])


class ByHand(nn.Module):
    """Features are the pixels themselves; class 0 weighs the two channels 1 and -2, class 1 weighs them 3 and 1."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        self.fc.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
        self.pooled_linear = self.fc if pooled else None

    def features(self, x: Tensor) -> Tensor:
        return x

    def head(self, acts: Tensor) -> Tensor:
        return self.fc(acts.mean((2, 3)) if self.pooled_linear else acts.square().sum((2, 3)) / 2)


PIXELS = torch.tensor([[[[1.0, 2], [3, 4]], [[0, 1], [0, 1]]]])


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        # gradients 1/4 and -2/4 everywhere: A0/4 - A1/2
        ("gradcam", 0, [[0.25, 0.0], [0.75, 0.5]]),
        ("xgradcam", 0, [[0.25, 0.0], [0.75, 0.5]]),
        ("layercam", 0, [[0.25, 0.5], [0.75, 1.0]]),
        # gradients 3/4 and 1/4: 3 A0/4 + A1/4
        ("gradcam", 1, [[0.75, 1.75], [2.25, 3.25]]),
        ("layercam", 1, [[0.75, 1.75], [2.25, 3.25]]),
    ],
)
def test_maps_before_pooling_by_hand(method: str, target: int, expected: list[list[float]]) -> None:
    cam = masks.cam(ByHand(pooled=True), PIXELS, torch.tensor([target]), method=method)
    torch.testing.assert_close(cam, torch.tensor([expected]))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # score 0 is sum A0^2/2 - 2 sum A1^2/2, so the gradients are A0 and -2 A1
        ("gradcam", [[2.5, 4.0], [7.5, 9.0]]),  # mean(A0) A0 - 2 mean(A1) A1 = 2.5 A0 - A1
        ("xgradcam", [[3.0, 4.0], [9.0, 10.0]]),  # sum(A0^2)/sum(A0) A0 - 2 sum(A1^2)/sum(A1) A1 = 3 A0 - 2 A1
        ("layercam", [[1.0, 4.0], [9.0, 16.0]]),  # A0^2
    ],
)
def test_maps_through_a_square_by_hand(method: str, expected: list[list[float]]) -> None:
    cam = masks.cam(ByHand(pooled=False), PIXELS, torch.tensor([0]), method=method)
    torch.testing.assert_close(cam, torch.tensor([expected]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("layer", ["features", "layer1"])
def test_maps_equal_torchcam(method: str, pooled: bool, layer: str) -> None:
    torchcam = pytest.importorskip("torchcam.methods")
    oracles = {"gradcam": torchcam.GradCAM, "xgradcam": torchcam.XGradCAM, "layercam": torchcam.LayerCAM}
    model, x = Net(pooled=pooled).eval(), images()
    model.act = nn.ReLU()  # torchcam reads the activation after an in-place ReLU has changed it
    with oracles[method](model, "layer2" if layer == "features" else layer) as oracle:
        (expected,) = oracle(class_idx=TARGET.tolist(), scores=model(x), normalized=False)
    torch.testing.assert_close(masks.cam(model, x, TARGET, method=method, layer=layer), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_bf16_view_has_the_map_of_fp32_up_to_rounding_and_budgets_in_fp32(method: str, pooled: bool) -> None:
    model, x = Net(pooled=pooled).eval(), images()
    maps = [masks.cam(Folding(model, dtype=dtype)(), x, TARGET, method=method) for dtype in (None, torch.bfloat16)]
    assert (maps[1] - maps[0]).abs().max() < 0.02 * maps[0].max()
    budget = masks.budget(masks.upscale(maps[1], (15, 15)), eps=8 / 255, eps_low=7 / 255)
    assert torch.equal(budget.unique(), torch.tensor([7 / 255, 8 / 255]))


def test_a_channel_of_zeros_adds_nothing() -> None:
    """Also for xgradcam, which divides by its sum."""
    acts, grads = torch.zeros(1, 2, 3, 3), torch.ones(1, 2, 3, 3)
    acts[:, 0] = 2
    for method in METHODS:
        assert (masks.CAMS[method](acts, grads) == 2).all()


@pytest.mark.parametrize("layer", ["features", "layer1"])
@pytest.mark.parametrize("pooled", [True, False])
def test_a_map_is_of_the_predicted_class_by_default_and_carries_no_gradient(layer: str, pooled: bool) -> None:
    model, x = Net(pooled=pooled).eval(), images()
    by_default = masks.cam(model, x.clone().requires_grad_(), layer=layer)
    assert not by_default.requires_grad
    with torch.no_grad():
        assert torch.equal(masks.cam(model, x, model(x).argmax(1), layer=layer), by_default)


def snapshot(model: nn.Module) -> tuple[list[object], list[Tensor]]:
    facts: list[object] = [module.training for module in model.modules()]
    facts += [(p.requires_grad, p.grad is None) for p in model.parameters()]
    facts += [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    return facts, [torch.get_rng_state(), *(tensor.clone() for tensor in model.state_dict().values())]


@pytest.mark.parametrize("layer", ["features", "layer1"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_unchanged_also_after_an_exception(layer: str, fails: bool) -> None:
    model = Net(pooled=False).train()
    model.layer2.eval()
    model.fc.bias.requires_grad_(False)
    facts, tensors = snapshot(model)
    if fails:
        with pytest.raises((RuntimeError, IndexError)):
            masks.cam(model, images(), torch.full((4,), 99), layer=layer)
        model.head, head = None, model.head  # type: ignore[method-assign, assignment]
        with pytest.raises(TypeError):
            masks.cam(model, images(), layer=layer)
        model.head = head  # type: ignore[method-assign]
    else:
        masks.heatmap(model, images(), layer=layer)
    after, values = snapshot(model)
    assert after == facts
    assert all(torch.equal(a, b) for a, b in zip(values, tensors, strict=True))


def resize_with_pil(cam: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    scaled = (cam - cam.min()) / (cam.max() - cam.min())
    return np.asarray(Image.fromarray(scaled).resize(size[::-1], Image.Resampling.BICUBIC)).clip(0, 1)


@pytest.mark.parametrize(
    ("shape", "size"), [((4, 4), (32, 32)), ((8, 8), (32, 32)), ((7, 5), (32, 48)), ((8, 8), (64, 64))]
)
def test_upscale_equals_pil(shape: tuple[int, int], size: tuple[int, int]) -> None:
    cam = 5 * torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    heat = masks.upscale(cam, size)
    expected = np.stack([resize_with_pil(single.numpy(), size) for single in cam])
    np.testing.assert_allclose(heat.numpy(), expected, atol=2e-6)


def test_a_constant_map_is_dead() -> None:
    cam = torch.stack([torch.zeros(4, 4), torch.full((4, 4), 0.3), torch.arange(16.0).view(4, 4)])
    heat = masks.upscale(cam, (8, 8))
    assert (heat[:2] == 0).all()
    assert masks.is_dead(heat).tolist() == [True, True, False]


def test_maps_never_wait_for_the_device() -> None:
    """On the meta device there are no values to read."""
    acts, weight = torch.empty(2, 6, 4, 4, device="meta"), torch.empty(3, 6, device="meta")
    target = torch.empty(2, dtype=torch.int64, device="meta")
    for method in METHODS:
        cam = masks.pooled_cam(acts, weight, target, method=method)
        assert masks.upscale(cam, (32, 32)).shape == (2, 32, 32)
    model, x = Net(pooled=False).to("meta"), torch.empty(2, 3, 15, 15, device="meta")
    for layer in ("features", "layer1"):
        assert masks.upscale(masks.cam(model, x, layer=layer), (15, 15)).shape == (2, 15, 15)


Mistake = Callable[[nn.Module, Tensor], object]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda m, x: masks.cam(m, x, method="grad"),
            "unknown cam 'grad'; did you mean gradcam or xgradcam. choose from gradcam, ",
        ),
        (lambda m, x: masks.cam(m, x, method="grad", layer="layer1"), "unknown cam 'grad'"),
        (lambda m, x: masks.cam(m, x, layer="layer7"), "unknown layer 'layer7'; choose from act, fc, features, layer1"),
        (lambda m, x: masks.cam(m, x, layer="fc"), r"layer 'fc' gives \(4, 4\); a map needs"),
        (
            lambda m, x: masks.heatmap(m, 255 * x),
            r"float32 \(4, 3, 15, 15\) in \[.*must be float .* in \[0, 1\]",
        ),
        (lambda m, x: masks.cam(nn.Flatten(), x), "Flatten has no features and head; pixelpart.models.wrap"),
        (lambda m, x: masks.cam(F.relu, x, layer="layer1"), "unknown layer 'layer1'; choose from features,"),
    ],
)
def test_a_user_error_names_the_choices(mistake: Mistake, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mistake(Net(pooled=True), images())


def test_a_layer_that_runs_twice_is_refused() -> None:
    class Twice(Net):
        def features(self, x: Tensor) -> Tensor:
            return self.act(super().features(x))

    with pytest.raises(UserError, match="'act' runs 2 times"):
        masks.cam(Twice(pooled=True), images(), layer="act")
