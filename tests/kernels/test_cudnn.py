"""cuDNN's graphs where there is no GPU: refused, never a crash. What they compute is in test_convolution."""

from contextlib import nullcontext

import pytest
import torch

from pixelpart.kernels import cudnn


def case(dtype=torch.bfloat16, layout=torch.channels_last):
    grad, rectified = (torch.rand(2, 16, 4, 4).to(dtype).contiguous(memory_format=layout) for _ in range(2))
    return grad, torch.rand(16, 16, 3, 3).to(dtype).contiguous(memory_format=torch.channels_last), rectified, None


@pytest.fixture(autouse=True)
def nothing_made(monkeypatch):
    monkeypatch.setattr(cudnn, "_CHOSEN", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def without_library(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: no such file")

    cudnn._function.cache_clear()
    monkeypatch.setattr(cudnn.ctypes, "CDLL", missing)


def test_without_the_library_there_is_no_plan_and_it_is_looked_for_once(monkeypatch):
    without_library(monkeypatch)
    with cudnn.made_to_measure(), pytest.raises(cudnn.Refused, match="no kernel"):
        cudnn.input_gradient(*case(), padding=1)
    assert list(cudnn._CHOSEN.values()) == [None]
    monkeypatch.setattr(cudnn, "_plans", None)  # would fail if it were called
    with cudnn.made_to_measure(), pytest.raises(cudnn.Refused, match="no kernel"):
        cudnn.input_gradient(*case(), padding=1)


def test_a_kernel_is_made_only_where_that_is_wanted_and_never_in_a_capture(monkeypatch):
    monkeypatch.setattr(cudnn, "_plans", None)
    with pytest.raises(cudnn.Refused, match="not to be made now"):
        cudnn.input_gradient(*case(), padding=1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with cudnn.made_to_measure(), pytest.raises(cudnn.Refused, match="not to be made now"):
        cudnn.input_gradient(*case(), padding=1)
    assert cudnn._CHOSEN == {}


def test_other_types_and_layouts_are_refused():
    for odd in (case(dtype=torch.float32), case(layout=torch.contiguous_format)):
        with cudnn.made_to_measure(), pytest.raises(cudnn.Refused, match="bf16, channels last"):
            cudnn.input_gradient(*odd, padding=1)


def test_wanting_ends_with_its_block_also_after_an_exception():
    with cudnn.made_to_measure():
        with cudnn.made_to_measure():
            pass
        assert cudnn._wanted
    assert not cudnn._wanted
    with pytest.raises(ZeroDivisionError), cudnn.made_to_measure():
        1 / 0  # noqa: B018
    assert not cudnn._wanted


def test_an_error_of_the_library_names_the_call(monkeypatch):
    monkeypatch.setattr(cudnn, "_function", lambda name: lambda *args: 2000)
    with pytest.raises(cudnn.Refused, match="cudnnBackendCreateDescriptor returns 2000"):
        cudnn._describe(cudnn.TENSOR)


def test_what_the_library_names_and_needs_is_read(monkeypatch):
    """By a stand-in that makes descriptors, knows two configurations, and asks for a workspace of 4096 bytes."""

    def library(name):
        def call(*args):
            if name == "cudnnBackendGetAttribute":
                _, attribute, _, _, count, array = args
                count._obj.value = 2 if attribute == 202 else 1
                if attribute == 402:
                    array[0] = 4096
            elif name == "cudnnBackendCreateDescriptor":
                args[1]._obj.value = 77
            return 0

        return call

    monkeypatch.setattr(cudnn, "_function", library)
    monkeypatch.setattr(cudnn, "_handle", lambda device: cudnn.ctypes.c_void_p(1))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    shapes = dict.fromkeys((cudnn.GRAD, cudnn.RESULT, cudnn.RECTIFIED, cudnn.OTHER), (2, 16, 4, 4))
    plans = cudnn._plans(shapes | {cudnn.WEIGHT: (16, 16, 3, 3)}, 1, torch.device("cuda"))
    assert [plan.workspace for plan in plans] == [4096, 4096]
