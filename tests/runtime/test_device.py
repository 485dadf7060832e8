from contextlib import nullcontext

import pytest
import torch

from pixelpart.errors import UserError
from pixelpart.runtime.device import choose_device, current


def test_named_device_is_used_and_the_cpu_is_the_default_without_a_gpu(monkeypatch):
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == torch.device("cpu")


@pytest.mark.parametrize("name", ["toaster", "", "cuda:99", "cpu:x", "meta"])
def test_unknown_device_is_a_user_error_with_the_choices(name):
    with pytest.raises(UserError, match=f"no device '{name}' here; choose from cpu"):
        choose_device(name)


def test_only_a_gpu_is_made_the_current_device(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: made.append(device) or nullcontext())
    with current("cpu"), current(torch.device("cpu")), current("cuda:1"):
        assert made == ["cuda:1"]


@pytest.mark.gpu
def test_gpu_has_an_index():
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda", torch.cuda.current_device())
