"""Tables of a user are taken as they are: Parquet, Arrow and image folders, whatever their columns are called."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.datasets.captions import Annotations
from itrpipe.datasets.formats.annotations import read_annotations, recognise
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.datasets.hub import fetch_source
from itrpipe.datasets.pictures import read_image
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.project import Project, Result
from tests.datasets.sources import refusal

NAMES = [f"s/{number}.png" for number in range(12)]
CAPTIONS = [[f"picture {number}", f"number {number}"] for number in range(12)]
PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def png(number: int) -> bytes:
    """A small picture."""
    stream = io.BytesIO()
    Image.new("RGB", (4 + number, 3), (20 * number, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def pictures(paths: Sequence[str | None]) -> pa.Array:
    """A column of pictures as `datasets` writes it."""
    return pa.array([{"bytes": png(row), "path": path} for row, path in enumerate(paths)], PICTURE)


def parquet(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """Write a table; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


def arrow(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write a table as `datasets` does, four rows a batch; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return path


def photographs(folder: Path, names: Sequence[str] = NAMES) -> Path:
    """Write pictures into a folder; return it."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))
    return folder


def rows_of(rows: Sequence[int]) -> dict[str, Any]:
    """Columns of some rows, photographs inside."""
    return {"image": pictures(NAMES).take(pa.array(rows)), "captions": [CAPTIONS[row] for row in rows]}


Parts = Mapping[str, Sequence[int]]
SPLITS: Parts = {"train": range(8), "validation": (8, 9), "test": (10, 11)}
WHOLE: Parts = {"": range(12)}


def write_csv(folder: Path, parts: Parts) -> None:
    photographs(folder)
    lines = ["file,caption" if parts is WHOLE else "file,caption,split"]
    for split, rows in parts.items():
        end = f",{split}" if split else ""
        for row in rows:
            lines += [f"{NAMES[row]},{text}{end}" for text in CAPTIONS[row]]
    (folder / "captions.csv").write_text("\n".join(lines))


def write_image_folder(folder: Path, parts: Parts) -> None:
    for split, rows in parts.items():
        lines = []
        for row in rows:
            place = folder / split / NAMES[row]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(png(row))
            lines.append(json.dumps({"file_name": NAMES[row], "sentences": CAPTIONS[row]}))
        (folder / split / "metadata.jsonl").write_text("\n".join(lines))


def write_parquet(folder: Path, parts: Parts) -> None:
    for split, rows in parts.items():
        parquet(folder / "data" / f"{split or 'all'}-00000-of-00001.parquet", rows_of(rows), row_group_size=3)


def write_saved(folder: Path, parts: Parts) -> None:
    for split, rows in parts.items():
        place = folder / split
        # What it was before it was saved again, and what was computed of it.
        for name in ("data-00000-of-00001.arrow", "data-00000-of-00002.arrow", "cache-1.arrow"):
            arrow(place / name, rows_of(rows))
        (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    if parts is SPLITS:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*SPLITS]}))


def write_tar(folder: Path, parts: Parts) -> None:
    folder.mkdir()
    for split, rows in parts.items():
        with tarfile.open(folder / f"{split or 'all'}-0.tar", "w") as tar:
            for row in rows:
                files = {".png": png(row), ".json": json.dumps({"captions": CAPTIONS[row]}).encode()}
                for ending, content in files.items():
                    header = tarfile.TarInfo(NAMES[row].removesuffix(".png") + ending)
                    header.size = len(content)
                    tar.addfile(header, io.BytesIO(content))


PACKED = {
    "csv": write_csv,
    "image folder": write_image_folder,
    "parquet": write_parquet,
    "save_to_disk": write_saved,
    "tar": write_tar,
}


@pytest.mark.parametrize("parts", [SPLITS, WHOLE], ids=["splits", "no splits"])
def test_a_dataset_is_the_same_however_it_is_packed(tmp_path: Path, parts: Parts) -> None:
    tables = {}
    for kind, write in PACKED.items():
        write(tmp_path / kind, parts)
        name = kind.replace(" ", "-")
        folder = Project(tmp_path / "data").prepare(tmp_path / kind, name=name).folder
        images = pq.read_table(folder / "images.parquet").drop_columns("file").to_pylist()
        tables[kind] = images, pq.read_table(folder / "captions.parquet").to_pylist()
    images, captions = tables["csv"]
    assert sorted(image["image_id"] for image in images) == sorted(NAMES)
    assert {image["split"] for image in images} == {"train", "val", "test"}
    assert [caption["text"] for caption in captions if caption["image_id"] == NAMES[7]] == CAPTIONS[7]
    for kind in PACKED:
        assert tables[kind] == tables["csv"]


def test_photographs_inside_have_the_path_of_their_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "parquet", SPLITS)
    found = read_annotations(tmp_path / "parquet")
    assert found.images[0] == ("s/10.png", "data/test-00000-of-00001.parquet/image/0", "test")
    assert found.images[3][1] == "data/train-00000-of-00001.parquet/image/1"
    write_saved(tmp_path / "saved", SPLITS)
    assert read_annotations(tmp_path / "saved").images[-1][1] == "validation/data-00000-of-00001.arrow/image/1"
    alone = read_annotations(tmp_path / "parquet" / "data" / "validation-00000-of-00001.parquet")
    assert [image.file for image in alone.images] == [
        f"validation-00000-of-00001.parquet/image/{row}" for row in (0, 1)
    ]


def test_images_are_called_by_their_place_where_their_names_are_not_unique(tmp_path: Path) -> None:
    for paths in (["a.png", "a.png"], ["a.png", None]):
        parquet(tmp_path / "x.parquet", {"image": pictures(paths), "text": ["x", "y"]})
        images = read_annotations(tmp_path).images
        assert [image.image_id for image in images] == ["x.parquet/image/0", "x.parquet/image/1"]
    columns = {"image": pictures(["a.png"] * 3), "text": ["x", "y", "z"], "image_id": [7, 8, 7]}
    parquet(tmp_path / "x.parquet", columns)
    found = read_annotations(tmp_path)
    assert [tuple(image) for image in found.images] == [
        ("7", "x.parquet/image/0", ""),
        ("8", "x.parquet/image/1", ""),
    ]
    assert [tuple(caption) for caption in found.captions] == [("7#0", "7", "x"), ("8#0", "8", "y"), ("7#1", "7", "z")]
    columns = {"image": pictures(["a.png"] * 3), "text": ["x", "y", "z"], "id": [7, 8, 7]}
    parquet(tmp_path / "x.parquet", columns)
    assert [image.image_id for image in read_annotations(tmp_path).images][2] == "x.parquet/image/2"
    settings = ColumnSettings(id="id")
    refusal(DataError, "1 duplicate image ids (7)", read_annotations, tmp_path, "", "", settings)


COLUMNS = {
    "bytes alone": {"jpg": [png(0)], "caption": ["x"]},
    "any name beside a path": {"photo of a cafe\u0301": pictures(["a.png"]), "TEXT": ["x"]},
    "bytes rather than names": {"filename": ["b.png"], "image": pictures(["a.png"]), "caption": ["x"]},
    "numbered captions": {"image": pictures(["a.png"]), "caption_1": ["y"], "caption_0": ["x"], "caption_2": [None]},
    "a list": {"image": pictures(["a.png"]), "sentence_list": [["x", "y"]]},
    "Karpathy's sentences": {"image": pictures(["a.png"]), "sentences": [[{"raw": "x"}, {"raw": "y"}]]},
    "a number for a group": {"image": pictures(["a.png"]), "raw": ["x"], "group": [3]},
    "several that could be captions": {
        "image": pictures(["a.png"]),
        "description": ["z"],
        "title": ["z"],
        "text": ["x"],
    },
    "titles": {"image": pictures(["a.png"]), "title": ["x"], "price": [3]},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_recognised(tmp_path: Path, name: str) -> None:
    parquet(tmp_path / "x.parquet", COLUMNS[name])
    found = read_annotations(tmp_path)
    assert [caption.text for caption in found.captions] in (["x"], ["x", "y"])
    assert len(found.images) == 1
    assert read_image(tmp_path / found.images[0].file) == png(0)
    is_told = "captions are read from text, not from title, description" in found.notes[0]
    assert is_told == (name == "several that could be captions")


def test_columns_are_named_on_the_command_line_and_from_python(tmp_path: Path) -> None:
    source = parquet(tmp_path / "x.parquet", {"shot": [png(0), png(1)], "alt": ["x", "y"], "more": ["z", "w"]})
    project = Project(tmp_path / "data")
    columns = {"image": "shot", "captions": ["alt", "more"]}
    from_python = project.prepare(source, name="python", columns=columns).folder
    options = ["image=shot", "captions=alt", "captions=more"]
    by_options = project.prepare(source, name="options", column=options).folder
    assert from_python.name == by_options.name
    assert sorted(Result(by_options).table("captions")["text"].to_pylist()) == ["w", "x", "y", "z"]
    # What was named is known to later commands.
    assert project.prepare(name="options").folder == by_options


def test_any_column_can_be_named(tmp_path: Path) -> None:
    columns = {"shot": [png(0), png(1)], "image": ["u", "v"], "alt": ["x", "y"], "more": ["z", ""], "sku": ["p", "q"]}
    parquet(tmp_path / "x.parquet", columns | {"part": ["dev", "training"]})
    settings = ColumnSettings(image="Shot", captions=("alt", "more"), id="sku", split="part")
    found = read_annotations(tmp_path, columns=settings)
    assert [tuple(image) for image in found.images] == [
        ("p", "x.parquet/shot/0", "val"),
        ("q", "x.parquet/shot/1", "train"),
    ]
    assert [caption.text for caption in found.captions] == ["x", "z", "y"]
    settings = ColumnSettings(image="photo")
    line = "has no column 'photo'; it has shot, image, alt, more, sku, part"
    refusal(UsageError, line, read_annotations, tmp_path, "", "", settings)
    write_tar(tmp_path / "tar", SPLITS)
    refusal(UsageError, "has no columns", read_annotations, tmp_path / "tar", "", "", settings)


def test_the_data_folder_may_lie_below_the_photographs(tmp_path: Path) -> None:
    photographs(tmp_path, ["a.png"])
    (tmp_path / "mine.csv").write_text("img,caption\na.png,x\n")
    project = Project(tmp_path / "data")
    made = project.prepare(tmp_path, name="mine").folder
    (tmp_path / "data" / "other" / "prepare" / "files.partial").mkdir(parents=True)
    parquet(tmp_path / "data" / "other" / "prepare" / "files.partial" / "images.parquet", {"file": ["a"]})
    assert project.prepare(tmp_path, name="mine").folder == made


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ('"[""x"", ""y""]"', ["x", "y"]),
        ("\"['x', 'it''s']\"", ["x", "its"]),
        ("[x]", ["[x]"]),
        ("[1]", ["[1]"]),
        ("[]", ["[]"]),
    ],
)
def test_a_cell_of_text_may_list_captions(tmp_path: Path, cell: str, texts: list[str]) -> None:
    photographs(tmp_path, ["a.png"])
    (tmp_path / "mine.csv").write_text(f"img,captions\na.png,{cell}\n")
    assert recognise(tmp_path) == "caption_table"
    assert [caption.text for caption in read_annotations(tmp_path).captions] == texts


def test_splits_are_those_of_a_column_then_of_names_and_a_lone_train_is_none(tmp_path: Path) -> None:
    def splits(found: Annotations) -> dict[str, str]:
        return {image.image_id: image.split for image in found.images}

    names = ["a.png", "b.png", "c.png"]
    columns = {"image": pictures(names), "caption": ["x", "y", "z"]}
    parquet(tmp_path / "test-00000-of-00001.parquet", columns | {"split": ["train", "restval", "validation"]})
    found = read_annotations(tmp_path)
    assert splits(found) == {"a.png": "train", "b.png": "train", "c.png": "val"}
    assert "1 restval images added to train" in found.notes[0]
    assert splits(read_annotations(tmp_path, restval="drop")) == {"a.png": "train", "c.png": "val"}
    parquet(tmp_path / "test-00000-of-00001.parquet", columns)
    assert {*splits(read_annotations(tmp_path)).values()} == {"test"}
    (tmp_path / "test-00000-of-00001.parquet").rename(tmp_path / "train-00000-of-00001.parquet")
    found = read_annotations(tmp_path)
    assert {*splits(found).values()} == {""}
    assert "is called train, which is no split" in found.notes[0]


def test_tables_of_an_image_folder_name_files_in_their_own_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        photographs(tmp_path / split, ["0.png"])
        (tmp_path / split / "metadata.csv").write_text(f"file_name,text\n0.png,{split}\n")
    found = read_annotations(tmp_path)
    assert [tuple(image) for image in found.images] == [
        ("test/0.png", "test/0.png", "test"),
        ("train/0.png", "train/0.png", "train"),
    ]
    for split in ("train", "test"):
        (tmp_path / split / "metadata.csv").unlink()
    (tmp_path / "metadata.csv").write_text("file_name,text\ntest/0.png,x\ntrain/0.png,y\n")
    assert read_annotations(tmp_path).images == found.images


def test_files_named_in_parquet_lie_below_the_source_or_beside_the_table(tmp_path: Path) -> None:
    photographs(tmp_path, ["images/a.png"])
    path = parquet(tmp_path / "data" / "x.parquet", {"image": ["a.png"], "text": ["x"]})
    assert read_annotations(tmp_path).images[0].file == "images/a.png"
    photographs(tmp_path, ["data/a.png"])
    assert read_annotations(tmp_path).images[0].file == "data/a.png"
    # Photographs that `datasets` has not taken along.
    column = pa.array([{"bytes": None, "path": "a.png"}], PICTURE)
    for write in (parquet, arrow):
        path.unlink()
        path = write(path.with_suffix(f".{write.__name__}"), {"image": column, "text": ["x"]})
        assert read_annotations(tmp_path).images[0] == ("a.png", "data/a.png", "")
    column = pa.array([{"bytes": None, "path": "/elsewhere/a.png"}], PICTURE)
    arrow(path, {"image": column, "text": ["x"]})
    refusal(DataError, "save_to_disk", read_annotations, tmp_path)


def test_rows_without_a_photograph_or_a_caption_are_left_out_and_counted(tmp_path: Path) -> None:
    image = pa.array([{"bytes": png(0), "path": "a.png"}, None, {"bytes": png(1), "path": "b.png"}], PICTURE)
    path = parquet(tmp_path / "x.parquet", {"image": image, "caption": ["x", "y", None]})
    found = read_annotations(tmp_path)
    assert [image.image_id for image in found.images] == ["a.png"]
    assert "1 rows have no photograph, such as row 1, and are left out" in found.notes[0]
    assert "1 rows have no caption" in found.notes[1]
    late = pa.concat_arrays([pa.nulls(40, PICTURE), image])
    parquet(path, {"image": late, "caption": ["x"] * 43})
    assert [image.file for image in read_annotations(tmp_path).images] == ["x.parquet/image/40", "x.parquet/image/42"]
    parquet(path, {"image": image, "caption": ["x", "y", None]})
    parquet(path, {"image": image, "caption": pa.nulls(3)})
    refusal(DataError, "holds no images with captions (1 rows have no photograph", read_annotations, tmp_path)


REFUSED = {
    "a caption that is a number": ({"image": pictures(["a.png"]), "caption": [7]}, "row 0 caption is 7, expected text"),
    "a split that is a number": (
        {"image": pictures(["a.png"]), "caption": ["x"], "split": [1]},
        "row 0 split is 1, expected text",
    ),
    "no row": ({"image": pictures([]), "caption": pa.array([], pa.string())}, "holds no images"),
    "no captions": ({"image": pictures(["a.png"]), "label": [1]}, "hold captions among image, label; name it with"),
    "addresses": ({"URL": ["https://x/a.png"], "TEXT": ["x"]}, "column URL holds addresses, which are not fetched"),
    "an address": ({"image": ["https://x/a.png"], "text": ["x"]}, "column image holds addresses, which are not"),
    "a path that leaves": ({"image": ["../a.png"], "text": ["x"]}, "image path '../a.png' contains '..'"),
    "a column that is no name": ({"../image": pictures(["a.png"]), "text": ["x"]}, "contains '..'"),
    "two ids": ({"image": ["a.png", "a.png"], "text": ["x", "y"], "image_id": [1, 2]}, "has the ids '1' (row 0) and"),
    "two kinds of rows": ({"image": [3], "text": ["x"]}, "row 0 image is 3, expected text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    columns, reason = REFUSED[name]
    path = parquet(tmp_path / "x.parquet", columns)
    assert refusal(DataError, reason, read_annotations, tmp_path).startswith(str(path))


def test_lists_without_commas_are_refused(tmp_path: Path) -> None:
    photographs(tmp_path, ["a.png"])
    (tmp_path / "mine.csv").write_text("file,captions\na.png,\"['x' 'y']\"\n")
    refusal(DataError, "line 2 captions is a list without commas", read_annotations, tmp_path)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_half_written_tables_are_refused(tmp_path: Path, ending: str) -> None:
    write = parquet if ending == "parquet" else arrow
    path = write(tmp_path / f"x.{ending}", {"image": pictures(NAMES), "caption": ["x"] * 12})
    whole = path.read_bytes()
    for size in (len(whole) - 8, len(whole) // 2, 3, 0):
        path.write_bytes(whole[:size])
        refusal(DataError, str(path), read_annotations, tmp_path)


@pytest.mark.parametrize("field", ["text", "path"])
def test_a_value_that_lies_outside_of_its_file_is_refused(tmp_path: Path, field: str) -> None:
    """Arrow itself would read other memory."""
    sizes = {"text": 1, "path": 5}
    path = arrow(tmp_path / "x.arrow", {"image": pictures(["a.png"] * 4), "text": ["x"] * 4})
    offsets = np.arange(5, dtype=np.int32) * sizes[field]
    damaged = offsets.copy()
    damaged[2:4] = 2_000_000_000
    assert path.read_bytes().count(offsets.tobytes()) == 1
    path.write_bytes(path.read_bytes().replace(offsets.tobytes(), damaged.tobytes()))
    refusal(DataError, str(path), read_annotations, tmp_path)


def test_datasets_that_lack_a_file_are_refused(tmp_path: Path) -> None:
    for number in (0, 2):
        name = f"train-0000{number}-of-00003-abcdef.parquet"
        parquet(tmp_path / "data" / name, {"image": pictures(["a.png"]), "text": ["x"]})
    line = refusal(MissingInputError, "1 of 3 such files are not there", read_annotations, tmp_path)
    assert "train-00001-of-00003" in line
    write_saved(tmp_path / "saved", SPLITS)
    (tmp_path / "saved" / "test" / "state.json").unlink()
    refusal(MissingInputError, "split test was not saved to its end", read_annotations, tmp_path / "saved")


def test_links_to_tables_elsewhere_are_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "other" / "x.parquet", {"image": pictures(["a.png"]), "text": ["x"]})
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.parquet").symlink_to(path)
    refusal(DataError, "links that lead out of", read_annotations, tmp_path / "source")


def test_several_tables_are_one_for_each_split_or_have_to_be_named(tmp_path: Path) -> None:
    photographs(tmp_path, ["a.png", "b.png"])
    (tmp_path / "my_train.tsv").write_text("path\tsentence\na.png\tx\n")
    (tmp_path / "my_val.tsv").write_text("path\tsentence\nb.png\ty\n")
    images = read_annotations(tmp_path).images
    assert [tuple(image) for image in images] == [("a.png", "a.png", "train"), ("b.png", "b.png", "val")]
    (tmp_path / "other.csv").write_text("path,sentence\nb.png,y\n")
    refusal(UsageError, "3 data files (other.csv, my_train.tsv, my_val.tsv)", read_annotations, tmp_path)
    assert len(read_annotations(tmp_path / "other.csv").images) == 1


def test_the_bytes_of_photographs_are_not_read(tmp_path: Path) -> None:
    """But for some of the first rows, which say whether there are any."""
    names = [f"{row}.png" for row in range(32)]
    table = {"image": pictures(names), "text": names}
    path = parquet(tmp_path / "x.parquet", table, row_group_size=16, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    assert chunk.path_in_schema == "image.bytes"
    content = bytearray(path.read_bytes())
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    content[start : start + size] = bytes(size)
    path.write_bytes(content)
    assert [image.image_id for image in read_annotations(tmp_path).images] == names


def test_a_dataset_of_the_hub_is_read_from_the_cache_of_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    write_parquet(tmp_path / "published", SPLITS)
    files = {name: f"{tmp_path}/published/data/{name}-*.parquet" for name in SPLITS}
    cache = tmp_path / "cache"
    datasets.load_dataset("parquet", data_files=files, cache_dir=str(cache))
    # As a dataset of this name on the Hub is kept.
    (cache / "me___my-test-set").mkdir()
    (config,) = (cache / "parquet").iterdir()
    config.rename(cache / "me___my-test-set" / "default")
    for info in cache.rglob("dataset_info.json"):
        content = json.loads(info.read_text())
        content["dataset_name"] = "my-test-set"
        info.write_text(json.dumps(content))
        for path in info.parent.glob("*.arrow"):
            path.rename(path.with_name(path.name.replace("parquet-", "my-test-set-")))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    project = Project(tmp_path / "data")
    made = project.prepare("hf:me/my-test-set", name="mine")
    images = made.table("images")
    assert images["image_id"].to_pylist() == NAMES
    assert images["split"].to_pylist() == ["train"] * 8 + ["val"] * 2 + ["test"] * 2
    # Later commands need neither the library nor the network.
    with monkeypatch.context() as without:
        without.setattr(datasets, "load_dataset_builder", None)
        assert project.prepare(name="mine").folder == made.folder
    refusal(MissingInputError, "hf:me/other cannot be fetched", fetch_source, Path("hf:me/other"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    refusal(UsageError, "pip install 'itrpipe[datasets]'", fetch_source, Path("hf:me/my-test-set"))
