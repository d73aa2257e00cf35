"""Every image is opened once; what is wrong with any of them is told together."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itrpipe.datasets import image_check, pictures
from itrpipe.datasets.captions import ImageRecord
from itrpipe.datasets.image_check import ImageFacts, check_images, decode_size, find_repeats
from tests.maps import made


def encoded(width: int = 60, height: int = 40, kind: str = "JPEG", seed: int = 0, **options: object) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


Checked = tuple[dict[str, ImageFacts], dict[str, str]]


def check(root: Path, *files: str, workers: int = 1, **contents: bytes) -> Checked:
    """Writes files, and checks them and others."""
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return check_images(root, [*contents, *files], lambda work: made(work, root / ".parts", workers))


def test_facts_are_those_of_the_file(tmp_path: Path) -> None:
    content, turned = encoded(), Image.Exif()
    turned[0x0112] = 6
    other = encoded(exif=turned)
    digests = [hashlib.sha256(each).hexdigest() for each in (content, other)]
    facts = {"a.jpg": ImageFacts(digests[0], 60, 40), "b.jpg": ImageFacts(digests[1], 40, 60)}
    assert check(tmp_path, **{"a.jpg": content, "b.jpg": other}) == (facts, {})


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_of_every_colour_and_scan_is_decoded_to_its_end(mode: str, progressive: bool) -> None:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(stream, "JPEG", progressive=progressive)
    content = stream.getvalue()
    assert decode_size(content) == (70, 50)
    for kept in (0.2, 0.5, 0.9):
        with pytest.raises(OSError, match=r"(?i)truncated|broken"):
            decode_size(content[: int(len(content) * kept)])


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9])
def test_other_truncated_images_are_refused(tmp_path: Path, kind: str, kept: float) -> None:
    content = encoded(kind=kind)
    facts, problems = check(tmp_path, a=content[: int(len(content) * kept)])
    assert (facts, [*problems]) == ({}, ["a"])


def test_all_problems_are_collected_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    contents = {
        "good.jpg": encoded(),
        "cut.jpg": encoded()[:-400],
        "empty.jpg": b"",
        "text.jpg": b"<html>not found</html>",
        "drawing.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        "large.png": encoded(300, 300, "PNG"),
        "bomb.png": bomb.getvalue(),
        "last.png": encoded(kind="PNG"),
    }
    (tmp_path / "outside.jpg").write_bytes(encoded())
    (root / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    (root / "folder.jpg").mkdir()
    os.mkfifo(root / "pipe.jpg")
    monkeypatch.setattr(pictures, "MAX_PIXELS", 300 * 300 - 1)
    others = ("gone.jpg", "link.jpg", "loop.jpg", "folder.jpg", "pipe.jpg", "../outside.jpg")
    facts, problems = check(root, *others, **contents)
    assert [*facts] == ["good.jpg", "last.png"]
    expected = {
        "cut.jpg": "truncated",
        "empty.jpg": "is empty",
        "text.jpg": "is none of JPEG, PNG",
        "drawing.eps": "is none of JPEG, PNG",
        "large.png": "has more than 89,999 pixels: a decompression bomb?",
        "bomb.png": "a decompression bomb?",
        "gone.jpg": "is not there",
        "link.jpg": "leads through a symbolic link",
        "loop.jpg": "symbolic link",
        "folder.jpg": "is not a regular file",
        "pipe.jpg": "is not a regular file",
        "../outside.jpg": "contains '..'",
    }
    assert [*problems] == [*expected]
    assert {file: expected[file] in problems[file] for file in expected} == dict.fromkeys(expected, True), problems
    assert all("\n" not in reason for reason in problems.values())


def test_every_image_counts_once_in_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_check, "_IMAGES", 3)
    contents = {f"{number}": encoded(8, 8, seed=number) for number in range(8)}
    facts, problems = check(tmp_path, "0", "gone", workers=2, **contents)
    assert ([*facts], problems) == ([*contents], {"gone": "is not there"})
    assert len([*(tmp_path / ".parts").glob("0*.json")]) == 3


def test_an_image_repeats_the_first_one_of_the_same_bytes() -> None:
    splits = {"t1": "train", "t2": "train", "v1": "val", "x1": "test", "x2": "test", "x3": "test"}
    contents = {"t1": "A", "t2": "A", "v1": "B", "x1": "A", "x2": "B", "x3": "C"}
    images = [ImageRecord(name, name, split) for name, split in reversed(splits.items())]
    facts = {name: ImageFacts(content, 1, 1) for name, content in contents.items()}
    found = [(first.file, second.file) for first, second in find_repeats(images, facts)]
    assert found == [("t2", "t1"), ("v1", "x2"), ("t2", "x1")]


def test_one_picture_in_many_places_gives_as_many_repeats_not_their_square() -> None:
    images = [ImageRecord(str(number), str(number), "train" if number < 500 else "test") for number in range(1000)]
    repeats = find_repeats(images, dict.fromkeys(map(str, range(1000)), ImageFacts("same", 1, 1)))
    assert len(repeats) == 999
    assert {first.image_id for first, _ in repeats} == {"0"}
