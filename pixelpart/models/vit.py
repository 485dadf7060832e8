"""Vision transformers (Dosovitskiy et al. 2021; DeiT: Touvron et al. 2021); weights have DeiT's names.

Tokens and norms keep the precision of the position embedding (fp32); each linear layer casts its input to the type of
its weight, so that a bf16 view computes as autocast does.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier

GRID = 8  # patches per side, up to the largest patch
LARGEST_PATCH = 16


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v for every head, and the attention weights (b, heads, t, t)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.qkv(x.to(self.qkv.weight.dtype)).unflatten(-1, (3, self.heads, self.size)).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        # not fused, so that attacks, training and maps use the same computation, deterministically
        weights = ((q * self.size**-0.5) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2)), weights


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x.to(self.fc1.weight.dtype))))


class Block(nn.Module):
    """y = x + attention(norm(x)), then y + mlp(norm(y))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output tokens, and the attention weights."""
        out, weights = self.attn(self.norm1(x))
        x = x + out
        return x + self.mlp(self.norm2(x)), weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)[0]


class Patches(nn.Module):
    """One token for every patch, row by row: (b, t, width)."""

    def __init__(self, size: int, patch: int, width: int, channels: int) -> None:
        super().__init__()
        self.size = size
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        # torch.fx can trace this; without it, the convolution would ignore pixels beyond the last full patch
        torch._assert(
            x.shape[2:] == (self.size, self.size), f"this model needs images of {self.size} x {self.size} pixels"
        )
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(Classifier):
    """For square images of one size; the head is the mean over the tokens and a linear layer. No class token."""

    other_names: ClassVar[dict[str, str | None]] = {"head.": "linear."}
    class_token = False

    def __init__(self, num_classes: int, *, size: int, width: int, depth: int, heads: int, channels: int = 3) -> None:
        super().__init__()
        patch = patch_for(size)
        self.grid = size // patch
        self.patch_embed = Patches(size, patch, width, channels)
        self.pos_embed = nn.Parameter(torch.empty(1, self.grid**2 + self.class_token, width))
        if self.class_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.linear = nn.Linear(width, num_classes)

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Uniform within sqrt(6 / (fan in + fan out)) in the blocks, as in ViT; normal with std 0.02 for the token
        embeddings and the last layer; biases 0; the patch convolution as in other models.
        """
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                bound = (6 / (module.in_features + module.out_features)) ** 0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                module.bias.zero_()
            elif isinstance(module, nn.Conv2d) and module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                module.bias.zero_()
        for parameter in (*self.parameters(recurse=False), self.linear.weight):
            parameter.normal_(0, 0.02, generator=generator)

    @property
    def pooled_linear(self) -> nn.Linear | None:
        return self.linear

    def embed(self, x: Tensor) -> Tensor:
        """The tokens of normalised pixels before the first block."""
        return self.patch_embed(x) + self.pos_embed

    def trunk(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(self.embed(x)))
        return tokens.transpose(1, 2).unflatten(2, (self.grid, self.grid))

    def read(self, tokens: Tensor) -> Tensor:
        """The logits of the last block's tokens."""
        return self.linear(self.norm(tokens).mean(1))

    def attentions(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The attention weights of each block, (b, heads, t, t), and the logits."""
        tokens, attention = self.embed(self.normalised(x)), []
        for block in self.blocks:
            assert isinstance(block, Block)
            tokens, weights = block.attend(tokens)
            attention.append(weights)
        return attention, self.read(tokens)


class Deit(VisionTransformer):
    """The logits come from a class token; features are the tokens (b, t, f) before the last block.

    After the last block no other token affects the logits, so a map there would be zero.
    """

    class_token = True

    @property
    def pooled_linear(self) -> None:
        return None

    def embed(self, x: Tensor) -> Tensor:
        first = self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat((first, self.patch_embed(x)), 1) + self.pos_embed

    def trunk(self, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        for block in list(self.blocks)[:-1]:
            tokens = block(tokens)
        return tokens

    def head(self, acts: Tensor) -> Tensor:
        return self.read(self.blocks[-1](acts))

    def read(self, tokens: Tensor) -> Tensor:
        return self.linear(self.norm(tokens)[:, 0])


def patch_for(size: int) -> int:
    """The patch size: 4 for 32 pixels, 8 for 64, 16 for 224; eight patches per side until a patch has 16 pixels."""
    patch = min(size // GRID, LARGEST_PATCH)
    if size < GRID or size % patch:
        raise UserError(f"images of {size} pixels cannot be divided into patches; choose a multiple "
                        f"of {GRID} up to 128, or of {LARGEST_PATCH}")  # fmt: skip
    return patch
