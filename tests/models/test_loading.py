import copy
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models import build, load_state, wrap
from pixelpart.runs import save_checkpoint


def norm(name, channels):
    sizes = [(f"{name}.{part}", (channels,)) for part in ("weight", "bias", "running_mean", "running_var")]
    return [*sizes, (f"{name}.num_batches_tracked", ())]


def published_resnet(*, preactivation):
    """Names and shapes of RobustBench's ResNet-18, or PreActResNet-18 with `bn_before_fc`, from their constructors."""
    keys = [("conv1.weight", (64, 3, 3, 3)), *([] if preactivation else norm("bn1", 64))]
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            keys += [*norm(f"{name}.bn1", before if preactivation else width), *norm(f"{name}.bn2", width)]
            keys += [(f"{name}.conv1.weight", (width, before, 3, 3)), (f"{name}.conv2.weight", (width, width, 3, 3))]
            if before != width:
                keys += [(f"{name}.shortcut.0.weight", (width, before, 1, 1))]
                keys += [] if preactivation else norm(f"{name}.shortcut.1", width)
            before = width
    last = norm("bn", 512) if preactivation else []
    return [*keys, *last, ("linear.weight", (10, 512)), ("linear.bias", (10,))]


def published_wrn(depth, width):
    """Names and shapes of TRADES' WideResNet, which has its first stage twice."""
    keys = [("conv1.weight", (16, 3, 3, 3))]
    channels = {"block1": (16, 16 * width), "block2": (16 * width, 32 * width), "block3": (32 * width, 64 * width)}
    for stage in ("block1", "sub_block1", "block2", "block3"):
        before, after = channels[stage.removeprefix("sub_")]
        for i in range((depth - 4) // 6):
            name, entry = f"{stage}.layer.{i}", before if i == 0 else after
            keys += [*norm(f"{name}.bn1", entry), (f"{name}.conv1.weight", (after, entry, 3, 3))]
            keys += [*norm(f"{name}.bn2", after), (f"{name}.conv2.weight", (after, after, 3, 3))]
            if entry != after:
                keys += [(f"{name}.convShortcut.weight", (after, entry, 1, 1))]
    return [*keys, *norm("bn1", 64 * width), ("fc.weight", (10, 64 * width)), ("fc.bias", (10,))]


def filled(keys):
    return {
        name: torch.tensor(7) if name.endswith("tracked") else torch.rand(shape) * 0.1 + 0.05 for name, shape in keys
    }


def holds(model, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


# -- the published forward passes


def normed(state, name, x):
    mean, var, weight, bias = (state[f"{name}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, var, weight, bias)


def post_activation(state, name, x, stride):
    out = F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
    out = F.conv2d(normed(state, f"{name}.bn1", out).relu(), state[f"{name}.conv2.weight"], padding=1)
    out = normed(state, f"{name}.bn2", out)
    if f"{name}.shortcut.0.weight" in state:
        x = normed(state, f"{name}.shortcut.1", F.conv2d(x, state[f"{name}.shortcut.0.weight"], stride=stride))
    return (out + x).relu()


def pre_activation(state, name, x, stride):
    active = normed(state, f"{name}.bn1", x).relu()
    out = F.conv2d(active, state[f"{name}.conv1.weight"], stride=stride, padding=1)
    out = F.conv2d(normed(state, f"{name}.bn2", out).relu(), state[f"{name}.conv2.weight"], padding=1)
    for shortcut in ("shortcut.0", "convShortcut"):
        if f"{name}.{shortcut}.weight" in state:
            x = F.conv2d(active, state[f"{name}.{shortcut}.weight"], stride=stride)
    return out + x


def published_logits(name, state, x):
    out = F.conv2d(x, state["conv1.weight"], padding=1)
    if name == "resnet18":
        out = normed(state, "bn1", out).relu()
    block = post_activation if name == "resnet18" else pre_activation
    stages = [f"block{i}.layer" for i in (1, 2, 3)] if name.startswith("wrn") else [f"layer{i}" for i in (1, 2, 3, 4)]
    for number, stage in enumerate(stages):
        for i in range(2):
            out = block(state, f"{stage}.{i}", out, 2 if number and i == 0 else 1)
    if name != "resnet18":
        out = normed(state, "bn" if name == "preactresnet18" else "bn1", out).relu()
    last = "fc" if name.startswith("wrn") else "linear"
    pooled = F.avg_pool2d(out, out.shape[-1]).flatten(1)
    return F.linear(pooled, state[f"{last}.weight"], state[f"{last}.bias"])


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("resnet18", published_resnet(preactivation=False)),
        ("preactresnet18", published_resnet(preactivation=True)),
        ("wrn-16-2", published_wrn(16, 2)),
    ],
    ids=["resnet18", "preactresnet18", "wrn-16-2"],
)
def test_published_weights_give_the_published_forward_pass(name, keys):
    state = {k: t if t.ndim == 0 else torch.randn(t.shape) * 0.1 for k, t in filled(keys).items()}
    state |= {k: t.abs() + 0.5 for k, t in state.items() if k.endswith("running_var")}
    x = torch.rand(2, 3, 32, 32)
    model = load_state(build(name), {f"module.{k}": tensor for k, tensor in state.items()}).eval()
    expected = published_logits(name, state, x)
    assert holds(model, state)
    assert expected.std() > 1e-3
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def model():
    return build("tiny-cnn")


@pytest.fixture
def state(model):
    return filled([(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()])


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.model."])
@pytest.mark.parametrize("inside", ["", "state_dict", "net"])
def test_prefixes_and_other_content_of_training_scripts_files_are_removed(model, state, prefix, inside):
    saved = OrderedDict((prefix + name, tensor) for name, tensor in state.items())
    given = {"epoch": 3, inside: saved, "optimizer": {"state": {}}} if inside else saved
    assert holds(load_state(model, given), state)


@pytest.mark.parametrize(("mean", "std"), [("mu", "sigma"), ("mean", "std"), ("normalize.mean", "normalize.std")])
def test_pixel_scaling_in_the_state_dict_is_set_in_the_model(model, state, mean, std):
    x, plain = torch.rand(2, 3, 32, 32), load_state(copy.deepcopy(model), state).eval()
    middle, spread = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    load_state(model, state | {mean: middle, std: spread})
    torch.testing.assert_close(model.eval()(x), plain((x - middle) / spread))


def test_a_wrapped_module_keeps_the_name_that_others_strip():
    def net():
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        return wrap(module, features="1", head="4")

    state = net().state_dict()
    assert all(name.startswith("module.") for name in state)
    assert holds(load_state(net(), state), state)


def test_files_are_read(model, state, tmp_path):
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "b.pth")
    torch.save({"net": state}, tmp_path / "c.pth.tar")
    for name in ("a.safetensors", "a.pt", "b.pth", "c.pth.tar"):
        fresh = build("tiny-cnn", generator=torch.Generator().manual_seed(9))
        assert holds(load_state(fresh, tmp_path / name), state)
    assert holds(load_state(model, str(tmp_path / "a.pt")), state)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_runs_checkpoint_gives_the_model_that_is_evaluated(tmp_path, ema):
    settings = {"ema": ema, "normalize": False}
    trained = {f"model.{name}": tensor for name, tensor in build("tiny-cnn").state_dict().items()}
    average = build("tiny-cnn", generator=torch.Generator().manual_seed(9)).state_dict()
    if ema:
        trained |= {f"average.{name}": tensor for name, tensor in average.items()}
    path, expected = tmp_path / "last.safetensors", average if ema else build("tiny-cnn").state_dict()
    save_checkpoint(path, trained | {"tally": torch.zeros(6)}, {"settings": settings})
    fresh = build("tiny-cnn", generator=torch.Generator().manual_seed(3))
    assert holds(load_state(fresh, path), expected)
    save_checkpoint(path, trained, {"settings": settings | {"normalize": True}})
    with pytest.raises(UserError, match="trained with --normalize"):
        load_state(fresh, path)
    load_state(build("tiny-cnn", mean=(0.5,) * 3, std=(0.2,) * 3), path)


class Evil:
    def __reduce__(self):
        return print, ("this must not be printed",)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda folder: folder / "none.pt", "no file .*none.pt"),
        (lambda folder: _write(folder / "a.safetensors", b"x" * 20), "cannot be read as tensors only"),
        (lambda folder: _write(folder / "a.pt", b"x" * 20), "cannot be read as tensors only"),
        (lambda folder: _saved(folder / "b.pt", {"a": Evil()}), r"\(Weights only load failed\); if you trust it"),
        (lambda folder: _saved(folder / "c.pt", [1, 2]), "has a list, not a state dict"),
        (lambda folder: _saved(folder / "d.pt", {"lr": 0.1}), "is not a state dict: lr is not a tensor"),
        (lambda folder: _saved(folder / "e.pt", {}), "is not a state dict: it is empty"),
    ],
)
def test_other_files_are_user_errors(model, tmp_path, capsys, save, message):
    with pytest.raises(UserError, match=message):
        load_state(model, save(tmp_path))
    assert "must not" not in capsys.readouterr().out


def _write(path, content):
    path.write_bytes(content)
    return path


def _saved(path, what):
    torch.save(what, path)
    return path


def test_wrong_names_and_shapes_are_listed_and_nothing_is_changed(model, state):
    before = copy.deepcopy(model.state_dict())
    del state["layer1.conv.weight"], state["layer4.bn.running_var"]
    state |= {"extra.weight": torch.zeros(1), "linear.weight": torch.zeros(100, 64)}
    with pytest.raises(UserError) as caught:
        load_state(model, state)
    assert str(caught.value) == (
        "the state dict does not fit TinyCNN: missing layer1.conv.weight, layer4.bn.running_var; "
        "unexpected extra.weight; wrong shape of linear.weight (100, 64) instead of (10, 64)"
    )
    assert holds(model, before)


def test_any_module_is_filled_but_takes_no_pixel_scaling(tmp_path):
    own, other = (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)) for _ in range(2))
    torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in other.state_dict().items()}}, tmp_path / "x"
    )
    assert torch.equal(load_state(own, tmp_path / "x")[1].weight, other[1].weight)
    scaled = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).state_dict() | {"mu": torch.ones(3), "sigma": torch.ones(3)}
    with pytest.raises(UserError, match="contains mean and std of pixels, and Sequential has no normalisation"):
        load_state(own, scaled)
    assert torch.equal(own[1].weight, other[1].weight)
