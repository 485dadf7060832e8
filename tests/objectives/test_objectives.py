"""Claims that every objective in the table satisfies."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.losses import one_hot
from pixelpart.objectives import OBJECTIVES

pytestmark = pytest.mark.parametrize("objective", [pytest.param(entry, id=name) for name, entry in OBJECTIVES.items()])


def network(classes=5):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(classes)
        conv, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, classes)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), linear)


def batch(classes=5):
    g = torch.Generator().manual_seed(classes)
    x = torch.rand(6, 3, 4, 4, generator=g)
    return x, (x + 0.3 * torch.rand(x.shape, generator=g)).clamp(0, 1), torch.randint(classes, (6,), generator=g)


def test_batch_norm_sees_clean_and_adversarial_images_in_separate_batches(objective):
    x, x_adv, y = batch()
    model, reference, joint = (network().train() for _ in range(3))
    objective.loss(model, x, x_adv, y)
    for images in (x, x_adv) if objective.weighted else (x_adv,):
        reference(images)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    joint(torch.cat([x, x_adv]))
    assert not torch.equal(model[1].running_mean, joint[1].running_mean)


def test_a_label_and_its_probabilities_give_the_same_loss_and_gradients(objective):
    x, x_adv, y = (tensor.double() if tensor.is_floating_point() else tensor for tensor in batch())
    model = network().double().eval()
    losses = [objective.loss(model, x, x_adv, target) for target in (y, one_hot(y, 5, dtype=x.dtype))]
    torch.testing.assert_close(*losses)
    for mine, theirs in zip(*(torch.autograd.grad(loss, model.parameters()) for loss in losses), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("classes", [2, 200])
def test_few_and_many_classes_give_a_finite_loss_and_gradient(objective, classes):
    x, x_adv, y = batch(classes)
    model = network(classes).train()
    loss = objective.loss(model, x, x_adv, y)
    loss.backward()
    assert loss.shape == ()
    assert loss > 0
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model[-1].weight.grad.abs().max() > 0


def test_reads_no_value_of_a_tensor(objective):
    """Fake tensors have shapes and no values: what runs on them can be captured into a CUDA graph."""
    with FakeTensorMode():
        model, x, y = network(), torch.rand(6, 3, 4, 4), torch.zeros(6, dtype=torch.long)
        loss = objective.loss(model, x, x + 0.1, y)
        loss.backward()
        assert loss.shape == ()
