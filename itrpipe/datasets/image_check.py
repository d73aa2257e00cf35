"""Whether every image file is there and decodes, with its size and content hash; and which are the same picture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.datasets.captions import SPLITS, ImageRecord
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, read_image, refusal, upright_size
from itrpipe.engine.run import Made
from itrpipe.engine.work import AGAIN, Part, Work, cut
from itrpipe.storage.disk import read_stamped_json, write_stamped_json

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


class ImageChecking(Work[ImageRoot]):
    """Opens every image of a dataset and decodes it: a map over files of images.

    Decoding reads the whole of a file's compressed data; JPEG skips the parts of the transform that only
    full-size pixels need. Threads help because Pillow and hashlib work without the interpreter lock.

    Args:
        root: folder that no image may leave.
        files: paths relative to it; each is opened once.
    """

    title, unit, suffix, overlap = "checking images", "images", ".json", 2
    untold = ("_files",)

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._root = root.absolute()
        self._files = list(dict.fromkeys(files))

    def parts(self) -> list[Part]:
        """Files, some at a time."""
        return cut(self._files, _IMAGES)

    def open(self) -> ImageRoot:
        """The folder that no image may leave."""
        return ImageRoot(self._root, self._root)

    def make(self, worker: ImageRoot, part: Part, path: Path) -> None:
        """Writes what is known of the images of a part, and why the others cannot be used."""
        write_stamped_json(path, {"files": [(file, _facts(worker, file)) for file in part.content]})


def check_images(
    root: Path, files: Iterable[str], make: Callable[[ImageChecking], Made]
) -> tuple[dict[str, ImageFacts], dict[str, str]]:
    """What is known of each image, and why each of the others cannot be used; nothing stops at the first problem.

    Args:
        root: folder that no image may leave.
        files: paths relative to it.
        make: makes the parts of the map.

    Returns:
        Facts and reasons by file, in the order of the files.
    """
    facts, problems = {}, {}
    for path in make(ImageChecking(root, files)).paths:
        for file, outcome in read_stamped_json(path, AGAIN)["files"]:
            if isinstance(outcome, list):
                facts[file] = ImageFacts(*outcome)
            else:
                problems[file] = outcome
    return facts, problems


def find_repeats(
    images: Sequence[ImageRecord], facts: Mapping[str, ImageFacts]
) -> list[tuple[ImageRecord, ImageRecord]]:
    """Returns the images whose bytes an earlier image holds too.

    Args:
        images: of all splits.
        facts: of `check_images`, by file.

    Returns:
        The first image of the same bytes with each later one, in the order of the splits: a picture that is in the
        dataset a thousand times gives a thousand pairs, not a million.
    """
    first: dict[str, ImageRecord] = {}
    ordered = sorted(images, key=lambda image: SPLITS.index(image.split))
    pairs = [(first.setdefault(facts[image.file].sha256, image), image) for image in ordered]
    return [(earlier, image) for earlier, image in pairs if earlier is not image]


def decode_size(content: bytes) -> tuple[int, int]:
    """Decodes an image and returns its width and height in pixels after EXIF rotation.

    Raises:
        DataError: no image, or one of more than `itrpipe.datasets.pictures.MAX_PIXELS`.
        Exception: whatever Pillow raises on damaged data, `OSError` for a truncated file.
    """
    with open_picture(content) as image:
        size = upright_size(image)
        # Scaling in the decoder leaves out arithmetic, not data: a truncated file still fails.
        image.draft("L", (max(image.width // 8, 1), max(image.height // 8, 1)))
        image.load()
        return size


def _facts(inside: ImageRoot, file: str) -> ImageFacts | str:
    """Facts of a file, or why it cannot be used."""
    try:
        content = read_image(inside.resolve(file, record="image"))
        return ImageFacts(hashlib.sha256(content).hexdigest(), *decode_size(content))
    except DECODER_ERRORS as error:
        return refusal(error)
