"""Every image is opened once; what is wrong with any of them is told together."""

from __future__ import annotations

import hashlib
import io
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itrpipe.datasets import image_check, pictures
from itrpipe.datasets.captions import ImageRecord
from itrpipe.datasets.image_check import ImageFacts, check_images, decode_size, find_repeats
from itrpipe.engine import run as engine
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
        "large.png": "300 x 300 pixels, more than 89,999: a decompression bomb?",
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


def small(count: int) -> dict[str, bytes]:
    return {f"{number}": encoded(8, 8, seed=number) for number in range(count)}


def test_what_was_checked_before_an_interruption_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_check, "_IMAGES", 3)
    parts, opened = tmp_path / ".parts", []
    first = check(tmp_path, "gone", **small(8))
    assert first[1] == {"gone": "is not there"}
    (parts / "000001.json").unlink()
    (parts / "000002.json").write_bytes((parts / "000002.json").read_bytes().replace(b"8", b"9"))
    monkeypatch.setattr(image_check, "decode_size", lambda content: (opened.append(content), decode_size(content))[1])
    told: list[str] = []
    files = [*small(8), "gone"]
    assert check_images(tmp_path, files, lambda work: made(work, parts, warn=told.append)) == first
    assert sorted(opened) == sorted((tmp_path / name).read_bytes() for name in "34567")
    assert told == [f"1 of 2 parts in {parts} were damaged; they are made again"]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_image_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(image_check, "_IMAGES", 16)
    facts, problems = check(tmp_path, "0", workers=workers, **small(70))
    assert [*facts] == [str(number) for number in range(70)]
    assert problems == {}


def test_an_interrupt_does_not_wait_for_the_images_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []

    def slow(content: bytes) -> tuple[int, int]:
        opened.append(content)
        time.sleep(0.01)  # 10 s for the first thousand, however busy the machine is
        return 8, 8

    def interrupt(gib: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(image_check, "_IMAGES", 64)
    monkeypatch.setattr(image_check, "decode_size", slow)
    monkeypatch.setattr(engine, "note_memory", interrupt)  # which is called after the first part
    with pytest.raises(KeyboardInterrupt) as caught:
        check(tmp_path, **{f"{number}": b"x" for number in range(2000)})
    stopped = len(opened)
    time.sleep(0.1)
    assert 64 <= len(opened) == stopped < 1000
    assert caught.tb is not None  # held, as at the top of a program, so that nothing ends for lack of references


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
