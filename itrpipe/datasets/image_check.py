"""Whether every image file is there and decodes, with its size and content hash; and whether splits share images."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, orientation, refusal
from itrpipe.datasets.records import SPLITS, Annotations, ImageRecord

# Orientations that exchange width and height.
_TRANSPOSED = (5, 6, 7, 8)
_BATCH = 32


class ImageFacts(NamedTuple):
    """What is known about one image file that decodes.

    Attributes:
        size: bytes.
        mtime_ns: time of the last change, nanoseconds.
        sha256: hash of the file's bytes, 64 hexadecimal digits.
        width: pixels, after the rotation that the EXIF orientation asks for.
        height: pixels, likewise.
    """

    size: int
    mtime_ns: int
    sha256: str
    width: int
    height: int


class Problem(NamedTuple):
    """One image file that cannot be used, and why."""

    file: str
    reason: str


class Leak(NamedTuple):
    """The same picture, byte for byte, in two splits: `second` stands in a later split than `first`."""

    first: ImageRecord
    second: ImageRecord


@dataclass(frozen=True)
class ImageCheck:
    """What `check_images` found.

    Attributes:
        facts: by `ImageRecord.file`, for every image that decodes, in the order of the annotations.
        problems: all the others, in the order of the annotations.
        decoded: how many files were opened rather than taken from `known`.
    """

    facts: dict[str, ImageFacts]
    problems: list[Problem]
    decoded: int


def check_images(
    annotations: Annotations,
    workers: int,
    known: Mapping[str, ImageFacts] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageCheck:
    """Open every image of a dataset and decode it.

    Decoding reads the whole of a file's compressed data; JPEG skips the parts of the transform that only
    full-size pixels need. Threads suffice because Pillow and hashlib work without the interpreter lock.

    Args:
        annotations: the images and their root.
        workers: threads, at least 1.
        known: facts of an earlier check by file; a file whose size and mtime are still those is not opened.
        progress: called in the calling thread with the number of images done and of all images.

    Returns:
        Facts and problems of all images; nothing stops at the first problem.
    """
    inside = ImageRoot(annotations.root, annotations.root)
    files = list(dict.fromkeys(image.file for image in annotations.images))
    facts: dict[str, ImageFacts] = {}
    problems: list[Problem] = []
    decoded = 0
    # closing: after Ctrl-C the threads stop now, not when the traceback is forgotten.
    with closing(_check_all(inside, files, known or {}, workers)) as outcomes:
        for done, (file, outcome, opened) in enumerate(outcomes, start=1):
            decoded += opened
            if isinstance(outcome, ImageFacts):
                facts[file] = outcome
            else:
                problems.append(Problem(file, outcome))
            if progress is not None:
                progress(done, len(files))
    return ImageCheck(facts, problems, decoded)


def find_leaks(images: Sequence[ImageRecord], facts: Mapping[str, ImageFacts]) -> list[Leak]:
    """Return the images whose bytes an earlier split holds too.

    Args:
        images: of all splits.
        facts: of `check_images`, by file; images without are passed over.

    Returns:
        Each image of val and test that an earlier split holds, paired with the first such image there: a
        picture that is in the dataset a thousand times gives a thousand pairs, not a million.
    """
    first: dict[str, ImageRecord] = {}
    leaks: list[Leak] = []
    for image in sorted(images, key=lambda one: SPLITS.index(one.split)):
        if image.file in facts:
            earlier = first.setdefault(facts[image.file].sha256, image)
            if earlier.split != image.split:
                leaks.append(Leak(earlier, image))
    return leaks


_Outcome = tuple[str, ImageFacts | str, bool]


def _check_all(
    inside: ImageRoot, files: list[str], known: Mapping[str, ImageFacts], workers: int
) -> Generator[_Outcome, None, None]:
    """Yield file, facts or reason, and whether the file was opened, in the order of the files."""

    def check_batch(start: int) -> list[_Outcome]:
        return [_check_one(inside, file, known.get(file)) for file in files[start : start + _BATCH]]

    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="image-check")
    try:
        for outcomes in pool.map(check_batch, range(0, len(files), _BATCH)):
            yield from outcomes
    finally:
        # Ctrl-C must not wait for a hundred thousand queued images.
        pool.shutdown(wait=True, cancel_futures=True)


def _check_one(inside: ImageRoot, file: str, known: ImageFacts | None) -> _Outcome:
    try:
        path = inside.resolve(file, record="image")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return file, "is not a regular file", False
        if known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return file, known, False
        content = path.read_bytes()
        width, height = decode_size(content)
        digest = hashlib.sha256(content).hexdigest()
        return file, ImageFacts(len(content), status.st_mtime_ns, digest, width, height), True
    except FileNotFoundError as error:
        return file, refusal(error), False
    except DECODER_ERRORS as error:
        return file, refusal(error), True


def decode_size(content: bytes) -> tuple[int, int]:
    """Decode an image and return its width and height in pixels after EXIF rotation.

    Raises:
        DataError: no image, or one of more than `itrpipe.datasets.pictures.MAX_PIXELS`.
        Exception: whatever Pillow raises on damaged data, `OSError` for a truncated file.
    """
    with open_picture(content) as image:
        width, height = image.size
        # Scaling in the decoder leaves out arithmetic, not data: a truncated file still fails.
        image.draft("L", (max(width // 8, 1), max(height // 8, 1)))
        image.load()
        return (height, width) if orientation(image) in _TRANSPOSED else (width, height)
