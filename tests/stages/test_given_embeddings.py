"""`--embeddings`: vectors of any model are mined and evaluated as those of a model that was trained here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.config import read_toml
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.exporting.tools import write_embeddings
from itrpipe.features.declaration import GivenFiles
from itrpipe.features.embeddings import EMBEDDINGS, ORDER, SplitEmbeddings, embedding_writer, read_embeddings
from itrpipe.features.given import GivenSplit, read_ids, write_given
from itrpipe.mining.lists import FILES, read_list
from itrpipe.storage.artifact import METRICS, RANKINGS, STATISTICS, read_manifest
from tests.chains import FEW, Invoke, done, made, only, refused, sets
from tests.conftest import TINY, TINY_AOQ

SMALL = ["--set=num_texts=5", "--set=num_images=3"]
ROOT = Path(__file__).parents[2]


def same_lists(ours: Path, theirs: Path) -> None:
    for direction in FILES:
        mine, other = read_list(ours, direction), read_list(theirs, direction)
        for what in ("anchor_ids", "candidates", "scores", "probabilities"):
            np.testing.assert_array_equal(getattr(mine, what, None), getattr(other, what, None))
    assert json.loads((ours / STATISTICS).read_text()) == json.loads((theirs / STATISTICS).read_text())


def test_lists_and_metrics_are_those_of_the_model_whose_vectors_are_given(
    chain: Path, finished_chain: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr("itrpipe.storage.array_formats._BYTES_AT_ONCE", 100)  # three rows
    trained, evaluated = (only(chain, f"{stage}/triplet.vsepp") for stage in ("train", "evaluate"))
    where = ["--dataset", "tiny", "--data", chain]
    model = ["--backbone", "vsepp", *sets(*TINY[:-1])]
    more = ["--drop-duplicates", "--set", "absolute_margin=0.01", "--set", "library=faiss"]
    ours = [made(invoke("mine-negatives", *model, *SMALL, *each, *where)) for each in ([], more)]

    train, test = (read_embeddings(trained / EMBEDDINGS, name) for name in ("train", "test"))
    for name, kind, vectors in (("parquet", "parquet", train), ("npy", "npy", train), ("test", "npy", test)):
        (tmp_path / name).mkdir()
        write_embeddings(tmp_path / name, vectors, kind)
    # Rows in another order, captions in two files of float64.
    table = pq.read_table(tmp_path / "parquet" / "captions.parquet")
    wide = table.set_column(2, "embedding", table["embedding"].cast(pa.list_(pa.float64())))
    (tmp_path / "parquet" / "captions").mkdir()
    for number, rows in enumerate(np.split(np.random.default_rng(1).permutation(len(table)), [17])):
        pq.write_table(wide.take(rows), tmp_path / "parquet" / "captions" / f"{number}.parquet")
    files = {
        "parquet": [tmp_path / "parquet" / "images.parquet", tmp_path / "parquet" / "captions"],
        "npy": [tmp_path / "npy"],
        "h5": [trained / EMBEDDINGS],
    }
    for name, paths in files.items():
        given = ["--embeddings", *paths, "--name", name]
        theirs = made(invoke("mine-negatives", *given, *SMALL, *where))
        assert theirs.name.startswith(f"exact.given.given-{name}-")
        same_lists(ours[0], theirs)
    same_lists(ours[1], made(invoke("mine-negatives", *given, *SMALL, *more, *where)))
    refused(invoke("export-negatives", "--to", tmp_path / "out", *where), 2, "parquet, npy, h5; choose with --model")
    photographs = shutil.copytree(finished_chain / "source", tmp_path / "source")
    exported = ["--model", "npy", "--to", tmp_path / "out", "--image-root", photographs]
    first = min(photographs.glob("*/*.jpg"))
    content = first.read_bytes()
    first.write_bytes(b"another")
    refused(invoke("export-negatives", *exported, *where), 2, first.name)
    first.unlink()
    refused(invoke("export-negatives", *exported, *where), 2, first.name)
    first.write_bytes(content)
    done(invoke("export-negatives", *exported, *where))
    written = datasets.load_dataset(str(tmp_path / "out"), "t2i", split="train", cache_dir=str(tmp_path / "cache"))
    assert [each.size for each in written[0].values() if not isinstance(each, str)] == 4 * [(16, 12)]
    assert {read_manifest(each).metrics["made_unit"] for each in chain.glob("tiny/embeddings/given*")} == {0}

    for side in ("captions", "images"):  # in the order of the dataset
        (tmp_path / "test" / f"{side}.ids.json").unlink()
    refused(invoke("evaluate", "--backbone", "given-parquet", *where, "--dry-run"), 3, "'test'")  # of train alone
    few = f"--set={FEW}"
    found = made(invoke("evaluate", "--embeddings", tmp_path / "test", "--name", "npy", few, *where))
    assert (found / METRICS).read_bytes() == (evaluated / METRICS).read_bytes()
    assert pq.read_table(found / RANKINGS).equals(pq.read_table(evaluated / RANKINGS))
    again = invoke("evaluate", "--backbone", "given-npy", few, *where, "--dry-run")  # the files are remembered
    assert f"✓ evaluate/{found.name}" in again.out, again.err
    aoq = ["train", "--method", "aoq", "--backbone", "vsepp", "--seed", "1", *sets(*TINY_AOQ)]
    planned = done(invoke(*aoq, "--negatives-from", "h5", *where, "--dry-run"))
    assert re.search(r"✓ mine_negatives/exact\.given\.given-h5-\w+ +up to date", planned)
    done(invoke("report", *where))


def test_without_a_dataset_files_are_all_that_is_needed(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ITRPIPE_DATASET", raising=False)
    random = np.random.default_rng(0)
    owners = random.permutation(np.repeat(np.arange(10), 2))
    images, texts = (random.normal(size=(count, 4)) for count in (10, 20))
    np.save("images.npy", images.astype(np.float32))
    np.save("texts.npy", texts.astype(np.float16))
    np.save("owners.npy", owners)
    given = ["--embeddings", "images.npy", "texts.npy", "--owners", "owners.npy"]
    mine = ["mine-negatives", *given, *SMALL, "--set=precision=fp32"]
    folder = made(invoke(*mine))
    assert folder.parts[:3] == ("data", "embeddings", "mine_negatives")
    lists = {direction: read_list(folder, direction) for direction in FILES}
    rows = {direction: each.anchor_ids.astype(int) for direction, each in lists.items()}
    sides = images.astype(np.float32), texts.astype(np.float16).astype(np.float32)
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in sides]
    scores = np.where(owners == np.arange(10)[:, None], -np.inf, units[0] @ units[1].T)
    wanted = {"texts_for_images": scores, "images_for_texts": scores.T}
    for direction, other in (("texts_for_images", "images_for_texts"), ("images_for_texts", "texts_for_images")):
        found, anchors = lists[direction], rows[direction]
        hardest = np.argsort(-wanted[direction][anchors], axis=1)[:, : found.candidates.shape[1]]
        np.testing.assert_array_equal(rows[other][found.candidates], hardest)
    further = []
    for scale in (1, 3):  # they are made unit vectors as the others are
        table = pa.table({"image_id": ["x", "y"], "embedding": (scale * images[:2]).tolist()})
        pq.write_table(table, f"{scale}.parquet")
        further.append(read_list(made(invoke(*mine, "--candidates", f"{scale}.parquet")), "images_for_texts"))
    assert (further[0].candidates >= 10).any()
    np.testing.assert_array_equal(*(each.candidates for each in further))
    done(invoke("evaluate", *given, "--set=bootstrap_samples=100", "--split", "val"))
    assert invoke("report", "--dataset", "embeddings").code == 0
    for name in ("a@1", "a@2", "b@1", "b@2"):
        done(invoke("evaluate", *given, "--set=bootstrap_samples=100", "--split", "val", "--name", name))
    refused(invoke("evaluate", *given, "--split", "val", "--name", "a"), 2, "a@1 is there")
    page = done(invoke("report", "--dataset", "embeddings", "--compare", "a", "b")).split()[-1]
    (claim,) = json.loads((Path(page).parent / "results.json").read_text())["claims"]
    assert (claim["baseline"], claim["model"], claim["seeds"]) == ("a", "b", [1, 2])
    again = ["--set=bootstrap_samples=100", "--split", "val", "--name", "a@1"]
    moved = [given[0], shutil.copy("images.npy", "moved.npy"), *given[2:]]
    for files in (moved, given):  # a name stands for what it was given last
        np.save("images.npy", images[::-1].astype(np.float32))
        done(invoke("evaluate", *given, *again))
        np.save("images.npy", images.astype(np.float32))
        done(invoke("evaluate", *given, *again, "--measure", "inner-product"))
        done(invoke("evaluate", *files, *again))
        page = done(invoke("report", "--dataset", "embeddings", "--compare", "a", "b")).split()[-1]
        assert json.loads((Path(page).parent / "results.json").read_text())["claims"] == [claim]
    done(invoke("evaluate", *given, "--set=bootstrap_samples=100", "--split", "test", "--name", "c"))
    refused(invoke("report", "--dataset", "embeddings", "--compare", "a", "c"), 2, "share no test set")
    gone = Path("images.npy").rename("gone.npy")  # with which the split began
    done(invoke("evaluate", *moved, "--set=bootstrap_samples=100", "--split", "val", "--name", "d"))
    gone.rename("images.npy")
    assert f"✓ mine_negatives/{folder.name}" in invoke(*mine, "--dry-run").out  # another split changes nothing
    assert "embeddings/given" not in invoke("gc", "--dataset", "embeddings", "--yes").out
    refused(invoke("gc"), 3, "embeddings")
    assert "no text" in invoke(*mine, "--drop-duplicates").err
    assert "has no photographs" in invoke("extract", "--dataset", "embeddings", "--features", "hog").err
    tables = {"caption_id": [f"c{row}" for row in range(20)], "image_id": [f"i{row}" for row in owners]}
    tables |= {"text": ["a dog", *(f"text {row}" for row in range(18)), "A dog."], "embedding": texts.tolist()}
    pq.write_table(pa.table(tables), "captions.parquet")
    pq.write_table(pa.table({"image_id": [f"i{row}" for row in range(10)], "embedding": images.tolist()}), "i.parquet")
    worded = ["mine-negatives", "--embeddings", "i.parquet", "captions.parquet", "--dataset", "own", *SMALL]
    counted = json.loads((made(invoke(*worded, "--drop-duplicates")) / STATISTICS).read_text())
    assert counted["duplicates"]["captions"] == 2


FORMS: dict[str, tuple[str, object, str]] = {
    "widths": ("texts.npy", np.ones((4, 3)), "of width 2 and texts.npy of 3"),
    "counts": ("owners.npy", [0, 0, 1], "images of 3 captions and texts.npy holds 4"),
    "nan": ("texts.npy", [[1, 0], [0, 1], [1, np.nan], [1, 1]], "NaN, such as row 2"),
    "infinity": ("texts.npy", np.full((4, 2), np.inf, np.float16), "NaN, such as row 0"),
    "zero": ("images.npy", [[1.0, 0], [0, 0]], "zero .* such as row 1"),
    "too large": ("images.npy", [[1e200, 0], [0, 1]], "NaN, such as row 0"),
    "no such row": ("owners.npy", [0, 1, 2, 1], "1 of 4 captions .* such as '2' in row 2"),
    "no such id": ("owners.npy", ["0", "1", "x", "1"], "1 of 4 captions .* such as 'x'"),
    "image alone": ("owners.npy", [0, 0, 0, 0], "1 of 2 images have no caption, such as '1' in row 1"),
    "owners of decimals": ("owners.npy", np.ones(4), "cannot be read as ids"),
    "whole numbers": ("texts.npy", np.ones((4, 2), int), r"int64 \[4, 2\]"),
    "one row": ("texts.npy", np.ones(4), "no texts"),
    "too few ids": ("texts.ids.json", ["a"], "4 vectors and 1 ids"),
    "id twice": ("texts.ids.json", ["a", "b", "c", "a"], "1 of 4 ids of captions .*'a' in row 3"),
    "id without a character": ("texts.ids.json", ["a", "", "c", "d"], "1 of 4 ids of captions are empty.*'' in row 1"),
    "id with a NUL": ("texts.ids.json", ["\0a", "b", "c", "d"], "1 of 4 ids of captions are empty.*in row 0"),
    "no list": ("texts.ids.json", {"a": 1}, "expected a list"),
    "large ids": ("texts.ids.json", [2**70, 1, 2, 3], "texts.ids.json"),
    "no ids": ("texts.ids.json", ["a", None, "b", "c"], "texts.ids.json"),
}


@pytest.mark.parametrize("form", FORMS)
def test_files_that_do_not_belong_together_are_refused(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", [[1.0, 0], [0, 1]])
    np.save("texts.npy", [[1.0, 0], [0, 1], [1, 1], [2, 1]])
    np.save("owners.npy", [0, 1, 0, 1])
    prepared = ToySplit(["0", "1"], ["0", "1", "2", "3"], np.array([0, 1, 0, 1]))
    name, content, message = FORMS[form]
    if name.endswith(".json"):
        Path(name).write_text(json.dumps(content))
    else:
        np.save(name, np.array(content))

    def read() -> None:
        given = GivenSplit(GivenFiles(images="images.npy", texts="texts.npy", owners="owners.npy"), "train")
        given.alone()
        write(given, prepared)

    with pytest.raises(ItrpipeError, match=message) as refused:
        read()
    assert isinstance(refused.value, DataError | MissingInputError)
    assert "\n" not in str(refused.value)


class ToySplit:
    """Ids of a split, as `Split` has them."""

    name = "train"

    def __init__(self, images: list[str], captions: list[str], owners: np.ndarray) -> None:
        self.image_ids, self.caption_ids, self.caption_image = np.array(images), np.array(captions), owners


def write(given: GivenSplit, split: Any, measure: str = "cosine") -> SplitEmbeddings:
    write_given(Path("out.h5"), given, split, measure, by_row=True, advance=lambda count: None)
    return read_embeddings(Path("out.h5"), "train")


def test_hdf5_of_any_layout_and_parquet_are_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.array([[3.0, 4.0], [0.6, 0.8]], np.float32)
    split: Any = ToySplit(["7", "8"], ["a", "b"], np.array([0, 1]))
    with h5py.File("both.h5", "w") as file:
        file["images"], file["image_id"], file["texts"] = vectors, [7, 8], vectors
        file["caption_id"], file["caption_image"] = ["b", "a"], [1, 0]
    both = GivenFiles(images="both.h5", texts="both.h5")
    found = write(GivenSplit(both, "train"), split)
    np.testing.assert_array_equal(found.texts, np.array([[0.6, 0.8], [0.6, 0.8]], np.float32))
    raw = write(GivenSplit(both, "train"), split, "inner-product")
    np.testing.assert_array_equal(raw.texts, vectors[::-1])
    np.testing.assert_array_equal(raw.scores(), raw.images @ raw.texts.T)
    ordered = write(GivenSplit(both, "train"), split, "order")
    assert ordered.measure == ORDER
    np.testing.assert_allclose(ordered.scores(), [[0, 0], [0, -4]], atol=1e-6)
    # An owner that contradicts the dataset, and ids that it does not have or that are missing
    swapped: Any = ToySplit(["8", "7"], ["b", "a"], np.array([0, 1]))
    GivenSplit(both, "train").places(swapped, by_row=True)
    for other, message in (
        (ToySplit(["7", "8"], ["a", "b"], np.array([1, 0])), "2 of 2 captions belong to other images"),
        (ToySplit(["7", "8"], ["a", "c"], np.array([0, 1])), "1 of 2 ids are of no caption.* such as 'b'"),
        (ToySplit(["7", "8", "9"], ["a", "b"], np.array([0, 1])), "1 of 3 images .* such as '9'"),
    ):
        with pytest.raises(DataError, match=message):
            GivenSplit(both, "train").places(other, by_row=True)  # pyright: ignore[reportArgumentType]
    with h5py.File("alone.h5", "w") as file:
        file["anything"], file["of"] = vectors, [8, 7]
    Path("owners.txt").write_text("8\n7\n")
    owned = GivenSplit(GivenFiles(images="both.h5", texts="alone.h5", owners="owners.txt"), "val")
    assert owned.alone().tolist() == [1, 0]
    assert owned.captions.ids.to_pylist() == ["0", "1"]
    Path("owners.json").write_text("[8, 7]")  # no rows, but ids
    named = GivenFiles(images="both.h5", texts="alone.h5", owners="owners.json")
    assert GivenSplit(named, "val").alone().tolist() == [1, 0]
    with pytest.raises(DataError, match="does not say which image"):
        GivenSplit(GivenFiles(images="both.h5", texts="alone.h5"), "val").alone()
    with embedding_writer(Path("own.h5"), "test", ["7", "8"], ["a", "b"], np.array([0, 1]), 2, ORDER) as write_rows:
        write_rows("images", 0, vectors)
        write_rows("texts", 0, vectors)
    with pytest.raises(MissingInputError, match="no split 'train'; it has test"):
        GivenSplit(GivenFiles(images="own.h5", texts="own.h5"), "train")
    with pytest.raises(UsageError, match="add --measure order"):
        write(GivenSplit(GivenFiles(images="own.h5", texts="own.h5"), "test"), split)


def test_the_page_from_sentence_transformers_to_lists(
    invoke: Invoke, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (snippet,) = (block for block in blocks if "SentenceTransformer(" in block)
    (lists,) = (block for block in blocks if "candidate_rows" in block)
    evaluate, mine = (shlex.split(line)[1:] for block in blocks for line in block.splitlines() if "--owners" in line)
    random = np.random.default_rng(0)
    (tmp_path / "photographs").mkdir()
    lines = ["file,caption,split"]
    for number in range(16):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photographs" / f"{number}.png")
        split = "train" if number < 8 else "test"
        lines += [f"{number}.png,a dog number {2 * number + more} on the road,{split}" for more in range(2)]
    (tmp_path / "photographs" / "captions.csv").write_text("\n".join(lines), encoding="utf-8")
    exec(compile(snippet.replace("clip-ViT-B-32", str(saved_encoders / "clip")), "embeddings.md", "exec"), {})
    folder = made(invoke(*mine, *SMALL))
    made(invoke(*evaluate, "--set=bootstrap_samples=100"))
    found: dict[str, Any] = {}
    exec(compile(re.sub(r'"data/.*"', repr(str(folder)), lists), "embeddings.md", "exec"), found)
    assert found["hardest"].shape == (8, 5)
    assert not {*map(str, (0, 1))} & {*found["hardest"][0]}


def test_text_with_a_byte_order_mark_is_the_text(tmp_path: Path) -> None:
    mark = "\ufeff"
    (tmp_path / "owners.txt").write_text(f"{mark}a\r\nb\u2028c\n\n", encoding="utf-8", newline="")
    assert read_ids(tmp_path / "owners.txt").to_pylist() == ["a", "b\u2028c"]
    (tmp_path / "owners.json").write_text(f'{mark}["a"]', encoding="utf-8")
    assert read_ids(tmp_path / "owners.json").to_pylist() == ["a"]
    (tmp_path / "recipe.toml").write_text(f"{mark}# Of people.\na = 1\n", encoding="utf-8")
    assert read_toml(tmp_path / "recipe.toml") == {"a": 1}
