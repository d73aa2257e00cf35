"""Karpathy's dataset files, in the layouts in which people keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from itrpipe.datasets import karpathy
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.errors import DataError, UsageError

Json = dict[str, Any]


def sentences(*numbers: int) -> list[Json]:
    return [{"raw": f"Caption {number} .", "tokens": ["caption"], "imgid": 0, "sentid": number} for number in numbers]


def flickr() -> list[Json]:
    return [
        {"filename": "11.jpg", "imgid": 0, "split": "train", "sentences": sentences(0, 1), "sentids": [0, 1]},
        {"filename": "22.jpg", "imgid": 1, "split": "val", "sentences": sentences(2), "sentids": [2]},
        {"filename": "33.jpg", "imgid": 2, "split": "test", "sentences": sentences(3), "sentids": [3]},
    ]


def coco() -> list[Json]:
    return [
        {
            "filepath": folder,
            "filename": f"COCO_{folder}_{number}.jpg",
            "cocoid": number,
            "split": split,
            "sentences": sentences(number * 10),
        }
        for number, folder, split in [
            (7, "val2014", "test"),
            (8, "val2014", "restval"),
            (9, "train2014", "train"),
            (5, "val2014", "val"),
        ]
    ]


def write(folder: Path, records: Any, name: str = "dataset.json", images: str | None = "images") -> Path:
    """Write the JSON and, unless `images` is None, empty image files in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"images": records, "dataset": "x"}), encoding="utf-8")
    if images is not None:
        for record in records:
            path = folder / images / record.get("filepath", "") / record["filename"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    return folder


@pytest.mark.parametrize("images", ["images", "", "flickr30k-images", "Flicker8k_Dataset"])
def test_flickr_is_read_from_every_layout(tmp_path: Path, images: str) -> None:
    write(tmp_path, flickr(), "dataset_flickr30k.json", images)
    found = karpathy.read(tmp_path)
    prefix = f"{images}/" if images else ""
    assert found.root == tmp_path
    assert found.images == [
        ImageRecord("11", f"{prefix}11.jpg", "train"),
        ImageRecord("22", f"{prefix}22.jpg", "val"),
        ImageRecord("33", f"{prefix}33.jpg", "test"),
    ]
    assert found.captions[:2] == [CaptionRecord("0", "11", "Caption 0 ."), CaptionRecord("1", "11", "Caption 1 .")]
    assert found.notes == ()


def test_the_source_may_be_the_file_under_any_name(tmp_path: Path) -> None:
    write(tmp_path, flickr(), "mine.json")
    assert len(karpathy.read(tmp_path / "mine.json").images) == 3


@pytest.mark.parametrize("images", ["", "images"])
def test_coco_is_read_with_its_two_folders_and_its_ids(tmp_path: Path, images: str) -> None:
    write(tmp_path, coco(), "dataset_coco.json", images)
    found = karpathy.read(tmp_path)
    prefix = f"{images}/" if images else ""
    assert found.images[0] == ImageRecord("7", f"{prefix}val2014/COCO_val2014_7.jpg", "test")
    assert [image.split for image in found.images] == ["test", "train", "train", "val"]
    assert [caption.caption_id for caption in found.captions] == ["70", "80", "90", "50"]
    assert found.notes == (f"{tmp_path / 'dataset_coco.json'}: 1 restval images added to train",)


def test_coco_images_may_lie_together_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path, coco(), images=None)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "COCO_val2014_7.jpg").write_bytes(b"")
    assert karpathy.read(tmp_path).images[2].file == "images/COCO_train2014_9.jpg"


def test_restval_can_be_dropped_with_its_captions(tmp_path: Path) -> None:
    found = karpathy.read(write(tmp_path, coco()), restval="drop")
    assert [image.image_id for image in found.images] == ["7", "9", "5"]
    assert [caption.image_id for caption in found.captions] == ["7", "9", "5"]
    assert "1 restval images dropped" in found.notes[0]


def test_an_unknown_restval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'keep', expected train or drop"):
        karpathy.read(write(tmp_path, coco()), restval="keep")


def test_a_filepath_cannot_leave_the_folder_either(tmp_path: Path) -> None:
    records = coco()
    write(tmp_path, records)
    records[1]["filepath"] = "../.."
    write(tmp_path, records, images=None)
    with pytest.raises(DataError, match=r"image 1: image path .*contains '\.\.'"):
        karpathy.read(tmp_path)
