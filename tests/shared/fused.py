"""Small networks in which something may be fused, and what fusing has to leave as it is."""

import copy
from collections import Counter

import torch
from torch import nn

from pixelpart.models import Classifier
from pixelpart.view.views import Folding


class Net(Classifier):
    """Three convolutions with biases and no trunk: every network below is another way through them."""

    def __init__(self, **b) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, **({"kernel_size": 3, "padding": 1} | b))
        self.c = nn.Conv2d(16, 16, 1)
        self.relu = nn.ReLU()
        self.inplace = nn.ReLU(inplace=True)
        self.linear = nn.Linear(16, 4)

    @property
    def pooled_linear(self):
        return self.linear


def net(trunk, **b):
    """A model whose trunk is this function; b are settings of its second convolution."""
    return type("Made", (Net,), {"trunk": trunk})(**b)


class TheirNet(nn.Module):
    """A user's own network, in modules and in place throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.conv, self.bn = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.down = nn.Sequential(nn.Conv2d(16, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        out = self.stem(x)
        out = self.bn(self.conv(out)).add_(out).relu_()
        return self.fc(self.down(out).mean((2, 3)))


def stir(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
            elif isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                module.bias.uniform_(-0.5, 0.5, generator=generator)
    return model


def logits_and_gradient(view, x):
    leaf = x.clone().requires_grad_()
    logits = view(leaf)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return logits.detach(), torch.autograd.grad((logits * weights).sum(), leaf)[0]


def fused(folding):
    """How many of which operation the features hold."""
    names = [str(node.target) for node in folding._features.structure.graph.nodes if node.op == "call_function"]
    return dict(Counter(name.split(".")[1] for name in names if name.startswith("pixelpart.")))


def check(model, dtype=None):
    """Fused equals unfused; returns what was fused."""
    model = stir(model)
    if dtype is None:
        model.double()
    model.to(memory_format=torch.channels_last)  # as in training, and so that both round in one order
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(8)).to(next(model.parameters()).dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    folding, reference = Folding(model, dtype=dtype, fuse=True), Folding(model, dtype=dtype)
    assert folding.folded
    assert fused(reference) == {}
    exact = logits_and_gradient(Folding(copy.deepcopy(model).double())(), x.double())
    for mine, theirs, right in zip(
        logits_and_gradient(folding(), x), logits_and_gradient(reference(), x), exact, strict=True
    ):
        assert mine.dtype == theirs.dtype
        gap, peak = (mine - theirs).abs().max().item(), theirs.abs().max().item()
        assert peak > 1e-6
        if dtype is not None and "residual" in fused(folding):  # biases are added to each other first: it rounds anew
            assert (mine - right).norm() <= 2.5 * (theirs - right).norm()
        else:
            assert gap <= peak * (1e-12 if dtype is None else 1e-4)
    if dtype is None:  # unfused is tested against the model elsewhere; here the two tests meet
        exact = copy.deepcopy(model).eval()(x)
        torch.testing.assert_close(folding()(x), exact)
    return fused(folding)
