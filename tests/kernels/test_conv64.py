"""The convolution of 64 channels against one in fp32 of the same bf16 numbers."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelerator import Emulated
from pixelpart.kernels import conv64, cuda
from pixelpart.kernels.convolution import conv_add_relu, conv_relu, rectified_gradient

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not hopper, reason="its instructions are Hopper's alone")


def numbers(*shape: int, device: str = "cuda") -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, torch.bfloat16)
    return drawn.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else drawn


def expected_ahead(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
    out = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    return (out if other is None else out + other).relu()


def expected_back(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    back = F.conv_transpose2d(grad.double(), weight.double(), padding=1)
    return torch.where(rectified > 0, back if other is None else back + other, 0)


def assert_rounded_once(mine: Tensor, exact: Tensor) -> None:
    """bf16 has eight bits: half a step is 2^-9 of a number; sums of 576 products in fp32 add next to nothing."""
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.double(), exact, rtol=2**-8, atol=1e-3)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    "shape", [(128, 32, 32), (1, 32, 32), (5, 30, 32), (3, 17, 20), (4, 16, 28), (7, 8, 8), (300, 32, 32), (2, 1, 5)]
)
def test_it_is_the_convolution_and_its_gradient(shape: tuple[int, int, int], added: bool) -> None:
    assert_it_is_the_convolution(shape, added, "cuda")


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(1, 32, 32), (2, 17, 20), (3, 8, 8), (2, 1, 5)])
def test_what_it_is_told_is_the_convolution(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], added: bool
) -> None:
    """Carried out by plain means: maps, tiles and settings, but not the kernel itself."""
    there = Emulated(monkeypatch)
    assert_it_is_the_convolution(shape, added, "cpu")
    assert [name for name, *_ in there.launched] == ["conv64"] * 4


def assert_it_is_the_convolution(shape: tuple[int, int, int], added: bool, device: str) -> None:
    n, h, w = shape
    x, weight = numbers(n, 64, h, w, device=device), numbers(64, 64, 3, 3, device=device) / 24
    bias = numbers(64, device=device)
    other = numbers(n + 1, 64, h, w, device=device)[1:] if added else None
    rectified = numbers(n + 2, 64, h, w, device=device)[2:].relu()
    assert_rounded_once(conv64.forward(x, weight, bias, other), expected_ahead(x, weight, bias, other))
    assert_rounded_once(conv64.backward(x, weight, rectified, other), expected_back(x, weight, rectified, other))
    assert_rounded_once(conv64.forward(x, weight, None), F.conv2d(x.double(), weight.double(), padding=1))
    back = F.conv_transpose2d(x.double(), weight.double(), padding=1)
    assert_rounded_once(conv64.backward(x, weight, None), back)


@pytest.mark.gpu
@on_hopper
def test_what_is_not_a_number_stays_so() -> None:
    x, weight, bias = numbers(2, 64, 32, 32), numbers(64, 64, 3, 3), numbers(64)
    x[1, 5, 7, 9] = float("nan")
    lost = conv64.forward(x, weight, bias, None).isnan()
    assert lost[1, :, 6:9, 8:11].all()
    assert lost.sum() == 64 * 9


@pytest.mark.parametrize("width", range(1, 33))
def test_a_tile_and_all_that_its_taps_read_fit(width: int) -> None:
    rows, padded = conv64.rows_of(width), width + 2
    assert rows >= 1
    assert rows * padded - 2 <= conv64.POSITIONS
    assert (rows + 2) * padded <= conv64.LINES
    assert conv64.POSITIONS - 1 + 2 * padded + 2 < conv64.LINES


def test_there_is_room_for_two_tiles_and_more() -> None:
    assert conv64.rows_of(33) == 0
    assert [conv64.tiles_for(boxes) for boxes in (1, 2)] == [4, 2]
    for width in range(1, 33):
        assert conv64.rows_of(width) * width * cuda.LINE <= cuda.BOX


@pytest.mark.parametrize("made", ["refused", "not suited"])
def test_where_it_is_not_to_be_had_others_take_its_place(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    asked: list[str] = []

    def no_kernel(name: str, *_: object) -> None:
        asked.append(name)

    if made == "refused":
        monkeypatch.setattr(conv64, "supports", lambda *_: True)
        monkeypatch.setattr(cuda, "kernel", no_kernel)
    torch.testing.assert_close(conv_relu(x, weight, bias, 1, 1), F.conv2d(x, weight, bias, padding=1).relu())
    torch.testing.assert_close(
        conv_add_relu(x, weight, bias, x, 1, 1), F.conv2d(x, weight, bias, padding=1).add(x).relu()
    )
    back = F.conv_transpose2d(x, weight, padding=1)
    torch.testing.assert_close(rectified_gradient(x, weight, x, None), torch.where(x > 0, back, 0))
    assert asked == (["conv64"] * 3 if made == "refused" else [])


@pytest.mark.parametrize("odd", ["other", "rectified", "bias"])
def test_it_does_not_read_beyond_what_is_smaller_than_an_image(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    pixel = numbers(2, 64, 1, 1, device="cpu")
    monkeypatch.setattr(cuda, "kernel", lambda *_: pytest.fail("asked for"))
    calls = {
        "other": lambda: conv64.forward(x, weight, bias, pixel),
        "rectified": lambda: conv64.backward(x, weight, pixel, None),
        "bias": lambda: conv64.forward(x, weight, bias.float(), None),
    }
    with pytest.raises(cuda.Unsupported):
        calls[odd]()


def test_without_compiler_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    cuda._compiler.cache_clear()
    with pytest.raises(cuda.Unsupported, match="libnvrtc"):
        cuda.compiled("", [])
    cuda._compiler.cache_clear()


def test_that_a_kernel_cannot_be_made_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise cuda.Unsupported("no compiler")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(cuda, "compiled", broken)
    monkeypatch.setattr(cuda, "_driver", lambda: SimpleNamespace(cuModuleLoadData=lambda *_: 0))
    wanted = "conv64", 68, (("FORWARD", 1),), torch.device("cpu")
    with pytest.warns(UserWarning, match="kernel conv64 unavailable, falling back to cuDNN: no compiler"):
        assert cuda.kernel(*wanted) is None
    with warnings.catch_warnings(action="error"):
        assert cuda.kernel(*wanted) is None
    cuda.kernel.cache_clear()
