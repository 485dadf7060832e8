"""ResNet-18 (He et al. 2016) and PreActResNet-18 (He et al. 2016b) for small images: a 3x3 stem without pooling.

Weights are named as TRADES and RobustBench name them. RobustBench has two PreActResNet-18 under one name. Those with a
batch norm before pooling compute what is here; those without it also have shortcuts that read x itself, and lack
`bn.*`: such a file does not load.
"""

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart.models.classifier import Classifier


def conv3x3(channels_in: int, channels: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))"""

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels_in, channels, stride=stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv3x3(channels, channels), nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            projection = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class PreActBlock(nn.Module):
    """conv(relu(bn(conv(a)))) + shortcut, with a = relu(bn(x)); the shortcut is x, or a convolution of a."""

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), conv3x3(channels_in, channels, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv3x3(channels, channels)
        self.projects = stride != 1 or channels_in != channels
        if self.projects:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (self.shortcut(active) if self.projects else x)


def stages(block: type[Block] | type[PreActBlock]) -> list[nn.Sequential]:
    """Four stages of two blocks; each after the first has twice the channels and half the resolution."""
    return [
        nn.Sequential(block(before, width, stride=1 if before == width else 2), block(width, width, stride=1))
        for before, width in itertools.pairwise((64, 64, 128, 256, 512))
    ]


class ResNet18(Classifier):
    def __init__(self, num_classes: int, *, channels: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, 64), nn.BatchNorm2d(64)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(Block)
        self.linear = nn.Linear(512, num_classes)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return self.layer4(self.layer3(self.layer2(self.layer1(out))))


class PreActResNet18(Classifier):
    def __init__(self, num_classes: int, *, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, 64)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(PreActBlock)
        self.bn = nn.BatchNorm2d(512)
        self.linear = nn.Linear(512, num_classes)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        out = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return F.relu(self.bn(out))
