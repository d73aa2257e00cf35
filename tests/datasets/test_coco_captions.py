"""COCO's own caption files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from itrpipe.datasets import coco_captions
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.errors import MissingInputError, UsageError

TRAIN = {
    "info": {},
    "images": [{"id": 9, "file_name": "t9.jpg", "width": 1}, {"id": 3, "file_name": "t3.jpg"}],
    "annotations": [
        {"image_id": 3, "id": 100, "caption": "A bus ."},
        {"image_id": 9, "id": 101, "caption": "A dog ."},
        {"image_id": 3, "id": 102, "caption": "A red bus ."},
    ],
}
VAL = {
    "images": [{"id": 4, "file_name": "v4.jpg"}],
    "annotations": [{"image_id": 4, "id": 200, "caption": "Café\n"}],
}


def write(root: Path, annotations: str = "annotations", prefix: str = "", year: int = 2014) -> Path:
    folder = root / annotations
    folder.mkdir(parents=True, exist_ok=True)
    for split, content in (("train", TRAIN), ("val", VAL)):
        (folder / f"captions_{split}{year}.json").write_text(json.dumps(content), encoding="utf-8")
        images = root / prefix / f"{split}{year}"
        images.mkdir(parents=True, exist_ok=True)
        for image in content["images"]:
            (images / image["file_name"]).write_bytes(b"")
    return root


@pytest.mark.parametrize("prefix", ["", "images"])
def test_both_files_are_read_train_first(tmp_path: Path, prefix: str) -> None:
    found = coco_captions.read(write(tmp_path, prefix=prefix))
    start = f"{prefix}/" if prefix else ""
    assert found.root == tmp_path
    assert found.images == [
        ImageRecord("9", f"{start}train2014/t9.jpg", "train"),
        ImageRecord("3", f"{start}train2014/t3.jpg", "train"),
        ImageRecord("4", f"{start}val2014/v4.jpg", "val"),
    ]
    assert found.captions[0] == CaptionRecord("100", "3", "A bus .")
    assert found.captions[-1] == CaptionRecord("200", "4", "Café\n")
    assert "no test split" in found.notes[0]


def test_the_source_may_be_the_annotations_folder_or_one_file(tmp_path: Path) -> None:
    write(tmp_path)
    assert len(coco_captions.read(tmp_path / "annotations").images) == 3
    alone = coco_captions.read(tmp_path / "annotations" / "captions_val2014.json")
    assert alone.root == tmp_path
    assert [image.split for image in alone.images] == ["val"]


def test_files_beside_the_images_and_another_year_are_read(tmp_path: Path) -> None:
    found = coco_captions.read(write(tmp_path, annotations="", year=2017))
    assert found.images[0].file == "train2017/t9.jpg"


def test_two_years_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, year=2017)
    with pytest.raises(UsageError, match="captions of 2014 and 2017"):
        coco_captions.read(tmp_path)


def test_a_source_without_captions_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "image_info_test2014.json").write_text("{}")
    assert not coco_captions.recognises(tmp_path)
    for source in (tmp_path, tmp_path / "image_info_test2014.json"):
        with pytest.raises(MissingInputError, match=r"captions_train<year>\.json"):
            coco_captions.read(source)
