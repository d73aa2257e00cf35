"""Exported negatives, read back by the libraries that they are for, against the lists row by row."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.formats.annotations import read_annotations
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.prepared import write_prepared
from itrpipe.errors import DataError, UsageError
from itrpipe.exporting.formats import FORMATS, TableFiles, write_files
from itrpipe.exporting.negatives import MinedPairs, open_mined, open_twins, refuse_wrong_root
from itrpipe.mining.lists import MinedList
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.sentences import Sentence, join_parts, write_part
from tests.maps import write_list

IMAGES, WIDTH, NEGATIVES, SENTENCES = 7, 5, 3, 2
ODD = ('He said "no", twice.', "Tab\there, line\nthere \\ and \\n.", "Ein süßes 🐕 \u2028 [1, 2]", "it's 'so'")
"""What ends a field, a line or a string in one format or the other."""
GOLDEN = Path(__file__).with_name("golden.json")


@dataclasses.dataclass(frozen=True)
class World:
    """Artifacts made by hand, and what they hold as Python sees it."""

    folder: Path
    files: list[str]
    texts: list[str]
    owners: list[int]
    lists: dict[str, list[list[tuple[int, float, float]]]]  # rows, scores, probabilities
    sentences: list[list[str]]

    def open(self, *, sentences: int = SENTENCES, with_scores: bool = False, **options: Any) -> MinedPairs:
        more: dict[str, Any] = {"sentences": self.folder / "sentences", "writer": "phrases"} if sentences else {}
        prepared, mined, images = (self.folder / name for name in ("prepared", "mined", "photographs"))
        more |= {"most_sentences": sentences, **options}
        found = open_mined(prepared, mined, images, NEGATIVES, **more)
        return dataclasses.replace(found, with_scores=with_scores)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Seven images with one to four captions, lists of one to five candidates, none to three sentences a caption."""
    folder = tmp_path_factory.mktemp("world")
    files = [f"photos/{row}.{'png' if row == 2 else 'jpg'}" for row in range(IMAGES)]
    owners = [0, 0, 1, 1, 1, 1, 2, 3, 3, 4, 5, 5, 6]
    texts = [ODD[row] if row < len(ODD) else f"caption {row}" for row in range(len(owners))]
    write_world(folder / "prepared", folder / "photographs", files, owners, texts)
    random = np.random.default_rng(0)
    counts = {"t2i": [5, 3, 2, 4, 3, 3, 1, 5, 3, 0, 4, 3, 3], "i2t": [5, 4, 5, 5, 3, 0, 5]}
    others = {"t2i": (range(IMAGES), owners), "i2t": (range(len(owners)), range(IMAGES))}
    lists = {}
    for name, (candidates, anchors) in others.items():
        rows = []
        for anchor, count in zip(anchors, counts[name], strict=True):
            allowed = [each for each in candidates if (each if name == "t2i" else owners[each]) != anchor]
            chosen = random.permutation(allowed)[:count].tolist()
            scores = sorted(random.normal(size=count).astype(np.float16).tolist(), reverse=True)
            rows.append(list(zip(chosen, scores, random.random(count).astype(np.float16).tolist(), strict=True)))
        lists[name] = rows
    (folder / "mined").mkdir()
    ids = {"t2i": [f"c{row}" for row in range(len(owners))], "i2t": [f"i{row}" for row in range(IMAGES)]}
    for name, file in (("t2i", "images_for_texts"), ("i2t", "texts_for_images")):
        write_list(folder / "mined", file, as_list(ids[name], lists[name]))
    sentences = [[f'{texts[row]} but "{each}"' for each in range(row % 4)] for row in range(len(owners))]
    write_sentences(folder / "sentences", sentences, owners)
    return World(folder, files, texts, owners, lists, sentences)


def write_world(prepared: Path, photographs: Path, files: list[str], owners: list[int], texts: list[str]) -> None:
    random = np.random.default_rng(1)
    facts = {}
    for row, file in enumerate(files):
        path = photographs / file
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        image.save(path, "PNG" if row == 2 else "JPEG")
        facts[file] = ImageFacts(file_digest(path), 8, 8)
    images = [ImageRecord(f"i{row}", file, "train") for row, file in enumerate(files)]
    captions = [
        CaptionRecord(f"c{row}", f"i{owner}", text) for row, (owner, text) in enumerate(zip(owners, texts, strict=True))
    ]
    prepared.mkdir()
    write_prepared(prepared, Annotations(images, captions, photographs), facts)


def as_list(ids: list[str], rows: list[list[tuple[int, float, float]]]) -> MinedList:
    padded = [[*row, *[(-1, -np.inf, 0.0)] * (WIDTH - len(row))] for row in rows]
    candidates, scores, probability = (np.array([[each[part] for each in row] for row in padded]) for part in range(3))
    return MinedList(np.array(ids), candidates.astype(np.int32), scores, probability)


def write_sentences(folder: Path, sentences: list[list[str]], owners: list[int]) -> None:
    folder.mkdir()
    rows = [
        Sentence(f"c{row}", f"i{owners[row]}", text, [], 0.5, 0.6, None, None)
        for row, own in enumerate(sentences)
        for text in own
    ]
    for number, part in enumerate((rows[:9], rows[9:])):
        write_part(folder / f"{number}.parquet", part, {"kept": len(part)})
    join_parts([folder / "0.parquet", folder / "1.parquet"], folder)


def export(
    world: World,
    target: Path,
    form: str,
    **options: Any,
) -> list[TableFiles]:
    """Writes a format to a folder, its files of four rows."""
    mined = world.open(holds_images=FORMATS[form].holds_images, **options)
    tables = FORMATS[form].tables(mined, ("t2i", "i2t"))
    target.mkdir(parents=True, exist_ok=True)
    write_files(target, tables, mined, 4, lambda count: None)
    return tables


def loaded(kind: str, files: str, cache: Path) -> Any:
    import datasets

    return datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(cache / "cache"))


def read_negclip(folder: Path, cache: Path) -> list[Any]:
    """As open_clip and NegCLIP read the table."""
    from open_clip_train.data import CsvDataset

    read = CsvDataset(str(folder / "train.tsv"), np.asarray, "filepath", "title", "\t", lambda texts: texts)
    lists = dict.fromkeys(("neg_caption", "neg_image"), ast.literal_eval)
    table = pd.read_csv(folder / "train.tsv", sep="\t", converters=lists)
    return [*map(list, read), *table.to_dict("records")]  # pyright: ignore[reportArgumentType]


def read_by(kind: str, ending: str, *places: str) -> Callable[[Path, Path], list[Any]]:
    """As datasets reads these folders."""
    return lambda folder, cache: [
        row for place in places for row in loaded(kind, str(folder / place / f"*.{ending}"), cache)
    ]


READ: dict[str, tuple[Callable[[Path, Path], list[Any]], dict[str, Any]]] = {
    "sentence-transformers": (read_by("parquet", "parquet", "t2i", "i2t"), {"with_scores": True}),
    "negclip": (read_negclip, {}),
    "negclip without sentences": (read_negclip, {"sentences": 0}),
    "jsonl": (read_by("json", "jsonl", "t2i", "i2t"), {"image_root": "/photos/"}),
    "tevatron": (read_by("json", "jsonl", "t2i", "i2t", "images", "captions"), {"image_root": "/photos/"}),
    "webdataset": (read_by("webdataset", "tar", "."), {}),
}


@pytest.fixture
def without_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What open_clip imports to read shards is another extra, which its reader of tables needs not."""
    for name in ("braceexpand", "webdataset", "webdataset.filters", "webdataset.tariterators"):
        monkeypatch.setitem(sys.modules, name, MagicMock(PipelineStage=object))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.usefixtures("without_shards")
@pytest.mark.parametrize("archive", ["shard.tar", "shard.parquet"])
def test_photographs_in_an_archive_are_opened_like_those_in_a_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, archive: str
) -> None:
    """Every image that a trainer opens has the pixels that the same row has of a folder."""
    packed = dataclasses.replace(world, folder=tmp_path)
    photographs = tmp_path / "photographs"
    names = [Path(file).name for file in world.files]
    if archive == "shard.parquet":
        names = [f"image/{row}" for row in range(len(names))]
    files = [f"{archive}/{name}" for name in names]
    write_world(tmp_path / "prepared", photographs, files, world.owners, world.texts)
    unpacked = (photographs / archive).rename(tmp_path / "unpacked")
    if archive == "shard.tar":
        with tarfile.open(photographs / archive, "w") as tar:
            tar.add(unpacked, ".")
    else:
        contents = [(unpacked / name).read_bytes() for name in names]
        pq.write_table(pa.table({"image": contents}), photographs / archive, row_group_size=2)
    for name in ("mined", "sentences"):
        (tmp_path / name).symlink_to(world.folder / name)

    def opened(value: Any) -> list[bytes]:
        if isinstance(value, dict | list):
            parts = value.values() if isinstance(value, dict) else value
            return [pixels for part in parts for pixels in opened(part)]
        if isinstance(value, str) and re.fullmatch(r"\S+\.(jpg|png)", value) and form != "webdataset":
            value = Image.open(value)
        return [np.asarray(value).tobytes()] if isinstance(value, Image.Image | np.ndarray) else []

    found = []
    for source in (world, packed):
        target = tmp_path / f"out-{len(found)}"
        export(source, target, form)
        monkeypatch.chdir(target if source is packed else world.folder / "photographs")
        found.append([opened(row) for row in READ[form][0](target, tmp_path / target.name)])
    assert found[0] == found[1]
    assert any(found[0])
    rooted = packed.open(holds_images=FORMATS[form].holds_images, image_root="/elsewhere")
    with pytest.raises(UsageError, match="leave it out"):
        refuse_wrong_root(rooted, "/elsewhere")


@pytest.mark.usefixtures("without_shards")
def test_captions_that_pandas_reads_as_missing_have_no_row(tmp_path: Path, world: World) -> None:
    texts = [{1: "None", 4: "NA", 8: "nan"}.get(row, text) for row, text in enumerate(world.texts)]
    write_world(tmp_path / "prepared", tmp_path / "photographs", world.files, world.owners, texts)
    for name in ("mined", "sentences"):
        (tmp_path / name).symlink_to(world.folder / name)
    (table,) = export(dataclasses.replace(world, folder=tmp_path), tmp_path / "out", "negclip")
    titles = pd.read_csv(tmp_path / "out" / "train.tsv", sep="\t")["title"].tolist()
    assert titles == [texts[row] for row in np.asarray(table.rows).tolist()]
    assert {1, 4, 8}.isdisjoint(np.asarray(table.rows).tolist())


@pytest.mark.parametrize("case", READ)
@pytest.mark.usefixtures("without_shards")
def test_libraries_read_the_negatives_that_were_recorded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Images by the names of their files. What was recorded was equal to the lists, row by row."""
    photographs = world.folder / "photographs"
    known = {np.asarray(Image.open(photographs / file)).tobytes(): file for file in world.files}

    def plain(value: Any) -> Any:
        if isinstance(value, Image.Image | np.ndarray):
            return known[np.asarray(value).tobytes()]
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            return [[key, plain(each)] for key, each in pairs if key != "__url__"]
        return value

    monkeypatch.chdir(photographs)
    read, options = READ[case]
    tables = export(world, tmp_path / "out", case.partition(" ")[0], **options)
    counts = [[each.config, len(each.rows), each.left_out] for each in tables]
    rows = [hashlib.sha256(json.dumps(plain(row)).encode()).hexdigest()[:8] for row in read(tmp_path / "out", tmp_path)]
    assert [counts, rows] == json.loads(GOLDEN.read_text())[case]


def test_exported_samples_are_read_back_as_they_were(world: World, tmp_path: Path) -> None:
    odd = dataclasses.replace(world, folder=tmp_path / "world")
    texts = [f"{text}\r\n" if row % 2 else text for row, text in enumerate(world.texts)]
    write_world(tmp_path / "world" / "prepared", tmp_path / "world" / "photographs", world.files, world.owners, texts)
    for name in ("mined", "sentences"):
        (odd.folder / name).symlink_to(world.folder / name)
    (table,) = export(odd, tmp_path / "out", "webdataset")
    assert [each.text for each in read_annotations(tmp_path / "out").captions] == [texts[row] for row in table.rows]


def test_an_image_that_changed_or_went_is_no_sample(world: World, tmp_path: Path) -> None:
    moved = dataclasses.replace(world, folder=tmp_path)
    for name in ("prepared", "mined", "sentences"):
        (tmp_path / name).symlink_to(world.folder / name)
    for file in world.files:
        (tmp_path / "photographs" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photographs" / file).write_bytes((world.folder / "photographs" / file).read_bytes())
    (tmp_path / "photographs" / world.files[5]).write_bytes(b"another")
    with pytest.raises(DataError, match=r"5\.jpg cannot be read as the image that was prepared"):
        export(moved, tmp_path / "out", "webdataset")
    (tmp_path / "photographs" / world.files[5]).unlink()
    with pytest.raises(DataError, match=r"5\.jpg cannot be read"):
        export(moved, tmp_path / "out", "webdataset")


def test_what_says_the_same_as_the_positive_is_no_negative(world: World, tmp_path: Path) -> None:
    """The hardest caption of image 0 repeats one of its own: neither image is a negative of the other's caption."""
    hardest = world.lists["i2t"][0][0][0]
    texts = [f"{world.texts[0].upper()} !" if row == hardest else text for row, text in enumerate(world.texts)]
    for name in ("mined", "sentences"):
        (tmp_path / name).symlink_to(world.folder / name)
    write_world(tmp_path / "prepared", tmp_path / "photographs", world.files, world.owners, texts)
    mined = dataclasses.replace(world, folder=tmp_path).open(sentences=0)
    same = {"i2t": {(0, hardest), (world.owners[hardest], 0)}, "t2i": {(hardest, 0), (0, world.owners[hardest])}}
    for direction, lists in world.lists.items():
        found, repeats = mined.rows[direction], 0
        for anchor, own in enumerate(lists):
            ranked = [row for row, _, _ in own if (anchor, row) not in same[direction]]
            assert [row for row in found[anchor].tolist() if row >= 0] == ranked[:NEGATIVES]
            repeats += sum((anchor, row) in same[direction] for row, _, _ in own[:NEGATIVES])
        assert mined.left_out[direction].repeats == repeats
    assert mined.left_out["i2t"].repeats


def test_what_the_judge_takes_for_right_is_no_negative(world: World) -> None:
    mined = world.open(sentences=0, drop_above=0.5)
    for direction, lists in world.lists.items():
        right = seen = 0
        for anchor, own in enumerate(lists):
            kept = [row for row, _, probability in own if probability <= 0.5]
            assert [row for row in mined.rows[direction][anchor].tolist() if row >= 0] == kept[:NEGATIVES]
            right += sum(probability > 0.5 for _, _, probability in own[:NEGATIVES])
            seen += len(own[:NEGATIVES])
        assert tuple(mined.left_out[direction]) == (0, right, seen)
        assert right


def test_twins_are_each_others_negatives(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image 0 and image 4, found twice, image 2 and its mirror image, and a sentence without a twin."""
    (tmp_path / "twins").mkdir()
    rows: list[Any] = [(0, "i4", "a red sled", "a blue sled")] * 2 + [(2, "i2", "a cat left", "a cat right")]
    rows.append((5, None, None, None))
    sentences = [
        Sentence("c0", f"i{image}", "", (), None, None, None, None, "", twin, detail, twin_detail)
        for image, twin, detail, twin_detail in rows
    ]
    write_part(tmp_path / "part", sentences, {})
    join_parts([tmp_path / "part"], tmp_path / "twins")
    monkeypatch.chdir(world.folder / "photographs")

    def rows_of(form: str, columns: list[str]) -> list[list[Any]]:
        sources = world.folder / "prepared", tmp_path / "twins", Path.cwd()
        mined = open_twins(*sources, holds_images=FORMATS[form].holds_images)
        (table,) = FORMATS[form].tables(mined, ["t2i"])
        table.write(tmp_path / form, table.rows)
        if form == "negclip":
            return pd.read_csv(tmp_path / form, sep="\t")[columns].to_numpy().tolist()
        return [list(row.values()) for row in loaded("parquet", str(tmp_path / form), tmp_path)]

    pixels = [np.asarray(Image.open(file).convert("RGB")) for file in world.files]
    shown = {0: pixels[0], 4: pixels[4], 2: pixels[2], -2: pixels[2][:, ::-1]}
    written = rows_of("sentence-transformers", [])
    expected = [("a red sled", 0, 4), ("a blue sled", 4, 0), ("a cat left", 2, -2), ("a cat right", -2, 2)]
    for (text, *images), (told, *numbers) in zip(written, expected, strict=True):
        assert text == told
        for image, number in zip(images, numbers, strict=True):
            difference = np.asarray(image.convert("RGB")).astype(int) - shown[number]
            assert abs(difference).mean() < (8 if number == -2 else 0.1)
    assert rows_of("negclip", ["filepath", "title", "neg_caption", "neg_image"]) == [
        [world.files[0], "a red sled", '["a blue sled"]', "[1]"],
        [world.files[4], "a blue sled", '["a red sled"]', "[0]"],
    ]
