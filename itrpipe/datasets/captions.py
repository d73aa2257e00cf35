"""A dataset as it was read: its images, captions and splits, and whether they fit together."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from itrpipe.errors import DataError
from itrpipe.printable import printable

SPLITS = ("train", "val", "test")
_EXAMPLES = 3
_LONGEST_ID = 4_096
"""Characters of an id, which may be the path of a file."""
_ID = re.compile(r"[^\0-\x1f\x7f-\x9f]*[^\s\0-\x1f\x7f-\x9f][^\0-\x1f\x7f-\x9f]*")
UNUSABLE_ID = f"are empty, hold control characters or more than {_LONGEST_ID:,} characters"
_BLANK = frozenset(" \u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Printable characters that leave no mark on paper: space, fillers, joiners, and the selectors of variants."""


class ImageRecord(NamedTuple):
    """One image of a dataset. Fingerprints are made of its `repr`.

    Attributes:
        image_id: the identifier by which features, captions and rankings refer to the image.
        file: path of the image relative to `Annotations.root`, with forward slashes.
        split: one of `SPLITS`; empty where the source names none, until `draw_splits`.
    """

    image_id: str
    file: str
    split: str


class CaptionRecord(NamedTuple):
    """One caption. Fingerprints are made of its `repr`.

    Attributes:
        caption_id: unique within the dataset.
        image_id: the image it describes.
        text: the sentence as published, UTF-8, unchanged.
    """

    caption_id: str
    image_id: str
    text: str


@dataclass(frozen=True)
class Annotations:
    """A dataset as read from its source, before any image was opened.

    Attributes:
        images: in the order of the source.
        captions: in the order of the source.
        root: folder that every `ImageRecord.file` is relative to and may not leave.
        notes: a line for each decision that the files did not settle and that the user has to see, such as a split by
            hash, in the order in which they were taken.
        published: whether results on it are published, so that all its images stay; of others, images of equal pixels
            in one split become one.
        groups: group of an image without a split, by its id; the images of a group get one split.
    """

    images: list[ImageRecord]
    captions: list[CaptionRecord]
    root: Path
    notes: tuple[str, ...] = ()
    published: bool = False
    groups: Mapping[str, str] = field(default_factory=dict)


def checked_annotations(annotations: Annotations, source: Path) -> Annotations:
    """Refuse annotations that cannot be used, and return the others without images that have no caption.

    Args:
        annotations: as read.
        source: file or folder they were read from, for messages.

    Returns:
        The same records in the same order; if images were dropped, with a note that counts them.

    Raises:
        DataError: no captions at all, ids or files that are given twice, ids that are empty, too long or hold control
            characters, unknown split names, captions that show nothing or hold a NUL, or are of an image that is not
            there. One line lists all of these with counts and first examples.
    """
    problems = []
    if not annotations.captions:
        problems.append("holds no captions")
    for description, examples in _mistakes(annotations.images, annotations.captions).items():
        if examples:
            problems.append(_count(examples, description))
    if problems:
        raise DataError(f"{source}: {'; '.join(problems)}; correct the source")

    captioned_ids = {caption.image_id for caption in annotations.captions}
    captioned = []
    bare_ids = []
    for image in annotations.images:
        if image.image_id in captioned_ids:
            captioned.append(image)
        else:
            bare_ids.append(image.image_id)
    if not bare_ids:
        return annotations
    note = f"{source}: {_count(bare_ids, 'images without captions')} dropped"
    return replace(annotations, images=captioned, notes=(*annotations.notes, note))


def _mistakes(images: Sequence[ImageRecord], captions: Sequence[CaptionRecord]) -> dict[str, list[str]]:
    """Return descriptions of mistakes, and examples of each; none of a mistake that was not made."""
    image_ids = []
    files = []
    splits = Counter()
    for image in images:
        image_ids.append(image.image_id)
        files.append(image.file)
        splits[image.split] += 1
    unknown_splits = []
    for name, count in splits.items():
        if name not in ("", *SPLITS):
            unknown_splits.append(f"{name!r} of {count:,} images")

    known_ids = set(image_ids)
    caption_ids = []
    strays = []
    blank = []
    for caption in captions:
        caption_ids.append(caption.caption_id)
        name = f"{caption.caption_id} of {caption.image_id}"
        if caption.image_id not in known_ids:
            strays.append(name)
        if not is_readable(caption.text):
            blank.append(name)
    return {
        "files that are several images": repeated(files),
        f"split names other than {', '.join(SPLITS)}": unknown_splits,
        "captions of images that are not there": strays,
        "captions that show nothing or hold a NUL": blank,
        "duplicate image ids": repeated(image_ids),
        f"image ids that {UNUSABLE_ID}": _unusable_ids(image_ids),
        "duplicate caption ids": repeated(caption_ids),
        f"caption ids that {UNUSABLE_ID}": _unusable_ids(caption_ids),
    }


def is_id(text: str) -> bool:
    """Return whether a text can be the id of an image or a caption; else it is `UNUSABLE_ID`."""
    return len(text) <= _LONGEST_ID and _ID.fullmatch(text) is not None


def is_readable(text: str) -> bool:
    """Return whether a text has a character that one can see, and no NUL."""
    return "\0" not in text and any(character.isprintable() and character not in _BLANK for character in text)


def hash_split(keys: Iterable[str], val: float, test: float, seed: int) -> dict[str, str]:
    """Assign every key to a split by its hash.

    A key keeps its split when others are added or removed, which a shuffle would not give. The
    shares are met in expectation only, but no split that has a share stays empty while another has two keys: it gets
    the one whose hash is nearest.

    Args:
        keys: keys of images or groups, which may repeat.
        val: share of the split val, 0..1.
        test: share of the split test, 0..1; val and test together are less than 1.
        seed: another seed is another split.

    Returns:
        Split name by key.
    """
    train = 1 - val - test
    splits = {}
    positions = {}
    for key in keys:
        digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
        position = int.from_bytes(digest[:8], "big") / 2**64
        positions[key] = position
        if position < train:
            splits[key] = "train"
        elif position < 1 - test:  # so that test = 0 leaves nothing to rounding in train + val
            splits[key] = "val"
        else:
            splits[key] = "test"
    shares = {"train": train, "val": val, "test": test}
    middles = {"train": train / 2, "val": train + val / 2, "test": 1}
    for name, middle in middles.items():
        counts = Counter(splits.values())
        movable = [key for key in positions if counts[splits[key]] > 1]
        if shares[name] and movable and name not in counts:
            splits[min(movable, key=lambda key: abs(positions[key] - middle))] = name
    return splits


def _count(values: Sequence[str], description: str) -> str:
    """Return a count with its first examples: `12 empty captions (3, 8, 9, ...)`."""
    examples = list(map(printable, values[:_EXAMPLES]))
    if len(values) > _EXAMPLES:
        examples.append("...")
    return f"{len(values):,} {description} ({', '.join(examples)})"


def _unusable_ids(ids: Sequence[str]) -> list[str]:
    return [repr(text[:20]) for text in ids if not is_id(text)]


def repeated(values: Iterable[str]) -> list[str]:
    """Return the values that come more than once, in the order in which they first come."""
    return [value for value, count in Counter(values).items() if count > 1]
