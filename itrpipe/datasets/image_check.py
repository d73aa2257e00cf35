"""Checks that image files are there and decode, and finds those of equal pixels.

`check_images` collects facts about every file; the other functions draw splits and merge equal pictures by these facts.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from itrpipe.datasets.captions import Annotations, ImageRecord, hash_split
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import (
    DECODER_ERRORS,
    SIDEWAYS,
    open_picture,
    orientation,
    picture_rgb,
    read_image,
    read_rgb,
    refusal,
)
from itrpipe.engine.work import AGAIN, Made, Part, Work, cut
from itrpipe.storage.disk import read_stamped_json, write_stamped_json

_IMAGES = 256
_SAMPLE = 32, 32
Repeat = tuple[ImageRecord, ImageRecord]


class ImageFacts(NamedTuple):
    """Facts about one image file that decodes.

    Attributes:
        sha256: hash of the file's bytes, 64 hexadecimal digits.
        width: pixels, after the rotation that the EXIF orientation asks for.
        height: pixels, after that rotation.
        sample: hash of some of its pixels, of a JPEG scaled and in grey.
    """

    sha256: str
    width: int
    height: int
    sample: str = ""


class ImageChecking(Work[ImageRoot]):
    """Opens every image of a dataset and decodes it: a map over files of images.

    Decoding reads the whole of a file's compressed data; JPEG skips the parts of the transform that only
    full-size pixels need. Threads help because Pillow and hashlib work without the interpreter lock.

    Args:
        root: folder that no image may leave.
        files: paths relative to it; each is opened once.
    """

    title = "checking images"
    unit = "images"
    suffix = ".json"
    overlap = 2
    untold = ("_files",)

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._root = root.absolute()
        self._files = list(dict.fromkeys(files))

    def parts(self) -> list[Part]:
        """Cut the files into parts."""
        return cut(self._files, _IMAGES)

    def open(self) -> ImageRoot:
        """Open the folder that no image may leave."""
        return ImageRoot(self._root, self._root)

    def make(self, worker: ImageRoot, part: Part, path: Path) -> None:
        """Write the facts about the images of a part, and why the others cannot be used."""
        files = []
        for file in part.content:
            try:
                outcome = inspect_picture(read_image(worker.resolve(file, record="image")))
            except DECODER_ERRORS as error:
                outcome = refusal(error)
            files.append((file, outcome))
        write_stamped_json(path, {"files": files})


def check_images(
    root: Path, files: Iterable[str], make: Callable[[ImageChecking], Made]
) -> tuple[dict[str, ImageFacts], dict[str, str]]:
    """Collect the facts about each image, and why the others cannot be used; nothing stops at the first problem.

    Args:
        root: folder that no image may leave.
        files: paths relative to it.
        make: makes the parts of the map.

    Returns:
        Facts and reasons by file, in the order of the files.
    """
    facts = {}
    problems = {}
    for path in make(ImageChecking(root, files)).paths:
        for file, outcome in read_stamped_json(path, AGAIN)["files"]:
            if isinstance(outcome, list):
                facts[file] = ImageFacts(*outcome)
            else:
                problems[file] = outcome
    return facts, problems


def draw_splits(
    annotations: Annotations, facts: Mapping[str, ImageFacts], val: float, test: float, seed: int
) -> Annotations:
    """Put each image whose source names no split into one, by a hash of its pixels, or of the name of its group.

    The same photographs get the same splits whatever their names, their order and the files that they lie in, and equal
    photographs are in one split. Hashed is `ImageFacts.sample`: of a JPEG its pixels in grey at an eighth of its size,
    on which all decoders agree, while they differ by a level in others.

    Args:
        annotations: as read, without images that cannot be used.
        facts: of `check_images`, by file.
        val: share of the split val, 0..1.
        test: share of the split test, 0..1.
        seed: another seed is another split.
    """
    keys = {}
    for image in annotations.images:
        if not image.split:
            keys[image.image_id] = annotations.groups.get(image.image_id) or facts[image.file].sample
    if not keys:
        return annotations
    splits = hash_split(keys.values(), val, test, seed)
    images = []
    for image in annotations.images:
        if not image.split:
            image = image._replace(split=splits[keys[image.image_id]])
        images.append(image)
    return replace(annotations, images=images)


def picture_keys(root: Path, facts: Mapping[str, ImageFacts]) -> dict[str, str]:
    """Return a key for every file, equal for files of equal pixels.

    Files are decoded whole only where they have equal samples and other bytes, such as other metadata.

    Args:
        root: folder of the files.
        facts: of `check_images`, by file.

    Raises:
        DataError: a file was changed since it was checked.
    """
    contents = {(file_facts.sha256, file_facts.sample) for file_facts in facts.values()}
    contents_of = Counter(sample for _, sample in contents)
    keys = {}
    for file, file_facts in facts.items():
        if contents_of[file_facts.sample] > 1:
            keys[file] = _hash(read_rgb(root / file))
        else:
            keys[file] = file_facts.sample
    return keys


def merge_equal_pictures(
    annotations: Annotations, keys: Mapping[str, str]
) -> tuple[Annotations, list[Repeat], list[Repeat]]:
    """Make one image of photographs with equal pixels in one split, unless the dataset is a published one.

    A picture that is there a thousand times gives a thousand pairs, not a million.

    Args:
        annotations: without images that cannot be used.
        keys: of `picture_keys`.

    Returns:
        The annotations, in which an image has the captions of all its photographs; pairs of an image and a photograph
        that was merged into it; and pairs of an image and an equal one that stays beside it.
    """
    first = {}
    first_of_split = {}
    owners = {}
    joined = []
    apart = []
    for image in annotations.images:
        key = keys[image.file]
        earlier = first.setdefault(key, image)
        owner = image
        if not annotations.published:
            owner = first_of_split.setdefault((key, image.split), image)
        owners[image.image_id] = owner
        if owner is not image:
            joined.append((owner, image))
        elif earlier is not image:
            apart.append((earlier, image))
    if not joined:
        return annotations, joined, apart
    images = [image for image in annotations.images if owners[image.image_id] is image]
    captions = []
    for caption in annotations.captions:
        owner = owners[caption.image_id]
        captions.append(caption._replace(image_id=owner.image_id))
    return replace(annotations, images=images, captions=captions), joined, apart


def inspect_picture(content: bytes) -> ImageFacts:
    """Decode an image, and of a JPEG no more than an eighth of its size in grey, which takes half the time.

    Raises:
        DataError: no image, or one that `itrpipe.datasets.pictures.decode_rgb` refuses.
        Exception: whatever Pillow raises on damaged data, `OSError` for a truncated file.
    """
    with open_picture(content) as image:
        width, height = image.size
        if image.format != "TIFF" and orientation(image) >= SIDEWAYS:  # a TIFF is upright at once
            width, height = height, width
        # Scaling in the decoder leaves out arithmetic, not data: a truncated file still fails.
        image.draft("L", (1, 1))
        sample = _hash(picture_rgb(image, _SAMPLE))
    return ImageFacts(hashlib.sha256(content).hexdigest(), width, height, sample)


def _hash(pixels: np.ndarray) -> str:
    """Return a hash of pixels [H, W, 3] and their shape."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
