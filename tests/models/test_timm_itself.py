"""Networks of timm itself, where it is installed and works."""

import pytest
import torch

import pixelpart as pp
from pixelpart import masks

timm = pytest.importorskip("timm", exc_type=ImportError)

NETWORKS = {
    "resnet18": {},
    "convnext_atto": {},
    "mobilenetv3_small_050": {},
    "vit_tiny_patch16_224": {"img_size": 64, "patch_size": 8},
    "deit_tiny_patch16_224": {"img_size": 64, "patch_size": 8},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_timm_is_wrapped_explained_and_attacked(name):
    torch.manual_seed(0)
    module = timm.create_model(name, pretrained=False, num_classes=7, **NETWORKS[name]).eval()
    model, x, y = pp.models.wrap(module), torch.rand(3, 3, 64, 64), torch.tensor([0, 3, 6])
    torch.testing.assert_close(model(x), module(x))
    heat = masks.heatmap(model, x, target=y)
    assert heat.shape == (3, 64, 64)
    assert torch.isfinite(heat).all()
    adversarial = pp.attacks.pgd(model, x, y, 8 / 255, step_size=4 / 255, steps=2)
    assert float((adversarial - x).abs().max()) <= 8 / 255 + 1e-6
    loss = torch.nn.functional.cross_entropy
    assert loss(module(adversarial), y) > loss(module(x), y)
