"""Finding the images of a dataset among published features.

Published features are used with more than one version of a dataset, so rows are never matched by position: an image is
found by a name, or else by its captions, of which published files have the first five.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.features.importers.base import Source

_AMBIGUOUS, _UNKNOWN = -1, -2
_SUFFIX = re.compile(r"\.(?:npz|npy|jpe?g|png|gif|bmp|webp|tiff?)$", re.IGNORECASE)
# COCO and UNITER number files with twelve digits after a prefix; elsewhere "_5" may count anything.
_NUMBER = re.compile(r"(?:(?:coco|flickr30k)_(?:.*_)?|.*_(?=[0-9]{12}$))?([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class WantedImage:
    """What is known of an image of the dataset when its features are looked for.

    Attributes:
        image_id: identifier in the dataset.
        file: path or name of its file.
        captions: its captions in the dataset's order; as many are compared as the features have.
    """

    image_id: str
    file: str
    captions: Sequence[str]


@dataclass(frozen=True)
class Match:
    """Where the images of a dataset lie in a source.

    Attributes:
        entries: [n] int64 entries, each once, in the order of the images asked for.
        by_captions: how many of the images were found by their captions and not by a name.
    """

    entries: np.ndarray
    by_captions: int


def match(source: Source, images: Sequence[WantedImage]) -> Match:
    """Finds the entry of every image: by its identifier, file name, stem or number, else by its captions.

    Captions are compared by their letters and digits alone, because published copies of a dataset differ in case,
    white space and in how they cut off punctuation. An image found by a name whose captions contradict the entry's in
    most cases means that the names are another numbering, and is refused.

    Args:
        source: the features.
        images: n images.

    Returns:
        The entry of every image.

    Raises:
        DataError: images are not found, are ambiguous, or are found twice, or names and captions contradict each
            other.
    """
    names = [names_of(text) for text in source.names]
    exact = _index((known[0], entry) for entry, known in enumerate(names))
    if source.captions is None and (twice := [name for name, entry in exact.items() if entry == _AMBIGUOUS]):
        raise DataError(f"{source.path} names '{twice[0]}' twice; keep one of them.")
    by_name = _index((name, entry) for entry, known in enumerate(names) for name in known[1:]) | exact
    by_captions = _index((caption_key(captions), entry) for entry, captions in enumerate(source.captions or ()))
    counts = {len(key) for key in by_captions}
    entries, found_by_captions, compared, different = [], 0, 0, []
    for image in images:
        entry = _by_name(image, by_name)
        if entry >= 0 and source.captions and (there := source.captions[entry]) and len(image.captions) >= len(there):
            compared += 1
            if caption_key(there) != caption_key(image.captions[: len(there)]):
                different.append(image.image_id)
        if entry < 0:
            found_by_captions += 1
            keys = (caption_key(image.captions[:count]) for count in counts if count <= len(image.captions))
            entry = next((by_captions[key] for key in keys if key in by_captions), entry)
        entries.append(entry)
    if len(different) * 2 > compared:
        raise DataError(
            f"{source.path}: {len(different)} of {compared} images found by name have other captions than in the "
            f"dataset, first '{different[0]}': the ids number another dataset; remove *_ids.txt to match by captions."
        )
    times = Counter(entries)
    for reason, is_wrong in (
        ("more than one entry", lambda entry: entry == _AMBIGUOUS),
        ("no entry", lambda entry: entry == _UNKNOWN),
        ("an entry that is another image's as well", lambda entry: times[entry] > 1),
    ):
        if wrong := [image for image, entry in zip(images, entries, strict=True) if is_wrong(entry)]:
            raise DataError(
                f"{source.path} has {reason} for '{wrong[0].image_id}' ({wrong[0].file}), {len(wrong)} of the "
                f"{len(images)} images of the dataset; its {len(source.names)} names are like "
                f"'{next(iter(source.names), '')}'; use the features of this dataset, one entry for each image."
            )
    return Match(np.array(entries, dtype=np.int64), found_by_captions)


def names_of(text: str) -> list[str]:
    """Returns the names under which an id or file is known, the most exact first.

    They are the text itself, the file name in it, that without the suffixes of images and arrays, and its number: 9 in
    `COCO_train2014_000000000009.jpg`, `coco_train2014_000000000009.npz`, `000000000009` and `9`.
    """
    text = text.strip()
    name = text.replace("\\", "/").rsplit("/", 1)[-1]
    names = [text, name]
    while (shorter := _SUFFIX.sub("", name)) not in (name, ""):
        name = shorter
        names.append(name)
    number = _NUMBER.fullmatch(name)
    if number:
        names.append(number[1].lstrip("0") or "0")
    return list(dict.fromkeys(names))


def caption_key(captions: Sequence[str]) -> tuple[str, ...]:
    """Returns captions by their letters and digits."""
    return tuple("".join(filter(str.isalnum, caption.casefold())) for caption in captions)


def _index(pairs: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    """The entry of every key that is not empty, `_AMBIGUOUS` where several entries have it."""
    index: dict[Any, int] = {}
    for key, entry in pairs:
        if key and index.setdefault(key, entry) != entry:
            index[key] = _AMBIGUOUS
    return index


def _by_name(image: WantedImage, index: Mapping[str, int]) -> int:
    """The entry, `_UNKNOWN` if no name is known, or `_AMBIGUOUS`; identifier and file must not contradict."""
    texts = (image.image_id, image.file)
    found = {next((index[name] for name in names_of(text) if name in index), _UNKNOWN) for text in texts}
    sure = [entry for entry in found if entry >= 0]
    if len(sure) == 1:
        return sure[0]
    return _UNKNOWN if found == {_UNKNOWN} else _AMBIGUOUS
