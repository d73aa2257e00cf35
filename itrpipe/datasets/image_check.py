"""Whether every image file is there and decodes, with its size and content hash; and whether splits share images."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, orientation, refusal
from itrpipe.datasets.records import SPLITS, Annotations, ImageRecord
from itrpipe.engine.run import Made
from itrpipe.engine.work import AGAIN, Part, Work, cut
from itrpipe.storage.disk import read_stamped_json, write_stamped_json

# Orientations that exchange width and height.
_TRANSPOSED = (5, 6, 7, 8)
_IMAGES = 256


class ImageFacts(NamedTuple):
    """What is known about one image file that decodes.

    Attributes:
        sha256: hash of the file's bytes, 64 hexadecimal digits.
        width: pixels, after the rotation that the EXIF orientation asks for.
        height: pixels, likewise.
    """

    sha256: str
    width: int
    height: int


class Problem(NamedTuple):
    """One image file that cannot be used, and why."""

    file: str
    reason: str


class Repeat(NamedTuple):
    """The same picture, byte for byte: `second` stands in the same split as `first`, or leaks it into a later one."""

    first: ImageRecord
    second: ImageRecord


class ImageCheck(NamedTuple):
    """What `check_images` found.

    Attributes:
        facts: by `ImageRecord.file`, for every image that decodes, in the order of the annotations.
        problems: all the others, in the order of the annotations.
    """

    facts: dict[str, ImageFacts]
    problems: list[Problem]


class ImageChecking(Work[ImageRoot]):
    """Opens every image of a dataset and decodes it: a map over files of images.

    Decoding reads the whole of a file's compressed data; JPEG skips the parts of the transform that only
    full-size pixels need. Threads help because Pillow and hashlib work without the interpreter lock.

    Args:
        annotations: the images and their root.
    """

    title, unit, suffix, overlap = "checking images", "images", ".json", 2

    def __init__(self, annotations: Annotations) -> None:
        self._root = annotations.root.absolute()
        self._files = list(dict.fromkeys(image.file for image in annotations.images))

    def __getstate__(self) -> dict[str, Any]:
        """Workers are told of the files of each part alone."""
        return self.__dict__ | {"_files": []}

    def parts(self) -> list[Part]:
        """Files, some at a time."""
        return cut(self._files, _IMAGES)

    def open(self) -> ImageRoot:
        """The folder that no image may leave."""
        return ImageRoot(self._root, self._root)

    def make(self, worker: ImageRoot, part: Part, path: Path) -> None:
        """Writes what is known of the images of a part, and why the others cannot be used."""
        outcomes = {file: _check_one(worker, file) for file in part.content}
        write_stamped_json(path, {"files": list(outcomes.items())})


def check_images(annotations: Annotations, make: Callable[[ImageChecking], Made]) -> ImageCheck:
    """Facts and problems of all images; nothing stops at the first problem.

    Args:
        annotations: the images and their root.
        make: makes the parts of the map.
    """
    check = ImageCheck({}, [])
    for path in make(ImageChecking(annotations)).paths:
        for file, outcome in read_stamped_json(path, AGAIN)["files"]:
            if isinstance(outcome, list):
                check.facts[file] = ImageFacts(*outcome)
            else:
                check.problems.append(Problem(file, outcome))
    return check


def find_repeats(images: Sequence[ImageRecord], facts: Mapping[str, ImageFacts]) -> list[Repeat]:
    """Return the images whose bytes an earlier image holds too.

    Args:
        images: of all splits.
        facts: of `check_images`, by file; images without are passed over.

    Returns:
        Each image paired with the first one of the same bytes, in the order of the splits: a picture that is in the
        dataset a thousand times gives a thousand pairs, not a million.
    """
    first: dict[str, ImageRecord] = {}
    repeats: list[Repeat] = []
    for image in sorted(images, key=lambda one: SPLITS.index(one.split)):
        if image.file in facts:
            earlier = first.setdefault(facts[image.file].sha256, image)
            if earlier is not image:
                repeats.append(Repeat(earlier, image))
    return repeats


def _check_one(inside: ImageRoot, file: str) -> ImageFacts | str:
    """Facts of a file, or why it cannot be used."""
    try:
        path = inside.resolve(file, record="image")
        if not stat.S_ISREG(path.stat().st_mode):
            return "is not a regular file"
        content = path.read_bytes()
        width, height = decode_size(content)
        return ImageFacts(hashlib.sha256(content).hexdigest(), width, height)
    except DECODER_ERRORS as error:
        return refusal(error)


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
