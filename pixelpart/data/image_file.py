"""One image file as an array. Of more than 8 bits per channel only PNG is read: there the full range is white."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SMALLEST = 2  # pixels per side
# Pillow reads others too, some with the help of other programs, and some reduced to 8 bits without notice.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP")
MODES = ("1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK", "YCbCr")  # those that Pillow converts to RGB
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")


def is_grey(path: Path) -> bool | None:
    """Whether the file holds a grey picture, by its header; None if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            return file.mode in GREY_MODES
    except Exception:  # a corrupt file can raise anything; `read_image` says what
        return None


def read_image(
    path: Path, shape: tuple[int, int, int], *, background: str = "white", exact: bool = False
) -> tuple[NDArray[np.uint8], bool]:
    """The image upright, cropped around its centre and resized: uint8 (3 or 1, height, width); was it transparent?

    `exact`: refuse images of another size. UserError, in one clause, for a file that cannot be used.
    """
    from PIL import Image, ImageOps

    Image.init()
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as file:
            _check_image(file, path, (width, height) if exact else None)
            if not exact:
                file.draft(mode, (2 * width, 2 * height))  # decodes a large JPEG at a fraction of its size
            image, transparent = _converted(file if exact else ImageOps.exif_transpose(file), mode, background)
            if image.size != (width, height):
                image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
            return np.ascontiguousarray(np.asarray(image).reshape(height, width, -1).transpose(2, 0, 1)), transparent
    except UserError:
        raise
    except Image.UnidentifiedImageError:
        raise UserError(f"is not an image in a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # a corrupt file can raise anything
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot be decoded: {reason}") from None


def _check_image(image: "ImageFile", path: Path, size: tuple[int, int] | None) -> None:
    width, height = image.size
    if size is not None and size != image.size:
        raise UserError(f"has {width}x{height} pixels, not {size[0]}x{size[1]}")
    if min(image.size) < SMALLEST:
        raise UserError(f"has {width}x{height} pixels, which is too small")
    if image.format == "PNG" and image.mode.startswith("I"):
        return
    if image.format != "PNG" and (image.mode.startswith(("I", "F")) or _over_8_bits(image, path)):
        raise UserError(f"has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits first")
    if image.mode not in MODES:
        raise UserError(f"has colour mode {image.mode}; convert it to RGB first")


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


def _converted(image: "Image", mode: str, background: str) -> tuple["Image", bool]:
    """The image in RGB or L, transparent pixels mixed with the background; and whether there were any."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() < 255:
            ground = Image.new("RGBA", image.size, background)
            return Image.alpha_composite(ground, image).convert("RGB").convert(mode), True
    return (image if image.mode == mode else image.convert("RGB").convert(mode)), False
