"""Small classifiers for the tests of views, and how two views of a model are compared."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pixelpart.models import Classifier


class Small(Classifier):
    """Convolution, batch norm, ReLU, pooling and one linear layer; the keywords are further modules."""

    def __init__(self, **modules) -> None:
        super().__init__()
        self.conv, self.bn, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 4)
        for name, module in modules.items():
            setattr(self, name, module)

    @property
    def pooled_linear(self):
        return self.linear

    def trunk(self, x):
        return F.relu(self.bn(self.conv(x)))


class Convolutions(Classifier):
    """Three convolutions with biases; the keywords are settings of the second."""

    def __init__(self, **b) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, **({"kernel_size": 3, "padding": 1} | b))
        self.c = nn.Conv2d(16, 16, 1)
        self.relu, self.inplace = nn.ReLU(), nn.ReLU(inplace=True)
        self.linear = nn.Linear(16, 4)

    @property
    def pooled_linear(self):
        return self.linear


def with_trunk(base, trunk, **settings):
    """A model of the class `base` with this function as its trunk."""
    return type("Made", (base,), {"trunk": trunk})(**settings)


class UserNet(nn.Module):
    """A network without features and head, in modules and in-place operations."""

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


def randomised(model):
    """Biases and batch norm away from their initial values, so that a wrong fold shows."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                if module.affine:
                    module.weight.uniform_(0.5, 1.5, generator=generator)
                    module.bias.uniform_(-0.5, 0.5, generator=generator)
                if module.running_var is not None:
                    module.running_mean.normal_(0, 0.3, generator=generator)
                    module.running_var.uniform_(0.5, 2, generator=generator)
            elif isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                module.bias.uniform_(-0.5, 0.5, generator=generator)
    return model


def images(n=3, size=8, dtype=torch.float64):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(8), dtype=torch.float64).to(dtype)


def logits_and_gradient(view, x):
    leaf = x.clone().requires_grad_()
    logits = view(leaf)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return logits.detach(), torch.autograd.grad((logits * weights).sum(), leaf)[0]


def close(a, b):
    gap, peak = (a - b).abs().max().item(), b.abs().max().item()
    return gap <= 1e-12 * max(1.0, peak) and gap <= 1e-9 * peak


def modes_and_flags(model):
    """Train or eval mode by module, and requires_grad by parameter."""
    modes = {name: module.training for name, module in model.named_modules()}
    return modes, {name: parameter.requires_grad for name, parameter in model.named_parameters()}


class LayerTypes(TorchDispatchMode):
    """Lists the types of input and weight of every convolution and linear layer, in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("convolution", "mkldnn_convolution"):
            self.seen.append((args[0].dtype, args[1].dtype))
        elif name in ("addmm", "mm"):
            self.seen.append((args[-2].dtype, args[-1].dtype))
        return func(*args, **(kwargs or {}))
