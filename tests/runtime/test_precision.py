import contextlib

import pytest
import torch

from pixelpart.runtime.precision import fast_arithmetic, ieee_fp32


def switches():
    b = torch.backends
    kernels = (b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn, b.mkldnn.matmul, b.mkldnn.conv)
    return [kernel.fp32_precision for kernel in kernels], torch.get_float32_matmul_precision(), b.cudnn.allow_tf32


@pytest.fixture
def restored():
    """Whatever a test sets, the next one finds torch's own settings."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_only_ieee_inside_and_as_before_outside_also_after_an_exception(precision, restored):
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = True
    before = switches()
    with contextlib.suppress(KeyError), ieee_fp32():
        kernels, legacy, allowed = switches()
        assert set(kernels) == {"ieee"}
        assert (legacy, allowed) == ("highest", False)
        raise KeyError
    assert switches() == before


def test_autocast_around_it_does_not_reach_inside():
    a = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with ieee_fp32():
            assert (a @ a).dtype == torch.float32


def test_the_device_is_the_current_one_inside(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: made.append(device) or contextlib.nullcontext())
    with ieee_fp32("cuda:1"):
        assert made == ["cuda:1"]


def test_fast_arithmetic_restores_the_settings_also_after_an_exception(restored):
    torch.set_float32_matmul_precision("medium")
    with contextlib.suppress(KeyError), fast_arithmetic():
        assert (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()) == (True, "high")
        raise KeyError
    assert (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()) == (False, "medium")


def test_fast_arithmetic_leaves_torchs_newer_switches_alone():
    """Once a caller has used them, torch refuses to read the older one."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    other = "ieee" if before == "tf32" else "tf32"
    try:
        matmul.fp32_precision = other
        with fast_arithmetic():
            assert torch.backends.cudnn.benchmark
        assert matmul.fp32_precision == other
    finally:
        matmul.fp32_precision = before
