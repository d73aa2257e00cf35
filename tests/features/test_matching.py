"""Images of a dataset are found among published features by their names or captions, or the source is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.features.importers.base import WantedImage, match

WRITTEN: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))


def sentences(number: int) -> list[str]:
    return [f"Sentence {letter} of image {number}." for letter in "abcde"]


def image(image_id: str, file: str = "unknown.png", number: int | None = None) -> WantedImage:
    return WantedImage(image_id, file, [] if number is None else sentences(number))


def found(names: Sequence[str], *images: WantedImage, captions: Any = None) -> tuple[np.ndarray, int]:
    source: Any = SimpleNamespace(path=Path("features"), names=names, captions=captions)
    return match(source, images)


@pytest.mark.parametrize(("name", "file"), WRITTEN["names"])
def test_all_ways_to_write_a_name(name: str, file: str) -> None:
    for wanted in (image(file), image("x", file)):
        entries, by_captions = found(["10", name, "COCO_train2014_000000000090"], wanted)
        assert (entries.tolist(), by_captions, entries.dtype) == ([1], 0, np.int64)


UNLIKE = [text.upper().replace(" ", "\t ").rstrip(".") for text in sentences(1)]
TWICE, SIX = [sentences(0), sentences(0)], [sentences(number) for number in range(6)]
CASES: list[tuple[Any, Any, list[WantedImage], Any]] = [
    (["train_5.jpg"], None, [image("5")], "no entry for '5'"),  # may count anything
    (["img.1"], None, [image("img.2")], "no entry"),  # not a suffix
    (["9"], None, [image("90", "COCO_train2014_000000000090.jpg")], "no entry"),
    (["", ""], None, [image("", "")], "no entry"),
    ([], None, [image("1")], "its 0 names"),
    (["coco_1.npz", "2"], None, [image("1"), image("3"), image("4")], "'3' .* 2 of the 3 .* 2 names .* 'coco_1"),
    (["1.jpg", "2.jpg", "1.jpg"], None, [image("1")], "more than one entry"),
    (["1", "2", "1"], SIX[:3], [image("1", number=7)], "more than one entry for '1'"),
    (["train/1.jpg", "val/1.jpg"], None, [image("x", "test/1.jpg")], r"more than one entry for 'x' \(test/1\.jpg\)"),
    # A dataset that numbers its own images must not get those with the same COCO number.
    (["9", "25"], None, [image("9", "COCO_train2014_000000000025.jpg")], "more than one entry for '9'"),
    (["a", "b"], TWICE, [image("x", number=0)], "more than one entry for 'x'"),
    (["a"], SIX[:1], [WantedImage("x", "y", sentences(0)[:4])], "no entry for 'x'"),
    (list("0123"), SIX[:4], [image(str(n), number=(n + 1) % 4) for n in range(4)], "4 of 4 .* captions .* '0'"),
    (["0", "1", "2"], SIX[:3], [image("0", number=0), image("1", number=2), image("2", number=1)], "2 of 3 .* '1'"),
    (["8", "9"], None, [image("9"), image("8"), image("00009")], "another image's as well for '9' .* 2 of the 3"),
    # Names come before captions.
    (["1", "2", "1"], SIX[:3], [image("1", number=2), image("2", number=1)], ([2, 1], 1)),  # settled by captions
    (["train/1.jpg", "val/1.jpg"], None, [image("x", "val/1.jpg")], ([1], 0)),
    (["9", "coco_000000000009.jpg"], None, [image("9")], ([0], 0)),  # exact names win over derived ones
    (["a", "b"], SIX[:2], [WantedImage("x", "y", [*UNLIKE, "a sixth one"])], ([1], 1)),
    (["a", "b", "c"], [(), sentences(1)[:3], ()], [image("x", number=1), image("a", number=2)], ([1, 0], 1)),
    # A few edited captions do no harm.
    (["0", "1"], SIX[:2], [image("0", number=0), image("1", number=3)], ([0, 1], 0)),
    (["0", "1"], SIX[:2], [image("0"), image("1", number=1)], ([0, 1], 0)),
]


@pytest.mark.parametrize(("names", "captions", "images", "expected"), CASES)
def test_images_are_surely_there_or_refused(names: Any, captions: Any, images: Any, expected: Any) -> None:
    """Expected are the entries and how many were found by captions, or a message."""
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            found(names, *images, captions=captions)
    else:
        rows, by_captions = found(names, *images, captions=captions)
        assert (rows.tolist(), by_captions) == expected
