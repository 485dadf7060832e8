"""One image file as an array. Files that would need a decision (16 bits, transparency) are refused, not converted."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SMALLEST = 2  # pixels per side
# Pillow reads others too, some with the help of other programs, and some reduced to 8 bits without notice.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP")
MODES = ("1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK", "YCbCr")  # those that Pillow converts to RGB


def read_image(path: Path, size: int, *, exact: bool = False) -> NDArray[np.uint8]:
    """The image upright and in RGB, cropped to its central square and resized: uint8 (3, size, size).

    `exact`: refuse images of another size. ValueError, in one clause, for a file that cannot be used.
    """
    from PIL import Image, ImageOps

    Image.init()
    try:
        with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as file:
            _check_image(file, path, size, exact=exact)
            if not exact:
                file.draft("RGB", (2 * size, 2 * size))  # decodes a large JPEG at a fraction of its size
            image = _to_rgb(file if exact else ImageOps.exif_transpose(file))
            if image.size != (size, size):
                image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
            return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"is not an image in a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # a corrupt file can raise anything
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cannot be decoded: {reason}") from None


class _Refused(Exception):
    pass


def _check_image(image: "ImageFile", path: Path, size: int, *, exact: bool) -> None:
    width, height = image.size
    if exact and image.size != (size, size):
        raise _Refused(f"has {width}x{height} pixels, not {size}x{size}")
    if min(image.size) < SMALLEST:
        raise _Refused(f"has {width}x{height} pixels, which is too small")
    if image.mode.startswith(("I", "F")) or _over_8_bits(image, path):
        raise _Refused(f"has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits first")
    if image.mode not in MODES:
        raise _Refused(f"has colour mode {image.mode}; convert it to RGB first")


def _over_8_bits(image: "ImageFile", path: Path) -> bool:
    """Whether channels have more than 8 bits although Pillow's mode is RGB, by its decoder settings or the file."""
    if image.format in ("AVIF", "JPEG2000"):
        return _header_over_8_bits(path.read_bytes())
    return any(
        ";16" in str(settings) or (codec.startswith("ppm") and isinstance(settings, tuple) and settings[-1] > 255)
        for codec, _, _, settings in image.tile
    )


def _header_over_8_bits(content: bytes) -> bool:
    """Whether the header of an AVIF or JPEG 2000 file declares more than 8 bits per channel."""
    if (at := content.find(b"av1C")) >= 0:
        return bool(content[at + 6] & 0x40)  # high_bitdepth
    at = content.find(b"\xff\x4f\xff\x51")  # SOC and SIZ; 3 bytes per channel from byte 42 on
    channels = int.from_bytes(content[at + 40 : at + 42], "big")
    return any(content[at + 42 + 3 * i] & 0x7F > 7 for i in range(channels))  # bits - 1; the first bit is the sign


def _to_rgb(image: "Image") -> "Image":
    """The image in RGB; transparent pixels have no colour of their own, so such images are refused."""
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if alpha.min() < 255:
            raise _Refused(f"is transparent at {np.sum(alpha < 255):,} of its pixels; put it on a background first")
    return image.convert("RGB")
