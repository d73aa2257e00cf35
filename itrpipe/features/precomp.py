"""Importer of `*_precomp` folders, the layout in which SCAN and its successors publish region features.

A folder holds, for each of the splits `train`, `dev`, `test` and `testall` it has:

| file                 | content                                                                                      |
|----------------------|----------------------------------------------------------------------------------------------|
| `{split}_ims.npy`    | [n, R, D] floating point; old files repeat every image five times: [5n, R, D]                |
| `{split}_caps.txt`   | one caption a line, UTF-8; lines 5i to 5i + 4 describe image i                               |
| `{split}_ids.txt`    | one image name or number a line (optional; five times each where the images are)             |
| `{split}_global.npy` | [n, G] floating point (optional, in all splits or in none)                                   |

Published features are used with more than one version of a dataset, so rows are never matched by position: an image is
found by its identifier, or else by its five captions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.store import FeatureSpec, largest_magnitudes

SPLIT_FILES = ("train", "dev", "test", "testall")
CAPTIONS_PER_IMAGE = 5

_FLOAT16_MAX = float(np.finfo(np.float16).max)
# How many images of a repeated file are looked at to see that the repetitions are equal.
_REPEAT_SAMPLES = 8


@dataclass(frozen=True)
class PrecompSplit:
    """One split of a precomp folder.

    Attributes:
        name: the split's name in the files, one of `SPLIT_FILES`.
        images: n, the number of different images.
        repeats: 5 if the file repeats every image five times, else 1.
        ids: n names as given in `{name}_ids.txt`, or None where there is no such file.
        captions: for each image its five captions, or None where there is no `{name}_caps.txt`.
        regions: memory map [n * repeats, R, D].
        global_: memory map [n * repeats, G] or [n, G], or None.
    """

    name: str
    images: int
    repeats: int
    ids: list[str] | None
    captions: list[tuple[str, ...]] | None
    regions: np.ndarray
    global_: np.ndarray | None


@dataclass(frozen=True)
class PrecompFolder:
    """A precomp folder as found on disk.

    Attributes:
        path: the folder.
        splits: the splits it has, in the order of `SPLIT_FILES`.
    """

    path: Path
    splits: tuple[PrecompSplit, ...]

    @property
    def spec(self) -> FeatureSpec:
        """The datasets that a feature file of this folder has."""
        first = self.splits[0]
        _, regions, region_dim = first.regions.shape
        return FeatureSpec(regions, region_dim, first.global_.shape[1] if first.global_ is not None else 0)


@dataclass(frozen=True)
class PrecompMatch:
    """Where each image of a dataset lies in a precomp folder.

    Attributes:
        image_ids: n identifiers of the dataset, in the order asked for.
        split: [n] int64, position in `PrecompFolder.splits`.
        row: [n] int64, image of that split (not yet multiplied by its repeats).
        by_captions: how many of the images were found by their captions and not by an identifier.
    """

    image_ids: list[str]
    split: np.ndarray
    row: np.ndarray
    by_captions: int


@dataclass(frozen=True)
class WantedImage:
    """What is known of an image of the dataset when its features are looked for.

    Attributes:
        image_id: identifier in the dataset.
        file: path or name of its file.
        captions: its captions in the dataset's order; the first five are compared.
    """

    image_id: str
    file: str
    captions: Sequence[str]


def read_precomp(path: Path) -> PrecompFolder:
    """Opens a precomp folder; captions and ids are read, features are only mapped.

    Raises:
        MissingInputError: there is no such folder, or no `{split}_ims.npy` in it.
        DataError: a file has a wrong type or shape, the numbers of rows, ids and captions disagree, or the splits
            differ in R, D or G.
    """
    if not path.is_dir():
        raise MissingInputError(f"{path} is not a folder; name the one that holds train_ims.npy.")
    splits = tuple(_read_split(path, name) for name in SPLIT_FILES if (path / f"{name}_ims.npy").is_file())
    if not splits:
        raise MissingInputError(f"{path} holds none of {', '.join(f'{name}_ims.npy' for name in SPLIT_FILES)}.")
    _require_equal_widths(path, splits)
    return PrecompFolder(path, splits)


def match_images(folder: PrecompFolder, images: Sequence[WantedImage]) -> PrecompMatch:
    """Finds the row of every image: by its identifier, file name, stem or COCO number, else by its five captions.

    Captions are compared by their letters and digits alone, because published copies of a dataset differ in case,
    white space and in how they cut off punctuation. An image found by a name whose captions contradict the row's in
    most cases means that the names are another numbering, and is refused.

    Raises:
        DataError: images are not found, are ambiguous by captions, or identifiers and captions contradict each other.
    """
    by_name, by_captions = _index_names(folder), _index_captions(folder)
    places = [_find_by_name(image, by_name) for image in images]
    _require_agreeing_captions(folder, images, places)
    found = [
        place or by_captions.get(_caption_key(image.captions)) for place, image in zip(places, images, strict=True)
    ]
    _require_all_found(folder, images, found)
    place_array = np.array(found, dtype=np.int64).reshape(-1, 2)
    return PrecompMatch(
        [image.image_id for image in images],
        place_array[:, 0],
        place_array[:, 1],
        sum(place is None for place in places),
    )


def iterate_blocks(
    folder: PrecompFolder, match: PrecompMatch, start: int = 0, block: int = 256
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields the features of the matched images in their order, `block` images at a time, in constant memory.

    Args:
        folder: the folder that `match` was made with.
        match: where the images lie.
        start: first image to yield, for going on after an interruption.
        block: images per block.

    Yields:
        First image of the block, and rows for `FeatureWriter.write`: `regions` [b, R, D] float16, `count` [b] int16
        (always R) and, where the folder has them, `global` [b, G] float16.

    Raises:
        DataError: a value is not finite or does not fit float16; names the first such image.
    """
    for first in range(start, len(match.image_ids), block):
        part = slice(first, first + block)
        ids, split, row = match.image_ids[part], match.split[part], match.row[part]
        regions = _gather(folder, "regions", ids, split, row)
        arrays = {"regions": regions, "count": np.full(len(ids), regions.shape[1], dtype=np.int16)}
        if folder.spec.global_dim:
            arrays["global"] = _gather(folder, "global_", ids, split, row)
        yield first, arrays


def _read_split(path: Path, name: str) -> PrecompSplit:
    regions = _map_array(path / f"{name}_ims.npy", dims=3)
    captions = _read_lines(path / f"{name}_caps.txt")
    ids = _read_lines(path / f"{name}_ids.txt")
    if captions is None and ids is None:
        raise DataError(f"{path} has neither {name}_ids.txt nor {name}_caps.txt, so its images cannot be told apart.")
    images, repeats = _count_images(path, name, regions, captions, ids)
    if repeats > 1:
        _require_equal_repeats(path / f"{name}_ims.npy", regions)
    global_path = path / f"{name}_global.npy"
    global_ = _map_array(global_path, dims=2) if global_path.is_file() else None
    if global_ is not None and len(global_) not in (images, images * repeats):
        raise DataError(f"{global_path} has {len(global_)} rows and {name}_ims.npy {images} images; they must agree.")
    groups = None if captions is None else _group(captions)
    return PrecompSplit(name, images, repeats, _thin_ids(path, name, ids, images), groups, regions, global_)


def _map_array(path: Path, dims: int) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not a whole .npy file of numbers ({reason}); fetch it again.") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} is an .npz archive under the name of an .npy file; unpack it first.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise DataError(f"{path} has type {array.dtype}; features must be float16, float32 or float64.")
    if array.ndim != dims or 0 in array.shape:
        expected = "[images, regions, width]" if dims == 3 else "[images, width]"
        raise DataError(f"{path} has shape {array.shape}; {expected} is needed, none of them 0.")
    return array


def _read_lines(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; convert it first.") from error


def _count_images(
    path: Path, name: str, regions: np.ndarray, captions: list[str] | None, ids: list[str] | None
) -> tuple[int, int]:
    """Returns the number of different images and how often each is repeated in the feature file."""
    rows = len(regions)
    if captions is None:
        return rows, 1
    if len(captions) == rows * CAPTIONS_PER_IMAGE:
        return rows, 1
    if len(captions) == rows and rows % CAPTIONS_PER_IMAGE == 0:
        return rows // CAPTIONS_PER_IMAGE, CAPTIONS_PER_IMAGE
    raise DataError(
        f"{path}: {name}_ims.npy has {rows} rows and {name}_caps.txt {len(captions)} captions; there must be five "
        "captions a row, or as many captions as rows where every image is repeated five times."
    )


def _thin_ids(path: Path, name: str, ids: list[str] | None, images: int) -> list[str] | None:
    """Returns one id per image; some published files list every id five times."""
    if ids is None or len(ids) == images:
        return ids
    if len(ids) != images * CAPTIONS_PER_IMAGE:
        raise DataError(f"{path}: {name}_ids.txt has {len(ids)} lines and {name}_ims.npy {images} images.")
    for line, image in enumerate(ids):
        if image != ids[line - line % CAPTIONS_PER_IMAGE]:
            raise DataError(f"{path}: {name}_ids.txt, line {line + 1}: '{image}' breaks the five repetitions of an id.")
    return ids[::CAPTIONS_PER_IMAGE]


def _require_equal_repeats(path: Path, regions: np.ndarray) -> None:
    images = len(regions) // CAPTIONS_PER_IMAGE
    for image in np.unique(np.linspace(0, images - 1, _REPEAT_SAMPLES).astype(np.int64)):
        group = regions[image * CAPTIONS_PER_IMAGE : (image + 1) * CAPTIONS_PER_IMAGE]
        if not np.array_equal(group, np.broadcast_to(group[:1], group.shape), equal_nan=True):
            raise DataError(
                f"{path} has as many rows as captions, but rows {image * CAPTIONS_PER_IMAGE} to "
                f"{image * CAPTIONS_PER_IMAGE + CAPTIONS_PER_IMAGE - 1} are not five times the same image."
            )


def _require_equal_widths(path: Path, splits: Sequence[PrecompSplit]) -> None:
    first = splits[0]
    for split in splits[1:]:
        if split.regions.shape[1:] != first.regions.shape[1:]:
            raise DataError(
                f"{path}: {first.name}_ims.npy has rows of {first.regions.shape[1:]} and {split.name}_ims.npy of "
                f"{split.regions.shape[1:]}; one folder must come from one extractor."
            )
        widths = [None if one.global_ is None else one.global_.shape[1] for one in (first, split)]
        if widths[0] != widths[1]:
            raise DataError(
                f"{path}: width of {first.name}_global.npy is {widths[0]} and of {split.name}_global.npy {widths[1]}; "
                "the file must be in all splits, equally wide, or in none."
            )


def _group(captions: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(captions[i : i + CAPTIONS_PER_IMAGE]) for i in range(0, len(captions), CAPTIONS_PER_IMAGE)]


def _names_of(text: str) -> list[str]:
    """Returns the names under which an id or file is known: itself, its file name, stem and COCO number."""
    name = text.strip().replace("\\", "/").rsplit("/", 1)[-1]
    stem = name.rsplit(".", 1)[0]
    names = [text.strip(), name, stem]
    digits = stem.rsplit("_", 1)[-1]
    if digits.isdecimal() and (stem == digits or stem.startswith("COCO_")):
        names.append(str(int(digits)))
    return list(dict.fromkeys(names))


def _index_names(folder: PrecompFolder) -> dict[str, tuple[int, int]]:
    """Returns (split, row) for every name; the first split wins, since `test` is a part of `testall` in COCO."""
    index: dict[str, tuple[int, int]] = {}
    for position, split in enumerate(folder.splits):
        for row, text in enumerate(split.ids or ()):
            for name in _names_of(text):
                if index.setdefault(name, (position, row))[0] == position and index[name][1] != row:
                    raise DataError(f"{folder.path}: {split.name}_ids.txt names '{name}' twice.")
    return index


def _find_by_name(image: WantedImage, index: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    names = (name for text in (image.image_id, image.file) for name in _names_of(text))
    return next((index[name] for name in names if name in index), None)


def _caption_key(captions: Sequence[str]) -> tuple[str, ...]:
    """Returns the first five captions by their letters and digits; fewer than five give a key nothing has."""
    return tuple("".join(filter(str.isalnum, caption.casefold())) for caption in captions[:CAPTIONS_PER_IMAGE])


def _index_captions(folder: PrecompFolder) -> dict[tuple[str, ...], tuple[int, int]]:
    index: dict[tuple[str, ...], tuple[int, int]] = {}
    for position, split in enumerate(folder.splits):
        for row, captions in enumerate(split.captions or ()):
            index.setdefault(_caption_key(captions), (position, row))
    return index


def _require_agreeing_captions(
    folder: PrecompFolder, images: Sequence[WantedImage], places: Sequence[tuple[int, int] | None]
) -> None:
    """Refuses names that are another numbering: then the captions of nearly every match differ."""
    compared, different = 0, []
    for image, place in zip(images, places, strict=True):
        captions = folder.splits[place[0]].captions if place else None
        if place and captions is not None and len(image.captions) >= CAPTIONS_PER_IMAGE:
            compared += 1
            if _caption_key(captions[place[1]]) != _caption_key(image.captions):
                different.append(image.image_id)
    if len(different) * 2 > compared:
        raise DataError(
            f"{folder.path}: {len(different)} of {compared} images found by name have other captions than in the "
            f"dataset, first '{different[0]}': the ids number another dataset; remove *_ids.txt to match by captions."
        )


def _require_all_found(
    folder: PrecompFolder, images: Sequence[WantedImage], found: Sequence[tuple[int, int] | None]
) -> None:
    missing = [image.image_id for image, place in zip(images, found, strict=True) if place is None]
    if missing:
        total = sum(split.images for split in folder.splits)
        raise DataError(
            f"{folder.path} has {total} images, but none for '{missing[0]}' by name or by its five captions "
            f"({len(missing)} of {len(images)} images of the dataset not found); use the features of this dataset."
        )


def _gather(folder: PrecompFolder, field: str, ids: list[str], split: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Reads one array of a block as float16, split by split and in the order of the file."""
    width: np.ndarray = getattr(folder.splits[0], field)
    block = np.empty((len(ids), *width.shape[1:]), dtype=np.float16)
    for position in np.unique(split):
        source = folder.splits[position]
        array: np.ndarray = getattr(source, field)
        places = np.flatnonzero(split == position)
        places = places[np.argsort(row[places], kind="stable")]
        values = array[row[places] * (len(array) // source.images)]
        _require_finite(folder, source.name, [ids[place] for place in places], values)
        block[places] = values
    return block


def _require_finite(folder: PrecompFolder, split: str, ids: list[str], values: np.ndarray) -> None:
    worst = largest_magnitudes(values)
    wrong = np.flatnonzero(~(worst <= _FLOAT16_MAX))
    if len(wrong):
        raise DataError(
            f"{folder.path}: features of image '{ids[wrong[0]]}' in split '{split}' hold {worst[wrong[0]]}, which "
            f"float16 cannot store ({len(wrong)} images in this block); extract them again."
        )
