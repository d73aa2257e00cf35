"""Imported arrays and given embeddings become the same bytes, whatever the format of their files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.negatives.lists import FILES, read_list
from tests.chains import Invoke, done, made
from tests.conftest import TinySource

GOLDEN = json.loads(Path(__file__).with_name("golden_arrays.json").read_text())
Content = dict[str, np.ndarray]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def features(names: list[str]) -> Content:
    """All datasets of a feature file, with boxes in pixels and rubbish after `count`."""
    rng, count = np.random.default_rng(0), len(names)
    corners = np.sort(rng.uniform(0, 8, size=(count, 4, 2, 2)), axis=2).reshape(count, 4, 4)
    return {
        "ids": np.array(names),
        "feats": rng.normal(size=(count, 4, 5)).astype("f4"),
        "count": rng.integers(1, 5, size=count),
        "boxes": corners,
        "labels": rng.integers(1600, size=(count, 4)),
        "scores": rng.uniform(size=(count, 4)),
        "attributes": rng.integers(400, size=(count, 4)).astype("u2"),
        "attribute_scores": rng.uniform(size=(count, 4)).astype("f2"),
        "global": rng.normal(size=(count, 3)).astype(">f8"),
        "pixels": rng.integers(256, size=(count, 6, 8, 3)).astype("u1"),
    }


def write_hdf5(path: Path, content: Content, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in content.items():
            if array.dtype.kind == "U":
                file.create_dataset(name, data=array.tolist(), dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=array, **options)


LAYOUTS: dict[str, Callable[[Path, Any], object]] = {
    "stored.npz": lambda path, content: np.savez(path, **content),
    "packed.npz": lambda path, content: np.savez_compressed(path, **content),
    "plain.h5": write_hdf5,
    "packed.hdf5": lambda path, content: write_hdf5(path, content, chunks=True, compression="gzip"),
    "alone.npy": lambda path, content: np.save(path, content["feats"]),
}


def test_features(precomp_dataset: TinySource, data_root: Path, invoke: Invoke, tmp_path: Path) -> None:
    where = ["--dataset", "mine", "--data", data_root]
    done(invoke("prepare", *where, "--source", precomp_dataset.folder))
    names = sorted((path.name for path in precomp_dataset.images.iterdir()), reverse=True)
    (tmp_path / "names.txt").write_text("\n".join(names))
    content = features(names)
    found = {}
    for layout, write in LAYOUTS.items():
        write(tmp_path / layout, content)
        how = ["--ids", tmp_path / "names.txt"] if layout.endswith(".npy") else ["--map", "regions=feats"]
        name = layout.replace(".", "-")
        done(invoke("extract", *where, "--from", tmp_path / layout, *how, "--set=boxes=pixels", "--name", name))
        (path,) = data_root.glob(f"mine/extract/{name}-*/features.h5")
        found[layout] = digest(path)
    assert found == GOLDEN["features"]


def write_npy(folder: Path, vectors: Content, ids: dict[str, list[str]]) -> list[Path]:
    for name in ("images", "texts"):
        np.save(folder / f"{name}.npy", vectors[name])
        (folder / f"{name}.ids.json").write_text(json.dumps(ids[name]))
    (folder / "owners.json").write_text(json.dumps(ids["owners"]))
    return [folder / "images.npy", folder / "texts.npy", Path("--owners"), folder / "owners.json"]


def write_parquet(folder: Path, vectors: Content, ids: dict[str, list[str]]) -> list[Path]:
    pq.write_table(pa.table({"image_id": ids["images"], "embedding": list(vectors["images"])}), folder / "a.parquet")
    columns = {"caption_id": ids["texts"], "image_id": ids["owners"], "embedding": list(vectors["texts"])}
    (folder / "texts").mkdir()
    for start in (0, 8):
        part = pa.table({name: values[start:][: 8 if start == 0 else 99] for name, values in columns.items()})
        pq.write_table(part, folder / "texts" / f"{start}.parquet", row_group_size=3)
    return [folder / "a.parquet", folder / "texts"]


def write_both(folder: Path, vectors: Content, ids: dict[str, list[str]]) -> list[Path]:
    rows = [ids["images"].index(owner) for owner in ids["owners"]]
    with h5py.File(folder / "both.h5", "w") as file:
        file.create_dataset("images", data=vectors["images"], chunks=(3, 4), compression="gzip")
        file["texts"] = vectors["texts"]
        file["image_id"], file["caption_id"], file["caption_image"] = ids["images"], ids["texts"], rows
    return [folder / "both.h5"]


@pytest.mark.parametrize("write", [write_npy, write_parquet, write_both])
def test_given_embeddings(write: Callable[..., list[Path]], invoke: Invoke, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = {"images": rng.normal(size=(10, 4)), "texts": rng.normal(size=(20, 4)).astype("f2")}
    images = [f"i{number}" for number in range(10)]
    owners = [images[row] for row in rng.permutation(np.repeat(np.arange(10), 2))]
    paths = write(tmp_path, vectors, {"images": images, "texts": [f"c{row}" for row in range(20)], "owners": owners})
    small = ["--set=num_texts=5", "--set=num_images=3", "--set=precision=fp32"]
    lists = made(invoke("mine-negatives", "--data", tmp_path / "data", "--embeddings", *paths, *small))
    (embeddings,) = tmp_path.glob("data/embeddings/train/given.*/embeddings.h5")
    ids = [read_list(lists, direction) for direction in FILES]
    listed = [[each.anchor_ids.tolist(), each.candidates.tolist()] for each in ids]
    assert {"embeddings": digest(embeddings), "lists": listed} == GOLDEN["given"]
