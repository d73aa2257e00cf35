"""Exported negatives, read back by the libraries that they are for, against the lists row by row."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.prepared import write_prepared
from itrpipe.errors import DataError
from itrpipe.exporting import negatives as written
from itrpipe.exporting.negatives import FORMATS, Mined, Table, open_mined
from itrpipe.mining.files import PROBABILITY, MinedList
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.sentences import Sentence, join_parts, write_part
from tests.maps import write_list

IMAGES, WIDTH, NEGATIVES, SENTENCES = 7, 5, 3, 2
ODD = ('He said "no", twice.', "Tab\there, line\nthere \\ and \\n.", "Ein süßes 🐕 \u2028 [1, 2]", "it's 'so'")
"""What ends a field, a line or a string in one format or the other."""
SIDE_BY_SIDE = {"negative_document_ids": "docid", "negative_scores": "score", "negative_ranks": "rank"}
SIDE_BY_SIDE |= {PROBABILITY: PROBABILITY}


Row = tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class World:
    """Artifacts made by hand, and what they hold as Python sees it."""

    folder: Path
    files: list[str]
    texts: list[str]
    owners: list[int]
    lists: dict[str, list[list[tuple[int, float, float]]]]  # rows, scores, probabilities
    sentences: list[list[str]]

    def open(self, *, sentences: int = SENTENCES, image_root: str = "") -> Mined:
        more: dict[str, Any] = {"sentences": self.folder / "sentences", "writer": "phrases"} if sentences else {}
        prepared, mined, images = (self.folder / name for name in ("prepared", "mined", "photographs"))
        root = {"image_root": image_root, "most_sentences": sentences}
        return open_mined(prepared, mined, images, NEGATIVES, **root, **more)

    def rows(self, direction: str, sentences: int = SENTENCES, root: str = "") -> dict[int, Row]:
        """Caption -> query, positive, and negatives in full, by a slow definition; those without a negative have none.

        An image has mined captions, sentences of the caption, and mined captions again for those missing.
        """
        images = [{"docid": f"i{row}", "text": None, "image": root + file} for row, file in enumerate(self.files)]
        captions = [{"docid": f"c{row}", "text": text, "image": None} for row, text in enumerate(self.texts)]
        found: dict[int, Row] = {}
        for caption, owner in enumerate(self.owners):
            of_text = direction == "t2i"
            anchor, others = (caption, images) if of_text else (owner, captions)
            mined: list[dict[str, Any]] = [
                {**others[row], "source": "mined", "score": score, "rank": rank, PROBABILITY: likely}
                for rank, (row, score, likely) in enumerate(self.lists[direction][anchor], 1)
            ]
            pair, more = (captions[caption], images[owner]), 0 if of_text else sentences
            own = [
                {"docid": f"c{caption}/phrases-{number}", "text": text, "image": None, "source": "phrases"}
                | dict.fromkeys(("score", "rank", PROBABILITY))
                for number, text in enumerate(self.sentences[caption][:more], 1)
            ]
            negatives = [*mined[:NEGATIVES], *own, *mined[NEGATIVES : NEGATIVES + more - len(own)]]
            if negatives:
                found[caption] = (*(pair if of_text else pair[::-1]), negatives)
        return found


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
    for file in files:
        path = photographs / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
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
        Sentence(f"c{row}", f"i{owners[row]}", text, [], 0.5, 0.6, None, None, kept, "kept" if kept else "outranked")
        for row, own in enumerate(sentences)
        for text, kept in [*((each, True) for each in own), ("rejected", False)]
    ]
    for number, part in enumerate((rows[:9], rows[9:])):
        write_part(folder / f"{number}.parquet", part, {"kept": len(part)})
    join_parts([folder / "0.parquet", folder / "1.parquet"], folder)


def export(
    world: World,
    target: Path,
    form: str,
    *,
    sentences: int = SENTENCES,
    image_root: str = "",
    with_scores: bool = False,
) -> list[Table]:
    """Writes a format to a folder, its files of four rows."""
    mined = world.open(sentences=sentences, image_root=image_root)
    tables = [*FORMATS[form].tables(mined, ("t2i", "i2t"), with_scores)]
    for table in tables:
        for name, rows in table.shards(4):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            table.write(target / name, rows)
    return tables


def loaded(kind: str, files: str, cache: Path) -> Any:
    import datasets

    return datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(cache / "cache"))


@pytest.mark.parametrize(("direction", "count", "width"), [("t2i", 10, NEGATIVES), ("i2t", 9, NEGATIVES + SENTENCES)])
def test_sentence_transformers_reads_rows_with_all_negatives(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str, count: int, width: int
) -> None:
    tables = {each.config: each for each in export(world, tmp_path / "out", "sentence-transformers", with_scores=True)}
    assert (len(tables[direction].rows), tables[direction].left_out) == (count, len(world.texts) - count)
    monkeypatch.chdir(world.folder / "photographs")
    found = loaded("parquet", str(tmp_path / "out" / direction / "*.parquet"), tmp_path)
    complete = [row for row in world.rows(direction).values() if len(row[2]) == width]
    for seen, (query, positive, negatives) in zip(found, complete, strict=True):
        names = ("anchor", "positive", *(f"negative_{number + 1}" for number in range(width)))
        for name, each in zip(names, (query, positive, *negatives), strict=True):
            expected = each["text"] if each["image"] is None else np.asarray(Image.open(each["image"]))
            np.testing.assert_array_equal(np.asarray(seen[name]), expected)
        assert (seen["anchor_id"], seen["positive_id"]) == (query["docid"], positive["docid"])
        for name, key in SIDE_BY_SIDE.items():
            assert seen[name.replace("document_", "")] == [each[key] for each in negatives]


@pytest.mark.parametrize(("sentences", "expected"), [(SENTENCES, 12), (0, 9)])
def test_open_clip_and_negclip_read_the_table(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: int, expected: int
) -> None:
    # What open_clip imports to read shards is another extra, which its reader of tables needs not.
    for name in ("braceexpand", "webdataset", "webdataset.filters", "webdataset.tariterators"):
        monkeypatch.setitem(sys.modules, name, MagicMock(PipelineStage=object))
    from open_clip_train.data import CsvDataset

    (made,) = export(world, tmp_path / "out", "negclip", sentences=sentences)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["train.tsv"]
    monkeypatch.chdir(world.folder / "photographs")
    read = CsvDataset(str(tmp_path / "out" / "train.tsv"), np.asarray, "filepath", "title", "\t", lambda texts: texts)
    lists = dict.fromkeys(("neg_caption", "neg_image"), ast.literal_eval)  # as NegCLIP reads it
    table = pd.read_csv(tmp_path / "out" / "train.tsv", sep="\t", converters=lists)
    # Caption 9 has no hard image, nor has image 5 a hard caption but sentences; who has no other images goes with them.
    rows, hard_images = (
        world.rows("i2t", sentences),
        [[row for row, *_ in own[:NEGATIVES]] for own in world.lists["t2i"]],
    )
    kept, before = [*rows], -1
    while len(kept) != before:
        before, images = len(kept), {world.owners[row] for row in kept}
        kept = [row for row in kept if {*hard_images[row]} & images]
    assert len(read) == len(kept) == expected == len(made.rows)
    assert made.left_out == len(world.texts) - expected
    for number, row in enumerate(kept):
        image, title = read[number]
        np.testing.assert_array_equal(image, np.asarray(Image.open(world.files[world.owners[row]])))
        assert title == world.texts[row]
        assert table["neg_caption"].tolist()[number] == [each["text"] for each in rows[row][2]]
        numbers = {
            image: [n for n, each in enumerate(kept) if world.owners[each] == image] for image in hard_images[row]
        }
        place = row - world.owners.index(world.owners[row])  # of the caption among those of its image
        assert table["neg_image"].tolist()[number] == [own[place % len(own)] for own in numbers.values() if own]


@pytest.mark.parametrize(("direction", "side"), [("t2i", "images"), ("i2t", "captions")])
def test_lines_of_json_hold_every_negative_and_tevatron_names_documents(
    world: World, tmp_path: Path, direction: str, side: str
) -> None:
    export(world, tmp_path / "lines", "jsonl", image_root="/photos/")
    export(world, tmp_path / "ids", "tevatron", image_root="/photos/")
    lines, ids, documents = (
        [*loaded("json", str(tmp_path / place / "*.jsonl"), tmp_path)]
        for place in (f"lines/{direction}", f"ids/{direction}", f"ids/{side}")
    )
    known = {row["docid"]: row for row in documents}
    assert len(known) == len(documents)
    rows = world.rows(direction, root="/photos/").values()
    for line, short, (query, positive, negatives) in zip(lines, ids, rows, strict=True):
        told = {"query_id": query["docid"], "query": query["text"], "query_image": query["image"]}
        told["positive_passages"] = [positive | {"title": "", "text": positive["text"] or ""}]
        told["negative_passages"] = [each | {"title": "", "text": each["text"] or ""} for each in negatives]
        assert line == told
        told = {"query_id": query["docid"], "query_text": query["text"], "query_image": query["image"]}
        told["positive_document_ids"] = [positive["docid"]]
        assert short == told | {name: [each[key] for each in negatives] for name, key in SIDE_BY_SIDE.items()}
        for each in (positive, *negatives):
            assert known[each["docid"]] == {name: each[name] for name in ("docid", "text", "image")}


def test_shards_hold_a_sample_a_caption_as_open_clip_reads_them(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Counter[str]()
    read_photograph = written._photograph
    monkeypatch.setattr(written, "_photograph", lambda *of: opened.update([of[1]["file"]]) or read_photograph(*of))
    (table,) = export(world, tmp_path / "out", "webdataset")
    assert set(opened.values()) == {1, 2}  # once an image and shard
    read = loaded("webdataset", str(tmp_path / "out" / "*.tar"), tmp_path)
    images, captions = world.rows("t2i"), world.rows("i2t")
    rows = sorted({*images, *captions})
    assert [row["__key__"] for row in read] == [f"{row:09}" for row in rows]
    assert len(table.rows) == len(rows)
    members = dict(members_of(tmp_path / "out"))
    for row in rows:
        key, image = f"{row:09}", world.owners[row]
        assert members[f"{key}.jpg"] == (world.folder / "photographs" / world.files[image]).read_bytes()
        assert members[f"{key}.txt"].decode() == world.texts[row]
        told: dict[str, Any] = {"caption_id": f"c{row}", "image_id": f"i{image}", "file": world.files[image]}
        for name, found, ids, shown in (
            ("images", images, "image_id", "file"),
            ("captions", captions, "caption_id", "text"),
        ):
            own = found[row][2] if row in found else []
            facts = [{key: each[key] for key in ("source", "score", "rank", PROBABILITY)} for each in own]
            told[name] = [
                {ids: each["docid"], shown: each["image"] or each["text"]} | more
                for each, more in zip(own, facts, strict=True)
            ]
        assert json.loads(members[f"{key}.json"]) == told


def members_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert isinstance(content, io.BufferedReader)
                yield member.name, content.read()


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
        found, repeats = mined.lists[direction], 0
        for anchor, own in enumerate(lists):
            ranked = [(row, rank) for rank, (row, _, _) in enumerate(own, 1) if (anchor, row) not in same[direction]]
            seen = zip(found["row"][anchor].tolist(), found["rank"][anchor].tolist(), strict=True)
            assert [each for each in seen if each[0] >= 0] == ranked[:NEGATIVES]
            repeats += sum((anchor, row) in same[direction] for row, _, _ in own[:NEGATIVES])
        assert mined.repeats[direction] == repeats
    assert mined.repeats["i2t"]
