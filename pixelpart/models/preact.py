"""Pre-activation ResNet-18 (He et al. 2016b) for small images, with the final batch norm and ReLU before pooling.

RobustBench has two of them under one name. Those with the final norm compute what is here; those without it also have
shortcuts that read x itself, and lack `bn.*`: such a file does not load.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart.models.classifier import Classifier
from pixelpart.models.resnet import conv3x3


class Block(nn.Module):
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


class PreActResNet18(Classifier):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(3, 64)
        self.layer1 = nn.Sequential(Block(64, 64, stride=1), Block(64, 64, stride=1))
        self.layer2 = nn.Sequential(Block(64, 128, stride=2), Block(128, 128, stride=1))
        self.layer3 = nn.Sequential(Block(128, 256, stride=2), Block(256, 256, stride=1))
        self.layer4 = nn.Sequential(Block(256, 512, stride=2), Block(512, 512, stride=1))
        self.bn = nn.BatchNorm2d(512)
        self.linear = nn.Linear(512, num_classes)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        out = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return F.relu(self.bn(out))
