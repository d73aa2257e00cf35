"""Decodes one photograph in a process of its own: bytes come in by standard input, pixels go out by standard output.

Run as `python -m itrpipe.serving.decoding`. A decoder that runs wild ends with this process, not with the server: it
gets so much time and memory and no more.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from typing import NamedTuple

import numpy as np

from itrpipe.errors import DataError

MOST_BYTES = 24 * 2**20
"""Largest file of an upload."""
MOST_PIXELS = 64_000_000
"""Largest picture of an upload: those of most cameras are smaller."""
SECONDS = 20
"""Time that one photograph may take."""
MEMORY = 3 * 2**30
"""Bytes of memory that one photograph may take."""
SHOWN = 320
"""Longest side of the small copy."""


class Decoded(NamedTuple):
    """A photograph.

    Attributes:
        pixels: [H, W, 3] uint8 RGB, as `itrpipe.datasets.pictures.decode_rgb` has it.
        small: JPEG of a small copy.
    """

    pixels: np.ndarray
    small: bytes


def decode(content: bytes) -> Decoded:
    """Decodes a photograph in a process of its own.

    Raises:
        DataError: it cannot be used. The message is the reason alone.
    """
    if len(content) > MOST_BYTES:
        raise DataError(f"has more than {MOST_BYTES // 2**20} MiB")
    command = [sys.executable, "-P", "-m", "itrpipe.serving.decoding"]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"takes more than {SECONDS} s to decode") from None
    head, _, rest = done.stdout.partition(b"\n")
    if done.returncode or not head:
        raise DataError("takes more memory or time to decode than a photograph does")
    told = json.loads(head)
    if "refused" in told:
        raise DataError(told["refused"])
    height, width = told["size"]
    count = height * width * 3
    pixels = np.frombuffer(rest, dtype=np.uint8, count=count).reshape(height, width, 3)
    return Decoded(pixels.copy(), rest[count:])  # a copy can be written to, which extractors expect


def main() -> None:
    """Reads a file, and writes a line of JSON, its pixels row by row, and a small JPEG."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, picture_rgb, refusal

    try:
        with open_picture(sys.stdin.buffer.read()) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(f"has {image.width} x {image.height} pixels, more than {MOST_PIXELS:,}")
            pixels = picture_rgb(image)
    except DECODER_ERRORS as error:
        print(json.dumps({"refused": refusal(error)}))
        return
    sys.stdout.buffer.write(json.dumps({"size": pixels.shape[:2]}).encode() + b"\n")
    sys.stdout.buffer.write(pixels.tobytes() + _small(pixels))


def _small(pixels: np.ndarray) -> bytes:
    from PIL import Image

    image, buffer = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
