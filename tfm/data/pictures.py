"""One function that reads a picture, whatever its format and mode, for all data sets of pictures."""

import contextlib
import functools
import io
import logging
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm.errors import UserError, first_line
from tfm.io.files import check_no_pipe, read_limited

MAX_PICTURE_BYTES = 1 << 29  # of a file
POSTSCRIPT = "EPS"  # Pillow's name of a format that is a program
MAX_PICTURE_PIXELS = 1 << 26  # 8,192 x 8,192; decoded, these are 200 MB
MAX_SIXTEEN_BITS = 65535
WIDTH, HEIGHT, BITS_PER_SAMPLE = 256, 257, 258  # tags of TIFF
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a tag of TIFF, and a value of it
ORIENTATION = 0x0112  # tag of EXIF
UPRIGHT = 1
NOT_UPRIGHT = range(2, 9)  # the other orientations that EXIF defines; Pillow ignores further numbers
TURNED_BY_90_DEGREES = (5, 6, 7, 8)  # orientations in which height and width are exchanged
# Pillow raises these for damaged files, next to the OSErrors that have no number.
DAMAGE = (
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
)
log = logging.getLogger(__name__)


def read_picture(content: str | bytes, name: str, channels: int, size: tuple[int, int] | None = None) -> Any:
    """Returns a picture of 8 bits as a PIL image.

    Its EXIF orientation is applied. Pixels of 16 bits are scaled to 8, and floats from 0 to 1 to the numbers
    from 0 to 255. Palettes and other colour spaces are converted. Transparent pixels are put on white.

    Args:
      content: path of the file, or its content.
      name: what an error message calls the picture.
      channels: 1 for grey, 3 for RGB.
      size: height and width that the upright picture must have. They are compared before decoding, as far as
        the orientation permits. None permits all sizes.

    Raises:
      UserError: if the picture is damaged or PostScript, or has too many pixels, another size, or values
        whose range is unknown.
      OSError: if the file cannot be read.
    """
    from PIL import Image

    if isinstance(content, str):
        content = read_limited(content, MAX_PICTURE_BYTES)
    with _reading(name), Image.open(io.BytesIO(content)) as image:
        _check_header(image, name, size)
        picture = _make_upright(image)
        if size is not None and picture.size != (size[1], size[0]):
            raise _size_error(picture.size, name, size, " after its EXIF orientation was applied")
        return _convert(_to_eight_bits(picture, image, name), channels)


def read_picture_size(path: str, name: str) -> tuple[int, int]:
    """Returns height and width of a picture after its EXIF orientation is applied. Only reads its header.

    A PNG may also have its EXIF data after its pixels, where this function does not look for them.

    Args:
      path: the file.
      name: what an error message calls the picture.

    Raises:
      UserError: if the file is no picture, is PostScript or has too many pixels.
      OSError: if the file cannot be read.
    """
    from PIL import Image

    check_no_pipe(path)
    with _reading(name), Image.open(path) as image:
        _check_header(image, name, None)
        tags = getattr(image, "tag_v2", {})  # some versions of Pillow already turn the size of a TIFF
        width, height = tags.get(WIDTH, image.width), tags.get(HEIGHT, image.height)
        exif = Image.Image.getexif(image)  # the method of PNG decodes the picture to find a late EXIF chunk
        is_turned = exif.get(ORIENTATION, UPRIGHT) in TURNED_BY_90_DEGREES
        return (width, height) if is_turned else (height, width)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turns the errors of Pillow about a picture into a UserError."""
    from PIL import Image, UnidentifiedImageError

    too_large = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        yield
    except UserError:
        raise
    except too_large as error:
        raise UserError(
            f"{name} has more than {MAX_PICTURE_PIXELS:,} pixels ({first_line(error)}). Make it smaller."
        ) from None
    except UnidentifiedImageError:  # its text contains the address of an object
        raise UserError(
            f"{name} cannot be read as a picture, because its format is unknown. Download it again, or "
            "convert it to PNG or JPEG."
        ) from None
    except (OSError, *DAMAGE) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise UserError(
            f"{name} cannot be read as a picture ({first_line(error)}). Download it again, or convert it to "
            "PNG or JPEG."
        ) from None


def fit_picture(
    picture: Any, size: int, how: str = "crop", box: tuple[float, float, float, float] | None = None
) -> Any:
    """Returns a PIL image as a square.

    Args:
      picture: the PIL image.
      size: height and width of the square in pixels. 0 keeps height and width: returns the picture itself, or
        its box resized to the size of the picture.
      how: "crop" cuts the longer side in the middle, "pad" adds black margins to the shorter side, and
        "stretch" changes the aspect ratio.
      box: left, top, right and bottom of the part of the picture that fills the square, in pixels. `how` is
        then of no use. None takes the whole picture.
    """
    from PIL import Image, ImageOps

    square, bilinear = (size, size), Image.Resampling.BILINEAR
    if box is not None:
        return picture.resize(square if size else picture.size, bilinear, box=box)
    if not size:
        return picture
    if how == "pad":
        return ImageOps.pad(picture, square, bilinear)
    return picture.resize(square, bilinear) if how == "stretch" else ImageOps.fit(picture, square, bilinear)


def to_pixels(picture: Any) -> np.ndarray:
    """Returns the pixels of a PIL image in grey or RGB, uint8 [height, width, C]."""
    pixels = np.asarray(picture)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _check_header(image: Any, name: str, size: tuple[int, int] | None) -> None:
    """Checks the format, width and height in the header of a file, so that no other picture is decoded.

    Pillow would start Ghostscript to decode PostScript, whatever the ending of the file is.
    """
    if image.format == POSTSCRIPT:
        raise UserError(
            f"{name} is PostScript, a program, which tfm does not run. Convert it to PNG or JPEG."
        )
    found = image.size
    if size is not None and sorted(found) != sorted(size):
        raise _size_error(found, name, size)
    if found[0] * found[1] > MAX_PICTURE_PIXELS:
        raise UserError(
            f"Expected at most {MAX_PICTURE_PIXELS:,} pixels in {name}, got {found[0]:,} x {found[1]:,}. "
            "Make it smaller."
        )


def _size_error(found: tuple[int, int], name: str, size: tuple[int, int], when: str = "") -> UserError:
    """Returns the error of a picture whose width and height differ from the expected height and width."""
    return UserError(
        f"Expected {name} to have {size[1]} x {size[0]} pixels (width x height) as in its annotations, got "
        f"{found[0]} x {found[1]} pixels{when}. Correct its annotations, or replace the picture."
    )


def _make_upright(image: Any) -> Any:
    """Returns a decoded copy of a picture, to which its EXIF orientation is applied."""
    from PIL import ImageOps

    is_turned = image.getexif().get(ORIENTATION, UPRIGHT) in NOT_UPRIGHT
    image.load()  # of a TIFF, this already applies the orientation
    if is_turned:
        warn_once("Some pictures are turned upright, as the orientation in their EXIF data says.")
    return ImageOps.exif_transpose(image)


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning when it is called with this message for the first time."""
    log.warning(message)


def _to_eight_bits(image: Any, opened: Any, name: str) -> Any:
    """Returns a picture of 16 bits or of floats as grey values of 8 bits, and others unchanged.

    Pixels of 16 bits that are transparent become white.

    Args:
      image: the upright picture, which has lost its format and its tags.
      opened: the picture as it was opened.
      name: what an error message calls the picture.
    """
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image, np.float64)
    shown = f"{name} has values from {values.min():g} to {values.max():g} in Pillow's mode {image.mode}"
    tags = getattr(opened, "tag_v2", {})
    is_white_zero = tags.get(PHOTOMETRIC) == WHITE_IS_ZERO
    if image.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            raise UserError(f"{shown}: expected floats from 0 to 1. Scale them, or write pixels of 8 bits.")
        shares = 1 - values if is_white_zero else values
        return Image.fromarray(np.rint(shares * 255).astype(np.uint8))
    bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
    largest = min(2**bits - 1, MAX_SIXTEEN_BITS)
    # Older versions of Pillow read the 16 bits of PNG as 32. Other numbers of 32 bits have no known range.
    is_sixteen_bits = image.mode != "I" or opened.format in ("PNG", "PPM")
    if not is_sixteen_bits or not (values.min() >= 0 and values.max() <= largest):
        raise UserError(
            f"{shown}: expected unsigned numbers of 8 or 16 bits. Write it in one of these forms."
        )
    shares = values / largest
    if is_white_zero:
        shares = 1 - shares
    shares[values == image.info.get("transparency")] = 1
    return Image.fromarray(np.rint(shares * 255).astype(np.uint8))


def _convert(image: Any, channels: int) -> Any:
    """Returns a picture in grey or RGB. Transparent pixels are put on white."""
    from PIL import Image

    mode = "L" if channels == 1 else "RGB"
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer)
    return image.convert(mode)
