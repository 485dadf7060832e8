import pytest
import torch

from pixelpart.device import choose_device
from pixelpart.errors import UserError


def test_the_device_asked_for_is_the_one():
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")


def test_without_a_gpu_the_cpu_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == torch.device("cpu")


@pytest.mark.parametrize("name", ["toaster", "", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_here_is_named_with_the_choices(name):
    with pytest.raises(UserError, match=f"no device '{name}' here; choose from cpu"):
        choose_device(name)


@pytest.mark.gpu
def test_a_gpu_has_its_number():
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda", torch.cuda.current_device())
