"""3x3 convolutions as sums over taps: tables and boxes in torch, the kernel against exact arithmetic."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accelerator import Emulated, assert_rounded_once, exact_backward, exact_forward, numbers, on_hopper
from pixelpart.kernels import conv3x3, cuda, residual, strided_gradient
from pixelpart.kernels.conv3x3 import Extra, Tap


def shifted(x: Tensor, tap: Tap) -> Tensor:
    """Pixel (i, j) of the result is pixel (i + down, j + right) of x, zero outside."""
    h, w = x.shape[2:]
    rows, columns = slice(2 + tap.down, 2 + tap.down + h), slice(2 + tap.right, 2 + tap.right + w)
    return F.pad(x, (2, 2, 2, 2))[:, :, rows, columns]


def summed(views: list[Tensor], weight: Tensor, kind: list[Tap], equation: str) -> Tensor:
    matrices = weight.flatten(2)
    return sum(torch.einsum(equation, shifted(views[tap.view], tap), matrices[:, :, tap.weight]) for tap in kind)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_sum_over_taps_is_a_convolution_and_its_gradient(stride: int) -> None:
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


def test_every_pixel_lies_in_exactly_one_box() -> None:
    for width in (1, 3, 8, 14, 32, 100, 128):
        for height in (1, 2, 5, 8, 16, 23, 128):
            boxes = conv3x3.boxes_of(height, width)
            assert boxes is not None
            assert boxes.rows * boxes.images * width <= conv3x3.PIXELS
            assert boxes.boxes == 1 or boxes.images == 1
            rows = [box * boxes.rows + row for box in range(boxes.boxes) for row in range(boxes.rows)]
            assert rows[:height] == list(range(height))
            assert len(rows) - height < boxes.rows  # no box is empty
    assert conv3x3.boxes_of(4, 129) is None


def test_blocks_share_a_tile_only_if_all_blocks_run_at_once() -> None:
    for boxes in range(1, 400, 3):
        for across in (1, 2, 4):
            team = conv3x3.team_for(72, boxes, across, 132)
            assert team.split == 1 or -(-boxes // team.pieces) * across * 2 <= 132
    assert conv3x3.team_for(72, 16, 4, 132).split == 2  # for example 512 channels of 128 images


def test_the_argument_of_the_kernel_has_the_layout_of_the_cuda_struct() -> None:
    assert ctypes.sizeof(conv3x3.Work) % 64 == 0
    assert conv3x3.Work.bias.offset == 16 * 128
    assert ctypes.sizeof(conv3x3.Work) <= 4096  # the limit of a launch


@pytest.mark.parametrize("odd", ["fp32", "nchw", "32 channels", "other", "bias", "strided", "wide shortcut"])
def test_tensors_of_other_shapes_or_types_are_unsupported(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setattr(cuda, "load_kernel", lambda *_: pytest.fail("loaded"))
    x, weight, bias = numbers(2, 64, 8, 8, device="cpu"), numbers(64, 64, 3, 3, device="cpu"), numbers(64, device="cpu")
    wide = numbers(2, 640, 8, 8, device="cpu"), numbers(64, 640, 1, 1, device="cpu")
    calls = {
        "fp32": lambda: conv3x3.forward(x.float(), weight, bias),
        "nchw": lambda: conv3x3.backward(x.contiguous(), weight, x),
        "32 channels": lambda: conv3x3.forward(x[:, :32].contiguous(memory_format=torch.channels_last), weight, bias),
        "other": lambda: conv3x3.forward(x, weight, bias, x[:, :, :1, :1]),
        "bias": lambda: conv3x3.forward(x, weight, bias.float()),
        "strided": lambda: conv3x3.backward(x, weight, None, numbers(2, 64, 16, 16, device="cpu"), stride=2),
        "wide shortcut": lambda: conv3x3.forward(x, weight, bias, extra=Extra(*wide, bias)),
    }
    with pytest.raises(cuda.Unsupported):
        calls[odd]()


def test_without_the_kernel_a_strided_gradient_is_the_same() -> None:
    g = torch.Generator().manual_seed(1)
    sizes = (2, 6, 4, 4), (6, 3, 3, 3), (2, 6, 4, 4), (6, 3, 1, 1), (2, 3, 8, 8)
    grad, weight, shortcut_grad, shortcut, x = (torch.randn(size, generator=g, dtype=torch.float64) for size in sizes)
    args = grad, weight, shortcut_grad, shortcut, x.relu(), 2
    expected = exact_backward(grad, weight, x.relu(), None, 2, Extra(shortcut_grad, shortcut, None))
    torch.testing.assert_close(strided_gradient(*args), expected)
    torch.library.opcheck(strided_gradient, args)


@pytest.mark.parametrize("case", [(3, 128, 64, 16), (9, 256, 64, 4), (2, 192, 64, 6)], ids=str)
def test_emulated_it_equals_the_convolutions_of_a_block(monkeypatch: pytest.MonkeyPatch, case: tuple[int, ...]) -> None:
    emulated = Emulated(monkeypatch)
    check(case, "cpu")
    assert {name for name, *_ in emulated.launched} == {"conv3x3"}
    assert all(0 < blocks <= 132 for *_, blocks in emulated.launched)
    assert all(settings["STAGES"] >= 2 * settings["PIECES"] for _, settings, _ in emulated.launched)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_emulated_a_residual_block_of_any_stride_is_the_same(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    emulated = Emulated(monkeypatch)
    monkeypatch.setattr(cuda, "is_hopper", lambda device: True)
    x, first, second = (numbers(*size, device="cpu") for size in ((2, 64, 16, 16), (128, 64, 3, 3), (128, 128, 3, 3)))
    first, second, shortcut = first / 24, second / 34, numbers(128, 64, 1, 1, device="cpu") / 8
    biases = [numbers(128, seed=i, device="cpu") for i in range(3)]
    ours, inner = residual(x, first, biases[0], second, biases[1], shortcut, biases[2], stride, False, False)
    assert emulated.launched
    other = F.conv2d(x.double(), shortcut.double(), biases[2].double(), stride)
    exact = (F.conv2d(inner.double(), second.double(), biases[1].double(), 1, 1) + other).relu()
    torch.testing.assert_close(ours.double(), exact, rtol=2**-7, atol=2**-6)  # may be rounded before the sum


CASES = [  # images, channels, channels of the finer image, side: boxes of rows, of images, not full, few and many
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
def test_on_a_gpu_it_equals_the_convolutions_of_a_block(case: tuple[int, int, int, int]) -> None:
    check(case, "cuda")


def check(case: tuple[int, ...], device: str) -> None:
    n, c, k, side = case
    x, other, act = (numbers(n, c, side, side, seed=i, device=device) for i in range(3))
    fine, fine_act = (numbers(n, k, 2 * side, 2 * side, seed=i, device=device) for i in range(2))
    weight = numbers(c, c, 3, 3, device=device) / (3 * c**0.5)
    first, shortcut = numbers(c, k, 3, 3, device=device) / (3 * k**0.5), numbers(c, k, 1, 1, device=device) / k**0.5
    bias, more = numbers(c, device=device), numbers(c, seed=1, device=device)

    def same(ours: Tensor, exact: Tensor) -> None:
        assert_rounded_once(ours, exact, atol=3e-3)

    for added in (None, other):
        same(conv3x3.forward(x, weight, bias, added), exact_forward(x, weight, bias, added))
        same(conv3x3.backward(x, weight, act.relu(), added), exact_backward(x, weight, act.relu(), added))
    same(conv3x3.forward(fine, first, bias, stride=2), exact_forward(fine, first, bias, None, 2))
    extra = Extra(fine, shortcut, more)
    same(conv3x3.forward(x, weight, bias, extra=extra), exact_forward(x, weight, bias, None, 1, extra))
    extra = Extra(other, shortcut, None)
    ours = conv3x3.backward(x, first, fine_act.relu(), stride=2, extra=extra)
    same(ours, exact_backward(x, first, fine_act.relu(), None, 2, extra))
    same(conv3x3.forward(fine, first, None, stride=2), F.conv2d(fine.double(), first.double(), None, 2, 1))
    back = F.conv_transpose2d(x.double(), first.double(), None, 2, 1, 1)
    same(conv3x3.backward(x, first, None, stride=2), back)


@pytest.mark.gpu
@on_hopper
def test_nan_stays_nan_and_stays_in_its_place() -> None:
    x, weight, bias = numbers(3, 128, 14, 14), numbers(128, 128, 3, 3), numbers(128)
    x[1, 5, 7, 9] = float("nan")
    lost = conv3x3.forward(x, weight, bias).isnan()
    assert lost[1, :, 6:9, 8:11].all()
    assert lost.sum() == 128 * 9


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("c", "side"), [(128, 16), (256, 8), (512, 4)])
def test_kernels_that_overlap_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, c: int, side: int) -> None:
    """Each starts before the kernel whose result it reads has ended; in a graph too."""
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
