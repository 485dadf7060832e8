"""wrap on networks with the attributes of timm's; timm needs torchvision, which fails with a CPU build of torch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart import masks
from pixelpart.errors import UserError
from pixelpart.models import wrap
from pixelpart.view.views import Folding


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.fused_attn = 2, True
        self.qkv, self.attn_drop, self.proj = nn.Linear(8, 24), nn.Dropout(0.1), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused_attn:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        else:
            out = self.attn_drop((q * 0.5 @ k.transpose(-2, -1)).softmax(-1)) @ v
        return self.proj(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(8), Attention(), nn.Identity()

    def forward(self, x):
        return x + self.ls1(self.attn(self.norm1(x)))


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_size, self.proj = (24, 24), nn.Conv2d(3, 8, 6, stride=6)

    def forward(self, x):
        assert x.shape[2:] == self.img_size
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    def __init__(self, global_pool="token"):
        super().__init__()
        self.global_pool, self.num_prefix_tokens, self.num_features = global_pool, 1, 8
        self.patch_embed, self.cls_token = Embed(), nn.Parameter(torch.randn(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, 8))
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.norm, self.fc_norm, self.head = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 4)

    def get_classifier(self):
        return self.head

    def forward_features(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        return self.norm(self.blocks(x))

    def forward_head(self, x):
        return self.head(self.fc_norm(x[:, 0] if self.global_pool == "token" else x[:, 1:].mean(1)))

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


class ConvNet(nn.Module):
    def __init__(self, *, drop_rate=0.0, activated=False):
        super().__init__()
        self.num_features, self.drop_rate, self.activated = 6, drop_rate, activated
        self.conv, self.fc = nn.Conv2d(3, 6, 5, stride=4), nn.Linear(6, 4)

    def get_classifier(self):
        return self.fc

    def forward_features(self, x):
        return self.conv(x).relu()

    def forward_head(self, x):
        pooled = x.mean((2, 3))
        return self.fc(F.dropout(pooled.tanh() if self.activated else pooled, self.drop_rate, self.training))

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


def images(size=24):
    return torch.rand(3, 3, size, size)


POOLS = pytest.mark.parametrize("pool", ["token", "avg"])


@POOLS
def test_a_transformer_is_wrapped_without_arguments(pool):
    module, x = VisionTransformer(pool).eval(), images()
    model = wrap(module)
    assert torch.equal(model(x), module(x))
    assert model.features(x).shape == (3, 17, 8)
    assert model.pooled_linear is None
    assert torch.equal(Folding(model)()(x), module(x))
    assert torch.equal(copy.deepcopy(model)(x), module(x))


@POOLS
@pytest.mark.parametrize("method", sorted(masks.MAPS))
def test_every_map_works_on_a_transformer_and_leaves_no_trace(pool, method):
    module = VisionTransformer(pool).train()
    heat = masks.heatmap(wrap(module), images(), method=method)
    assert heat.shape == (3, 24, 24)
    assert not masks.is_dead(heat).any()
    assert all(block.attn.fused_attn for block in module.blocks)
    assert all(part.training and not part._forward_hooks for part in module.modules())
    with pytest.raises(AssertionError):
        wrap(module).attentions(images(30))
    assert all(block.attn.fused_attn and not block.attn.attn_drop._forward_hooks for block in module.blocks)


@POOLS
def test_attention_weights_equal_their_definition(pool):
    module, x = VisionTransformer(pool).eval(), images()
    weights, logits = wrap(module).attentions(x)
    torch.testing.assert_close(logits, module(x))
    tokens = module.blocks[0].norm1(torch.cat((module.cls_token.expand(3, -1, -1), module.patch_embed(x)), 1)
                                    + module.pos_embed)  # fmt: skip
    q, k, _ = module.blocks[0].attn.qkv(tokens).reshape(3, 17, 3, 2, 4).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(weights[0], (q @ k.transpose(-2, -1) / 2).softmax(-1))
    assert len(weights) == 3


def test_a_convolutional_network_is_wrapped_without_arguments():
    module, x = ConvNet().eval(), images(32)
    model = wrap(module)
    torch.testing.assert_close(model(x), module(x))
    assert model.pooled_linear is module.fc
    assert masks.heatmap(model, x).shape == (3, 32, 32)


@pytest.mark.parametrize("settings", [{"drop_rate": 0.5}, {"activated": True}])
def test_layers_between_pooling_and_classifier_are_included(settings):
    module, x = ConvNet(**settings).eval(), images(32)
    model = wrap(module)
    assert torch.equal(model(x), module(x))
    assert model.pooled_linear is None


def test_mistakes_are_user_errors():
    with pytest.raises(
        UserError, match=r"no features and head found in Sequential \(it has no convolution\); maps need"
    ):
        wrap(nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)))
    with pytest.raises(UserError, match="both features and head, or neither"):
        wrap(ConvNet(), features="conv")
