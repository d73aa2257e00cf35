"""What every format of datasets holds to, and what is particular to each; no path of a data file leaves the image root.

A new format is a row of `SOURCES`.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.datasets.captions import (
    Annotations,
    CaptionRecord,
    ImageRecord,
    checked_annotations,
    hash_split,
)
from itrpipe.datasets.formats.annotations import FORMATS, read_annotations, recognise
from itrpipe.datasets.image_check import ImageFacts, draw_splits
from itrpipe.datasets.paths import ImageRoot, locate_images
from itrpipe.datasets.pictures import read_image
from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, NoCaptionsError, UsageError
from itrpipe.search.photos import list_photographs
from tests.datasets.sources import ROWS, SOURCES, Json, Row, coco, karpathy, refusal

EACH = pytest.mark.parametrize("name", SOURCES)
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))


def refused(source: Path, kind: type[ItrpipeError], value: str, format: str = "") -> str:
    """The line by which a source is refused, which holds the value."""
    return refusal(kind, value, read_annotations, source, format)


@EACH
def test_images_and_captions_come_in_the_order_of_the_source(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]
    found = read_annotations(source.write(tmp_path, f"\ufeff{source.text()}"))
    assert [[*map(list, found.images)], [*map(list, found.captions)]] == CASES["read"][source.format]
    assert (found.root, bool(found.notes)) == (tmp_path, not source.has_splits)
    assert recognise(tmp_path) == source.format
    path = tmp_path / source.file
    if name != "coco":  # whose split is in the name
        path = path.rename(tmp_path / f"mine{path.suffix}")
    assert read_annotations(path, source.format).captions == found.captions


@EACH
def test_what_is_missing_damaged_or_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]
    path, text = source.write(tmp_path) / source.file, source.text().encode()
    for content in (text[: text.rindex(ROWS[-1].file.encode()) + 3], text + b"\xff", b""):
        path.write_bytes(content)
        refused(path, DataError, "is not UTF-8" if content.endswith(b"\xff") else str(path), format=source.format)
    path.write_bytes(text)
    for file in {row.file for row in ROWS}:
        (tmp_path / file).unlink()
    refused(tmp_path, MissingInputError, "no image such as ")
    path.unlink()
    refused(tmp_path, MissingInputError, FORMATS[source.format].names[0], format=source.format)
    refused(path, MissingInputError, "is not there")


BAD_ROWS = {
    "escaping": (Row("../a.bmp", "x"), "contains '..'; write a path relative to the images' folder"),
    "empty": (Row("a.bmp", "\ufeff \u2060\u00ad\u3164\ufe0f\u2800"), "1 captions that show nothing or hold a NUL ("),
    "nul": (Row("a.bmp", "A\0dog"), "1 captions that show nothing or hold a NUL ("),
    "split": (Row("c.bmp", "x", "extra"), "'extra'"),
}


@EACH
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_rows_that_no_dataset_should_have_are_refused(tmp_path: Path, name: str, bad: str) -> None:
    row, reason = BAD_ROWS[bad]
    rows = [*ROWS[:-1], row]
    if bad != "split" or SOURCES[name].has_splits:
        line = refused(SOURCES[name].write(tmp_path, rows), DataError, reason)
        assert bad != "escaping" or re.search(r"(image 3|line [56]): image path", line)


@pytest.mark.parametrize("stored", ["caf\u00e9.png", "cafe\u0301.png"])
@pytest.mark.parametrize("name", ["karpathy", "tokens", "csv"])
def test_one_photograph_is_one_image_however_it_is_spelled(tmp_path: Path, name: str, stored: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / stored).write_bytes(b"")
    rows = [Row("s/caf\u00e9.png", "A dog"), Row("./s//cafe\u0301.png", "A cat")]
    source = SOURCES[name].write(tmp_path, rows)
    if name == "karpathy":  # which lists images by themselves
        refused(source, DataError, "files that are several images (s/caf")
        return
    found = read_annotations(source)
    key = "caf\u00e9" if name == "tokens" else "s/caf\u00e9.png"
    assert [(image.image_id, image.file) for image in found.images] == [(key, f"s/{stored}")]
    assert [caption.image_id for caption in found.captions] == [key, key]


@pytest.mark.parametrize(("name", "content", "value"), CASES["refused sources"])
def test_malformed_sources_are_refused_in_one_line(tmp_path: Path, name: str, content: str | Json, value: str) -> None:
    """Content is all of a file, or a place in that of the usual rows with another value, or without one."""
    if not isinstance(content, str):
        place = whole = json.loads(SOURCES[name].text())
        *parents, last = content["at"]
        for each in parents:
            place = place[each]
        place[last] = content.get("value")
        if "value" not in content:
            del place[last]
        content = json.dumps(whole)
    line = refused(SOURCES[name].write(tmp_path, content), DataError, value)
    assert line.startswith(str(tmp_path))
    assert len(line) < len(str(tmp_path)) + 500


def test_karpathys_coco_has_folders_ids_and_restval(tmp_path: Path) -> None:
    content = karpathy([Row("1.jpg", "x", "restval"), Row("2.jpg", "y", "test")])
    for number, image in enumerate(content["images"]):
        image |= {"filepath": "val2014", "cocoid": 7 + number}
    source = tmp_path / "dataset_coco.json"
    source.write_text(json.dumps(content))
    for layout in ("images/val2014", "Flicker8k_Dataset", "val2014"):
        (tmp_path / layout).mkdir(parents=True)
        photograph = tmp_path / layout / "2.jpg"
        photograph.write_bytes(b"")
        found = read_annotations(tmp_path)
        rows = [("7", f"{layout}/1.jpg", "train"), ("8", f"{layout}/2.jpg", "test")]
        assert (found.images, found.notes) == (rows, (f"{tmp_path}: 1 restval images added to train",))
        left = read_annotations(tmp_path, restval="drop")
        assert (left.images, left.captions) == (rows[1:], [("1", "8", "y")])
        assert left.notes == (f"{tmp_path}: 1 restval images dropped",)
        photograph.unlink()
    content["images"][1]["filepath"] = "../.."
    source.write_text(json.dumps(content))
    assert "image 1: image path" in refused(tmp_path, DataError, "contains '..'")


@pytest.mark.parametrize("below", ["", "images/"])
def test_cocos_own_files_are_read_train_first(tmp_path: Path, below: str) -> None:
    (tmp_path / "annotations").mkdir()
    for split, row in {"val": Row("v.jpg", "x"), "train": Row("t.jpg", "y")}.items():
        content = coco([row])
        content["images"][0]["id"] = content["annotations"][0]["image_id"] = content["annotations"][0]["id"] = split
        (tmp_path / "annotations" / f"captions_{split}2014.json").write_text(json.dumps(content))
        (tmp_path / below / f"{split}2014").mkdir(parents=True)
        (tmp_path / below / f"{split}2014" / row.file).write_bytes(b"")
    found = read_annotations(tmp_path)
    train, val = (ImageRecord(name, f"{below}{name}2014/{name[0]}.jpg", name) for name in ("train", "val"))
    assert (found.images, found.root, [each.text for each in found.captions]) == ([train, val], tmp_path, ["y", "x"])
    assert "no test split" in found.notes[0]
    assert read_annotations(tmp_path / "annotations").images == [train, val]
    assert read_annotations(tmp_path / "annotations" / "captions_val2014.json").images == [val]
    (tmp_path / "annotations" / "captions_val2017.json").write_text("{}")
    refused(tmp_path, UsageError, "holds 3 data files")


def test_flickrs_split_lists_leave_images_out_and_must_agree(tmp_path: Path) -> None:
    lists = {"Flickr_8k.trainImages.txt": "a.JPG\r\n", "Flickr_8k.devImages.txt": "b\n\n", "test.txt": ""}
    rows = [row._replace(file=row.file.replace("a.bmp", "a.JPG")) for row in ROWS]
    found = read_annotations(SOURCES["tokens"].write(tmp_path, rows, **lists))
    assert [(image.image_id, image.split) for image in found.images] == [("b", "val"), ("a", "train")]
    assert [caption.caption_id for caption in found.captions] == ["b.bmp#0", "a.JPG#2", "b.bmp#3"]
    note = "2 images in none of Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt, test.txt left out"
    assert found.notes == (f"{tmp_path / 'Flickr8k.token.txt'}: {note}",)
    (tmp_path / "test.txt").write_text("./b\n")
    refused(tmp_path, DataError, "test.txt: image b is in Flickr_8k.devImages.txt too")


def test_the_row_of_flickr30k_that_lacks_a_bar_is_read(tmp_path: Path) -> None:
    rows = "image_name| comment_number| comment\na.bmp| 0| A dog | a cat .\na.bmp| 1   No bar .\n"
    found = read_annotations(SOURCES["results"].write(tmp_path, rows))
    assert [each.text for each in found.captions] == ["A dog | a cat .", "No bar ."]
    (tmp_path / "results.csv").write_text("method,recall\nx,1\n")
    refused(tmp_path, DataError, "no column is known to hold photographs or captions among method, recall")


@pytest.mark.parametrize(("file", "text"), CASES["tables"])
def test_tables_may_name_their_columns_otherwise(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / "Images").mkdir()
    (tmp_path / "Images" / "a.bmp").write_bytes(b"")
    (tmp_path / file).write_text(text)
    found = read_annotations(tmp_path)
    assert [image.file for image in found.images] == ["Images/a.bmp"]
    assert found.captions == [CaptionRecord("a.bmp#0", "a.bmp", "x, y")]


anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(anything.map("a{}".format), min_size=1, max_size=5))
def test_any_caption_survives_any_table(tmp_path: Path, captions: list[str]) -> None:
    for name in ("csv", "tsv", "jsonl"):
        folder = SOURCES[name].write(tmp_path / name, [Row("a.bmp", caption) for caption in captions])
        assert [each.text for each in read_annotations(folder).captions] == captions


def shard(path: Path, members: dict[str, bytes]) -> None:
    """A tar file as WebDataset packs it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))


def test_photographs_are_read_where_they_lie_in_tar_files(tmp_path: Path) -> None:
    """By `prepare`, whose split is in the name of a shard or its folder, and by `index`."""
    pictures = [f"picture {number}".encode() * number for number in range(1, 5)]
    sample = json.dumps({"captions": ["two dogs", "dogs"], "more": 1}).encode()
    shard(tmp_path / "train-00.TAR", {"a.jpg": pictures[0], "a.txt": b"A dog .\nA wolf\n", "a.json": sample})
    shard(
        tmp_path / "a/test/0.tar", {"./x/b.txt": b"no image", "/cafe\u0301.PNG": pictures[1], "caf\u00e9.json": sample}
    )
    shard(tmp_path / "val.tar", {"d.jpg": pictures[2], "d.json": b'{"caption": "a cat"}', "e.jpg": pictures[3]})
    found = read_annotations(tmp_path)
    assert [tuple(each) for each in found.images] == [
        ("caf\u00e9.PNG", "a/test/0.tar/caf\u00e9.PNG", "test"),
        ("a.jpg", "train-00.TAR/a.jpg", "train"),
        ("d.jpg", "val.tar/d.jpg", "val"),
    ]
    assert [each.text for each in found.captions] == ["two dogs", "dogs", "A dog .\nA wolf", "a cat"]
    assert re.findall(r"1 samples, such as \S+", " ".join(found.notes)) == [
        "1 samples, such as a/test/0/x/b,",
        "1 samples, such as val/e,",
    ]
    assert [read_image(tmp_path / each.file) for each in found.images] == [pictures[1], pictures[0], pictures[2]]
    assert [each.file for each in read_annotations(tmp_path / "val.tar", "webdataset").images] == ["val.tar/d.jpg"]
    listed = list_photographs(tmp_path, tmp_path / "data")
    assert [each.file for each in listed.photographs] == [
        "a/test/0.tar/caf\u00e9.PNG",
        "train-00.TAR/a.jpg",
        "val.tar/d.jpg",
        "val.tar/e.jpg",
    ]
    shard(tmp_path / "odd.tar", {"\udcff.jpg": pictures[0]})
    (odd,) = (each.file for each in list_photographs(tmp_path, tmp_path / "data").photographs if "odd" in each.file)
    assert read_image(tmp_path / odd) == pictures[0]
    odd.encode()
    before = listed.digest
    shard(tmp_path / "val.tar", {"d.jpg": pictures[2], "d.txt": b"a cat"})
    assert list_photographs(tmp_path, tmp_path / "data").digest != before
    with pytest.raises(DataError, match=r"is not in val\.tar"):
        read_image(tmp_path / "val.tar" / "e.jpg")


def test_links_to_tar_files_elsewhere_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "other" / "train.tar", {"a.jpg": b"x", "a.txt": b"a dog"})
    shard(tmp_path / "source" / "val.tar", {"a.jpg": b"x", "a.txt": b"a dog"})
    (tmp_path / "source" / "inside").symlink_to(".")
    assert len(read_annotations(tmp_path / "source").images) == 1
    (tmp_path / "source" / "linked").symlink_to("../other")
    refused(tmp_path / "source", DataError, "link")


def with_header(whole: bytes, place: int, content: bytes, at: int = 512 * 2) -> bytes:
    """A tar file with other bytes in the header that begins at `at`, whose checksum is right."""
    header = bytearray(whole[at : at + 512])
    header[place : place + len(content)] = content
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * ord(" ") + sum(header[156:]))
    return whole[:at] + bytes(header) + whole[at + 512 :]


def of_pax(name: str, value: str) -> bytes:
    """A tar file whose one member has an extended header."""
    stream, header = io.BytesIO(), tarfile.TarInfo("a.jpg")
    header.pax_headers = {name: value}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(header)
    return stream.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda whole: whole[:1030] + b"\xff" + whole[1031:],
    "no end": lambda whole: whole[: 3 * 1024],
    "cut off": lambda whole: whole[:2600],
    "half of a download": lambda whole: whole[:3072] + bytes(1 << 21),
    "two files in one": lambda whole: whole * 2,
    "a negative size": lambda whole: with_header(whole, 124, b"\xff" * 10 + b"\xfc\0"),
    "a size of 60 bits": lambda whole: with_header(whole, 124, b"\x80\0\0\0\x0f" + b"\xff" * 7),
    "a size of 30 digits": lambda _: of_pax("size", "9" * 30),
    "a sparse file": lambda whole: with_header(whole, 156, b"S"),
    "a sparse map": lambda _: of_pax("GNU.sparse.map", "x"),
    "headers of headers": lambda whole: with_header(whole, 156, b"L")[1024:2048] * 3000 + whole,
    "one name twice": lambda whole: with_header(whole, 0, b"/a.jpg"),
    "gzip": gzip.compress,
    "no tar": lambda _: b"hello",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tar_file_is_refused_and_costs_an_index_nothing_else(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "train.tar"
    shard(path, {"a.jpg": b"x", "b.jpg": b"x", "a.txt": b"a dog"})
    (tmp_path / "good.jpg").write_bytes(b"x")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    line = refused(tmp_path, DataError, str(path))
    assert ("unpack it" in line) == (damage == "gzip")
    refusal(DataError, "", read_image, path / "a.jpg")
    listed = list_photographs(tmp_path, tmp_path / "data")
    assert ([each.file for each in listed.photographs], [*listed.unusable]) == (["good.jpg"], ["train.tar"])


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((f"{name}.tar", "train") for name in ("cc3m-train-0000", "x/cc_Train", "train2014", "a/training/0")),
        *((f"{name}.tar", "val") for name in ("cc3m-validation-0000", "cc_val", "valid-0", "dev/0", "a.dev_0")),
        *((f"{name}.tar", "test") for name in ("cc3m-test-0000", "test/b/0", "0test")),
        *((f"{name}.tar", None) for name in ("latest-0", "valley", "device", "contest/0", "trains", "0")),
        *((f"{name}.tar", "several splits") for name in ("trainval-0", "train/test-0", "test-dev")),
    ],
)
def test_a_split_is_a_word_in_the_name_of_a_shard_or_its_folders(tmp_path: Path, name: str, split: str | None) -> None:
    shard(tmp_path / name, {"a.jpg": b"x", "a.txt": b"a dog"})
    if split and " " in split:
        refused(tmp_path, DataError, split)
        return
    found = read_annotations(tmp_path)
    # Datasets that have no splits are called train.
    assert ([each.split for each in found.images], bool(found.notes)) == (
        ["" if split == "train" else split or ""],
        split in (None, "train"),
    )


def test_the_caption_of_a_sample_is_all_of_its_text(tmp_path: Path) -> None:
    text = "Red chair\u2028no. 0\n\nfree\x0b shipping "
    bom = "\ufeff".encode()
    samples = {
        "a.txt": bom + f"{text}\n".encode(),
        "b.json": bom + b'{"caption": "a dog"}',
        "c.json": b'{"caption": null, "text": "a dog"}',
        "d.txt": b" \n",
        "e.cls": b"3",
        "v.v2.jpg": b"x",
    }
    shard(tmp_path / "0.tar", samples | {f"{key}.jpg": b"x" for key in "abcde"})
    found = read_annotations(tmp_path)
    assert [each.text for each in found.captions] == [text, "a dog"]
    assert "3 samples, such as 0/c, have a photograph and no caption" in found.notes[0]
    assert "1 samples, such as 0/v, have names with further full stops" in found.notes[1]
    shard(tmp_path / "0.tar", {"a.jpg": b"x", "c.JPG": b"x", "c.json": samples["c.json"]})
    refused(tmp_path, DataError, "no sample has a photograph and a caption: 2 samples, such as 0/a, have")
    for content, value in ((b'{"caption": 7}', "caption is 7, expected text"), (b"\xff", "as captions in UTF-8")):
        shard(tmp_path / "0.tar", {"a.jpg": b"x", "a.json": content})
        assert refused(tmp_path, DataError, value).startswith(str(tmp_path / "0.tar" / "a.json"))


@pytest.mark.parametrize("name", ["x.tar.gz", "a/x.tgz", "x.ZIP"])
def test_what_is_not_read_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "a.jpg").write_bytes(b"x")
    refused(tmp_path, MissingInputError, f"{tmp_path / name}: ")
    refused(tmp_path / name, MissingInputError, f"{tmp_path / name}: ")


def test_a_group_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    rows = ["a.bmp,x,cafe\u0301 ", "a.bmp,y,", "c.bmp,z,", "b.bmp,x,caf\u00e9"]
    found = read_annotations(SOURCES["csv"].write(tmp_path, "\n".join(["file,caption,group", *rows])))
    assert found.groups == {"a.bmp": "caf\u00e9", "b.bmp": "caf\u00e9"}


def test_which_source_is_meant_is_said_where_it_is_unclear(tmp_path: Path) -> None:
    line = refused(tmp_path, MissingInputError, "no known dataset format")
    for wanted in (*FORMATS, "dataset_coco.json", "captions_val20??.json", "captions.tsv", "Flickr8k.token.txt"):
        assert wanted in line
    (tmp_path / "a.JPG").write_bytes(b"")
    refused(tmp_path, NoCaptionsError, "such as a.JPG, and no captions; write captions.csv next to them")
    SOURCES["tokens"].write(SOURCES["csv"].write(tmp_path))
    refused(tmp_path, UsageError, "could be caption_table or flickr_tokens")
    assert read_annotations(tmp_path, "flickr_tokens").captions[0].caption_id == "b.bmp#0"
    refused(tmp_path, UsageError, "format 'karpaty'; did you mean 'karpathy'? known: caption_", format="karpaty")
    for name, several in (("results", "Flickr8k.token.txt, results.csv"), ("tsv", "captions.csv, captions.tsv")):
        SOURCES[name].write(tmp_path)
        refused(tmp_path, UsageError, f"2 data files ({several})", SOURCES[name].format)


def test_lines_have_no_ends_and_empty_ones_at_the_end_are_none(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfa\r\n\n b\x0bc \rd\n\r\n\n")
    assert lines_of(tmp_path / "names.txt") == ["a", "", " b\x0bc ", "d"]


def test_images_without_captions_are_dropped_with_a_note() -> None:
    images = [ImageRecord(str(number), f"{number}.jpg", "train") for number in range(1, 6)]
    texts = ("\u200bdog", "\U0001f415", "?", "\u00e9")
    captions = [CaptionRecord(str(number), "1", text) for number, text in enumerate(texts)]
    found = checked_annotations(Annotations(images, captions, Path("root"), ("a note",)), Path("source"))
    assert (found.images, found.captions, found.root) == (images[:1], captions, Path("root"))
    assert found.notes == ("a note", "source: 4 images without captions (2, 3, 4, ...) dropped")
    assert checked_annotations(found, Path()).notes == found.notes


def test_the_hash_split_is_fixed_for_ever() -> None:
    keys = [f"image-{number}" for number in range(5000)]
    splits = hash_split(keys, 0.1, 0.1, 0)
    assert Counter(splits.values()) == {"train": 3958, "val": 534, "test": 508}
    assert [splits[key] for key in keys[:12]] == ["test", *["train"] * 8, "val", "train", "train"]
    assert hash_split(reversed(keys[:100]), 0.1, 0.1, 0) == {key: splits[key] for key in keys[:100]}
    assert set(hash_split(keys, 0.1, 0.0, 1).values()) == {"train", "val"}
    for seed in range(20):  # no split of three images stays empty
        assert set(hash_split(keys[:3], 0.1, 0.1, seed).values()) == {"train", "val", "test"}


def test_images_without_a_split_are_drawn_by_their_pixels_and_groups_by_their_names(tmp_path: Path) -> None:
    source = SOURCES["csv"].write(tmp_path, "file,caption,group\na.bmp,x,\nb.bmp,y,p\nc.bmp,z,p\n")
    found = read_annotations(source)
    assert "names no splits" in found.notes[0]
    facts = {file: ImageFacts("", 1, 1, sample) for file, sample in (("a.bmp", "1"), ("b.bmp", "2"), ("c.bmp", "3"))}
    drawn = draw_splits(found, facts, 0.5, 0.25, 3)
    expected = hash_split(["1", "p"], 0.5, 0.25, 3)
    assert {each.file: each.split for each in drawn.images} == {
        "a.bmp": expected["1"],
        "b.bmp": expected["p"],
        "c.bmp": expected["p"],
    }


@pytest.mark.parametrize(
    ("relative", "reason"),
    [
        *((path, "is absolute") for path in ("/etc/passwd", "C:/pictures/a.jpg")),
        *((path, "contains '..'") for path in ("../a.jpg", "images/../../a.jpg", "images/../a.jpg", "..", "a/..")),
        ("images\\a.jpg", "contains a backslash"),
        *((path, "no file name can hold") for path in ("a\0.jpg", "a\ud800.jpg")),
        *((path, "names no file") for path in ("", "  ", "./.", ".", "./")),
        *((path, "control character; rename") for path in ("a\nb.jpg", "images/a\x1b[2J.jpg", "b\x85", "a\u2028.jpg")),
        *((path, "more bytes than") for path in ("a" * 5000, "犬" * 86, "a" * 256, "abc/" * 1023 + "abcd")),
    ],
)
def test_a_path_that_is_wrong_by_its_text_is_refused(tmp_path: Path, relative: str, reason: str) -> None:
    line = refusal(DataError, reason, ImageRoot(tmp_path, Path("data.json")).resolve, relative, "image 17")
    assert line.startswith("data.json: image 17: image path ")
    assert len(line) < 500


def test_the_longest_names_and_odd_ones_are_taken(tmp_path: Path) -> None:
    for relative in ("a" * 255, "犬" * 85, "abc/" * 1023 + "abc", "...", "a..b", "images/./a.jpg", ".a"):
        assert ImageRoot(tmp_path, tmp_path).resolve(relative, "path") == (tmp_path / relative).resolve()


def test_links_are_followed_inside_the_root_only_which_may_be_one(tmp_path: Path) -> None:
    root, outside, link = tmp_path / "root", tmp_path / "root-of-others", tmp_path / "link"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.jpg").write_bytes(b"x")
    link.symlink_to(root)
    (root / "inner.jpg").symlink_to(root / "a.jpg")
    (root / "file.jpg").symlink_to(outside / "a.jpg")
    (root / "folder").symlink_to(outside)
    for start in (root, link):
        resolve = ImageRoot(start, start).resolve
        assert resolve("inner.jpg", "path") == resolve("a.jpg", "path") == (root / "a.jpg").resolve()
        for relative in ("file.jpg", "folder/a.jpg"):
            refusal(DataError, "links that lead out of", resolve, relative, "path")
    files = ["inner.jpg", "file.jpg", "folder/a.jpg"]
    told = refusal(DataError, "2 of 3 images are symbolic links", locate_images, root, root, [files], files, [""])
    assert str(outside / "a.jpg") in told
    assert "cp -rL" in told


def test_images_are_found_in_the_first_layout_and_folder_that_hold_one(tmp_path: Path) -> None:
    layouts = [["x/a.jpg", "x/b.jpg"], ["./a.jpg", "b.jpg"]]
    for folder, expected in {"images": "images/", "": "", "x": "x/"}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "b.jpg").write_bytes(b"")
        found = locate_images(tmp_path, tmp_path, layouts, ["0", "1"], ["", "images"])
        assert found == [f"{expected}a.jpg", f"{expected}b.jpg"]


def test_folders_without_the_images_are_listed_and_bad_paths_refused_before(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=rf"{tmp_path}/images, {tmp_path}/photos"):
        locate_images(tmp_path, tmp_path, [["a.jpg"]], ["0"], ["images", "photos"])
    with pytest.raises(DataError, match=r"row 1.*absolute"):
        locate_images(tmp_path, tmp_path, [["x/a.jpg", "x/b.jpg"], ["a.jpg", "/b.jpg"]], ["row 0", "row 1"], ["images"])
    (tmp_path / "a.JPG").touch()
    with pytest.raises(MissingInputError, match=rf"no image a\.jpg in {tmp_path}, but a\.JPG; write names of files"):
        locate_images(tmp_path, tmp_path, [["a.jpg"]], ["0"], ["images", ""])
    many = [f"{number}.jpg" for number in range(51)]
    (tmp_path / "50.jpg").write_bytes(b"")
    with pytest.raises(MissingInputError):
        locate_images(tmp_path, tmp_path, [many], many, [""])
    (tmp_path / "49.jpg").write_bytes(b"")
    assert locate_images(tmp_path, tmp_path, [many], many, [""]) == many
