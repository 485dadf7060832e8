"""Networks of every make, to be read, folded and looked at; and how two views of one are compared."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart import models
from pixelpart.models import Classifier


class Net(Classifier):
    """Convolution, batch norm, ReLU, pooling and one linear layer: the base of the odd networks below."""

    def __init__(self, *, bias: bool = True, **norm) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, **norm)
        self.linear = nn.Linear(6, 4, bias=bias)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class WithoutNorm(Net):
    def trunk(self, x):
        return F.relu(self.conv(x))


class WithDropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def trunk(self, x):
        return F.dropout(self.drop(super().trunk(x)), 0.5, training=self.training)


class NormOfTheInput(Net):
    """Batch norm in front of everything: no convolution before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)

    def trunk(self, x):
        return super().trunk(self.first(x))


class ConvUsedTwice(Net):
    """One convolution behind two norms: folding one of them would spoil the other."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.bn2, self.bn3 = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def trunk(self, x):
        return F.relu(self.bn3(self.same(F.relu(self.bn2(self.same(super().trunk(x)))))))


class NormUsedTwice(Net):
    def trunk(self, x):
        return F.relu(self.bn(self.bn(self.conv(x))))


class ConvReadTwice(Net):
    """The convolution's own output is used beside its normalised one."""

    def trunk(self, x):
        out = self.conv(x)
        return F.relu(self.bn(out) + out)


class OwnHead(Net):
    """A head with a batch norm in it, which is not pooling and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.last_bn = nn.Conv2d(6, 5, 1, bias=False), nn.BatchNorm2d(5)

    @property
    def pooled_linear(self):
        return None

    def head(self, acts):
        return self.last_bn(self.last(acts)).amax((2, 3))


class TiedWeights(Net):
    """Two convolutions with one weight, each with a norm of its own behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bn2, self.bn3 = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1), *map(nn.BatchNorm2d, (6, 6))
        self.b.weight = self.a.weight

    def trunk(self, x):
        return F.relu(self.bn3(self.b(F.relu(self.bn2(self.a(super().trunk(x)))))))


class TwoNames(ConvUsedTwice):
    """One module that goes by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.alias = self.same


class WeightReadByName(Net):
    """The forward pass looks at the convolution's weight itself, which folding would change under its eyes."""

    def trunk(self, x):
        return F.relu(self.bn(self.conv(x)) + self.conv.weight.mean())


class NormReadByName(Net):
    def trunk(self, x):
        return F.relu(self.bn(F.relu(self.conv(x))) + self.bn.bias.mean())


class NormByKeyword(Net):
    def trunk(self, x):
        return F.relu(self.bn(input=self.conv(x)))


class Branching(Net):
    """What it does depends on its input, so no graph can hold it."""

    def trunk(self, x):
        acts = super().trunk(x)
        return acts if x.mean() > 0.5 else 2 * acts


class OverRows(Net):
    def trunk(self, x):
        return torch.cat([super(OverRows, self).trunk(x[i : i + 1]) for i in range(x.shape[0])])


class BranchingTwoNames(TwoNames):
    def trunk(self, x):
        return super().trunk(x) * (1 if x.mean() > 0.5 else 2)


class AsksForLength(Net):
    def trunk(self, x):
        assert isinstance(x, Tensor)
        return super().trunk(x) / len(x)


class WithHook(Net):
    """A graph would leave the hook out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.register_forward_hook(double)


class WithBackwardHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv.register_full_backward_hook(double_back)


class Parametrized(Net):
    """Its convolution's weight is made anew at every pass."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.conv)


class PlainTensor(Net):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((1, 3, 1, 1), 0.3, dtype=torch.float64)

    def trunk(self, x):
        return super().trunk(x * self.scale)


def double(module, inputs, output):
    return 2 * output


def double_back(module, given, grads):
    return tuple(grad if grad is None else 2 * grad for grad in given)


class TheirNet(nn.Module):
    """A user's own network, which knows nothing of features and head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.layer4 = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layer4(self.stem(x)).mean((2, 3)))


def scaled(name):
    return models.build(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


NETS = {
    "resnet18": lambda: models.build("resnet18"),
    "preactresnet18": lambda: models.build("preactresnet18"),
    "wrn-10-1": lambda: models.build("wrn-10-1"),
    "tiny-cnn": lambda: models.build("tiny-cnn"),
    "tiny-cnn, normalised": lambda: scaled("tiny-cnn"),
    "wrn-10-1, normalised": lambda: scaled("wrn-10-1"),
    "wrapped": lambda: models.wrap(TheirNet(), features="layer4", head="fc"),
    "without batch norm": WithoutNorm,
    "with dropout": WithDropout,
    "norm without affine": lambda: Net(affine=False),
    "norm with another eps": lambda: Net(eps=0.3),
    "norm of the batch alone": lambda: Net(track_running_stats=False),
    "norm of the input": NormOfTheInput,
    "head without bias": lambda: Net(bias=False),
    "head of its own": OwnHead,
    "convolution used twice": ConvUsedTwice,
    "convolution read twice": ConvReadTwice,
    "norm used twice": NormUsedTwice,
    "tied weights": TiedWeights,
    "module with two names": TwoNames,
    "weight read by name": WeightReadByName,
    "norm read by name": NormReadByName,
    "norm by keyword": NormByKeyword,
}
UNREADABLE = {
    "branching": Branching,
    "over rows": OverRows,
    "branching, module with two names": BranchingTwoNames,
    "asks for its input's length": AsksForLength,
    "with a hook": WithHook,
    "with a hook for gradients": WithBackwardHook,
    "parametrized": Parametrized,
    "plain tensor": PlainTensor,
}


def stir(model):
    """Weights and statistics away from where they start, so that a wrong fold shows."""
    generator = torch.Generator().manual_seed(7)
    model.double()
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


def images(n=3, size=8):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def close(a, b):
    gap, peak = (a - b).abs().max().item(), b.abs().max().item()
    return gap <= 1e-12 * max(1.0, peak) and gap <= 1e-9 * peak


def logits_and_gradient(model, x):
    leaf = x.clone().requires_grad_()
    logits = model(leaf)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    (grad,) = torch.autograd.grad((logits * weights).sum(), leaf)
    return logits.detach(), grad


def state_of(model):
    modes = {name: module.training for name, module in model.named_modules()}
    return modes, {name: p.requires_grad for name, p in model.named_parameters()}
