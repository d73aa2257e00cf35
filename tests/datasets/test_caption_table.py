"""A folder of images with one table of captions; and the split by hash of datasets that name none."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.datasets import caption_table
from itrpipe.datasets.formats import recognise
from itrpipe.datasets.hash_split import hash_split
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.errors import DataError, MissingInputError, UsageError

ROWS = [
    {"file": "a.jpg", "caption": 'A "red" bus, parked', "split": "train"},
    {"file": "sub/b.jpg", "caption": "Ein Café", "split": "val"},
    {"file": "a.jpg", "caption": "two\nlines", "split": "train"},
]


def delimited(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), delimiter=delimiter, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def tables(rows: list[dict[str, str]]) -> dict[str, str]:
    return {
        "captions.csv": delimited(rows),
        "captions.tsv": delimited(rows, "\t"),
        "captions.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }


def folder_with(
    folder: Path, name: str, content: str | bytes, images: tuple[str, ...] = ("a.jpg", "sub/b.jpg")
) -> Path:
    for image in images:
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        (folder / image).write_bytes(b"")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_the_table_of_flickr8k_is_read_beside_its_folder_of_images(tmp_path: Path) -> None:
    content = 'image,caption\na.jpg,A dog runs .\na.jpg,"A dog , running"\n'
    found = caption_table.read(folder_with(tmp_path, "captions.txt", content, ("Images/a.jpg",)))
    assert [image.file for image in found.images] == ["Images/a.jpg"]
    assert [caption.text for caption in found.captions] == ["A dog runs .", "A dog , running"]


def test_a_name_that_differs_in_capitals_is_told(tmp_path: Path) -> None:
    source = folder_with(tmp_path, "captions.csv", "file,caption\na.JPG,x\n", ("a.jpg",))
    with pytest.raises(MissingInputError, match=r"no image a\.JPG in .*, but a\.jpg; write names of files as they are"):
        caption_table.read(source)


@pytest.mark.parametrize("name", ["captions.csv", "captions.tsv", "captions.jsonl"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_type_of_table_is_read_with_and_without_byte_order_mark(tmp_path: Path, name: str, mark: bytes) -> None:
    found = caption_table.read(folder_with(tmp_path, name, mark + tables(ROWS)[name].encode()))
    assert found.root == tmp_path
    assert found.images == [ImageRecord("a.jpg", "a.jpg", "train"), ImageRecord("sub/b.jpg", "sub/b.jpg", "val")]
    assert found.captions == [
        CaptionRecord("0", "a.jpg", 'A "red" bus, parked'),
        CaptionRecord("1", "sub/b.jpg", "Ein Café"),
        CaptionRecord("2", "a.jpg", "two\nlines"),
    ]
    assert found.notes == ()


def test_a_spreadsheet_may_separate_by_semicolons_and_call_the_column_filename(tmp_path: Path) -> None:
    for name in ("a.jpg", "sub/b.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rows = [
        {"filename": row["file"], "caption": f"{row['caption']}; and more, too", "split": row["split"]} for row in ROWS
    ]
    (tmp_path / "captions.csv").write_text(delimited(rows, ";"), newline="")
    found = caption_table.read(tmp_path)
    assert [each.text for each in found.captions] == [row["caption"] for row in rows]
    assert {each.file: each.split for each in found.images} == {"a.jpg": "train", "sub/b.jpg": "val"}


def test_the_column_may_be_called_image_and_the_images_lie_in_a_folder(tmp_path: Path) -> None:
    folder_with(tmp_path, "captions.csv", " Caption ,IMAGE,other\nx,a.jpg,1\n", images=("images/a.jpg",))
    found = caption_table.read(tmp_path / "captions.csv")
    assert found.images[0].file == "images/a.jpg"
    assert found.images[0].image_id == "a.jpg"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip),
        min_size=1,
        max_size=5,
    )
)
def test_any_caption_survives_any_table(tmp_path: Path, captions: list[str]) -> None:
    rows = [{"file": "a.jpg", "caption": caption, "split": "train"} for caption in captions]
    for name, content in tables(rows).items():
        folder = tmp_path / name
        found = caption_table.read(folder_with(folder, name, content))
        assert [caption.text for caption in found.captions] == captions


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "captions.csv",
            "name,text\na.jpg,x\n",
            "no column file or filename or image and no column caption; found: name, text; let line 1 name the "
            "columns: file,caption",
        ),
        ("captions.csv", "name,caption\na.jpg,x\n", "no column file or filename or image; found: name, caption"),
        ("captions.csv", "file,text\na.jpg,x\n", "no column caption; found: file, text"),
        ("captions.csv", "", "found: none"),
        ("captions.csv", "file,caption\na.jpg,x\na.jpg,\na.jpg, \n", r"2 empty captions \(on line 3, 4\)"),
        ("captions.txt", "image,text\na.jpg,x\n", "no column caption; found: image, text"),
        ("captions.csv", "file,caption\n", "holds no images"),
        ("captions.csv", "file,caption\na.jpg,one, two\n", "line 2 has 3 fields, not the 2"),
        ("captions.csv", 'file,caption\na.jpg,"open\nb.jpg,x\n', "unexpected end of data"),
        ("captions.tsv", 'file\tcaption\na.jpg\t"one" two\n', "line 2.*quote fields"),
        ("captions.csv", b"file,caption\na.jpg,\xe9\n", "is not UTF-8"),
        ("captions.csv", "file,caption,split\na.jpg,x,train\na.jpg,y,test\n", "line 3: .*'train' and 'test'"),
        ("captions.csv", "file,caption\n../a.jpg,x\n", "line 2: image path"),
        ("captions.csv", "file,caption\n/etc/hostname,x\n", "line 2: image path.*absolute"),
        ("captions.jsonl", '{"file": "a.jpg"}\n', "line 1: no column caption; found: file"),
        ("captions.jsonl", '{"file": "a.jpg", "caption": 7}\n', "line 1: 'caption' is of type int"),
        ("captions.jsonl", '{"file": "a.jpg"\n', "line 1 is not valid JSON"),
        ("captions.jsonl", "\n[1]\n", "line 2 is a list"),
        (
            "captions.jsonl",
            '{"file": "a.jpg", "caption": "x", "split": "train"}\n{"file": "a.jpg", "caption": "x"}\n',
            "line 2 has no split",
        ),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        caption_table.read(folder_with(tmp_path, name, content))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_tables_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.xlsx").write_bytes(b"")
    with pytest.raises(UsageError, match=r"'\.xlsx'; expected \.csv"):
        caption_table.read(tmp_path / "captions.xlsx")


def test_names_without_their_ending_and_photographs_without_captions_are_told(tmp_path: Path) -> None:
    named = folder_with(tmp_path, "captions.csv", delimited([{"file": "a", "caption": "x"}]), images=("a.jpg",))
    with pytest.raises(
        MissingInputError, match=r"no image a in .*, but a\.jpg; write names of files with their ending"
    ):
        caption_table.read(named)
    (tmp_path / "captions.csv").unlink()
    with pytest.raises(MissingInputError, match=r"such as a\.jpg, and no captions; write captions\.csv beside them"):
        recognise(tmp_path)


def test_a_split_that_no_image_is_left_for_is_told(tmp_path: Path) -> None:
    folder_with(tmp_path, "captions.csv", delimited([{"file": "a.jpg", "caption": "x"}]), images=("a.jpg",))
    (note,) = caption_table.read(tmp_path).notes
    assert note.endswith("No image is left for val and test; add photographs, or give a column split")


def test_without_splits_the_images_are_split_by_hash_and_the_note_says_so(tmp_path: Path) -> None:
    rows = [{"file": "a.jpg", "caption": "x"}, {"file": "sub/b.jpg", "caption": "y"}]
    folder_with(tmp_path, "captions.csv", delimited(rows))
    found = caption_table.read(tmp_path, split_fractions=(0.5, 0.25, 0.25), split_seed=3)
    expected = hash_split(["a.jpg", "sub/b.jpg"], (0.5, 0.25, 0.25), 3)
    assert {image.image_id: image.split for image in found.images} == expected
    assert "split by hash of their id (train 0.5, val 0.25, test 0.25, seed 3)" in found.notes[0]


PINNED = ["test", "train", "train", "train", "train", "train", "train", "train", "train", "val", "train", "train"]


def test_the_hash_split_is_fixed_for_ever_and_meets_its_shares() -> None:
    ids = [f"image-{number}" for number in range(5000)]
    splits = hash_split(ids, (0.8, 0.1, 0.1), 0)
    assert Counter(splits.values()) == {"train": 3958, "val": 534, "test": 508}
    assert [splits[name] for name in ids[:12]] == PINNED
    assert hash_split(ids, (0.8, 0.1, 0.1), 1) != splits
    assert hash_split(reversed(ids[:100]), (0.8, 0.1, 0.1), 0) == {name: splits[name] for name in ids[:100]}
    assert set(hash_split(ids, (0.9, 0.1, 0.0), 0).values()) == {"train", "val"}


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.1, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (0.5, 0.5), (float("nan"), 0.5, 0.5)]
)
def test_impossible_fractions_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="sum to 1"):
        hash_split(["a"], fractions, 0)
