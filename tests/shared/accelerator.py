"""conv3x3.cu and conv64.cu emulated in torch from the arguments of a launch: boxes fetched, multiplied, stored."""

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pixelpart.kernels import conv3x3, conv64, cuda

PROCESSORS = 132
hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not hopper, reason="the kernels use instructions of Hopper GPUs")


def numbers(*shape: int, device: str = "cuda", seed: int = 0) -> Tensor:
    """Normal bf16 numbers; a 4d tensor is channels last."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(device, torch.bfloat16)
    return drawn.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else drawn


def exact_forward(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, stride: int = 1, extra: conv3x3.Extra | None = None
) -> Tensor:
    out = F.conv2d(x.double(), weight.double(), bias.double(), stride, 1)
    if extra is not None:
        assert extra.bias is not None
        step = extra.x.shape[2] // out.shape[2]
        out = out + F.conv2d(extra.x.double(), extra.weight.double(), extra.bias.double(), step)
    return (out if other is None else out + other).relu()


def exact_backward(
    grad: Tensor,
    weight: Tensor,
    rectified: Tensor,
    other: Tensor | None,
    stride: int = 1,
    extra: conv3x3.Extra | None = None,
) -> Tensor:
    rest = stride - 1
    out = F.conv_transpose2d(grad.double(), weight.double(), None, stride, 1, rest)
    if extra is not None:
        out = out + F.conv_transpose2d(extra.x.double(), extra.weight.double(), None, stride, 0, rest)
    return torch.where(rectified > 0, out if other is None else out + other, 0)


def assert_rounded_once(ours: Tensor, exact: Tensor, *, atol: float) -> None:
    """bf16 has eight bits, so half a step is 2^-9 of a number; sums of products in fp32 add little to that."""
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=atol)


class Emulated:
    """Replaces the driver and the kernels: a map is the number of a view, and a launch computes its result here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.views: list[tuple[Tensor, Sequence[int]]] = []  # innermost size first, as the box
        self.launched: list[tuple[str, dict[str, int], int]] = []  # kernel, settings, blocks
        monkeypatch.setattr(cuda, "map_of", self.map_of)
        monkeypatch.setattr(cuda, "load_kernel", self.kernel)
        monkeypatch.setattr(cuda, "processors", lambda device: PROCESSORS)

    def map_of(
        self, tensor: Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]
    ) -> cuda.TensorMap:
        assert all(stride * tensor.element_size() % 16 == 0 for stride in strides)  # required by the driver
        assert all(0 < side <= 256 for side in box)
        assert box[0] * tensor.element_size() == cuda.LINE
        view = tensor.as_strided(tuple(sizes), (1, *strides), tensor.storage_offset())
        self.views.append((view, box))
        made = cuda.TensorMap()
        made.words[0] = len(self.views)
        return made

    def kernel(self, name: str, numbers: int, defines: tuple[tuple[str, int], ...], device: torch.device) -> Any:
        settings = dict(defines)
        work_on = {"conv3x3": self.conv3x3, "conv64": self.conv64}[name]

        class Kernel:
            def __call__(kernel, blocks: int, threads: int, work: ctypes.Structure) -> None:
                self.launched.append((name, settings | {"NUMBERS": numbers}, blocks))
                work_on(settings, work)

            def clusters(kernel, threads: int, size: int) -> int:
                return PROCESSORS // size

        return Kernel()

    # -- memory

    def fetch(self, made: cuda.TensorMap, *corner: int) -> Tensor:
        """The box at this corner, in fp64; zeros outside."""
        view, box = self.views[made.words[0] - 1]
        out = torch.zeros(tuple(box), dtype=torch.float64)
        inside = [range(max(0, -c), min(b, size - c)) for c, b, size in zip(corner, box, view.shape, strict=True)]
        if all(len(r) for r in inside):
            there = tuple(slice(c + r.start, c + r.stop) for c, r in zip(corner, inside, strict=True))
            out[tuple(slice(r.start, r.stop) for r in inside)] = view[there].double()
        return out

    def store(self, made: cuda.TensorMap, value: Tensor, *corner: int) -> None:
        view, box = self.views[made.words[0] - 1]
        assert value.shape == tuple(box)
        stop = [min(c + b, size) for c, b, size in zip(corner, box, view.shape, strict=True)]
        if all(s > c for s, c in zip(stop, corner, strict=True)):
            part = value[tuple(slice(0, s - c) for s, c in zip(stop, corner, strict=True))]
            view[tuple(slice(c, s) for c, s in zip(corner, stop, strict=True))] = part.to(view.dtype)

    def numbers_at(self, pointer: int | None, begin: int, count: int) -> Tensor:
        if not pointer:
            return torch.zeros(count, dtype=torch.float64)
        raw = (ctypes.c_int16 * count).from_address(pointer + 2 * begin)
        return torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).double()

    def finished(self, settings: dict[str, int], total: Tensor, gate: Tensor | None) -> Tensor:
        if settings["PLAIN"]:
            return total
        return total.relu() if gate is None else torch.where(gate > 0, total, 0)

    # -- the kernels

    def conv3x3(self, settings: dict[str, int], work: conv3x3.Work) -> None:
        forward, chunks, pieces = settings["FORWARD"], settings["CHUNKS"], settings["PIECES"]
        for kind in range(work.kinds):
            for tile in range(work.tiles * work.across):
                first = tile % work.across * chunks * 64  # channel of the results
                for piece in range(pieces):
                    box = tile // work.across * pieces + piece
                    row, image = box % work.boxes * work.rows, box // work.boxes * work.images
                    total = 0
                    reads = [
                        (work.source[t.view], work.weights, t)
                        for t in work.taps[work.first[kind] : work.first[kind + 1]]
                    ]
                    reads = [(*read, chunk) for read in reads for chunk in range(work.chunks)]
                    if kind == work.kinds - 1:
                        reads += [(work.extra, work.extra_weights, conv3x3._Tap(), c) for c in range(work.extra_chunks)]
                    for source, weights, tap, chunk in reads:
                        pixels = self.fetch(source, 64 * chunk, tap.right, row + tap.down, image)
                        assert pixels.numel() * 2 == work.bytes
                        if forward:
                            matrix = self.fetch(weights, 64 * chunk, tap.weight, first)[:, 0].T
                        else:
                            parts = [
                                self.fetch(weights, first + 64 * c, tap.weight, 64 * chunk)[:, 0] for c in range(chunks)
                            ]
                            matrix = torch.cat(parts)
                        total = total + torch.einsum("oi,iwhn->owhn", matrix, pixels)
                    for c in range(chunks):
                        at = (first + 64 * c, 0, row, image)
                        part = total[64 * c : 64 * (c + 1)]
                        shift = self.numbers_at(work.bias, at[0], 64) + self.numbers_at(work.extra_bias, at[0], 64)
                        part = part + shift[:, None, None, None]
                        if settings["OTHER"]:
                            part = part + self.fetch(work.other, *at)
                        gate = None if forward or settings["PLAIN"] else self.fetch(work.gate[kind], *at)
                        self.store(work.out[kind], self.finished(settings, part, gate), *at)

    def conv64(self, settings: dict[str, int], work: conv64.Work) -> None:
        forward, rows, width = settings["FORWARD"], settings["ROWS"], settings["WIDTH"]
        matrices = [self.fetch(work.weights, 0, tap, 0)[:, 0] for tap in range(9)]
        for tile in range(work.images * work.down):
            at = (0, 0, tile % work.down * rows, tile // work.down)
            lines = self.fetch(work.source, 0, -1, at[2] - 1, at[3])[..., 0]
            total = 0
            for tap, matrix in enumerate(matrices):
                down, right = divmod(tap if forward else 8 - tap, 3)
                pixels = lines[:, right : right + width, down : down + rows]
                total = total + torch.einsum("io,iwh->owh" if forward else "oi,iwh->owh", matrix, pixels)
            total = total[..., None] + self.numbers_at(work.bias, 0, 64)[:, None, None, None]
            if settings["OTHER"]:
                total = total + self.fetch(work.other, *at)
            gate = None if forward or settings["PLAIN"] else self.fetch(work.gate, *at)
            self.store(work.out, self.finished(settings, total, gate), *at)
