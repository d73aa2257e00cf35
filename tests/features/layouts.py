"""Tiny published features: a writer for each layout that an importer reads, and what it stores.

A new importer is held by `test_importers.py` once its layouts are rows of `LAYOUTS`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import lmdb
import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np

DIM, CLASSES, GLOBAL = 7, 9, 3
NAMES, REGIONS = ("9", "25", "30", "34", "36", "42"), (3, 5, 2, 4, 1, 5)
Image = dict[str, Any]


def images(ragged: bool = True) -> list[Image]:
    """Six images: datasets of the store [r, ...], boxes as fractions, in numbers that every format stores exactly."""
    made = []
    for number, (name, regions) in enumerate(zip(NAMES, REGIONS if ragged else (4,) * 6, strict=True)):
        rng = np.random.default_rng(number)
        corners = rng.integers(0, 128, (regions, 2)) / 256
        datasets = {
            "regions": rng.integers(-500, 500, (regions, DIM)) / 64,
            "boxes": np.concatenate([corners, corners + rng.integers(1, 128, (regions, 2)) / 256], axis=1),
            "scores": np.sort(rng.integers(100, 200, regions))[::-1] / 256,
            "attribute_scores": rng.integers(0, 200, regions) / 256,
            "global": rng.integers(-500, 500, GLOBAL) / 64,
        }
        classes = {"labels": rng.integers(0, CLASSES, regions), "attributes": rng.integers(0, 400, regions)}
        about = {"name": name, "size": (256 * (1 + number % 2), 512)}
        captions = [f"Caption {letter} of image {number} ." for letter in "abcde"]
        floats = {key: values.astype("<f4") for key, values in datasets.items()}
        made.append({**about, "captions": captions, **floats, **classes})
    return made


def in_pixels(image: Image) -> np.ndarray:
    height, width = image["size"]
    return image["boxes"] * np.array([width, height, width, height], "<f4")


def encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def tsv_line(image: Image, columns: int) -> list[str]:
    height, width = map(str, image["size"])
    last = [str(len(image["regions"])), encoded(in_pixels(image)), encoded(image["regions"])]
    if columns == 6:
        return [image["name"], width, height, *last]
    classes = (image[key] for key in ("labels", "scores", "attributes", "attribute_scores"))
    return [image["name"], height, width, *map(encoded, classes), *last]


def tsv(folder: Path, made: list[Image], columns: int = 6, end: str = "\r\n", file: str = "features.tsv") -> Path:
    (folder / file).write_bytes("".join("\t".join(tsv_line(image, columns)) + end for image in made).encode())
    return folder / file


def several_tsv(folder: Path, made: list[Image]) -> Path:
    """As several GPUs write it: an image is in both files, with the same content."""
    tsv(folder, made[2:], file="b.tsv.1.TSV")
    return tsv(folder, made[:3], file="a.tsv").parent


def precomp(
    folder: Path, made: list[Image], *, repeats: int = 1, ids: bool = True, captions: bool = True, dtype: str = "f4"
) -> Path:
    for split, part in (("train", made[:3]), ("dev", made[3:5]), ("test", made[5:])):
        regions, global_ = (np.stack([image[key] for image in part]).astype(dtype) for key in ("regions", "global"))
        np.save(folder / f"{split}_ims.npy", np.repeat(regions, repeats, axis=0))
        np.save(folder / f"{split}_global.npy", global_)
        if ids:
            (folder / f"{split}_ids.txt").write_text("".join(f"{image['name']}\n" for image in part))
        if captions:
            lines = [f"{caption}\n" for image in part for caption in image["captions"]]
            (folder / f"{split}_caps.txt").write_text("".join(lines))
    return folder


def of_uniter(image: Image) -> dict[str, np.ndarray]:
    boxes = image["boxes"]
    return {
        "features": image["regions"].astype("f2"),
        "norm_bb": np.concatenate([boxes, boxes[:, 2:] - boxes[:, :2]], axis=1).astype("f2"),
        "conf": image["scores"].astype("f2"),
        "soft_labels": np.eye(CLASSES, dtype="f2")[image["labels"]],
    }


def of_pytorch(image: Image) -> dict[str, Any]:
    """As bottom-up-attention.pytorch writes it; `info` runs code if anyone unpickles it."""
    arrays = {"x": image["regions"], "bbox": in_pixels(image), "num_bbox": len(image["regions"])}
    return arrays | dict(zip(("image_h", "image_w"), image["size"], strict=True)) | {"info": np.array(Trap(), "O")}


class Trap:
    """Raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def packed(arrays: Any, old: bool = False) -> bytes:
    """As msgpack-numpy does, `old` before msgpack knew bytes from text."""
    return msgpack.Packer(default=msgpack_numpy.encode, use_bin_type=not old).pack(arrays) or b""


def archived(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def framed(arrays: dict[str, Any]) -> bytes:
    return lz4.frame.compress(packed(arrays))


def database(folder: Path, made: list[Image], pack: Callable[[dict[str, Any]], bytes] = packed) -> Path:
    (folder / "data.mdb").unlink(missing_ok=True)
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for image in made:
            transaction.put(f"coco_train2014_{int(image['name']):012}.npz".encode(), pack(of_uniter(image)))
        transaction.put(b"__keys__", json.dumps([image["name"] for image in made]).encode())
    (folder / "lock.mdb").unlink()
    return folder


def several_databases(folder: Path, made: list[Image]) -> Path:
    for name, part in (("restval", made[2:]), ("train", made[:3])):
        (folder / name / "feat").mkdir(parents=True)
        database(folder / name / "feat", part)
    return folder


def archives(folder: Path, made: list[Image], arrays: Callable[[Image], dict[str, Any]] = of_uniter) -> Path:
    for image in made:
        np.savez(folder / f"{image['name']}.npz", **arrays(image))
    return folder


def named_arrays(folder: Path, made: list[Image]) -> Path:
    stacked: Any = {key: np.stack([image[key] for image in made]) for key in SCORED - {"count"} | {"global"}}
    np.savez(folder / "theirs.npz", image_id=[image["name"] for image in made], **stacked)
    return folder / "theirs.npz"


class Layout(NamedTuple):
    """A layout of files.

    Attributes:
        kind: the importer that reads it.
        write: writes it into a folder as its tool does, and returns what to import.
        holds: datasets of the store that it has; `size` if it also has the sizes of the images.
        ragged: whether images may differ in their numbers of regions.
        settings: of the importer.
        by_captions: images are found by their captions.
    """

    kind: str
    write: Callable[[Path, list[Image]], Path]
    holds: set[str]
    ragged: bool = True
    settings: Mapping[str, Any] = MappingProxyType({})
    by_captions: bool = False


GRID = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], "f4")
SIZED, SCORED = {"regions", "count", "boxes", "size"}, {"regions", "count", "boxes", "labels", "scores"}
LXMERT, PRECOMP = SIZED | SCORED | {"attributes", "attribute_scores"}, {"regions", "count", "global"}
ALL = {"min_regions": 1, "max_regions": 100, "min_score": 0.2}

LAYOUTS = {
    "bottom-up TSV": Layout("butd-tsv", tsv, SIZED),
    "LXMERT's TSV": Layout("butd-tsv", partial(tsv, columns=10, end="\n"), LXMERT),
    "several TSV": Layout("butd-tsv", several_tsv, SIZED),
    "precomp": Layout("precomp", precomp, PRECOMP, ragged=False),
    "precomp, ids alone": Layout("precomp", partial(precomp, captions=False), PRECOMP, ragged=False),
    "precomp, no ids": Layout("precomp", partial(precomp, ids=False), PRECOMP, ragged=False, by_captions=True),
    "precomp, repeated": Layout("precomp", partial(precomp, repeats=5, dtype="f8"), PRECOMP, ragged=False),
    "precomp, a grid": Layout("precomp", partial(precomp, dtype=">f4"), PRECOMP | {"boxes"}, False, {"grid": (2, 2)}),
    "UNITER's LMDB": Layout("uniter", database, SCORED, settings=ALL),
    "UNITER's LMDB, old": Layout("uniter", partial(database, pack=partial(packed, old=True)), SCORED, settings=ALL),
    "UNITER's LMDB, .npz": Layout("uniter", partial(database, pack=archived), SCORED, settings=ALL),
    "UNITER's LMDB, LZ4": Layout("uniter", partial(database, pack=framed), SCORED, settings=ALL),
    "several LMDB": Layout("uniter", several_databases, SCORED, settings=ALL),
    "UNITER's .npz": Layout("uniter", archives, SCORED, settings=ALL),
    "bottom-up .npz": Layout("uniter", partial(archives, arrays=of_pytorch), SIZED, settings=ALL),
    "arrays": Layout("arrays", named_arrays, SCORED | {"global"}, False, {"ids": "", "boxes": "fractions"}),
}
