"""One file as an array: what becomes 8-bit RGB without loss is converted, what would need a choice is refused."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile as PictureFile

SMALLEST = 2  # pixels a side
# Pillow knows others, some of which it hands to other programs, and some of which it cuts to 8 bits unseen
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP")
KNOWN = ("1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK", "YCbCr")  # what Pillow makes RGB of


def read_picture(path: Path, size: int, *, exact: bool = False) -> NDArray[np.uint8]:
    """The picture upright as RGB, its middle square scaled to size x size: uint8 (3, size, size).

    `exact` asks for pictures that have this size already. ValueError, in one clause, for a file that cannot be used.
    """
    from PIL import Image, ImageOps

    Image.init()
    try:
        with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            _refuse(image, path, size, exact=exact)
            if not exact:
                image.draft("RGB", (2 * size, 2 * size))  # a JPEG far too large is decoded at a fraction of it
            upright = image if exact else ImageOps.exif_transpose(image)
            picture = _opaque(upright)
            if picture.size != (size, size):
                picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
            return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
    except _Unfit as error:
        raise ValueError(str(error)) from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"is not a picture that can be read ({', '.join(FORMATS)})") from None
    except Exception as error:  # a damaged file can raise anything
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cannot be decoded: {why}") from None


class _Unfit(Exception):
    pass


def _refuse(image: "PictureFile", path: Path, size: int, *, exact: bool) -> None:
    found, mode = image.size, image.mode
    shape = f"{found[0]}x{found[1]}"
    if exact and found != (size, size):
        raise _Unfit(f"is {shape} pixels, not {size}x{size}")
    if min(found) < SMALLEST:
        raise _Unfit(f"is {shape} pixels, too small for a picture")
    if mode.startswith(("I", "F")) or _cut(image, path):
        raise _Unfit(f"has more than 8 bits a channel (mode {mode}); convert it to 8 bits as you see fit")
    if mode not in KNOWN:
        raise _Unfit(f"has colours of mode {mode}; convert it to RGB as you see fit")


def _cut(image: "PictureFile", path: Path) -> bool:
    """Whether colours have more than 8 bits, though Pillow calls them RGB: how it unpacks them tells, or the file."""
    if image.format in ("AVIF", "JPEG2000"):
        return _deep(path.read_bytes())
    return any(
        ";16" in str(how) or (codec.startswith("ppm") and isinstance(how, tuple) and how[-1] > 255)
        for codec, _, _, how in image.tile
    )


def _deep(content: bytes) -> bool:
    """Whether an AVIF or JPEG 2000 file says that it has more than 8 bits a channel."""
    if (at := content.find(b"av1C")) >= 0:
        return bool(content[at + 6] & 0x40)  # high_bitdepth
    at = content.find(b"\xff\x4f\xff\x51")  # the beginning, and the sizes: of the channels from byte 42 on, 3 each
    channels = int.from_bytes(content[at + 40 : at + 42], "big")
    return any(content[at + 42 + 3 * i] & 0x7F > 7 for i in range(channels))  # bits - 1; the first bit is the sign


def _opaque(image: "Picture") -> "Picture":
    """As RGB; pixels that can be seen through have no colour of their own, so they are refused."""
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if alpha.min() < 255:
            raise _Unfit(f"can be seen through at {np.sum(alpha < 255):,} of its pixels; put it on a background")
    return image.convert("RGB")
