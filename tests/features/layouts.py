"""Tiny published features: a writer for each layout that an importer reads, and what it stores.

A new importer is held by `test_importers.py` once its layouts are rows of `LAYOUTS`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import lmdb
import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np

DIM, CLASSES, GLOBAL = 7, 9, 3
Image = dict[str, Any]
SCORED = {"regions", "count", "boxes", "labels", "scores"}


def images(ragged: bool = True) -> list[Image]:
    """Six images: datasets of the store [r, ...], boxes as fractions, in numbers that every format stores exactly."""
    made = []
    for number, regions in enumerate((3, 5, 2, 4, 1, 5) if ragged else (4,) * 6):
        rng = np.random.default_rng(number)
        corners = rng.integers(0, 128, (regions, 2)) / 256
        image = {
            "name": f"{[9, 25, 30, 34, 36, 42][number]}",
            "size": (256 * (1 + number % 2), 512),
            "captions": [f"Caption {letter} of image {number} ." for letter in "abcde"],
            "regions": rng.integers(-500, 500, (regions, DIM)).astype("f4") / 64,
            "boxes": np.concatenate([corners, corners + rng.integers(1, 128, (regions, 2)) / 256], 1).astype("f4"),
            "labels": rng.integers(0, CLASSES, regions),
            "scores": np.sort(rng.integers(100, 200, regions))[::-1].astype("f4") / 256,
            "attributes": rng.integers(0, 400, regions),
            "attribute_scores": rng.integers(0, 200, regions).astype("f4") / 256,
            "global": rng.integers(-500, 500, GLOBAL).astype("f4") / 64,
        }
        made.append(image)
    return made


def in_pixels(image: Image) -> np.ndarray:
    height, width = image["size"]
    return image["boxes"] * np.array([width, height, width, height], "f4")


# Writers


def tsv_line(image: Image, columns: int) -> list[str]:
    (height, width), name, count = image["size"], image["name"], len(image["regions"])
    arrays = [in_pixels(image).astype("<f4"), image["regions"].astype("<f4")]
    if columns == 6:
        return [name, str(width), str(height), str(count), *map(encoded, arrays)]
    kinds = {"labels": "<i8", "scores": "<f4", "attributes": "<i8", "attribute_scores": "<f4"}
    classes = [encoded(image[key].astype(kind)) for key, kind in kinds.items()]
    return [name, str(height), str(width), *classes, str(count), *map(encoded, arrays)]


def encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def tsv(columns: int, end: str = "\r\n") -> Writer:
    def write(folder: Path, made: list[Image]) -> Path:
        lines = ["\t".join(tsv_line(image, columns)) + end for image in made]
        (folder / "features.tsv").write_bytes("".join(lines).encode())
        return folder / "features.tsv"

    return write


def several_tsv(folder: Path, made: list[Image]) -> Path:
    """As several GPUs write it: an image is in both files, with the same content."""
    for file, part in (("b.tsv.1.TSV", made[2:]), ("a.tsv", made[:3])):
        (folder / file).write_text("".join("\t".join(tsv_line(image, 6)) + "\n" for image in part))
    return folder


def precomp(repeats: int = 1, ids: bool = True, captions: bool = True, dtype: str = "f4") -> Writer:
    def write(folder: Path, made: list[Image]) -> Path:
        for split, part in (("train", made[:3]), ("dev", made[3:5]), ("test", made[5:])):
            for file, key in (("ims", "regions"), ("global", "global")):
                rows = np.stack([image[key] for image in part]).astype(dtype)
                np.save(folder / f"{split}_{file}.npy", np.repeat(rows, repeats if file == "ims" else 1, axis=0))
            texts = {"ids": [image["name"] for image in part] * ids}
            texts["caps"] = [caption for image in part for caption in image["captions"]] * captions
            for file, lines in texts.items():
                if lines:
                    (folder / f"{split}_{file}.txt").write_text("".join(f"{line}\n" for line in lines))
        return folder

    return write


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


def packed_old(arrays: dict[str, Any]) -> bytes:
    return packed(arrays, old=True)


def framed(arrays: dict[str, Any]) -> bytes:
    return lz4.frame.compress(packed(arrays))


def database(pack: Callable[[dict[str, Any]], bytes]) -> Writer:
    def write(folder: Path, made: list[Image]) -> Path:
        (folder / "data.mdb").unlink(missing_ok=True)
        with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
            for image in made:
                transaction.put(f"coco_train2014_{int(image['name']):012}.npz".encode(), pack(of_uniter(image)))
            transaction.put(b"__keys__", json.dumps([image["name"] for image in made]).encode())
        (folder / "lock.mdb").unlink()
        return folder

    return write


def several_databases(folder: Path, made: list[Image]) -> Path:
    for name, part in (("restval", made[2:]), ("train", made[:3])):
        (folder / name / "feat").mkdir(parents=True)
        database(packed)(folder / name / "feat", part)
    return folder


def archives(arrays: Callable[[Image], dict[str, Any]]) -> Writer:
    def write(folder: Path, made: list[Image]) -> Path:
        for image in made:
            np.savez(folder / f"{image['name']}.npz", **arrays(image))
        return folder

    return write


def named_arrays(folder: Path, made: list[Image]) -> Path:
    stacked: Any = {key: np.stack([image[key] for image in made]) for key in SCORED - {"count"} | {"global"}}
    np.savez(folder / "theirs.npz", image_id=[image["name"] for image in made], **stacked)
    return folder / "theirs.npz"


Writer = Callable[[Path, list[Image]], Path]


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
    write: Writer
    holds: set[str]
    ragged: bool = True
    settings: Mapping[str, Any] = MappingProxyType({})
    by_captions: bool = False


GRID = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], "f4")
ATTRIBUTES = {"attributes", "attribute_scores"}
TSV, PRECOMP, BOXES = {"regions", "count", "boxes", "size"}, {"regions", "count", "global"}, {"regions", "boxes"}
ALL = {"min_regions": 1, "max_regions": 100, "min_score": 0.2}

LAYOUTS = {
    "bottom-up TSV": Layout("butd-tsv", tsv(6), TSV),
    "LXMERT's TSV": Layout("butd-tsv", tsv(10, "\n"), TSV | SCORED | ATTRIBUTES),
    "several TSV": Layout("butd-tsv", several_tsv, TSV),
    "precomp": Layout("precomp", precomp(), PRECOMP, ragged=False),
    "precomp, ids alone": Layout("precomp", precomp(captions=False), PRECOMP, ragged=False),
    "precomp, no ids": Layout("precomp", precomp(ids=False), PRECOMP, ragged=False, by_captions=True),
    "precomp, repeated": Layout("precomp", precomp(repeats=5, dtype="f8"), PRECOMP, ragged=False),
    "precomp, a grid": Layout("precomp", precomp(dtype=">f4"), PRECOMP | BOXES, False, {"grid": (2, 2)}),
    "UNITER's LMDB": Layout("uniter", database(packed), SCORED, settings=ALL),
    "UNITER's LMDB, old": Layout("uniter", database(packed_old), SCORED, settings=ALL),
    "UNITER's LMDB, .npz": Layout("uniter", database(archived), SCORED, settings=ALL),
    "UNITER's LMDB, LZ4": Layout("uniter", database(framed), SCORED, settings=ALL),
    "several LMDB": Layout("uniter", several_databases, SCORED, settings=ALL),
    "UNITER's .npz": Layout("uniter", archives(of_uniter), SCORED, settings=ALL),
    "bottom-up .npz": Layout("uniter", archives(of_pytorch), TSV, settings=ALL),
    "arrays": Layout("arrays", named_arrays, SCORED | {"global"}, False, {"ids": "", "boxes": "fractions"}),
}
