"""Finding the images of a dataset among published features.

Published features are used with more than one version of a dataset, so rows are never matched by position: an image is
found by a name, or else by its captions, of which published files have the first five.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.errors import DataError
from itrpipe.features.importers.base import Source

_AMBIGUOUS = -1
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
    by_name, by_captions = _index_names(source), _index_captions(source)
    counts = {len(key) for key in by_captions}
    named = [_find_by_name(image, by_name) for image in images]
    _require_agreeing_captions(source, images, named)
    entries = [
        _find_by_captions(image, by_captions, counts, entry) if entry is None or entry == _AMBIGUOUS else entry
        for entry, image in zip(named, images, strict=True)
    ]
    found = _require_all_found(source, images, entries)
    _require_one_image_each(source, images, found)
    return Match(found, sum(entry is None or entry == _AMBIGUOUS for entry in named))


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


def _index_names(source: Source) -> dict[str, int]:
    """Returns the entry of every name, exact names before derived ones, or `_AMBIGUOUS` where several entries have it.

    Raises:
        DataError: two entries have the same name, and there are no captions to tell them apart.
    """
    index: dict[str, int] = {}
    exact: dict[str, int] = {}
    for entry, text in enumerate(source.names):
        first, *derived = names_of(text)
        if exact.setdefault(first, entry) != entry:
            if source.captions is None:
                raise DataError(
                    f"{source.path} names '{first}' twice, in entries {exact[first]} and {entry}; keep one of them."
                )
            exact[first] = _AMBIGUOUS
        for name in derived:
            if index.setdefault(name, entry) != entry:
                index[name] = _AMBIGUOUS
    return index | exact


def _find_by_name(image: WantedImage, index: dict[str, int]) -> int | None:
    """Returns the entry, None if no name is known, or `_AMBIGUOUS`; identifier and file must not contradict."""
    found = {_first_known(names_of(text), index) for text in (image.image_id, image.file)} - {None}
    sure = found - {_AMBIGUOUS}
    if len(sure) == 1:
        return sure.pop()
    return _AMBIGUOUS if found else None


def _first_known(names: Sequence[str], index: dict[str, int]) -> int | None:
    return next((index[name] for name in names if name in index), None)


def _index_captions(source: Source) -> dict[tuple[str, ...], int]:
    index: dict[tuple[str, ...], int] = {}
    for entry, captions in enumerate(source.captions or ()):
        if captions and index.setdefault(caption_key(captions), entry) != entry:
            index[caption_key(captions)] = _AMBIGUOUS
    return index


def _find_by_captions(
    image: WantedImage, index: dict[tuple[str, ...], int], counts: Collection[int], otherwise: int | None
) -> int | None:
    """Returns the entry that has as its captions the first of the image's."""
    keys = (caption_key(image.captions[:count]) for count in counts if count <= len(image.captions))
    return next((index[key] for key in keys if key in index), otherwise)


def _require_agreeing_captions(source: Source, images: Sequence[WantedImage], entries: Sequence[int | None]) -> None:
    """Refuses names that are another numbering: then the captions of nearly every match differ."""
    compared, different = 0, []
    for image, entry in zip(images, entries, strict=True):
        captions = source.captions[entry] if source.captions and entry is not None and entry != _AMBIGUOUS else ()
        if captions and len(image.captions) >= len(captions):
            compared += 1
            if caption_key(captions) != caption_key(image.captions[: len(captions)]):
                different.append(image.image_id)
    if len(different) * 2 > compared:
        raise DataError(
            f"{source.path}: {len(different)} of {compared} images found by name have other captions than in the "
            f"dataset, first '{different[0]}': the ids number another dataset; remove *_ids.txt to match by captions."
        )


def _require_all_found(source: Source, images: Sequence[WantedImage], entries: Sequence[int | None]) -> np.ndarray:
    """Returns the entries [n] int64, if every image has one."""
    how = "by name" if source.captions is None else "by name or by its captions"
    ambiguous = [image for image, entry in zip(images, entries, strict=True) if entry == _AMBIGUOUS]
    if ambiguous:
        raise DataError(
            f"{source.path} has more than one entry for '{ambiguous[0].image_id}' ({ambiguous[0].file}) {how} "
            f"({len(ambiguous)} of {len(images)} images of the dataset ambiguous); keep one entry for each image."
        )
    missing = [image.image_id for image, entry in zip(images, entries, strict=True) if entry is None]
    if missing:
        raise DataError(
            f"{source.path} has {len(source.names)} images, but none for '{missing[0]}' {how} "
            f"({len(missing)} of {len(images)} images of the dataset not found; names there are like "
            f"'{source.names[0] if source.names else ''}'); use the features of this dataset."
        )
    return np.array(entries, dtype=np.int64)


def _require_one_image_each(source: Source, images: Sequence[WantedImage], entries: np.ndarray) -> None:
    _, first, images_of_entry = np.unique(entries, return_inverse=True, return_index=True)
    repeated = np.flatnonzero(first[images_of_entry] != np.arange(len(entries)))
    if len(repeated):
        again = int(repeated[0])
        one, other = images[int(first[images_of_entry[again]])], images[again]
        raise DataError(
            f"{source.path} has one entry, '{source.names[int(entries[again])]}', for both '{one.image_id}' and "
            f"'{other.image_id}' of the dataset ({len(repeated)} such images); use the features of this dataset."
        )
