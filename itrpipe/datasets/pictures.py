"""Image files as arrays: what may be decoded, how colours become 8-bit RGB, and why a file is refused."""

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
_OF_PYTHON = (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError)
DECODER_ERRORS = (*_OF_PYTHON, DataError, struct.error, zlib.error, Image.DecompressionBombError)
"""Errors of Pillow on hostile bytes; each becomes the reason that this one file is refused. Running out of memory is
not among them: it says nothing of the file."""
MAX_PIXELS = 89_478_485
"""Largest image, in pixels: a quarter of a GiB as 24-bit colour, the size at which Pillow speaks of a bomb."""

_ORIENTATION = 0x0112
_TURNS = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90"
_TRANSPOSITIONS = {number: Image.Transpose[name] for number, name in enumerate(_TURNS.split(), start=2)}
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
    """Reads and decodes an image file.

    Returns:
        [H, W, 3] uint8 RGB; see `decode_rgb`.

    Raises:
        DataError, OSError: see `read_image` and `decode_rgb`.
    """
    return decode_rgb(read_image(path))


def read_image(path: Path) -> bytes:
    """Reads an image file, or one inside another file, see `itrpipe.datasets.archives`.

    Raises:
        DataError: the file is not there or cannot be read. The message is the reason alone, for a list of files.
        OSError: the disk or the network cannot give it now, which says nothing of the file.
    """
    try:
        packed = in_archive(path)
        if packed:
            content = read_member(*packed)
            if isinstance(content, bytes):
                return content
            archive = packed[0]
            path = ImageRoot(archive.parent, archive).resolve(content, record=packed[1])
        # Reading a pipe would wait for a writer for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError("is not a regular file")
        return path.read_bytes()
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        raise DataError(refusal(error)) from error


def decode_rgb(content: bytes) -> np.ndarray:
    """Decodes an image as a viewer shows it.

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
    """Return TorchCodec's decoder, where it is installed: the bytes of Pillow's, in less time, beside other threads."""
    try:
        from torchcodec.decoders import decode_jpeg  # pyright: ignore (optional)
    except (ImportError, OSError, RuntimeError):  # it brings libraries that a system may refuse
        return None
    return decode_jpeg


def picture_rgb(image: Image.Image, size: tuple[int, int] | None = None) -> np.ndarray:
    """Returns an opened image as `decode_rgb` does, or so many of its pixels across and down.

    Raises:
        DataError: its samples have no defined range. The message is the reason alone.
        Exception: one of `DECODER_ERRORS` where it was not decoded yet and is damaged.
    """
    image.load()
    turn = _TRANSPOSITIONS.get(orientation(image))
    upright = image if turn is None else image.transpose(turn)
    if size is not None:
        upright = upright.resize(size, Image.Resampling.NEAREST)
    if upright.mode in _SIXTEEN_BIT:
        samples = np.asarray(upright).astype(np.uint16)
        tags = image.getexif() if image.format == "TIFF" else {}
        # The opened image knows how many of the 16 bits it uses.
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
    return np.array(upright if upright.mode == "RGB" else upright.convert("RGB"))


def open_picture(content: bytes) -> Image.Image:
    """Reads the header of an image and returns the image, not yet decoded.

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
    """Returns the EXIF orientation of a decoded image, 1 to 8.

    It is 1 where there is none or none that can be read: the pixels are whole, and every viewer shows them so. TIFF
    files are turned by the decoder itself and say 1 afterwards.
    """
    try:
        found = image.getexif().get(_ORIENTATION)
    except DECODER_ERRORS:
        return 1
    return found if isinstance(found, int) and found in _TRANSPOSITIONS else 1


def refusal(error: BaseException) -> str:
    """Returns the reason, for a list of files, that `error` of opening or decoding a file stands for."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, DataError):
        return text
    if isinstance(error, FileNotFoundError):
        return "is not there"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"is truncated ({text})" if "truncated" in text.lower() else f"is damaged ({text})"
