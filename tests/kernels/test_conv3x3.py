"""Convolutions as sums over taps: their tables and boxes by plain means, the kernel against exact arithmetic."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelerator import Emulated
from pixelpart.kernels import conv3x3, cuda, residual, strided_gradient
from pixelpart.kernels.conv3x3 import Extra, Tap

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not hopper, reason="its instructions are Hopper's alone")


def moved(x: Tensor, tap: Tap) -> Tensor:
    """Pixel (i, j) of the result is pixel (i + down, j + right) of x, zero outside."""
    h, w = x.shape[2:]
    rows, columns = slice(2 + tap.down, 2 + tap.down + h), slice(2 + tap.right, 2 + tap.right + w)
    return F.pad(x, (2, 2, 2, 2))[:, :, rows, columns]


def summed(views: list[Tensor], weight: Tensor, kind: list[Tap], equation: str) -> Tensor:
    matrices = weight.flatten(2)
    return sum(torch.einsum(equation, moved(views[tap.view], tap), matrices[:, :, tap.weight]) for tap in kind)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_taps_are_a_convolution_and_its_gradient(stride: int) -> None:
    g = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=g, dtype=torch.float64) for size in ((2, 3, 8, 6), (5, 3, 3, 3)))
    out = F.conv2d(x, weight, stride=stride, padding=1)
    (kind,) = conv3x3.taps_forward(stride)
    torch.testing.assert_close(summed([x] if stride == 1 else conv3x3._views(x), weight, kind, "nihw,oi->nohw"), out)

    grad = torch.randn(out.shape, generator=g, dtype=torch.float64)
    back = F.conv_transpose2d(grad, weight, stride=stride, padding=1, output_padding=stride - 1)
    kinds, views = conv3x3.taps_backward(stride), [back] if stride == 1 else conv3x3._views(back)[::-1]
    assert [len(kind) for kind in kinds] == ([9] if stride == 1 else [4, 2, 2, 1])
    for kind, view in zip(kinds, views, strict=True):
        torch.testing.assert_close(summed([grad], weight, kind, "nohw,oi->nihw"), view)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 12, 14, 16, 28, 32, 56, 100, 128])
def test_every_pixel_lies_in_one_box(width: int) -> None:
    for height in (1, 2, 4, 5, 8, 16, 23, 32, 128):
        boxes = conv3x3.boxes_of(height, width)
        assert boxes is not None
        assert boxes.rows * boxes.images * width <= conv3x3.PIXELS
        assert boxes.boxes == 1 or boxes.images == 1
        rows = [box * boxes.rows + row for box in range(boxes.boxes) for row in range(boxes.rows)]
        assert rows[:height] == list(range(height))
        assert len(rows) - height < boxes.rows  # none is for nothing
    assert conv3x3.boxes_of(4, 129) is None


def test_blocks_share_a_tile_only_where_all_run_at_once() -> None:
    for boxes in range(1, 400):
        for across in (1, 2, 4):
            team = conv3x3.team_for(72, boxes, across, 132)
            assert team.split == 1 or -(-boxes // team.pieces) * across * 2 <= 132
    assert conv3x3.team_for(72, 16, 4, 132).split == 2  # 512 channels of 128 images, for example


def test_what_a_kernel_is_told_has_the_size_that_it_expects() -> None:
    assert ctypes.sizeof(conv3x3.Work) % 64 == 0
    assert conv3x3.Work.bias.offset == 16 * 128
    assert ctypes.sizeof(conv3x3.Work) <= 4096  # what a launch may carry


@pytest.mark.parametrize("odd", ["fp32", "nchw", "32 channels", "other", "bias", "strided", "beside"])
def test_what_it_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setattr(cuda, "kernel", lambda *_: pytest.fail("asked for"))
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    wide = numbers(2, 640, 8, 8, device="cpu"), numbers(64, 640, 1, 1, device="cpu")
    calls = {
        "fp32": lambda: conv3x3.forward(x.float(), weight, bias),
        "nchw": lambda: conv3x3.backward(x.contiguous(), weight, x),
        "32 channels": lambda: conv3x3.forward(x[:, :32].contiguous(memory_format=torch.channels_last), weight, bias),
        "other": lambda: conv3x3.forward(x, weight, bias, x[:, :, :1, :1]),
        "bias": lambda: conv3x3.forward(x, weight, bias.float()),
        "strided": lambda: conv3x3.backward(x, weight, None, numbers(2, 64, 16, 16, device="cpu"), stride=2),
        "beside": lambda: conv3x3.forward(x, weight, bias, extra=Extra(*wide, bias)),
    }
    with pytest.raises(cuda.Unsupported):
        calls[odd]()


def test_without_it_a_strided_gradient_is_the_same() -> None:
    g = torch.Generator().manual_seed(1)
    sizes = (2, 6, 4, 4), (6, 3, 3, 3), (2, 6, 4, 4), (6, 3, 1, 1), (2, 3, 8, 8)
    grad, weight, beside, shortcut, x = (torch.randn(size, generator=g, dtype=torch.float64) for size in sizes)
    mine = strided_gradient(grad, weight, beside, shortcut, x.relu(), 2)
    torch.testing.assert_close(mine, expected_back(grad, weight, x.relu(), None, 2, Extra(beside, shortcut, None)))
    torch.library.opcheck(strided_gradient, (grad, weight, beside, shortcut, x.relu(), 2))


@pytest.mark.parametrize("case", [(3, 128, 64, 16), (9, 256, 64, 4), (20, 64, 64, 6), (2, 192, 64, 14)], ids=str)
def test_what_it_is_told_is_a_block_of_convolutions(monkeypatch: pytest.MonkeyPatch, case: tuple[int, ...]) -> None:
    """Carried out by plain means: maps, taps, boxes and settings, but not the kernel itself."""
    there = Emulated(monkeypatch)
    assert_it_is_a_block(case, "cpu")
    assert {name for name, *_ in there.launched} == {"conv3x3"}
    assert all(0 < blocks <= 132 for *_, blocks in there.launched)
    assert all(settings["STAGES"] >= 2 * settings["PIECES"] for _, settings, _ in there.launched)  # one for each result


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_a_block_of_any_stride_is_the_same_with_it(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    there = Emulated(monkeypatch)
    monkeypatch.setattr(cuda, "hopper", lambda device: True)
    x, first, second = (numbers(*size, device="cpu") for size in ((2, 64, 16, 16), (128, 64, 3, 3), (128, 128, 3, 3)))
    first, second, shortcut = first / 24, second / 34, numbers(128, 64, 1, 1, device="cpu") / 8
    biases = [numbers(128, seed=i, device="cpu") for i in range(3)]
    mine, inner = residual(x, first, biases[0], second, biases[1], shortcut, biases[2], stride, False, False)
    assert there.launched
    beside = F.conv2d(x.double(), shortcut.double(), biases[2].double(), stride)
    exact = (F.conv2d(inner.double(), second.double(), biases[1].double(), 1, 1) + beside).relu()
    torch.testing.assert_close(mine.double(), exact, rtol=2**-7, atol=2**-6)  # rounded before the sum, maybe


# -- on the device


def numbers(*shape: int, device: str = "cuda", seed: int = 0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(device, torch.bfloat16)
    return drawn.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else drawn


def expected_ahead(x, weight, bias, other, stride, extra):
    out = F.conv2d(x.double(), weight.double(), bias.double(), stride, 1)
    if extra is not None:
        step = extra.x.shape[2] // out.shape[2]
        out = out + F.conv2d(extra.x.double(), extra.weight.double(), extra.bias.double(), step)
    return (out if other is None else out + other).relu()


def expected_back(grad, weight, rectified, other, stride, extra):
    rest = stride - 1
    out = F.conv_transpose2d(grad.double(), weight.double(), None, stride, 1, rest)
    if extra is not None:
        out = out + F.conv_transpose2d(extra.x.double(), extra.weight.double(), None, stride, 0, rest)
    return torch.where(rectified > 0, out if other is None else out + other, 0)


def assert_rounded_once(mine: Tensor, exact: Tensor) -> None:
    """bf16 has eight bits: half a step is 2^-9 of a number; sums of thousands of products in fp32 add little."""
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.double(), exact, rtol=2**-8, atol=3e-3)


CASES = [  # images, channels, finer channels, side: boxes of rows, of images, not full, few and many
    (128, 128, 64, 16),
    (128, 256, 128, 8),
    (128, 512, 256, 4),
    (512, 512, 256, 4),
    (1, 128, 64, 16),
    (5, 256, 192, 8),
    (3, 192, 64, 14),
    (9, 128, 128, 7),
    (2, 64, 64, 48),
    (300, 128, 64, 6),
]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_a_block_of_convolutions_and_its_gradient(case: tuple[int, int, int, int]) -> None:
    assert_it_is_a_block(case, "cuda")


def assert_it_is_a_block(case: tuple[int, ...], device: str) -> None:
    n, c, k, side = case
    x, other, act = (numbers(n, c, side, side, seed=i, device=device) for i in range(3))
    fine, fine_act = (numbers(n, k, 2 * side, 2 * side, seed=i, device=device) for i in range(2))
    weight = numbers(c, c, 3, 3, device=device) / (3 * c**0.5)
    first, shortcut = numbers(c, k, 3, 3, device=device) / (3 * k**0.5), numbers(c, k, 1, 1, device=device) / k**0.5
    bias, more = numbers(c, device=device), numbers(c, seed=1, device=device)
    for added in (None, other):
        mine = conv3x3.forward(x, weight, bias, added)
        assert_rounded_once(mine, expected_ahead(x, weight, bias, added, 1, None))
        mine = conv3x3.backward(x, weight, act.relu(), added)
        assert_rounded_once(mine, expected_back(x, weight, act.relu(), added, 1, None))
    assert_rounded_once(conv3x3.forward(fine, first, bias, stride=2), expected_ahead(fine, first, bias, None, 2, None))
    extra = Extra(fine, shortcut, more)
    assert_rounded_once(conv3x3.forward(x, weight, bias, extra=extra), expected_ahead(x, weight, bias, None, 1, extra))
    extra = Extra(other, shortcut, None)
    mine = conv3x3.backward(x, first, fine_act.relu(), stride=2, extra=extra)
    assert_rounded_once(mine, expected_back(x, first, fine_act.relu(), None, 2, extra))
    assert_rounded_once(
        conv3x3.forward(fine, first, None, stride=2), F.conv2d(fine.double(), first.double(), None, 2, 1)
    )
    back = F.conv_transpose2d(x.double(), first.double(), None, 2, 1, 1)
    assert_rounded_once(conv3x3.backward(x, first, None, stride=2), back)


@pytest.mark.gpu
@on_hopper
def test_what_is_not_a_number_stays_so_and_stays_where_it_is() -> None:
    x, weight, bias = numbers(3, 128, 14, 14), numbers(128, 128, 3, 3), numbers(128)
    x[1, 5, 7, 9] = float("nan")
    lost = conv3x3.forward(x, weight, bias).isnan()
    assert lost[1, :, 6:9, 8:11].all()
    assert lost.sum() == 128 * 9


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("c", "side"), [(128, 16), (256, 8), (512, 4)])
def test_kernels_that_overlap_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, c: int, side: int) -> None:
    """Each begins before the one whose result it reads has ended; in a graph too."""
    x, bias = numbers(128, c, side, side), numbers(c)
    weights = [numbers(c, c, 3, 3, seed=i) / (3 * c**0.5) for i in range(6)]

    def chain() -> Tensor:
        out = x
        for weight in weights:
            out = conv3x3.forward(out, weight, bias, out)
        for weight in weights:
            out = conv3x3.backward(out, weight, x.relu())
        return out

    monkeypatch.setattr(cuda, "EARLY", 0)
    expected = chain()
    monkeypatch.undo()
    assert torch.equal(chain(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(20):
        graph.replay()
        assert torch.equal(out, expected)
