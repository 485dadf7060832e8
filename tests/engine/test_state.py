"""Averaged weights against the closed form."""

import pytest
import torch

from pixelpart import models
from pixelpart.engine.state import WeightAverage


@pytest.fixture
def model():
    return models.build("tiny-cnn").double()


def set_all(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_the_average_starts_as_a_copy_in_eval_mode_without_gradients(model):
    average = WeightAverage(model.train(), 0.9)
    for averaged, live in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(averaged, live)
        assert averaged.data_ptr() != live.data_ptr()
    assert not any(module.training for module in average.model.modules())
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_weights_and_statistics_are_averaged_by_age_and_counters_copied(model):
    set_all(model, 1)
    average = WeightAverage(model, 0.5)
    for value in (2, 4, 8):
        set_all(model, value)
        average.update()
    for name, tensor in average.model.state_dict().items():
        expected = 1 / 8 + 2 / 8 + 4 / 4 + 8 / 2 if tensor.is_floating_point() else 8
        assert torch.allclose(tensor, torch.full_like(tensor, expected), rtol=1e-12), name
