"""Frost: cropped from the reference's photographs if they are there, else generated."""

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

from pixelpart.data.corruptions.random_numbers import Draw, Floats, Integers, Pixels
from pixelpart.errors import UserError

PICTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the reference never uses its sixth


def frost(x: Pixels, constants: tuple[float, float], draw: Draw, *, pictures: list[Pixels] | None = None) -> Floats:
    """kept * x + thickness * frost, with a random crop of one of the pictures (h, w, 3) or generated frost."""
    kept, thickness = constants
    h, w = x.shape[2:]
    ice = generated_frost(h, w, draw) if pictures is None else cropped_frost(h, w, pictures, draw)
    return np.clip(kept * x + thickness * ice, 0, 255)


def cropped_frost(h: int, w: int, pictures: list[Pixels], draw: Draw) -> Floats:
    """(n, 3, h, w) crops of the pictures at a fifth of their size; a picture that is too small is mirrored."""
    small = [_at_least(picture[2::5, 2::5], h, w) for picture in pictures]
    which = draw.integers(len(small))
    room = np.array([(len(picture) - h, len(picture[0]) - w) for picture in small])[which]
    top, left = draw.integers(room[:, 0]), draw.integers(room[:, 1])
    ice = [small[p][i : i + h, j : j + w] for p, i, j in zip(which, top, left, strict=True)]
    return np.stack(ice).transpose(0, 3, 1, 2).astype(np.float64)


def _at_least(picture: Pixels, h: int, w: int) -> Pixels:
    down, right = (max(0, size + 1 - there) for size, there in zip((h, w), picture.shape, strict=False))
    return np.pad(picture, ((0, down), (0, right), (0, 0)), mode="symmetric")


# mean and standard deviation of red, green and blue in the reference's five pictures at a fifth of their size, and the
# slope of a power spectrum f ** -slope for which neighbouring pixels differ as much as they do there
KINDS = (
    ((78, 149, 166), (27, 16, 15), 2.05),
    ((201, 205, 215), (20, 20, 21), 1.6),
    ((201, 205, 215), (20, 20, 21), 1.6),
    ((138, 153, 166), (28, 28, 29), 1.3),
    ((112, 123, 135), (39, 39, 38), 1.55),
)


def generated_frost(h: int, w: int, draw: Draw) -> Floats:
    """(n, 3, h, w) noise with the colours and the spectrum of one of the reference's pictures, but no crystals."""
    which: Integers = draw.integers(len(KINDS))
    mean, deviation, slope = (np.array(part) for part in zip(*KINDS, strict=True))
    frequency = np.hypot(np.fft.fftfreq(2 * h)[:, None], np.fft.rfftfreq(2 * w))
    frequency[0, 0] = np.inf  # no power in the mean
    weight = frequency ** (-slope[:, None, None] / 2)
    field = np.fft.irfft2(np.fft.rfft2(draw.normal(2 * h, 2 * w)) * weight[which], (2 * h, 2 * w))
    field = (field / field.std((1, 2), keepdims=True))[:, None, :h, :w]
    return np.floor(np.clip(mean[which, :, None, None] + deviation[which, :, None, None] * field, 0, 255))


def frost_pictures(folder: str | Path | None = None) -> list[Pixels] | None:
    """The reference's pictures (h, w, 3) from a folder or from the package imagecorruptions; None without both."""
    if folder is None:
        package = importlib.util.find_spec("imagecorruptions")  # not imported: that needs OpenCV
        places = package.submodule_search_locations if package else None
        folder = Path(places[0]) / "frost" if places else None
        if folder is None or not all((folder / name).is_file() for name in PICTURES):
            return None
    folder = Path(folder).expanduser()
    if missing := [name for name in PICTURES if not (folder / name).is_file()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}")
    try:
        return [np.asarray(Image.open(folder / name).convert("RGB")) for name in PICTURES]
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"a picture of frost in {folder} cannot be read: {error}") from None
