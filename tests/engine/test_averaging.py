"""Averaged weights against the closed form, and what is averaged."""

import pytest
import torch

from pixelpart import models
from pixelpart.engine.averaging import Average


@pytest.fixture
def model():
    return models.build("tiny-cnn").double()


def set_all(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_at_the_start_the_average_is_the_model_in_tensors_of_its_own(model):
    average = Average(model, 0.9)
    for slow, live in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(slow, live)
        assert slow.data_ptr() != live.data_ptr()


def test_after_n_steps_decay_to_the_n_of_the_old_weights_is_left(model):
    set_all(model, 1)
    average = Average(model, 0.9)
    set_all(model, 3)
    for _ in range(5):
        average.update()
    expected = torch.tensor(3 + (1 - 3) * 0.9**5, dtype=torch.float64)
    for name, tensor in average.model.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, expected.to(tensor.dtype).expand_as(tensor), rtol=1e-12), name


def test_a_sequence_of_weights_is_averaged_by_their_age(model):
    set_all(model, 1)
    average = Average(model, 0.5)
    for value in (2, 4, 8):
        set_all(model, value)
        average.update()
    assert torch.allclose(average.model.linear.weight, torch.tensor(1 / 8 + 2 / 8 + 4 / 4 + 8 / 2, dtype=torch.float64))


def test_batch_norm_statistics_are_averaged_and_their_counters_copied(model):
    average = Average(model, 0.75)
    with torch.no_grad():
        model.layer1.bn.running_mean.fill_(4)
        model.layer1.bn.running_var.fill_(5)
        model.layer1.bn.num_batches_tracked.fill_(17)
    average.update()
    bn = average.model.layer1.bn
    assert bn.running_mean.unique().item() == 1
    assert bn.running_var.unique().item() == 2
    assert bn.num_batches_tracked.item() == 17


def test_the_average_follows_what_an_optimiser_and_a_copy_do_to_the_live_weights(model):
    average = Average(model, 0.5)
    before = model.linear.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(4, 3, 8, 8, dtype=torch.float64)).sum().backward()
    optimizer.step()
    average.update()
    assert torch.allclose(average.model.linear.weight, (before + model.linear.weight.detach()) / 2, rtol=1e-12)
    assert not torch.equal(before, model.linear.weight)
    with torch.no_grad():
        model.linear.weight.copy_(torch.zeros_like(before))
    halved = average.model.linear.weight / 2
    average.update()
    assert torch.allclose(average.model.linear.weight, halved, rtol=1e-12)


def test_the_average_is_in_eval_mode_and_without_gradients_whatever_the_model_is_in(model):
    average = Average(model.train(), 0.9)
    assert not any(module.training for module in average.model.modules())
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
