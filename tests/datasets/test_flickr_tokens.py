"""Flickr8k's and Flickr30k's own caption files with their split lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from itrpipe.datasets import flickr_tokens
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.errors import DataError

TOKENS = "11_a.jpg#0\tA dog runs .\n11_a.jpg#1\tThe dog #1 ran .\n22_b.jpg#0\tA cat .\n33_c.jpg#0\tA cow .\n"
RESULTS = (
    "image_name| comment_number| comment\n"
    "11_a.jpg| 0| A dog | a cat .\n"
    "11_a.jpg| 1   The second bar is missing .\n"
    "22_b.jpg| 0| A cat .\n"
)


def write(folder: Path, images: str = "Flicker8k_Dataset", **files: str) -> Path:
    (folder / images).mkdir(parents=True, exist_ok=True)
    for image in ("11_a.jpg", "22_b.jpg", "33_c.jpg"):
        (folder / images / image).write_bytes(b"")
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder


def test_tokens_with_split_lists_leave_unlisted_images_out(tmp_path: Path) -> None:
    lists = {"Flickr_8k.trainImages.txt": "22_b.jpg\r\n", "Flickr_8k.devImages.txt": "11_a.jpg\n\n"}
    found = flickr_tokens.read(write(tmp_path, **{"Flickr8k.token.txt": TOKENS}, **lists))
    assert found.root == tmp_path
    assert found.images == [
        ImageRecord("11_a", "Flicker8k_Dataset/11_a.jpg", "val"),
        ImageRecord("22_b", "Flicker8k_Dataset/22_b.jpg", "train"),
    ]
    assert found.captions == [
        CaptionRecord("11_a.jpg#0", "11_a", "A dog runs ."),
        CaptionRecord("11_a.jpg#1", "11_a", "The dog #1 ran ."),
        CaptionRecord("22_b.jpg#0", "22_b", "A cat ."),
    ]
    assert "1 images in none of Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt left out" in found.notes[0]


@pytest.mark.parametrize("images", ["flickr30k-images", "flickr30k_images", "images"])
def test_results_csv_is_read_including_its_known_broken_row(tmp_path: Path, images: str) -> None:
    lists = {"train.txt": "11_a\n", "val.txt": "", "test.txt": "22_b\n"}
    found = flickr_tokens.read(write(tmp_path, images, **{"results.csv": RESULTS}, **lists))
    assert [(image.image_id, image.split) for image in found.images] == [("11_a", "train"), ("22_b", "test")]
    assert found.images[0].file == f"{images}/11_a.jpg"
    texts = {caption.caption_id: caption.text for caption in found.captions}
    assert texts["11_a.jpg#0"] == "A dog | a cat ."
    assert texts["11_a.jpg#1"] == "The second bar is missing ."
    assert found.notes == ()


def test_without_lists_the_split_is_by_hash(tmp_path: Path) -> None:
    found = flickr_tokens.read(write(tmp_path, **{"results_20130124.token": TOKENS}), split_fractions=(1.0, 0.0, 0.0))
    assert [image.split for image in found.images] == ["train"] * 3
    assert "names no splits; images split by hash" in found.notes[0]


def test_an_image_in_two_lists_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **{"Flickr8k.token.txt": TOKENS, "train.txt": "11_a\n", "test.txt": "11_a.jpg\n"})
    with pytest.raises(DataError, match=r"test\.txt: image 11_a is in train\.txt too"):
        flickr_tokens.read(tmp_path)


def test_a_results_csv_of_something_else_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("method,recall\nx,1\n")
    assert not flickr_tokens.recognises(tmp_path)
    (tmp_path / "results.csv").write_text(RESULTS)
    assert flickr_tokens.recognises(tmp_path)
