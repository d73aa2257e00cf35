"""What an importer is, and the checks that all importers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from itrpipe.errors import DataError

if TYPE_CHECKING:
    from itrpipe.features.store import FeatureSpec

# Boxes may leave the image by this fraction before they are refused: tools round, and some clip one pixel too late.
BOX_SLACK = 0.01
# Width / height of a picture may differ by this fraction between two copies of it, which are scaled to whole pixels.
ASPECT_SLACK = 0.02


class Layout(NamedTuple):
    """What of a format lies at a path.

    Attributes:
        found: names or number of its files, for messages.
        lacks: what it would need to be read, for messages; empty where it is complete.
    """

    found: str
    lacks: str = ""


class Source(Protocol):
    """Published features, opened: E entries, one per image.

    A module of this folder imports nothing heavy at its top and has

        layout(path: Path) -> Layout | None                 what of this format lies at the path
        files(path: Path) -> list[Path]                     every file that is read, for its digest
        open_source(path: Path, settings) -> Source

    Attributes:
        path: file or folder.
        spec: which datasets it fills; R is the largest number of regions of an entry.
        names: [E] image names, ids or file names.
        captions: for each entry the captions stored with it, or None where the format has none.
        summary: what was found, one line for the user.
    """

    path: Path
    spec: FeatureSpec
    names: Sequence[str]
    captions: Sequence[Sequence[str]] | None
    summary: str

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Reads some entries in memory that does not grow with E.

        Args:
            entries: [n] int64, rising. The next call's entries are larger as a rule, and smaller where a part is made
                again.
            sizes: [n, 2] int64 height and width of the images in pixels.

        Returns:
            Every dataset of `spec` as an array of any numeric type, [n, ...] each; rows beyond `count` are zero.
            `itrpipe.features.store.stored_rows` checks the values of all importers: shapes and types, that they are
            finite and fit the type of the file, that boxes lie in 0..1 and that there is a region.

        Raises:
            DataError: an entry is damaged; names the image.
        """
        ...


def require_floats(where: str | Path, names: Sequence[str], what: str, values: np.ndarray, dtype: str) -> None:
    """Refuses values that a floating-point type cannot hold.

    Args:
        where: file or folder, for the message.
        names: n image names, for the message.
        what: what the values are, for the message.
        values: [n, ...] floating point.
        dtype: type they are to be stored in.

    Raises:
        DataError: a value is NaN, infinite or too large; names the first such image.
    """
    with np.errstate(invalid="ignore"):  # signalling NaN in damaged files
        worst = np.abs(values).reshape(len(values), -1).max(axis=1, initial=0).astype(np.float64)
    wrong = np.flatnonzero(~(worst <= float(np.finfo(dtype).max)))  # NaN compares as false
    if len(wrong):
        raise DataError(
            f"{where}: {what} of image '{names[wrong[0]]}' hold {worst[wrong[0]]}, which {np.dtype(dtype).name} "
            f"cannot store ({len(wrong)} images in this block); extract them again."
        )


def require_integers(
    where: str | Path, names: Sequence[str], what: str, values: np.ndarray, smallest: int, largest: int
) -> None:
    """Refuses integers [n, ...] outside `smallest`..`largest`; the other arguments are those of `require_floats`.

    Raises:
        DataError: names the first image with such a value.
    """
    flat = values.reshape(len(values), -1)
    wrong = np.argwhere((flat < smallest) | (flat > largest))
    if len(wrong):
        image, position = wrong[0]
        raise DataError(
            f"{where}: {what} of image '{names[image]}' hold {flat[image, position]}; "
            f"{smallest} to {largest} can be stored; extract them again."
        )


def fractions_of(where: str | Path, names: Sequence[str], boxes: np.ndarray) -> np.ndarray:
    """Returns boxes clipped to the image, after a look at whether they are boxes.

    Args:
        where: file or folder, for the message.
        names: n image names, for the message.
        boxes: [n, R, 4] x0, y0, x1, y1 as fractions of width and height.

    Returns:
        [n, R, 4] float32 in 0..1.

    Raises:
        DataError: a box leaves the image by more than `BOX_SLACK`, or ends before it starts; names the first image.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity compare as wrong
        boxes = boxes.astype(np.float32)
        inside = (boxes >= -BOX_SLACK) & (boxes <= 1 + BOX_SLACK)
        forward = boxes[..., 2:] >= boxes[..., :2] - BOX_SLACK
    wrong = np.argwhere(~(inside.all(axis=-1) & forward.all(axis=-1)))
    if len(wrong):
        image, region = wrong[0]
        box = ", ".join(f"{value:.4g}" for value in boxes[image, region])
        raise DataError(
            f"{where}: region {region} of image '{names[image]}' has the box ({box}); x0, y0, x1, y1 as fractions of "
            "the image are needed, so unit or order of the columns is another one."
        )
    return np.clip(boxes, 0, 1)


def require_same_aspect(where: str | Path, names: Sequence[str], stored: np.ndarray, sizes: np.ndarray) -> None:
    """Refuses features of pictures whose shape is not that of the dataset's images.

    Args:
        where: file or folder, for the message.
        names: n image names, for the message.
        stored: [n, 2] height and width of the pictures that the features were made from.
        sizes: [n, 2] height and width of the dataset's images.

    Raises:
        DataError: width / height differs by more than `ASPECT_SLACK`; names the first image.
    """
    ratio = (stored[:, 1] * sizes[:, 0]) / (stored[:, 0] * sizes[:, 1])
    wrong = np.flatnonzero(~(np.maximum(ratio, 1 / ratio) <= 1 + ASPECT_SLACK))
    if len(wrong):
        (height, width), (here_height, here_width) = stored[wrong[0]], sizes[wrong[0]]
        raise DataError(
            f"{where}: image '{names[wrong[0]]}' is {width} x {height} pixels there and {here_width} x {here_height} "
            f"in the dataset, so it is another picture ({len(wrong)} images in this block); use the features of this "
            "dataset."
        )


def stack_padded(entries: Sequence[Mapping[str, np.ndarray]], spec: FeatureSpec) -> dict[str, np.ndarray]:
    """Stacks entries of different numbers of regions, with zeros after the last.

    Args:
        entries: n entries, each with arrays [r, ...] for the region datasets of `spec` but `count`, r at most R.
        spec: which datasets.

    Returns:
        Arrays [n, R, ...] in the types of the store, and `count` [n] int16.
    """
    from itrpipe.features.store import TYPES

    shapes = {name: shape for name, shape in spec.shapes().items() if name != "count"}
    rows = {name: np.zeros((len(entries), *shape), dtype=TYPES[name]) for name, shape in shapes.items()}
    for position, entry in enumerate(entries):
        for name, values in entry.items():
            rows[name][position, : len(values)] = values
    rows["count"] = np.array([len(entry["regions"]) for entry in entries], dtype=TYPES["count"])
    return rows
