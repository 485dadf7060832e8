"""ResNet-18 (He et al. 2016) for small images: a 3x3 stem without pooling. Weights are named as TRADES names them."""

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


class ResNet18(Classifier):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(3, 64), nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, stride=1), Block(64, 64, stride=1))
        self.layer2 = nn.Sequential(Block(64, 128, stride=2), Block(128, 128, stride=1))
        self.layer3 = nn.Sequential(Block(128, 256, stride=2), Block(256, 256, stride=1))
        self.layer4 = nn.Sequential(Block(256, 512, stride=2), Block(512, 512, stride=1))
        self.linear = nn.Linear(512, num_classes)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return self.layer4(self.layer3(self.layer2(self.layer1(out))))
