"""The convolution of 64 channels against exact arithmetic on the same bf16 numbers; and how kernels are loaded."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelerator import Emulated, assert_rounded_once, exact_backward, exact_forward, numbers, on_hopper
from pixelpart.kernels import conv64, cuda
from pixelpart.kernels.convolution import conv_add_relu, conv_relu, rectified_gradient


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    "shape", [(128, 32, 32), (1, 32, 32), (5, 30, 32), (3, 17, 20), (4, 16, 28), (7, 8, 8), (300, 32, 32), (2, 1, 5)]
)
def test_on_a_gpu_it_equals_the_convolution_and_its_gradient(shape: tuple[int, int, int], added: bool) -> None:
    check(shape, added, "cuda")


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(1, 32, 32), (2, 17, 20), (3, 8, 8), (2, 1, 5)])
def test_emulated_it_equals_the_convolution_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], added: bool
) -> None:
    emulated = Emulated(monkeypatch)
    check(shape, added, "cpu")
    assert [name for name, *_ in emulated.launched] == ["conv64"] * 4


def check(shape: tuple[int, int, int], added: bool, device: str) -> None:
    n, h, w = shape
    x, weight = numbers(n, 64, h, w, device=device), numbers(64, 64, 3, 3, device=device) / 24
    bias = numbers(64, device=device)
    other = numbers(n + 1, 64, h, w, device=device)[1:] if added else None
    rectified = numbers(n + 2, 64, h, w, device=device)[2:].relu()

    def same(ours: Tensor, exact: Tensor) -> None:
        assert_rounded_once(ours, exact, atol=1e-3)

    same(conv64.forward(x, weight, bias, other), exact_forward(x, weight, bias, other))
    same(conv64.backward(x, weight, rectified, other), exact_backward(x, weight, rectified, other))
    same(conv64.forward(x, weight, None), F.conv2d(x.double(), weight.double(), padding=1))
    same(conv64.backward(x, weight, None), F.conv_transpose2d(x.double(), weight.double(), padding=1))


@pytest.mark.gpu
@on_hopper
def test_nan_stays_nan() -> None:
    x, weight, bias = numbers(2, 64, 32, 32), numbers(64, 64, 3, 3), numbers(64)
    x[1, 5, 7, 9] = float("nan")
    lost = conv64.forward(x, weight, bias, None).isnan()
    assert lost[1, :, 6:9, 8:11].all()
    assert lost.sum() == 64 * 9


def test_tiles_fit_into_shared_memory() -> None:
    for width in range(1, 33):
        rows, padded = conv64.rows_of(width), width + 2
        assert rows >= 1
        assert rows * padded - 2 <= conv64.POSITIONS
        assert (rows + 2) * padded <= conv64.LINES
        assert conv64.POSITIONS - 1 + 2 * padded + 2 < conv64.LINES
        assert rows * width * cuda.LINE <= cuda.BOX
    assert conv64.rows_of(33) == 0
    assert [conv64.tiles_for(boxes) for boxes in (1, 2)] == [4, 2]


@pytest.mark.parametrize("supported", [True, False])
def test_without_the_kernel_plain_operations_are_used(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    loaded: list[str] = []
    monkeypatch.setattr(conv64, "supports", lambda *_: supported)
    monkeypatch.setattr(cuda, "load_kernel", lambda name, *_: loaded.append(name))
    out = F.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(conv_relu(x, weight, bias, 1, 1), out.relu())
    torch.testing.assert_close(conv_add_relu(x, weight, bias, x, 1, 1), out.add(x).relu())
    back = F.conv_transpose2d(x, weight, padding=1)
    torch.testing.assert_close(rectified_gradient(x, weight, x, None), torch.where(x > 0, back, 0))
    assert loaded == ["conv64"] * 3 * supported


def test_tensors_of_other_shapes_or_types_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    pixel = numbers(2, 64, 1, 1, device="cpu")
    monkeypatch.setattr(cuda, "load_kernel", lambda *_: pytest.fail("loaded"))
    for call in (
        lambda: conv64.forward(x, weight, bias, pixel),
        lambda: conv64.backward(x, weight, pixel, None),
        lambda: conv64.forward(x, weight, bias.float(), None),
    ):
        with pytest.raises(cuda.Unsupported):
            call()


# -- loading


def test_without_nvrtc_kernels_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    cuda._compiler.cache_clear()
    with pytest.raises(cuda.Unsupported, match="libnvrtc"):
        cuda.compile_source("", [])
    cuda._compiler.cache_clear()


def test_a_kernel_that_cannot_be_compiled_gives_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise cuda.Unsupported("no compiler")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(cuda, "compile_source", broken)
    monkeypatch.setattr(cuda, "_driver", lambda: SimpleNamespace(cuModuleLoadData=lambda *_: 0))
    wanted = "conv64", 68, (("FORWARD", 1),), torch.device("cpu")
    with pytest.warns(UserWarning, match="kernel conv64 unavailable, falling back to cuDNN: no compiler"):
        assert cuda.load_kernel(*wanted) is None
    with warnings.catch_warnings(action="error"):
        assert cuda.load_kernel(*wanted) is None
    cuda.load_kernel.cache_clear()
