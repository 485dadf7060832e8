"""Wide ResNets (Zagoruyko and Komodakis 2016), `wrn-DEPTH-WIDTH`, no dropout. Weights have the names of TRADES."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.resnet import conv3x3


class Block(nn.Module):
    """conv(relu(bn(conv(a)))) + shortcut, with a = relu(bn(x)); the shortcut is x, or a convolution of a."""

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), conv3x3(channels_in, channels, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv3x3(channels, channels)
        self.projects = channels_in != channels
        if self.projects:
            self.convShortcut = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (self.convShortcut(active) if self.projects else x)


class Stage(nn.Module):
    """Blocks of one width, the first with the stride."""

    def __init__(self, blocks: int, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        later = [Block(channels, channels, stride=1) for _ in range(blocks - 1)]
        self.layer = nn.Sequential(Block(channels_in, channels, stride=stride), *later)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(Classifier):
    other_names: ClassVar[dict[str, str | None]] = {"sub_block1.": None}  # TRADES creates this stage and never uses it

    def __init__(self, num_classes: int, *, depth: int, width: int, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise UserError(f"unknown model 'wrn-{depth}-{width}'; choose a depth of 10, 16, 22, ... and a width > 0")
        blocks = (depth - 4) // 6
        self.conv1 = conv3x3(channels, 16)
        self.block1 = Stage(blocks, 16, 16 * width, stride=1)
        self.block2 = Stage(blocks, 16 * width, 32 * width, stride=2)
        self.block3 = Stage(blocks, 32 * width, 64 * width, stride=2)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, num_classes)

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Convolutions are normal with variance 2/(fan out) and the bias is 0, as usual for WRNs."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * module.weight[0, 0].numel()
                module.weight.normal_(0, (2 / fan_out) ** 0.5, generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
        bound = self.fc.in_features**-0.5
        self.fc.weight.uniform_(-bound, bound, generator=generator)
        self.fc.bias.zero_()

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.fc

    def trunk(self, x: Tensor) -> Tensor:
        return F.relu(self.bn1(self.block3(self.block2(self.block1(self.conv1(x))))))
