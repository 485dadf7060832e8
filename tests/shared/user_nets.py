"""Small networks in the styles of tutorials and public repositories; none of them knows pixelpart.

`NETS` has a network's function, as `--model user_nets:NAME` names it, and what its last activation before pooling is
the output of: the names of torch functions, of which the last call counts.
"""

import threading

import torch
import torch.nn.functional as F
from torch import nn


class CifarBlock(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class CifarResNet(nn.Module):
    """The common ResNet for CIFAR: functional ReLUs, avg_pool2d(4), view."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(CifarBlock(8, 8, 1), CifarBlock(8, 12, 2))
        self.layer2 = nn.Sequential(CifarBlock(12, 16, 2))
        self.linear = nn.Linear(16, num_classes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer2(self.layer1(out))
        out = F.avg_pool2d(out, 4)
        out = out.view(out.size(0), -1)
        return self.linear(out)


class TorchvisionBlock(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        identity = x
        out = self.bn1(self.conv1(x))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class TorchvisionResNet(nn.Module):
    """One ReLU module for all, AdaptiveAvgPool2d, torch.flatten."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(TorchvisionBlock(8, 8, 1), TorchvisionBlock(8, 16, 2))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, num_classes)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer1(x))
        x = torch.flatten(x, 1)
        return self.fc(x)

    def forward(self, x):
        return self._forward_impl(x)


class TimmResNet(TorchvisionResNet):
    """forward_features and forward_head, with dropout between pooling and classifier."""

    def get_classifier(self):
        return self.fc

    def forward_features(self, x):
        return self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))

    def forward_head(self, x):
        return self.fc(F.dropout(self.avgpool(x).flatten(1), p=0.3, training=self.training))

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


class WideResNet(nn.Module):
    """Pre-activation, relu(bn(x)) at the end, avg_pool2d(8), view(-1, channels)."""

    def __init__(self, num_classes):
        super().__init__()
        self.nChannels = 12
        self.conv1, self.bn = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn1 = nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(12, num_classes)

    def forward(self, x):
        out = self.conv2(self.relu(self.bn(self.conv1(x))))
        out = self.relu(self.bn1(out))
        out = F.avg_pool2d(out, 8)
        out = out.view(-1, self.nChannels)
        return self.fc(out)


class VGG(nn.Module):
    """features, an average over windows, and a classifier of several layers."""

    def __init__(self, num_classes):
        super().__init__()
        layers = []
        for before, width in ((3, 8), (8, 12), (12, 16)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(64, 24), nn.ReLU(True), nn.Dropout(), nn.Linear(24, num_classes)
        )  # fmt: skip

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class DenseNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3, 4, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8 + 4 * i) for i in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(8 + 4 * i, 4, 3, padding=1) for i in range(2)])
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, x):
        features = self.conv0(x)
        for i, conv in enumerate(self.convs):
            features = torch.cat([features, conv(F.relu(self.norms[i](features)))], 1)
        out = F.relu(self.norms[2](features), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1)).squeeze()
        return self.classifier(out)


class MobileNet(nn.Module):
    """Depthwise convolutions, ReLU6, mean([2, 3]), dropout before the linear layer."""

    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 4, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, num_classes))

    def forward(self, x):
        n = x.size(0)
        return self.classifier(self.body(x).mean([2, 3]).view(n, -1))


class LeNet(nn.Module):
    """The tutorial's network: flatten and three linear layers, log-probabilities at the end."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 30), nn.Linear(30, 20), nn.Linear(20, num_classes)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        return F.log_softmax(self.fc3(x), dim=1)


class SqueezeExcite(nn.Module):
    """Sizes unpacked in the forward pass, and read before the last activation."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.down, self.up = nn.Conv2d(3, 12, 5, 4), nn.Linear(12, 4), nn.Linear(4, 12)
        self.last, self.pool, self.fc = nn.Conv2d(12, 12, 1), nn.AvgPool2d(7), nn.Linear(12, num_classes)

    def forward(self, x):
        n = x.shape[0]
        x = torch.relu(self.conv(x))
        b, c, _, _ = x.size()
        weights = torch.sigmoid(self.up(torch.relu(self.down(x.mean(3).mean(2))))).view(b, c, 1, 1)
        x = torch.relu_(self.last(x * weights.expand_as(x)))
        return self.fc(self.pool(x).reshape(n, -1))


class MadeInForward(nn.Module):
    """Modules without weights that are made in the forward pass; functional dropout."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 12, 3, 4), nn.BatchNorm2d(12), nn.Linear(12, num_classes)

    def forward(self, x):
        x = nn.ReLU(inplace=True)(self.bn(self.conv(x)))
        x = torch.mean(x, dim=(2, 3))
        if self.training:
            x = F.dropout(x, 0.25)
        return self.fc(x)


class Normalises(nn.Module):
    """Its own pixel scaling, in tensors that are not buffers, and a print in the forward pass."""

    def __init__(self, num_classes):
        super().__init__()
        self.mean, self.std = torch.full((1, 3, 1, 1), 0.45), torch.full((1, 3, 1, 1), 0.22)
        self.conv, self.fc = nn.Conv2d(3, 12, 3, 4), nn.Linear(12, num_classes)

    def forward(self, x):
        x = self.conv((x - self.mean) / self.std).relu()
        print("activation", x.shape)
        return self.fc(x.mean((2, 3)))


class AllConvolutional(nn.Module):
    """The last convolution has a channel per class."""

    def __init__(self, num_classes):
        super().__init__()
        self.trunk, self.last = nn.Conv2d(3, 12, 3, 4), nn.Conv2d(12, num_classes, 1)

    def forward(self, x):
        size = x.shape
        x = self.last(F.dropout2d(F.leaky_relu(self.trunk(x)), 0.1, self.training))
        return F.adaptive_avg_pool2d(x, 1).reshape(size[0], -1)


class Branches(nn.Module):
    """Control flow on the input, which torch.fx cannot trace."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 12, 3, 4), nn.ReLU(), nn.Linear(12, num_classes)

    def forward(self, x):
        if x.mean() > 100:
            x = x / 255
        return self.fc(self.relu(self.conv(x)).mean((2, 3)))


class FunctionalBranches(Branches):
    def forward(self, x):
        if x.mean() > 100:
            x = x / 255
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


def sequential(num_classes):
    convolutions = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))


RELU = ("relu", "relu_")
NETS = {
    "CifarResNet": RELU, "TorchvisionResNet": RELU, "TimmResNet": RELU, "WideResNet": RELU, "VGG": ("max_pool2d",),
    "DenseNet": RELU, "MobileNet": ("hardtanh",), "LeNet": ("max_pool2d",), "SqueezeExcite": RELU,
    "MadeInForward": RELU, "Normalises": RELU, "AllConvolutional": ("conv2d",), "Branches": RELU, "sequential": RELU,
}  # fmt: skip


# -- networks that cannot be trained


class Tuple(LeNet):
    def forward(self, x):
        return super().forward(x), x


class TupleInTrainMode(LeNet):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


def pools_pixels(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


def frozen(num_classes):
    return LeNet(num_classes).requires_grad_(False)


def for_large_images(num_classes):
    return nn.Sequential(nn.Conv2d(3, 8, 40), nn.Flatten(), nn.Linear(8, num_classes))


def locked(num_classes):
    net = sequential(num_classes)
    net.lock = threading.Lock()
    return net
