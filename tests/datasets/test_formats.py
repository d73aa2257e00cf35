"""Finding the reader of a source; and the check that images and captions fit together."""

from __future__ import annotations

import csv
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import itrpipe.datasets
from itrpipe.datasets.caption_check import check_annotations
from itrpipe.datasets.formats import FORMATS, format_module, read_annotations, recognise
from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.records import Annotations, CaptionRecord, ImageRecord
from itrpipe.errors import DataError, MissingInputError, UsageError


def write_karpathy(folder: Path, split: str = "train") -> None:
    (folder / "images").mkdir()
    (folder / "images" / "a.jpg").write_bytes(b"")
    records = [{"filename": "a.jpg", "split": split, "sentences": [{"raw": "A dog .", "sentid": 0}]}]
    (folder / "dataset.json").write_text(json.dumps({"images": records}))


def write_coco(folder: Path) -> None:
    (folder / "val2014").mkdir()
    (folder / "val2014" / "a.jpg").write_bytes(b"")
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 2, "image_id": 1, "caption": "A dog ."}],
    }
    (folder / "captions_val2014.json").write_text(json.dumps(content))


def write_table(folder: Path) -> None:
    (folder / "a.jpg").write_bytes(b"")
    (folder / "captions.csv").write_text("file,caption\na.jpg,A dog .\n")


def write_tokens(folder: Path) -> None:
    (folder / "a.jpg").write_bytes(b"")
    (folder / "Flickr8k.token.txt").write_text("a.jpg#0\tA dog .\n")


WRITERS = {
    "karpathy": write_karpathy,
    "coco_captions": write_coco,
    "caption_table": write_table,
    "flickr_tokens": write_tokens,
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_recognises_its_own_source_and_no_other(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    assert [other for other in FORMATS if format_module(other).recognises(tmp_path)] == [name]
    assert [caption.text for caption in read_annotations(tmp_path).captions] == ["A dog ."]
    assert read_annotations(tmp_path, name) == read_annotations(tmp_path)


def write_with(folder: Path, name: str, file: str = "a.jpg", caption: str = "A dog .") -> None:
    """Writes a source of a format with one image, whose name and caption may be anything."""
    (folder / "a.jpg").write_bytes(b"")
    if name == "karpathy":
        record = {"filename": file, "split": "train", "sentences": [{"raw": caption, "sentid": 0}]}
        (folder / "dataset.json").write_text(json.dumps({"images": [record]}))
    elif name == "coco_captions":
        annotation = {"id": 2, "image_id": 1, "caption": caption}
        content = {"images": [{"id": 1, "file_name": file}], "annotations": [annotation]}
        (folder / "captions_val2014.json").write_text(json.dumps(content))
    elif name == "flickr_tokens":
        (folder / "Flickr8k.token.txt").write_text(f"{file}#0\t{caption}\n", encoding="utf-8")
    elif name == "jsonl":
        (folder / "captions.jsonl").write_text(json.dumps({"file": file, "caption": caption}) + "\n")
    else:
        with (folder / f"captions.{name}").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, delimiter="\t" if name == "tsv" else ",")
            writer.writerows([("file", "caption"), (file, caption)])


SOURCES = ("karpathy", "coco_captions", "flickr_tokens", "csv", "tsv", "jsonl")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ("A\0dog", "1 captions with a NUL character ("),
        ("\u200b\u200b", "1 empty captions ("),
        ("\ufeff \u2060\u00ad\u3164\ufe0f\u2800", "1 empty captions ("),
        ("\u202e", "1 empty captions ("),
    ],
)
def test_captions_that_nobody_can_read_are_refused(tmp_path: Path, name: str, caption: str, reason: str) -> None:
    write_with(tmp_path, name, caption=caption)
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        read_annotations(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("caption", ["\u200bdog", "🐕", "犬", "?", "é"])
def test_captions_of_one_visible_character_are_taken(tmp_path: Path, name: str, caption: str) -> None:
    write_with(tmp_path, name, caption=caption)
    assert [each.text for each in read_annotations(tmp_path).captions] == [caption]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("a\x1b[2J.jpg", "contains a line end or another control character; rename the file"),
        ("b\x85.jpg", "contains a line end or another control character"),
        ("x" * 5000 + ".jpg", "has a name of 5,004 bytes, and no file has more than 255"),
        ("../a.jpg", "contains '..'; write a path relative to the images' folder"),
    ],
)
def test_file_names_that_no_image_should_have_are_refused(tmp_path: Path, name: str, file: str, reason: str) -> None:
    write_with(tmp_path, name, file=file)
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        read_annotations(tmp_path)
    assert re.search(r"(image 0|line [12]): image path", str(caught.value))


@pytest.mark.parametrize("name", ["karpathy", "coco_captions", "csv", "tsv", "jsonl"])
def test_a_file_name_of_two_lines_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a\nb.jpg").write_bytes(b"")
    write_with(tmp_path, name, file="a\nb.jpg")
    with pytest.raises(DataError, match="contains a line end or another control character"):
        read_annotations(tmp_path)


def test_ids_with_control_characters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    record = {"filename": "a.jpg", "cocoid": "1\0", "split": "train", "sentences": [{"raw": "A", "sentid": "x\x1b"}]}
    (tmp_path / "dataset.json").write_text(json.dumps({"images": [record]}))
    with pytest.raises(DataError) as caught:
        read_annotations(tmp_path)
    assert r"1 image ids with control characters (1\x00)" in str(caught.value)
    assert r"1 caption ids with control characters (x\x1b)" in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ({"cocoid": ""}, "1 empty image ids ('')"),
        ({"cocoid": "  "}, "1 empty image ids ('  ')"),
        ({"cocoid": "x" * 5000}, "1 image ids of more than 4,096 characters (xxxxxxxxxxxxxxxxxxxx…)"),
        ({"sentid": ""}, "1 empty caption ids ('')"),
        ({"sentid": "x" * 5000}, "1 caption ids of more than 4,096 characters (xxxxxxxxxxxxxxxxxxxx…)"),
    ],
)
def test_ids_that_name_nothing_are_refused(tmp_path: Path, ids: dict[str, str], reason: str) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    sentence = {"raw": "A", "sentid": ids.get("sentid", 0)}
    record = {"filename": "a.jpg", "cocoid": ids.get("cocoid", 1), "split": "train", "sentences": [sentence]}
    (tmp_path / "dataset.json").write_text(json.dumps({"images": [record]}))
    with pytest.raises(DataError, match=re.escape(reason)):
        read_annotations(tmp_path)


def test_a_table_with_two_columns_of_captions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "captions.csv").write_text("file,caption,Caption\na.jpg,A dog,A cat\n")
    with pytest.raises(DataError, match="line 1: 2 columns are called caption; rename all but one"):
        read_annotations(tmp_path)


@pytest.mark.parametrize("content", ['{"images": ' + "9" * 5000 + "}", "[" * 100_000])
def test_json_that_python_cannot_hold_is_no_valid_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(DataError, match=r"dataset\.json: is not valid JSON"):
        read_annotations(tmp_path)
    (tmp_path / "dataset.json").rename(tmp_path / "captions.jsonl")
    with pytest.raises(DataError, match=r"captions\.jsonl: line 1 is not valid JSON"):
        read_annotations(tmp_path)


def test_a_truth_value_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    record = {"filename": "a.jpg", "cocoid": True, "split": "train", "sentences": []}
    (tmp_path / "dataset.json").write_text(json.dumps({"images": [record]}))
    with pytest.raises(DataError, match="'cocoid' is a bool, expected int or str"):
        read_annotations(tmp_path)


def test_the_list_of_formats_holds_every_reader() -> None:
    folder = Path(next(iter(itrpipe.datasets.__path__)))
    readers = {path.stem for path in folder.glob("*.py") if re.search(r"^def recognises\(", path.read_text(), re.M)}
    assert readers == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_every_setting_of_a_reader_can_be_given(name: str) -> None:
    accepted = set(inspect.signature(read_annotations).parameters)
    assert set(inspect.signature(format_module(name).read).parameters) <= accepted


def test_settings_reach_the_reader(tmp_path: Path) -> None:
    WRITERS["caption_table"](tmp_path)
    everything = read_annotations(tmp_path, split_fractions=(1.0, 0.0, 0.0), split_seed=5)
    assert everything.images[0].split == "train"
    assert "seed 5" in everything.notes[0]


def test_restval_reaches_the_reader(tmp_path: Path) -> None:
    write_karpathy(tmp_path, split="restval")
    assert read_annotations(tmp_path).images[0].split == "train"
    with pytest.raises(DataError, match="holds no captions"):
        read_annotations(tmp_path, restval="drop")


def test_a_source_nobody_knows_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as caught:
        read_annotations(tmp_path)
    for wanted in (*FORMATS, "dataset_coco.json", "captions_val<year>.json", "captions.tsv", "Flickr8k.token.txt"):
        assert wanted in str(caught.value)


def test_a_source_of_two_formats_must_be_settled_by_the_user(tmp_path: Path) -> None:
    write_table(tmp_path)
    write_tokens(tmp_path)
    with pytest.raises(UsageError, match="could be caption_table or flickr_tokens"):
        recognise(tmp_path)
    assert read_annotations(tmp_path, "flickr_tokens").captions[0].caption_id == "a.jpg#0"


def test_an_unknown_format_and_a_missing_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'karpaty'.*did you mean karpathy"):
        read_annotations(tmp_path, "karpaty")
    with pytest.raises(MissingInputError, match="is not there"):
        read_annotations(tmp_path / "none")


def test_reading_imports_neither_torch_nor_arrow_nor_nltk() -> None:
    heavy = "'torch', 'pyarrow', 'nltk', 'PIL'"
    code = f"import sys, itrpipe.datasets.formats as f; [f.format_module(n) for n in f.FORMATS]; \
import itrpipe.datasets.vocabulary, itrpipe.datasets.tokens; print([m for m in ({heavy}) if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def dataset(**changes: Any) -> Annotations:
    records = {
        "images": [ImageRecord("1", "1.jpg", "train"), ImageRecord("2", "2.jpg", "test")],
        "captions": [CaptionRecord("a", "1", "one"), CaptionRecord("b", "2", "two")],
    }
    return Annotations(root=Path("root"), **{**records, **changes})


def test_a_sound_dataset_passes_unchanged_and_keeps_its_notes() -> None:
    sound = dataset()
    noted = NotedAnnotations(sound.images, sound.captions, sound.root, ("a note",))
    assert check_annotations(noted, Path("source")) == noted


def test_images_without_captions_are_dropped_with_a_note() -> None:
    images = [ImageRecord(str(number), f"{number}.jpg", "train") for number in range(1, 7)]
    found = check_annotations(dataset(images=images), Path("source"))
    assert [image.image_id for image in found.images] == ["1", "2"]
    assert found.notes == ("source: 4 images without captions (3, 4, 5, ...) dropped",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"captions": []}, "holds no captions"),
        ({"captions": [CaptionRecord("a", "1", "x")] * 2}, r"1 duplicate caption ids \(a\)"),
        ({"images": [ImageRecord("1", "x.jpg", "train")] * 2, "captions": []}, r"1 duplicate image ids \(1\)"),
        (
            {"captions": [CaptionRecord("a", "9", "x")]},
            r"1 captions of images that are not there \(a of 9\)",
        ),
        ({"captions": [CaptionRecord("a", "1", " \t\n")]}, r"1 empty captions \(a\)"),
        ({"captions": [CaptionRecord("a", "1", "\ud800")]}, r"1 captions that are not valid Unicode \(a\)"),
        (
            {"images": [ImageRecord("1", "1.jpg", "dev"), ImageRecord("2", "2.jpg", "")]},
            r"2 split names other than train, val, test \('dev' of 1 images, '' of 1 images\)",
        ),
    ],
)
def test_what_does_not_fit_together_is_counted_with_examples(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        check_annotations(dataset(**changes), Path("source"))
    assert str(caught.value).startswith("source: ")


def test_all_problems_are_told_at_once_in_one_printable_line() -> None:
    captions = [CaptionRecord(f"id{number}\ud800", "9", "") for number in range(5)]
    with pytest.raises(DataError) as caught:
        check_annotations(dataset(captions=captions), Path("source"))
    message = str(caught.value)
    assert message.encode()
    assert "5 captions of images that are not there" in message
    assert "5 empty captions" in message
    assert "\n" not in message
    assert message.count("...") == 3
