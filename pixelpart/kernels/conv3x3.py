"""3x3 convolutions of many channels with bias, sum and ReLU, on a Hopper GPU (the kernel: conv3x3.cu).

Forward and backward, stride 1 or 2, and with the 1x1 shortcut of a residual block in the same sum. cuDNN has no kernel
for most of these; where it has one, this one is about as fast or faster and needs no search for an algorithm.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.kernels import cuda
from pixelpart.kernels.cuda import BOX, ROOM, SQUARE, Kernel, TensorMap, Unsupported, image_map, weight_map

PIXELS, CHUNK, THREADS = 128, 64, 288  # pixels and channels of a box; threads of a block


class Tap(NamedTuple):
    """Which view of the image is read, with which of the nine weights, and the offset in pixels."""

    view: int
    weight: int
    right: int
    down: int


class Extra(NamedTuple):
    """A 1x1 convolution that is added to the sum; forward it reads every other pixel of x if x is twice as large."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


# Views of an image for stride 2, by their first row and column; backward, the last has the most taps.
VIEWS = (0, 0), (0, 1), (1, 0), (1, 1)


def taps_forward(stride: int) -> list[list[Tap]]:
    """Pixel i reads stride * i + r - 1 for r = 0, 1, 2: with stride 2, pixels i - 1, i and i of views 1, 0 and 1."""
    reads = list(enumerate([(0, -1), (0, 0), (0, 1)] if stride == 1 else [(1, -1), (0, 0), (1, 0)]))
    return [[Tap(2 * v + w, 3 * r + s, right, down) for r, (v, down) in reads for s, (w, right) in reads]]


def taps_backward(stride: int) -> list[list[Tap]]:
    """Input i gets the gradients (i + 1 - r) / stride that are whole numbers: one list per view, longest first."""
    if stride == 1:
        return [[Tap(0, 3 * r + s, 1 - s, 1 - r) for r in range(3) for s in range(3)]]
    reads = [(1, 0)], [(0, 1), (2, 0)]  # r and offset, for an even and an odd i
    return [[Tap(0, 3 * r + s, right, down) for r, down in reads[v] for s, right in reads[w]] for v, w in VIEWS[::-1]]


class Boxes(NamedTuple):
    """How images are cut into boxes: rows per box, boxes per image, images per box."""

    rows: int
    boxes: int
    images: int


def boxes_of(height: int, width: int) -> Boxes | None:
    """Boxes of whole rows of up to 128 pixels; None if a row is longer than that."""
    if width > PIXELS:
        return None
    rows = min(height, PIXELS // width)
    return Boxes(rows, -(-height // rows), PIXELS // (height * width) if rows == height else 1)


def supports(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether the kernel can be used for this convolution and its gradient, and its boxes are mostly full."""
    height, width = x.shape[2] // stride, x.shape[3] // stride
    in_chunks = weight.shape[0] % CHUNK == 0 and weight.shape[1] % CHUNK == 0 and weight.shape[2:] == (3, 3)
    divided = stride in (1, 2) and x.shape[2] % stride == 0 and x.shape[3] % stride == 0
    if not in_chunks or not divided or not cuda.is_hopper(x.device):
        return False
    boxes = boxes_of(height, width)
    return boxes is not None and 3 * height * width * boxes.images >= 2 * PIXELS * boxes.boxes


class Team(NamedTuple):
    """Boxes per tile, and blocks among which its sum is divided (split-K)."""

    pieces: int
    split: int


def team_for(steps: int, boxes: int, across: int, processors: int) -> Team:
    """The team that takes the fewest cycles, estimated from measured times.

    A step of one box takes 600 cycles, of two 1060; a tile takes 4000 more, and sharing sums 3000.
    """

    def items(team: Team) -> int:
        return -(-boxes // team.pieces) * across

    def cycles(team: Team) -> int:
        rounds = -(-items(team) * team.split // processors)
        return rounds * (steps // team.split * (600, 1060)[team.pieces - 1] + 4000) + 3000 * (team.split - 1)

    teams = (Team(pieces, split) for pieces in (1, 2) for split in (1, 2))
    return min((team for team in teams if team.split == 1 or items(team) * 2 <= processors), key=cycles)


class Tiling(NamedTuple):
    """How a result is cut into tiles: its channels into `chunks` times 64, its pixels into the team's boxes."""

    boxes: Boxes
    chunks: int
    across: int
    down: int
    team: Team


def tiling_of(shape: Sequence[int], kinds: list[list[Tap]], inputs: int, processors: int) -> Tiling:
    """The tiling of results of this shape, of which each kind sums its taps over `inputs` channels."""
    n, channels, height, width = shape
    boxes = boxes_of(height, width)
    if boxes is None or channels % CHUNK:
        raise Unsupported(f"images of {height} x {width} pixels and {channels} channels")
    chunks = 2 if channels % (2 * CHUNK) == 0 else 1
    across, count = channels // (chunks * CHUNK), -(-n // boxes.images) * boxes.boxes
    steps = sum(map(len, kinds)) * inputs // CHUNK // len(kinds)
    team = team_for(steps, count * len(kinds), across, processors) if chunks == 2 else Team(2, 1)
    return Tiling(boxes, chunks, across, -(-count // team.pieces), team)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor | None = None,
    *,
    stride: int = 1,
    extra: Extra | None = None,
) -> Tensor:
    """relu(conv(x, weight) + bias + other + extra), padded by 1; conv(x, weight) if bias is None.

    May raise Unsupported.
    """
    n, _, height, width = x.shape
    shape = n, weight.shape[0], height // stride, width // stride
    if (bias is not None and bias.dtype != torch.bfloat16) or (other is not None and other.shape != shape):
        raise Unsupported("the bias is not bf16, or shapes differ")
    _check_readable(x, weight, other, extra)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    sources = [x] if stride == 1 else _views(x)
    if extra is not None and extra.x.shape[2:] != shape[2:]:
        extra = extra._replace(x=_views(extra.x)[0])
    _run(True, sources, weight, [out], taps_forward(stride), bias=bias, other=other, extra=extra)
    return out


def backward(
    grad: Tensor,
    weight: Tensor,
    rectified: Tensor | None,
    other: Tensor | None = None,
    *,
    stride: int = 1,
    extra: Extra | None = None,
) -> Tensor:
    """where(rectified > 0, g + other + extra, 0) with g the input gradient of the convolution; g if rectified is None.

    `extra` is the input gradient of a 1x1 convolution of the same stride. May raise Unsupported.
    """
    n, _, height, width = grad.shape
    shape = n, weight.shape[1], height * stride, width * stride
    if any(tensor is not None and tensor.shape != shape for tensor in (rectified, other)):
        raise Unsupported("shapes differ")
    if other is not None and stride > 1:
        raise Unsupported("a sum with a strided gradient")
    _check_readable(grad, weight, rectified, other, extra)
    out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    outs, gates = (None if t is None else [t] if stride == 1 else _views(t)[::-1] for t in (out, rectified))
    assert outs is not None
    _run(False, [grad], weight, outs, taps_backward(stride), gates=gates, other=other, extra=extra)
    return out


class _Tap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in Tap._fields]


class Work(ctypes.Structure):
    """The kernel's argument, as in conv3x3.cu."""

    _fields_ = [
        ("source", TensorMap * 4),
        ("weights", TensorMap),
        ("extra", TensorMap),
        ("extra_weights", TensorMap),
        ("out", TensorMap * 4),
        ("gate", TensorMap * 4),
        ("other", TensorMap),
        ("bias", ctypes.c_void_p),
        ("extra_bias", ctypes.c_void_p),
        ("taps", _Tap * 9),
        ("first", ctypes.c_int * 5),
        *((name, ctypes.c_int) for name in ("kinds", "chunks", "extra_chunks", "across", "tiles")),
        *((name, ctypes.c_int) for name in ("rows", "boxes", "images", "bytes")),
        ("rest", ctypes.c_int * 10),  # padding to a multiple of 64 bytes
    ]


def _run(
    is_forward: bool,
    sources: list[Tensor],
    weight: Tensor,
    outs: list[Tensor],
    kinds: list[list[Tap]],
    *,
    bias: Tensor | None = None,
    gates: list[Tensor] | None = None,
    other: Tensor | None = None,
    extra: Extra | None = None,
) -> None:
    device, inputs = sources[0].device, sources[0].shape[1]
    if extra is not None and extra.x.shape[1] > 9 * inputs:
        raise Unsupported("the 1x1 convolution has too many channels")
    tiling = tiling_of(outs[0].shape, kinds, inputs, cuda.processors(device))
    boxes, chunks, across, down, team = tiling
    plain = bias is None and gates is None
    kernel = _kernel(tiling, device, FORWARD=is_forward, PLAIN=plain, OTHER=other is not None)
    items, room = len(kinds) * down * across, kernel.clusters(THREADS, team.split)
    if team.split > 1 and items > room:
        raise Unsupported("the grid exceeds the number of clusters that the device runs at once")

    width, tall = outs[0].shape[3], chunks * CHUNK if is_forward else CHUNK
    box = CHUNK, width, boxes.rows, boxes.images
    work = Work(chunks=inputs // CHUNK, kinds=len(kinds), across=across, tiles=down)
    work.rows, work.boxes, work.images = boxes
    work.bytes = cuda.LINE * width * boxes.rows * boxes.images
    work.first[:] = [sum(map(len, kinds[:kind])) for kind in range(5)]
    work.taps[:] = [_Tap(*tap) for taps in kinds for tap in taps]
    work.source[: len(sources)] = [image_map(tensor, box) for tensor in sources]
    work.weights = weight_map(weight, tall)
    work.out[: len(outs)] = [image_map(tensor, box) for tensor in outs]
    if bias is not None:
        work.bias = bias.data_ptr()
    if gates is not None:
        work.gate[: len(gates)] = [image_map(tensor, box) for tensor in gates]
    if other is not None:
        work.other = image_map(other, box)
    if extra is not None:
        work.extra, work.extra_weights = image_map(extra.x, box), weight_map(extra.weight, tall)
        work.extra_chunks = extra.x.shape[1] // CHUNK
        work.extra_bias = None if extra.bias is None else extra.bias.data_ptr()
    kernel(team.split * min(items, room), THREADS, work)


def _kernel(tiling: Tiling, device: torch.device, **settings: int) -> Kernel:
    (pieces, split), chunks = tiling.team, tiling.chunks
    halves = pieces if chunks == 2 else 1  # boxes per warpgroup
    sums = (split - 1) * 2 * halves * BOX  # bytes for shared sums
    stages = (ROOM - 256 - sums) // (pieces * BOX + chunks * SQUARE)
    settings |= {"CHUNKS": chunks, "PIECES": pieces, "SPLIT": split, "STAGES": stages}
    kernel = cuda.load_kernel(
        "conv3x3", 64 * halves, tuple((name, int(value)) for name, value in settings.items()), device
    )
    if kernel is None:
        raise Unsupported("kernel unavailable")
    return kernel


def _check_readable(*given: Tensor | Extra | None) -> None:
    """Raises Unsupported if a tensor cannot be read in boxes of 64 channels."""
    for item in given:
        for tensor in item[:2] if isinstance(item, Extra) else (item,):
            if tensor is not None and (not cuda.readable(tensor) or tensor.shape[1] % CHUNK):
                raise Unsupported("a tensor is not bf16, channels last and aligned, with a multiple of 64 channels")


def _views(x: Tensor) -> list[Tensor]:
    """Every other row and column, in the order of VIEWS."""
    return [x[:, :, row::2, column::2] for row, column in VIEWS]
