from contextlib import nullcontext

import pytest
import torch

from pixelpart.errors import UserError
from pixelpart.runtime.device import choose_device, current


def test_the_device_asked_for_is_the_one():
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")


def test_without_a_gpu_the_cpu_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == torch.device("cpu")


@pytest.mark.parametrize("name", ["toaster", "", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_here_is_named_with_the_choices(name):
    with pytest.raises(UserError, match=f"no device '{name}' here; choose from cpu"):
        choose_device(name)


def test_a_gpu_is_made_the_current_one_and_on_a_cpu_nothing_is(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: made.append(device) or nullcontext())
    with current("cpu"), current(torch.device("cpu")), current("cuda:1"):
        assert made == ["cuda:1"]


@pytest.mark.gpu
def test_a_gpu_has_its_number():
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda", torch.cuda.current_device())
