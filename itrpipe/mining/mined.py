"""The lists of a mining run before any filter, in one file of arrays that is read a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from itrpipe.mining.lists import CandidateLists, MinedLists
from itrpipe.storage.parts import ArrayFile, ArrayWriter

DIRECTIONS = ("texts_for_images", "images_for_texts")
POSITIVES = "positives"
_LARGEST_INT32 = 2**31 - 1


def row_type(candidates: int) -> str:
    """Type of the rows of so many candidates: 32 bits where they suffice."""
    return "<i4" if candidates <= _LARGEST_INT32 else "<i8"


def layout(shapes: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Arrays of a file of lists.

    Args:
        shapes: direction -> anchors, length of a list, and candidates in all.
    """
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for name, (anchors, width, candidates) in shapes.items():
        arrays[f"{name}/rows"] = (row_type(candidates), (anchors, width))
        arrays[f"{name}/scores"] = ("<f4", (anchors, width))
    return arrays


def write_slice(writer: ArrayWriter, direction: str, start: int, lists: CandidateLists) -> None:
    """Writes the lists of consecutive anchors."""
    writer.write(f"{direction}/rows", start, lists.candidates)
    writer.write(f"{direction}/scores", start, lists.scores)


class MinedFile:
    """Reads lists.

    Args:
        path: of the file.

    Attributes:
        shapes: direction -> anchors and length of a list.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ArrayFile(path)
        self.shapes = {name: self._file[f"{name}/scores"].shape for name in DIRECTIONS}

    def read(self, direction: str, start: int = 0, stop: int | None = None) -> CandidateLists:
        """Lists of consecutive anchors, by default of all."""
        rows = self._file[f"{direction}/rows"].read(start, stop)
        return CandidateLists(rows, self._file[f"{direction}/scores"].read(start, stop))

    def slices(self, direction: str, places: int = 1 << 20) -> Iterator[tuple[slice, CandidateLists]]:
        """All lists of a direction, some anchors at a time.

        Args:
            direction: which.
            places: of lists at a time, about.
        """
        anchors, width = self.shapes[direction]
        height = max(1, places // width)
        for start in range(0, anchors, height):
            part = slice(start, min(start + height, anchors))
            yield part, self.read(direction, part.start, part.stop)

    def lists(self) -> MinedLists:
        """All of them in memory."""
        texts, images = (self.read(name) for name in DIRECTIONS)
        return MinedLists(texts.candidates, texts.scores, images.candidates, images.scores)
