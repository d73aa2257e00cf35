"""Reads image files as arrays of 8-bit RGB, or refuses them with a reason."""

import contextlib
import io
import logging
import stat
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from itrpipe.datasets.archives import in_archive, read_member
from itrpipe.datasets.paths import ImageRoot
from itrpipe.errors import DataError
from itrpipe.storage.disk import OF_THE_FILE

# Pillow's other decoders run foreign programs (EPS) or serve no data set of photographs.
DECODERS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
DECODER_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    DataError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Errors of Pillow on hostile bytes; each becomes the reason that this one file is refused. Running out of memory is
not among them: it says nothing of the file."""
MAX_PIXELS = 89_478_485
"""Largest image, in pixels: a quarter of a GiB as 24-bit colour, the size at which Pillow speaks of a bomb."""

_ORIENTATION = 0x0112
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = 5
"""First of the orientations that exchange width and height."""
# Tags of TIFF.
_BITS_PER_SAMPLE = 0x0102
_PHOTOMETRIC, _WHITE_IS_ZERO = 0x0106, 0
# Modes whose values have a defined range; of float and 32-bit samples nobody knows which value is white.
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_WHITE = 255
_PLAIN_JPEG = (("JPEG", "RGB"), ("JPEG", "L"))

# Pillow speaks of odd but readable files to whoever runs the program, who cannot know which file is meant. For the
# whole process, because decoding runs in threads, and they share the filters.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())


def read_rgb(path: Path) -> np.ndarray:
    """Read and decode an image file.

    Returns:
        [H, W, 3] uint8 RGB; see `decode_rgb`.

    Raises:
        DataError, OSError: see `read_image` and `decode_rgb`.
    """
    return decode_rgb(read_image(path))


def read_image(path: Path) -> bytes:
    """Read an image file, or one inside another file, see `itrpipe.datasets.archives`.

    Raises:
        DataError: the file is not there or cannot be read. The message is the reason alone, for a list of files.
        OSError: the disk or the network cannot give it now, which says nothing of the file.
    """
    try:
        packed = in_archive(path)
        if packed:
            archive, name = packed
            content = read_member(archive, name)
            if isinstance(content, bytes):
                return content
            path = ImageRoot(archive.parent, archive).resolve(content, record=name)
        # Reading a pipe would wait for a writer for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError("is not a regular file")
        return path.read_bytes()
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        raise DataError(refusal(error)) from error


def decode_rgb(content: bytes) -> np.ndarray:
    """Decode an image as a viewer shows it.

    The EXIF orientation is honoured, transparent parts are white, greyscale becomes three equal channels, 16-bit
    samples keep their upper 8 bits, and of an animation the first frame is taken.

    Args:
        content: bytes of a file in one of the formats `DECODERS`.

    Returns:
        [H, W, 3] uint8 RGB, contiguous and writable.

    Raises:
        DataError: the bytes are no image, are damaged, have more than `MAX_PIXELS` pixels or samples without a defined
            range. The message is the reason alone, such as `is truncated (...)`, for a list of files.
    """
    try:
        with open_picture(content) as image:
            decode = _jpeg_decoder()
            if decode and (image.format, image.mode) in _PLAIN_JPEG and orientation(image) == 1:
                with contextlib.suppress(RuntimeError):  # of damage, of which Pillow knows the reason
                    return decode(content).permute(1, 2, 0).numpy()
            return picture_rgb(image)
    except DECODER_ERRORS as error:
        raise DataError(refusal(error)) from error


@cache
def _jpeg_decoder() -> Callable[[bytes], Any] | None:
    """Return TorchCodec's decoder, where it is installed: Pillow's pixels in less time, beside other threads."""
    try:
        from torchcodec.decoders import decode_jpeg  # pyright: ignore (optional)
    except (ImportError, OSError, RuntimeError):  # it brings libraries that a system may refuse
        return None
    return decode_jpeg


def picture_rgb(image: Image.Image, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the pixels of an opened image as `decode_rgb` does, or of its nearest neighbours at a size of W x H.

    Raises:
        DataError: its samples have no defined range. The message is the reason alone.
        Exception: one of `DECODER_ERRORS`, where the image was not decoded yet and is damaged.
    """
    image.load()
    upright = image
    turn = orientation(image)
    if turn in _TRANSPOSITIONS:
        upright = image.transpose(_TRANSPOSITIONS[turn])
    if size is not None:
        upright = upright.resize(size, Image.Resampling.NEAREST)
    if upright.mode in _SIXTEEN_BIT:
        samples = np.asarray(upright).astype(np.uint16)
        tags = {}
        if image.format == "TIFF":
            tags = image.getexif()  # it tells how many of the 16 bits are used
        grey = (samples >> (tags.get(_BITS_PER_SAMPLE, 16) - 8)).astype(np.uint8)
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            grey = _WHITE - grey
        if "transparency" in image.info:
            grey[samples == image.info["transparency"]] = _WHITE
        return grey[..., np.newaxis].repeat(3, axis=2)
    if upright.mode not in _EIGHT_BIT:
        raise DataError(f"has samples of the kind {upright.mode}, which have no defined range; convert it to 8-bit RGB")
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(white, upright.convert("RGBA"))
    if upright.mode != "RGB":
        upright = upright.convert("RGB")
    return np.array(upright)


def open_picture(content: bytes) -> Image.Image:
    """Read the header of an image and return the image, not yet decoded.

    Raises:
        DataError: the bytes are none of `DECODERS`, or the header speaks of more than `MAX_PIXELS` pixels.
        Exception: one of `DECODER_ERRORS` for a damaged header.
    """
    if not content:
        raise DataError("is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=DECODERS)
    except Image.UnidentifiedImageError as error:
        raise DataError(f"is none of {', '.join(DECODERS)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"has more than twice the {MAX_PIXELS:,} pixels that are read; make it smaller") from error
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise DataError(f"has {pixels:,} pixels, and {MAX_PIXELS:,} are read at most; make it smaller")
    return image


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a decoded image, 1 to 8.

    It is 1 where there is none or none that can be read: the pixels are whole, and every viewer shows them so. TIFF
    files are turned by the decoder itself and say 1 afterwards.
    """
    try:
        value = image.getexif().get(_ORIENTATION)
    except DECODER_ERRORS:
        return 1
    if isinstance(value, int) and value in _TRANSPOSITIONS:
        return value
    return 1


def refusal(error: BaseException) -> str:
    """Return the reason why a file is refused, for a list of files, from an error of opening or decoding it."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, DataError):
        return text
    if isinstance(error, FileNotFoundError):
        return "is not there"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if "truncated" in text.lower():
        return f"is truncated ({text})"
    return f"is damaged ({text})"
