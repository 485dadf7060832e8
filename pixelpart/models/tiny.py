"""A network that a laptop trains adversarially in a minute: four convolutions, 8x8 features for 32x32 pixels."""

import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart.models.classifier import Classifier
from pixelpart.models.resnet import conv3x3


class Layer(nn.Module):
    """relu(bn(conv(x)))"""

    def __init__(self, channels_in: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = conv3x3(channels_in, channels, stride=stride), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class TinyCNN(Classifier):
    def __init__(self, num_classes: int, *, channels: int = 3) -> None:
        super().__init__()
        self.layer1 = Layer(channels, 16, stride=2)
        self.layer2 = Layer(16, 32, stride=2)
        self.layer3 = Layer(32, 32)
        self.layer4 = Layer(32, 64)
        self.linear = nn.Linear(64, num_classes)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))
