"""3x3 convolutions of many channels and what follows them, on a Hopper GPU; how is told in conv3x3.cu.

Forward and backward, strided or not, and with the 1x1 convolution beside a residual block in the same sum: cuDNN has no
kernel for most of that; where it has one this is about as fast or faster, and need not be chosen by trial.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.kernels import cuda
from pixelpart.kernels.cuda import BOX, ROOM, SQUARE, Kernel, Map, Unsupported, image_map, weight_map

PIXELS, CHUNK, THREADS = 128, 64, 288  # pixels of a box, and its channels; threads of a block


class Tap(NamedTuple):
    """Which view of the image is read, with which of the nine weights, moved by how much."""

    view: int
    weight: int
    right: int
    down: int


class Extra(NamedTuple):
    """A 1x1 convolution of other pixels, added to the sum: forward of every other pixel of x, if x has more of them."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


# Views of an image for stride 2, by the first row and column that they have: the last has most taps, backward.
VIEWS = (0, 0), (0, 1), (1, 0), (1, 1)


def taps_forward(stride: int) -> list[list[Tap]]:
    """Pixel i reads stride * i + r - 1 for r from 0 to 2: with stride 2, i - 1, i and i in views 1, 0 and 1."""
    reads = list(enumerate([(0, -1), (0, 0), (0, 1)] if stride == 1 else [(1, -1), (0, 0), (1, 0)]))
    return [[Tap(2 * v + w, 3 * r + s, right, down) for r, (v, down) in reads for s, (w, right) in reads]]


def taps_backward(stride: int) -> list[list[Tap]]:
    """To input i come gradients (i + 1 - r) / stride where that is whole: one list for each view, the longest first."""
    if stride == 1:
        return [[Tap(0, 3 * r + s, 1 - s, 1 - r) for r in range(3) for s in range(3)]]
    comes = [(1, 0)], [(0, 1), (2, 0)]  # r and offset, for an even and an odd i
    return [[Tap(0, 3 * r + s, right, down) for r, down in comes[v] for s, right in comes[w]] for v, w in VIEWS[::-1]]


class Boxes(NamedTuple):
    """How images are cut: rows of a box, boxes of an image, images of a box."""

    rows: int
    boxes: int
    images: int


def boxes_of(height: int, width: int) -> Boxes | None:
    """Boxes of whole rows, as many as go into 128 pixels; None: a row does not."""
    if width > PIXELS:
        return None
    rows = min(height, PIXELS // width)
    return Boxes(rows, -(-height // rows), PIXELS // (height * width) if rows == height else 1)


def suits(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether the kernel is for a 3x3 convolution of x, padded by 1, and its gradient: boxes are to be fairly full."""
    height, width = x.shape[2] // stride, x.shape[3] // stride
    whole = weight.shape[0] % CHUNK == 0 and weight.shape[1] % CHUNK == 0 and weight.shape[2:] == (3, 3)
    if not whole or stride not in (1, 2) or x.shape[2] % stride or x.shape[3] % stride or not cuda.hopper(x.device):
        return False
    boxes = boxes_of(height, width)
    return boxes is not None and 3 * height * width * boxes.images >= 2 * PIXELS * boxes.boxes


class Team(NamedTuple):
    """Boxes of a tile, and blocks that share its steps."""

    pieces: int
    split: int


def team_for(steps: int, boxes: int, across: int, processors: int) -> Team:
    """What takes the fewest cycles, by a rough reckoning from measured times.

    A step of one box is 600, of two 1060; a tile has 4000 more, and sums are shared in 3000.
    """

    def items(team: Team) -> int:
        return -(-boxes // team.pieces) * across

    def cycles(team: Team) -> int:
        rounds = -(-items(team) * team.split // processors)
        return rounds * (steps // team.split * (600, 1060)[team.pieces - 1] + 4000) + 3000 * (team.split - 1)

    teams = (Team(pieces, split) for pieces in (1, 2) for split in (1, 2))
    return min((team for team in teams if team.split == 1 or items(team) * 2 <= processors), key=cycles)


class Tiling(NamedTuple):
    """How a result is cut into tiles: its channels, by so many chunks of 64, and its pixels, by the team's boxes."""

    boxes: Boxes
    chunks: int
    across: int
    down: int
    team: Team


def tiling_of(shape: Sequence[int], kinds: list[list[Tap]], inputs: int, processors: int) -> Tiling:
    """For results of this shape, each kind of them from its taps of so many channels; Unsupported if they cannot be cut."""
    n, channels, height, width = shape
    boxes = boxes_of(height, width)
    if boxes is None or channels % CHUNK:
        raise Unsupported(f"images of {height} by {width} pixels and {channels} channels")
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
    """relu(conv(x, weight) + bias + other + extra), padded by 1, or without a bias conv(x, weight).

    Unsupported if it cannot.
    """
    n, _, height, width = x.shape
    shape = n, weight.shape[0], height // stride, width // stride
    if (bias is not None and bias.dtype != torch.bfloat16) or (other is not None and other.shape != shape):
        raise Unsupported("a bias that is not bf16, or not one number for every pixel and channel")
    _check(x, weight, other, extra)
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
    """where(rectified > 0, g + other + extra, 0), or g: what a convolution padded by 1 sends back to what it has read.

    `extra` is what a 1x1 convolution of the same stride sends back; Unsupported if it cannot.
    """
    n, _, height, width = grad.shape
    shape = n, weight.shape[1], height * stride, width * stride
    if any(tensor is not None and tensor.shape != shape for tensor in (rectified, other)):
        raise Unsupported("not one number for every pixel and channel")
    if other is not None and stride > 1:
        raise Unsupported("what is added to strided results is not read by kinds")
    _check(grad, weight, rectified, other, extra)
    out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    outs, gates = (None if t is None else [t] if stride == 1 else _views(t)[::-1] for t in (out, rectified))
    assert outs is not None
    _run(False, [grad], weight, outs, taps_backward(stride), gates=gates, other=other, extra=extra)
    return out


class _Tap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in Tap._fields]


class Work(ctypes.Structure):
    """What a kernel is told, as in conv3x3.cu."""

    _fields_ = [
        ("source", Map * 4),
        ("weights", Map),
        ("extra", Map),
        ("extra_weights", Map),
        ("out", Map * 4),
        ("gate", Map * 4),
        ("other", Map),
        ("bias", ctypes.c_void_p),
        ("extra_bias", ctypes.c_void_p),
        ("taps", _Tap * 9),
        ("first", ctypes.c_int * 5),
        *((name, ctypes.c_int) for name in ("kinds", "chunks", "extra_chunks", "across", "tiles")),
        *((name, ctypes.c_int) for name in ("rows", "boxes", "images", "bytes")),
        ("rest", ctypes.c_int * 10),  # to a whole number of 64 bytes
    ]


def _run(
    ahead: bool,
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
        raise Unsupported("more beside the sum than in it")
    tiling = tiling_of(outs[0].shape, kinds, inputs, cuda.processors(device))
    boxes, chunks, across, down, team = tiling
    plain = bias is None and gates is None
    kernel = _kernel(tiling, device, FORWARD=ahead, PLAIN=plain, OTHER=other is not None)
    items, room = len(kinds) * down * across, kernel.clusters(THREADS, team.split)
    if team.split > 1 and items > room:
        raise Unsupported("fewer processors than blocks that have to run together")

    width, tall = outs[0].shape[3], chunks * CHUNK if ahead else CHUNK
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
    halves = pieces if chunks == 2 else 1  # boxes of a warpgroup
    sums = (split - 1) * 2 * halves * BOX  # bytes, where they are shared
    stages = (ROOM - 256 - sums) // (pieces * BOX + chunks * SQUARE)
    settings |= {"CHUNKS": chunks, "PIECES": pieces, "SPLIT": split, "STAGES": stages}
    kernel = cuda.kernel("conv3x3", 64 * halves, tuple((name, int(value)) for name, value in settings.items()), device)
    if kernel is None:
        raise Unsupported("not made here")
    return kernel


def _check(*given: Tensor | Extra | None) -> None:
    """Unsupported where what is given cannot be read in boxes of 64 channels."""
    for one in given:
        for tensor in one[:2] if isinstance(one, Extra) else (one,):
            if tensor is not None and (not cuda.fits(tensor) or tensor.shape[1] % CHUNK):
                raise Unsupported("not bf16, channels last and aligned, in chunks of 64 channels")


def _views(x: Tensor) -> list[Tensor]:
    """Every other row and column, in the order of VIEWS."""
    return [x[:, :, row::2, column::2] for row, column in VIEWS]
