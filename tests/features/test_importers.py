"""Every importer against one contract: it finds what a tool has written, reads it in any blocks, and refuses damage.

An importer is held by a row of `LAYOUTS` for each layout that it reads, with a tiny writer of it.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import lmdb
import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.declaration import IMPORTERS
from itrpipe.features.importers import base
from itrpipe.features.importers.base import Import, WantedImage, checked_rows

DIM, CLASSES, GLOBAL = 7, 9, 3
NAMES, REGIONS = ("9", "25", "30", "34", "36", "42"), (3, 5, 2, 4, 1, 5)
Image = dict[str, Any]
Images = list[Image]
Spell = Callable[[str], str]


def images(ragged: bool = True) -> Images:
    """Six images: datasets of the store [r, ...], boxes as fractions, in numbers that every format stores exactly."""
    made = []
    for number, (name, regions) in enumerate(zip(NAMES, REGIONS if ragged else (4,) * 6, strict=True)):
        rng = np.random.default_rng(number)
        floats = {
            "regions": rng.integers(-500, 500, (regions, DIM)) / 64,
            "boxes": np.cumsum(rng.integers(1, 128, (regions, 2, 2)), axis=1).reshape(regions, 4) / 256,
            "scores": np.sort(rng.integers(100, 200, regions))[::-1] / 256,
            "attribute_scores": rng.integers(0, 200, regions) / 256,
            "global": rng.integers(-500, 500, GLOBAL) / 64,
        }
        more = {
            "name": name,
            "size": [256 * (1 + number % 2), 512],
            "captions": [f"Caption {letter} of image {number} ." for letter in "abcde"],
            "labels": rng.integers(0, CLASSES, regions),
            "attributes": rng.integers(0, 400, regions),
        }
        made.append({key: values.astype("<f4") for key, values in floats.items()} | more)
    return made


def in_pixels(image: Image) -> np.ndarray:
    height, width = image["size"]
    return image["boxes"] * np.array([width, height, width, height], "<f4")


def encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def tsv_line(image: Image, columns: int, spell: Spell = str) -> list[str]:
    height, width = map(str, image["size"])
    classes = [image[key] for key in ("labels", "scores", "attributes", "attribute_scores")]
    *first, boxes, regions = (spell(encoded(values)) for values in (*classes, in_pixels(image), image["regions"]))
    last = [str(len(image["regions"])), boxes, regions]
    return [image["name"], width, height, *last] if columns == 6 else [image["name"], height, width, *first, *last]


def tsv(
    folder: Path, made: Images, columns: int = 6, end: str = "\r\n", spell: Spell = str, file: str = "features.tsv"
) -> Path:
    """A file of LXMERT's does not end its last line."""
    text = end.join("\t".join(tsv_line(image, columns, spell)) for image in made)
    (folder / file).write_bytes(f"{text}{end if columns == 6 else ''}".encode())
    return folder / file


def several_tsv(folder: Path, made: Images) -> Path:
    """As several GPUs write it: an image is in both files, with the same content."""
    tsv(folder, made[2:], file="b.tsv.1.TSV")
    return tsv(folder, made[:3], file="a.tsv").parent


def precomp(
    folder: Path, made: Images, repeats: int = 1, ids: int = 1, captions: int = 5, dtype: str = "f4", **splits: slice
) -> Path:
    for split, own in (splits or {"train": slice(0, 3), "dev": slice(3, 5), "test": slice(5, 6)}).items():
        part = made[own]
        regions, global_ = (np.stack([image[key] for image in part]).astype(dtype) for key in ("regions", "global"))
        np.save(folder / f"{split}_ims.npy", np.repeat(regions, repeats, axis=0))
        np.save(folder / f"{split}_global.npy", global_)
        if ids:
            (folder / f"{split}_ids.txt").write_text("".join(f"{image['name']}\n" * ids for image in part))
        if captions:
            lines = [f"{caption}\n" for image in part for caption in image["captions"][:captions]]
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


def features_alone(image: Image) -> dict[str, np.ndarray]:
    return {"features": image["regions"]}


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


def database(folder: Path, made: Images, pack: Callable[[dict[str, Any]], bytes] = packed) -> Path:
    (folder / "data.mdb").unlink(missing_ok=True)
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for image in made:
            transaction.put(f"coco_train2014_{int(image['name']):012}.npz".encode(), pack(of_uniter(image)))
        transaction.put(b"__keys__", json.dumps([image["name"] for image in made]).encode())
    (folder / "lock.mdb").unlink()
    return folder


def several_databases(folder: Path, made: Images) -> Path:
    for name, part in (("restval", made[2:]), ("train", made[:3])):
        (folder / name / "feat").mkdir(parents=True)
        database(folder / name / "feat", part)
    return folder


def archives(folder: Path, made: Images, arrays: Callable[[Image], dict[str, Any]] = of_uniter) -> Path:
    for image in made:
        np.savez(folder / f"{image['name']}.npz", **arrays(image))
    return folder


def stacked(made: Images, ids: str = "image_id", regions: str = "regions") -> dict[str, Any]:
    """Arrays of all images, and their names as bytes."""
    arrays = {key: np.stack([image[key] for image in made]) for key in ARRAYS - {"count"}}
    return arrays | {regions: arrays.pop("regions"), ids: np.array([f"{image['name']} ".encode() for image in made])}


def named_arrays(folder: Path, made: Images, save: Callable[..., None] = np.savez, **names: str) -> Path:
    save(folder / "theirs.npz", **stacked(made, **names))
    return folder / "theirs.npz"


def array_alone(folder: Path, made: Images, key: str) -> Path:
    np.save(folder / "theirs.npy", np.stack([image[key] for image in made]))
    (folder / "names.txt").write_text("".join(f"{image['name']} \n" for image in made))
    return folder / "theirs.npy"


def packed_hdf5(folder: Path, made: Images) -> Path:
    """Boxes in pixels, and rubbish beyond the count of an image."""
    padded = []
    for image in made:
        own = image | {"boxes": in_pixels(image)}
        rubbish = {key: np.full_like(own[key], 77) for key in ARRAYS - {"count", "global"}}
        padded.append(own | {key: np.concatenate([own[key], *[more] * 5])[:5] for key, more in rubbish.items()})
    with h5py.File(folder / "theirs.H5", "w") as file:
        for name, values in stacked(padded, "names").items():
            file.create_dataset(name, data=values, chunks=True, compression="gzip")
        file["count"] = [len(image["regions"]) for image in made]
    return folder / "theirs.H5"


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
    write: Callable[[Path, Images], Path]
    holds: set[str]
    ragged: bool = True
    settings: Mapping[str, Any] = MappingProxyType({})
    by_captions: bool = False


GRIDS: dict[Any, np.ndarray] = {
    (2, 2): np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]),
    (1, 4): np.array([[number / 4, 0, (number + 1) / 4, 1] for number in range(4)]),
}
SIZED, SCORED = {"regions", "count", "boxes", "size"}, {"regions", "count", "boxes", "labels", "scores"}
LXMERT, PRECOMP = SIZED | SCORED | {"attributes", "attribute_scores"}, {"regions", "count", "global"}
ARRAYS = SCORED | {"attributes", "attribute_scores"} | {"global"}
ALL = {"min_regions": 1, "max_regions": 100, "min_score": 0.2}
NAMED = {"ids": "", "boxes": "fractions"}
OTHER_NAMES = {"regions": "feats", "ids": "cocoid"}
OTHERS = NAMED | {"map": {"regions": "feats", "labels": "", "image_id": "cocoid"}}
ALONE = NAMED | {"ids": "names.txt"}

LAYOUTS = {
    "bottom-up TSV": Layout("butd-tsv", tsv, SIZED),
    "bottom-up TSV, bytes": Layout("butd-tsv", partial(tsv, spell="b'{}'".format, end="\n\r\n\n"), SIZED),
    "bottom-up TSV, unpadded": Layout("butd-tsv", partial(tsv, spell=lambda text: text.rstrip("=")), SIZED),
    "LXMERT's TSV": Layout("butd-tsv", partial(tsv, columns=10, end="\n"), LXMERT),
    "LXMERT's TSV, bytes": Layout("butd-tsv", partial(tsv, columns=10, spell='b"{}"'.format), LXMERT),
    "several TSV": Layout("butd-tsv", several_tsv, SIZED),
    "precomp": Layout("precomp", precomp, PRECOMP, ragged=False),
    "precomp, ids alone": Layout("precomp", partial(precomp, captions=0), PRECOMP, ragged=False),
    "precomp, no ids": Layout("precomp", partial(precomp, ids=0, captions=1), PRECOMP, ragged=False, by_captions=True),
    "precomp, repeated": Layout("precomp", partial(precomp, repeats=5, dtype="f8"), PRECOMP, ragged=False),
    "precomp, all repeated": Layout("precomp", partial(precomp, repeats=2, ids=2, captions=2), PRECOMP, ragged=False),
    "precomp, a grid": Layout("precomp", partial(precomp, dtype=">f4"), PRECOMP | {"boxes"}, False, {"grid": (2, 2)}),
    "precomp, a row": Layout("precomp", precomp, PRECOMP | {"boxes"}, False, {"grid": (1, 4)}),
    "UNITER's LMDB": Layout("uniter", database, SCORED, settings=ALL),
    "UNITER's LMDB, old": Layout("uniter", partial(database, pack=partial(packed, old=True)), SCORED, settings=ALL),
    "UNITER's LMDB, .npz": Layout("uniter", partial(database, pack=archived), SCORED, settings=ALL),
    "UNITER's LMDB, LZ4": Layout("uniter", partial(database, pack=framed), SCORED, settings=ALL),
    "several LMDB": Layout("uniter", several_databases, SCORED, settings=ALL),
    "UNITER's .npz": Layout("uniter", archives, SCORED, settings=ALL),
    "UNITER's features": Layout("uniter", partial(archives, arrays=features_alone), {"regions", "count"}, settings=ALL),
    "bottom-up .npz": Layout("uniter", partial(archives, arrays=of_pytorch), SIZED, settings=ALL),
    "arrays": Layout("arrays", named_arrays, ARRAYS, False, NAMED),
    "packed arrays": Layout("arrays", partial(named_arrays, save=np.savez_compressed, ids="ids"), ARRAYS, False, NAMED),
    "other names": Layout("arrays", partial(named_arrays, **OTHER_NAMES), ARRAYS - {"labels"}, False, OTHERS),
    "regions alone": Layout("arrays", partial(array_alone, key="regions"), {"regions", "count"}, False, ALONE),
    "vectors alone": Layout("arrays", partial(array_alone, key="global"), {"global"}, False, ALONE),
    "HDF5": Layout("arrays", packed_hdf5, ARRAYS, settings={"ids": "", "boxes": "pixels"}),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def importing(layout: Layout, path: Path, made: Sequence[Image] = ()) -> Import:
    """Features of these images out of files that the importer knows."""
    found = IMPORTERS.module(layout.kind).layout(path)
    if found is None or found.lacks:
        raise DataError(f"{path}: {found}")
    settings = IMPORTERS.classes[layout.kind](kind=layout.kind, **layout.settings)
    wanted = [WantedImage(image["name"], f"{image['name']}.jpg", image["captions"]) for image in made]
    return Import("features", settings, path, wanted, np.array([image["size"] for image in made]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder.npz").mkdir()
    return tmp_path / "folder.npz"


def imported(layout: Layout, path: Path, made: Images) -> list[dict[str, np.ndarray]]:
    """The rows of these images as they reach the store."""
    work = importing(layout, path, made)
    rows: dict[int, dict[str, np.ndarray]] = {}
    for part in work.parts():
        numbers, entries, sizes, names = part.content
        arrays = checked_rows(work.source, names, entries, sizes)
        rows |= {row: {name: arrays[name][at] for name in arrays} for at, row in enumerate(numbers.tolist())}
    return [rows[row] for row in range(len(made))]


def assert_equal(layout: Layout, rows: list[dict[str, np.ndarray]], made: Images) -> None:
    for row, image in zip(rows, made, strict=True):
        regions = len(image["regions"])
        expected = image | {"count": regions} | {"boxes": GRIDS.get(layout.settings.get("grid", ()), image["boxes"])}
        for name, values in row.items():
            beyond = name not in ("count", "global")
            np.testing.assert_array_equal(values[:regions] if beyond else values, expected[name], err_msg=name)
            assert not beyond or not values[regions:].any()


def test_every_importer_has_a_layout_here() -> None:
    assert {layout.kind for layout in LAYOUTS.values()} == IMPORTERS.classes.keys()


@pytest.mark.parametrize("block", [1, 4])
def test_what_was_written_is_read_in_any_order_and_any_blocks(
    layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(base, "IMAGES_PER_PART", block)
    made = images(layout.ragged)
    path = layout.write(folder, made)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    order = [made[number] for number in (4, 0, 5, 3, 1)]
    assert_equal(layout, imported(layout, path, order), order)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_it_is_described_and_no_other_importer_takes_it(layout: Layout, folder: Path) -> None:
    path = layout.write(folder, images(layout.ragged))
    work = importing(layout, path, images())
    assert work.spec.keys() == layout.holds - {"size"}
    by_captions = ["6 of 6 images were found by their captions, not by an id"]
    assert work.notes == by_captions * layout.by_captions
    assert (work.source.path, len(work.source.names), "\n" in work.source.summary) == (path, 6, False)
    known = {kind: IMPORTERS.module(kind).layout(path) for kind in IMPORTERS.classes}
    assert [kind for kind, found in known.items() if found and not found.lacks] == [layout.kind]
    files = IMPORTERS.module(layout.kind).layout(path).files
    assert set(files) == {file for file in [path, *path.rglob("*")] if file.is_file()}


WRONG = [
    ("regions", (1, 2), np.nan),
    ("regions", (1, 2), 1e5),
    ("attributes", 1, -1),
    ("labels", 1, -1),
    *(("boxes", 1, box) for box in ([0, 0, 1.2, 1], [-0.2, 0, 1, 1], [0.5, 0, 0.2, 1], [0, 0.5, 1, 0.2], np.nan)),
    ("size", 1, 250),
]
ROUNDED = [("boxes", 1, box) for box in ([-0.008, 0, 1.008, 1], [0, -0.008, 1, 1.008], [0.5, 0.5, 0.496, 0.496])]


STORED = [  # boxes of a grid are computed, and UNITER's labels are places of the largest probability
    pytest.param(layout, *case, case not in WRONG, id=f"{name}, {case[0]} {case[2]}")
    for name, layout in LAYOUTS.items()
    for case in (*WRONG, *ROUNDED)
    if case[0] in layout.holds and (layout.kind, case[0]) not in (("precomp", "boxes"), ("uniter", "labels"))
]


@pytest.mark.parametrize(("layout", "name", "place", "value", "rounded"), STORED)
def test_values_that_cannot_be_are_refused_with_the_image_and_boxes_a_pixel_outside_are_kept(
    layout: Layout, folder: Path, name: str, place: Any, value: Any, rounded: bool
) -> None:
    good, other = images(layout.ragged), images(layout.ragged)
    other[1][name][place] = value
    with np.errstate(over="ignore", invalid="ignore"):
        path = layout.write(folder, other)
    if rounded:
        stored = imported(layout, path, good)[1]["boxes"][1]
        np.testing.assert_allclose(stored, np.clip(value, 0, 1), atol=1e-3)
        return
    with pytest.raises(DataError, match=rf"^{path}[^\n]*(image 1|'{other[1]['name']}')[^\n]*$"):
        imported(layout, path, good)
    imported(layout, path, [good[0], good[2]])


PLACES = st.sampled_from([0, 1, -30, -5]) | st.integers(0, 10**6)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 99), place=PLACES, bits=st.integers(0, 255) | st.just(0))
def test_damage_is_an_error_or_harmless(layout: Layout, folder: Path, number: int, place: int, bits: int) -> None:
    """Turned bits of a byte, or, without bits, a file that is cut off: an error, or what is gone is not missed.

    Of several TSV one may end behind a row, where the other has those that follow.
    """
    made = images(layout.ragged)
    (own := folder / str(len(list(folder.iterdir())))).mkdir()
    path = layout.write(own, made)
    files = IMPORTERS.module(layout.kind).layout(path).files
    file = files[number % len(files)]
    whole = file.read_bytes()
    content, size = bytearray(whole), len(whole)
    place %= size
    content[place:] = [content[place] ^ bits, *content[place + 1 :]] if bits else []
    file.write_bytes(content)
    try:
        rows = imported(layout, path, made)
    except ItrpipeError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        if not bits and file.suffix != ".txt" and place <= size - 5:
            file.write_bytes(whole)
            for row, expected in zip(rows, imported(layout, path, made), strict=True):
                assert all(np.array_equal(row[name], values) for name, values in expected.items())
        assert all(np.isfinite(values).all() for row in rows for values in row.values())
