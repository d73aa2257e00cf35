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


def write_with(folder: Path, name: str, file: str = "a.jpg", caption: str = "A dog .", split: str = "train") -> None:
    """Writes a source of a format with one image, whose name and caption may be anything."""
    (folder / "a.jpg").write_bytes(b"")
    if name == "karpathy":
        record = {"filename": file, "split": split, "sentences": [{"raw": caption, "sentid": 0}]}
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
LOOKED_FOR = {
    "karpathy": r"none of dataset\.json",
    "coco_captions": r"captions_train<year>\.json",
    "flickr_tokens": r"none of Flickr8k\.token\.txt",
    "caption_table": r"captions\.jsonl",
}


def write_one(folder: Path, name: str) -> None:
    write_with(folder, "csv" if name == "caption_table" else name)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_recognises_its_own_source_and_no_other(tmp_path: Path, name: str) -> None:
    write_one(tmp_path, name)
    assert [other for other in FORMATS if format_module(other).recognises(tmp_path)] == [name]
    assert [caption.text for caption in read_annotations(tmp_path).captions] == ["A dog ."]
    assert read_annotations(tmp_path, name) == read_annotations(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_without_its_file_or_without_its_images_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingInputError, match=LOOKED_FOR[name]):
        read_annotations(tmp_path, name)
    write_one(tmp_path, name)
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(MissingInputError, match=r"no image such as (val2014/)?a\.jpg in "):
        read_annotations(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("karpathy", ("dataset.json", "dataset_flickr8k.json")),
        ("flickr_tokens", ("Flickr8k.token.txt", "results.csv")),
        ("caption_table", ("captions.csv", "captions.tsv")),
    ],
)
def test_two_files_of_one_format_must_be_settled_by_the_user(tmp_path: Path, name: str, files: tuple[str, str]) -> None:
    for file in files:
        (tmp_path / file).write_text("image_name| comment_number| comment\n")
    with pytest.raises(UsageError, match=re.escape(f"2 data files ({', '.join(files)})")):
        read_annotations(tmp_path, name)


def karpathy(*changes: dict[str, Any], without: str = "") -> dict[str, Any]:
    """The content of a file with a sound image, and one with each of the changes or without a field."""
    sound = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A", "sentid": 0}]}
    wrong = [{key: value for key, value in sound.items() if key != without}] if without else []
    return {"images": [sound, *wrong, *(sound | change for change in changes)]}


def coco(image: dict[str, Any], annotation: dict[str, Any]) -> dict[str, Any]:
    return {"images": [{"file_name": "a.jpg", **image}], "annotations": [{"image_id": 4, **annotation}]}


LARGE, DEEP, LONG = '{"images": ' + "9" * 5000 + "}", "[" * 100_000, "x" * 5000
MALFORMED: list[tuple[str, str, Any, str]] = [
    ("karpathy", "dataset.json", karpathy(without="filename"), "image 1 has no 'filename'"),
    ("karpathy", "dataset.json", karpathy(without="split"), "image 1 has no 'split'"),
    ("karpathy", "dataset.json", karpathy(without="sentences"), "image 1 has no 'sentences'"),
    ("karpathy", "dataset.json", karpathy({"sentences": [{"sentid": 1}]}), "sentence 1 of image 1 has no 'raw'"),
    ("karpathy", "dataset.json", karpathy({"sentences": [{"raw": "x"}]}), "a sentence of image 1 has no 'sentid'"),
    ("karpathy", "dataset.json", karpathy({"sentences": "text"}), "'sentences' is a str, expected list"),
    ("karpathy", "dataset.json", karpathy({"cocoid": True}), "'cocoid' is a bool, expected int or str"),
    ("karpathy", "dataset.json", {"images": ["text"]}, "image 0 is a str, expected an object"),
    ("karpathy", "dataset.json", {"images": []}, "holds no images"),
    ("karpathy", "dataset.json", [], "top level is a list"),
    ("karpathy", "dataset.json", {"pictures": []}, "top level has no 'images'"),
    ("karpathy", "dataset.json", '{"images": [', "is not valid JSON"),
    ("karpathy", "dataset.json", LARGE, "is not valid JSON"),
    ("karpathy", "dataset.json", DEEP, "is not valid JSON"),
    ("karpathy", "dataset.json", b'{"images": "\xff"}', "is not UTF-8"),
    ("karpathy", "dataset.json", karpathy({"cocoid": ""}), "1 empty image ids ('')"),
    ("karpathy", "dataset.json", karpathy({"cocoid": "  "}), "1 empty image ids ('  ')"),
    ("karpathy", "dataset.json", karpathy({"cocoid": "1\0"}), r"1 image ids with control characters (1\x00)"),
    (
        "karpathy",
        "dataset.json",
        karpathy({"cocoid": LONG}),
        f"1 image ids of more than 4,096 characters ({LONG[:20]}…)",
    ),
    ("karpathy", "dataset.json", karpathy({"sentences": [{"raw": "A", "sentid": ""}]}), "1 empty caption ids ('')"),
    (
        "karpathy",
        "dataset.json",
        karpathy({"sentences": [{"raw": "A", "sentid": "x\x1b"}]}),
        r"1 caption ids with control characters (x\x1b)",
    ),
    (
        "karpathy",
        "dataset.json",
        karpathy({"sentences": [{"raw": "A", "sentid": LONG}]}),
        f"1 caption ids of more than 4,096 characters ({LONG[:20]}…)",
    ),
    ("coco_captions", "captions_val2014.json", {"annotations": []}, "top level has no 'images'"),
    ("coco_captions", "captions_val2014.json", {"images": coco({"id": 4}, {})["images"]}, "no 'annotations'"),
    ("coco_captions", "captions_val2014.json", coco({"id": 4}, {"id": 1}), "annotation 0 has no 'caption'"),
    ("coco_captions", "captions_val2014.json", coco({"id": 4}, {"caption": "x"}), "annotation 0 has no 'id'"),
    (
        "coco_captions",
        "captions_val2014.json",
        coco({"id": 4}, {"image_id": 4.5, "id": 1, "caption": "x"}),
        "'image_id' is a float",
    ),
    ("coco_captions", "captions_val2014.json", coco({}, {}), "image 0 has no 'id'"),
    ("flickr_tokens", "Flickr8k.token.txt", "a.jpg#0\tx\nno separator here\n", "line 2 is 'no separator here'"),
    ("flickr_tokens", "Flickr8k.token.txt", "a.jpg\tx\n", "line 1 is"),
    ("flickr_tokens", "Flickr8k.token.txt", "", "holds no images"),
    ("flickr_tokens", "results.csv", "image_name| comment_number| comment\na.jpg, 0, x\n", "line 2 is 'a.jpg, 0, x'"),
    ("caption_table", "captions.csv", "file,caption,Caption\na.jpg,A,B\n", "line 1: 2 columns are called caption"),
    ("caption_table", "captions.jsonl", LARGE, "line 1 is not valid JSON"),
    ("caption_table", "captions.jsonl", DEEP, "line 1 is not valid JSON"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), MALFORMED)
def test_malformed_sources_are_refused_in_one_line(
    tmp_path: Path, name: str, file: str, content: Any, message: str
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_annotations(tmp_path, name)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


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


def test_the_list_of_formats_holds_every_reader() -> None:
    folder = Path(next(iter(itrpipe.datasets.__path__)))
    readers = {path.stem for path in folder.glob("*.py") if re.search(r"^def recognises\(", path.read_text(), re.M)}
    assert readers == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_every_setting_of_a_reader_can_be_given(name: str) -> None:
    accepted = set(inspect.signature(read_annotations).parameters)
    assert set(inspect.signature(format_module(name).read).parameters) <= accepted


@pytest.mark.parametrize("name", ["karpathy", "coco_captions", "csv", "tsv", "jsonl"])
def test_a_file_name_of_two_lines_is_refused(tmp_path: Path, name: str) -> None:
    write_with(tmp_path, name, file="a\nb.jpg")
    with pytest.raises(DataError, match="contains a line end or another control character"):
        read_annotations(tmp_path)


def test_settings_reach_the_reader(tmp_path: Path) -> None:
    write_one(tmp_path, "caption_table")
    everything = read_annotations(tmp_path, split_fractions=(1.0, 0.0, 0.0), split_seed=5)
    assert everything.images[0].split == "train"
    assert "seed 5" in everything.notes[0]


def test_restval_reaches_the_reader(tmp_path: Path) -> None:
    write_with(tmp_path, "karpathy", split="restval")
    assert read_annotations(tmp_path).images[0].split == "train"
    with pytest.raises(DataError, match="holds no captions"):
        read_annotations(tmp_path, restval="drop")


def test_a_source_nobody_knows_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as caught:
        read_annotations(tmp_path)
    for wanted in (*FORMATS, "dataset_coco.json", "captions_val<year>.json", "captions.tsv", "Flickr8k.token.txt"):
        assert wanted in str(caught.value)


def test_a_source_of_two_formats_must_be_settled_by_the_user(tmp_path: Path) -> None:
    write_one(tmp_path, "caption_table")
    write_one(tmp_path, "flickr_tokens")
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


COMPOSED, DECOMPOSED = "caf\u00e9.png", "cafe\u0301.png"
SPELLINGS = (f"s/{COMPOSED}", f"./s//{DECOMPOSED}")


@pytest.mark.parametrize("stored", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("name", ["captions.csv", "captions.jsonl", "Flickr8k.token.txt"])
def test_one_photograph_is_one_image_however_it_is_spelled(tmp_path: Path, name: str, stored: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / stored).write_bytes(b"")
    rows = [f"{file},{number}" for number, file in enumerate(SPELLINGS)]
    written = {
        "captions.csv": "\n".join(["file,caption", *rows]),
        "captions.jsonl": "\n".join(json.dumps({"file": f" {file}", "caption": file}) for file in SPELLINGS),
        "Flickr8k.token.txt": "\n".join(f"{file}#{number}\tA dog" for number, file in enumerate(SPELLINGS)),
    }
    (tmp_path / name).write_text(written[name], encoding="utf-8")
    found = read_annotations(tmp_path)
    assert [image.file for image in found.images] == [f"s/{stored}"]
    key = "caf\u00e9" if name.startswith("Flickr") else SPELLINGS[0]
    assert {caption.image_id for caption in found.captions} == {found.images[0].image_id} == {key}
    assert len(found.captions) == 2


def test_two_spellings_of_a_photograph_have_one_split(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "captions.csv").write_text("file,caption,split\na.png,x,train\n./a.png,y,test\n")
    with pytest.raises(DataError, match="'train' and 'test'"):
        read_annotations(tmp_path)


def test_one_file_under_two_ids_is_refused(tmp_path: Path) -> None:
    write_with(tmp_path, "coco_captions")
    path = tmp_path / "captions_val2014.json"
    content = json.loads(path.read_text())
    content["images"].append({"id": 3, "file_name": "./a.jpg"})
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"files that are several images \(a\.jpg\)"):
        read_annotations(tmp_path)


def test_letters_that_python_cannot_name_files_by_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / COMPOSED).write_bytes(b"")
    (tmp_path / "captions.csv").write_text(f"file,caption\n{COMPOSED},x\n", encoding="utf-8")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with pytest.raises(UsageError, match=r"ascii.*PYTHONUTF8=1"):
        read_annotations(tmp_path)
