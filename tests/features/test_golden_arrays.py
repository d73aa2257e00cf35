"""Imported arrays and given embeddings become the same bytes, whatever the format of their files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from itrpipe.negatives.lists import FILES, read_list
from tests.chains import Invoke, done, made
from tests.conftest import TinySource

GOLDEN = json.loads(Path(__file__).with_name("golden_arrays.json").read_text())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def features(names: list[str]) -> dict[str, np.ndarray]:
    """All datasets of a feature file, with boxes in pixels and rubbish after `count`."""
    rng, count = np.random.default_rng(0), len(names)
    corners = np.sort(rng.uniform(0, 8, size=(count, 4, 2, 2)), axis=2).reshape(count, 4, 4)
    return {
        "ids": np.array([name.encode() for name in names]),
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


def write_hdf5(path: Path, content: dict[str, Any], **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file.create_dataset(name, data=values, **options)


LAYOUTS: dict[str, Callable[[Path, Any], object]] = {
    "packed.npz": lambda path, content: np.savez_compressed(path, **content),
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


def test_given_embeddings(invoke: Invoke, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = {"images": rng.normal(size=(10, 4)), "texts": rng.normal(size=(20, 4)).astype("f2")}
    rows = rng.permutation(np.repeat(np.arange(10), 2))
    ids = {"image_id": [f"i{row}" for row in range(10)], "caption_id": [f"c{row}" for row in range(20)]}
    write_hdf5(tmp_path / "both.h5", {**vectors, **ids, "caption_image": rows})
    small = ["--set=num_texts=5", "--set=num_images=3", "--set=precision=fp32"]
    lists = made(invoke("mine-negatives", "--data", tmp_path / "data", "--embeddings", tmp_path / "both.h5", *small))
    (embeddings,) = tmp_path.glob("data/embeddings/train/given.*/embeddings.h5")
    found = [read_list(lists, direction) for direction in FILES]
    listed = [[each.anchor_ids.tolist(), each.candidates.tolist()] for each in found]
    assert {"embeddings": digest(embeddings), "lists": listed} == GOLDEN["given"]
