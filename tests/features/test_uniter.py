"""UNITER's databases and .npz folders: every way to pack an image is read back, nothing is unpickled."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, ItrpipeError, MissingInputError
from itrpipe.features.importers.matching import WantedImage, match
from itrpipe.features.importers.uniter import importer as uniter
from itrpipe.features.importers.uniter.declaration import Uniter
from itrpipe.features.importers.uniter.importer import UniterSource
from itrpipe.features.importers.uniter.packed_arrays import decode
from itrpipe.features.store import FeatureSpec, write_features

DIM, CLASSES = 6, 9
WIDTH, HEIGHT = 640, 480
DEFAULTS = Uniter(kind="uniter", min_regions=3, max_regions=8, min_score=0.2)

Image = dict[str, np.ndarray]


def make_image(regions: int, sure: int, seed: int = 0) -> Image:
    """An image of which `sure` regions are surer than 0.2."""
    rng = np.random.default_rng([regions, sure, seed])
    corners = np.sort(rng.uniform(size=(regions, 2, 2)), axis=1).reshape(regions, 4)
    confidences = np.concatenate([rng.uniform(0.3, 0.9, sure), rng.uniform(0, 0.15, regions - sure)])
    return {
        "features": rng.normal(size=(regions, DIM)).astype("f2"),
        "norm_bb": np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1).astype("f2"),
        "conf": np.sort(confidences)[::-1].astype("f2"),
        "soft_labels": rng.uniform(size=(regions, CLASSES)).astype("f2"),
    }


# Stored and sure regions, and how many the default settings take.
SHAPES = {9: (10, 5, 5), 25: (10, 1, 3), 30: (10, 10, 8), 34: (2, 1, 2), 36: (4, 4, 4)}
IMAGES = {f"coco_train2014_{number:012}.npz": make_image(*shape[:2]) for number, shape in SHAPES.items()}
TAKEN = [shape[2] for shape in SHAPES.values()]


def packed(content: Any, old: bool = False) -> bytes:
    return msgpack.Packer(default=msgpack_numpy.encode, use_bin_type=not old).pack(content) or b""


def packed_old(image: Image) -> bytes:
    """As msgpack wrote before it knew bytes from text."""
    return packed(image, old=True)


def archived(image: Image) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **image)  # pyright: ignore[reportArgumentType]
    return stream.getvalue()


def framed(image: Image) -> bytes:
    return lz4.frame.compress(packed(image))


PACKERS = [packed, packed_old, archived, framed, lambda image: lz4.frame.compress(archived(image))]


def write_database(folder: Path, images: dict[str, Image], pack: Callable[[Image], bytes] = packed) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for name, image in images.items():
            transaction.put(name.encode(), pack(image))
        transaction.put(b"__keys__", json.dumps(list(images)).encode())
    return folder


def write_archives(folder: Path, images: dict[str, Image]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        np.savez(folder / name, **image)  # pyright: ignore[reportArgumentType]
    return folder


def read(source: UniterSource, entries: list[int]) -> dict[str, np.ndarray]:
    return source.read(np.array(entries), np.repeat([[HEIGHT, WIDTH]], len(entries), axis=0))


def assert_rows(source: UniterSource, images: dict[str, Image], taken: list[int]) -> None:
    """Compares all entries with what was written, block by block."""
    assert sorted(source.names) == sorted(images)
    assert source.spec == FeatureSpec(max(taken), DIM, boxes=True, scores=True, labels=True)
    counts = dict(zip(images, taken, strict=True))
    for start in range(0, len(images), 2):
        entries = list(range(start, min(start + 2, len(images))))
        rows = read(source, entries)
        assert set(rows) == set(source.spec.shapes())
        for position, entry in enumerate(entries):
            image, n = images[source.names[entry]], counts[source.names[entry]]
            assert rows["count"][position] == n
            np.testing.assert_array_equal(rows["regions"][position, :n], image["features"][:n])
            np.testing.assert_allclose(rows["boxes"][position, :n], image["norm_bb"][:n, :4])
            np.testing.assert_array_equal(rows["scores"][position, :n], image["conf"][:n])
            np.testing.assert_array_equal(rows["labels"][position, :n], image["soft_labels"][:n].argmax(axis=1))
            assert not any(rows[name][position, n:].any() for name in rows.keys() - {"count"})


@pytest.mark.parametrize("pack", PACKERS)
def test_every_way_to_pack_a_database_is_read_back(tmp_path: Path, pack: Callable[[Image], bytes]) -> None:
    folder = write_database(tmp_path / "feat_th0.2_max8_min3", IMAGES, pack)
    source = uniter.open_source(folder, DEFAULTS)
    assert_rows(source, IMAGES, TAKEN)
    assert source.summary == "1 LMDB environment: 5 images; 2 to 8 regions surer than 0.2, of width 6"
    assert uniter.files(folder) == [folder / "data.mdb"]


def test_a_folder_of_archives_is_read_back(tmp_path: Path) -> None:
    folder = write_archives(tmp_path / "features", IMAGES)
    assert_rows(uniter.open_source(folder, DEFAULTS), IMAGES, TAKEN)
    nested = uniter.open_source(tmp_path, DEFAULTS)
    assert nested.names[0] == "features/coco_train2014_000000000009.npz"
    assert match(nested, [WantedImage("25", "x.jpg", [])]).entries.tolist() == [1]


def test_rows_reach_the_feature_file(tmp_path: Path) -> None:
    source = uniter.open_source(write_database(tmp_path / "db", IMAGES), DEFAULTS)
    rows = read(source, [0, 1, 2, 3, 4])
    write_features(tmp_path / "features.h5", source.names, source.spec, "uniter", [(np.arange(5), rows)])


@pytest.mark.parametrize(
    ("minimum", "maximum", "score", "taken"),
    [(1, 100, 0.2, [5, 1, 10, 1, 4]), (3, 3, 0.2, [3, 3, 3, 2, 3]), (1, 7, 1, [1] * 5), (7, 7, 0, [7, 7, 7, 2, 4])],
)
def test_the_settings_choose_the_regions(
    tmp_path: Path, minimum: int, maximum: int, score: float, taken: list[int]
) -> None:
    chosen = Uniter(kind="uniter", min_regions=minimum, max_regions=maximum, min_score=score)
    assert_rows(uniter.open_source(write_database(tmp_path, IMAGES), chosen), IMAGES, taken)


def test_several_environments_are_one_source(tmp_path: Path) -> None:
    names = list(IMAGES)
    write_database(tmp_path / "coco_train2014" / "feat", {name: IMAGES[name] for name in names[:3]})
    write_database(tmp_path / "coco_restval" / "feat", {name: IMAGES[name] for name in names[2:]}, archived)
    with pytest.raises(DataError, match=r"other features of 'coco_train2014_000000000030\.npz' than .*; name one"):
        uniter.open_source(tmp_path, DEFAULTS)  # the same arrays, but not the same bytes
    write_database(tmp_path / "coco_restval" / "feat", {name: IMAGES[name] for name in names[2:]})
    source = uniter.open_source(tmp_path, DEFAULTS)
    assert_rows(source, IMAGES, TAKEN)
    assert "2 LMDB environments (1 images come twice with the same content): 5 images" in source.summary
    assert len(uniter.files(tmp_path)) == 2


def test_uniters_list_of_counts_saves_reading_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_database(tmp_path / "feat_th0.2_max8_min3", IMAGES)
    listed = tmp_path / "nbb_th0.2_max8_min3.json"
    listed.write_text(json.dumps(dict(zip(IMAGES, TAKEN, strict=True))))
    decoded = []
    monkeypatch.setattr(uniter, "decode", lambda where, *rest: decoded.append(where) or decode(where, *rest))
    source = uniter.open_source(folder, DEFAULTS)
    assert len(decoded) == 1
    assert_rows(source, IMAGES, TAKEN)
    listed.write_text(json.dumps(dict.fromkeys(IMAGES, 2)))
    with pytest.raises(DataError, match=r"'coco_train2014_000000000009\.npz' has 5 regions and at most 2 were counted"):
        read(uniter.open_source(folder, DEFAULTS), [0])
    listed.write_text(json.dumps({"another": 2}))
    with pytest.raises(DataError, match=r"nbb_th0\.2_max8_min3\.json lists None regions of 'coco"):
        uniter.open_source(folder, DEFAULTS)
    others = Uniter(kind="uniter", min_regions=3, max_regions=7, min_score=0.2)
    assert uniter.open_source(folder, others).spec.regions == 7  # that list is not for these settings


def torch_image(regions: int) -> dict[str, Any]:
    """As bottom-up-attention.pytorch writes an image; `info` runs code if anyone unpickles it."""
    image = make_image(regions, regions)
    return {
        "x": image["features"].astype("f4"),
        "bbox": image["norm_bb"][:, :4].astype("f4") * [WIDTH, HEIGHT, WIDTH, HEIGHT],
        "num_bbox": regions,
        "image_h": HEIGHT,
        "image_w": WIDTH,
        "info": np.array(Trap(), dtype=object),
    }


class Trap:
    """Raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def test_archives_of_bottom_up_attention_pytorch(tmp_path: Path) -> None:
    images = {name: torch_image(regions) for name, regions in (("9.npz", 4), ("25.npz", 10))}
    source = uniter.open_source(write_archives(tmp_path, images), DEFAULTS)
    assert source.spec == FeatureSpec(8, DIM, boxes=True)
    assert "4 to 8 regions without confidences" in source.summary
    rows = read(source, [0, 1])
    assert source.names == ["25.npz", "9.npz"]
    assert rows["count"].tolist() == [8, 4]
    np.testing.assert_array_equal(rows["regions"][1, :4], images["9.npz"]["x"])
    fractions = images["9.npz"]["bbox"] / [WIDTH, HEIGHT, WIDTH, HEIGHT]
    np.testing.assert_allclose(rows["boxes"][1, :4], fractions, atol=1e-6)
    with pytest.raises(DataError, match=r"image '9\.npz' is 640 x 480 pixels there and 480 x 640"):
        source.read(np.array([0, 1]), np.array([[HEIGHT, WIDTH], [WIDTH, HEIGHT]]))


def test_features_alone_suffice(tmp_path: Path) -> None:
    images = {name: {"features": image["features"]} for name, image in IMAGES.items()}
    source = uniter.open_source(write_database(tmp_path, images), DEFAULTS)
    assert source.spec == FeatureSpec(8, DIM)
    assert read(source, [0, 3])["count"].tolist() == [8, 2]


def _with(**arrays: Any) -> Callable[[Image], Image]:
    return lambda image: image | arrays


def _without(name: str) -> Callable[[Image], Image]:
    return lambda image: {key: array for key, array in image.items() if key != name}


def _bad(name: str, value: float) -> Callable[[Image], Image]:
    def damage(image: Image) -> Image:
        array = image[name].astype("f8")
        array[1, ...] = value
        return image | {name: array}

    return damage


DAMAGES = [
    (_bad("features", np.nan), "features of image '{}' hold nan"),
    (_bad("features", 1e5), "features of image '{}' hold 100000.0"),
    (_bad("norm_bb", np.nan), "region 1 of image '{}' has the box"),
    (_bad("conf", np.inf), "conf of image '{}' hold inf"),
    (_without("conf"), "image '{}' lacks arrays that the first one has"),
    (_without("norm_bb"), "image '{}' has regions, scores, labels of width 6, the first one boxes, labels, regions"),
    (_without("features"), "'{}' holds neither 'features' nor 'x'"),
    (_with(features=np.zeros((10, DIM + 1), "f2")), "of width 7, the first one"),
    (_with(features=np.zeros((9, DIM), "f2")), "image '{}' has arrays that differ in length"),
    (_with(features=np.zeros((10, DIM), "i4")), "features of image '{}' has type int32"),
    (_with(conf=np.zeros((10, 1), "f2")), r"conf of image '{}' has type float16 and shape \(10, 1\)"),
    (_with(norm_bb=np.zeros((10, 4), "f2")), r"norm_bb of image '{}' .*; numbers \[regions, 6\] are needed"),
    (lambda image: image | {"norm_bb": image["norm_bb"][:, [1, 0, 3, 2, 4, 5]]}, "'{}' is not x0, y0, x1, y1, width"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
def test_damage_is_named(tmp_path: Path, damage: Callable[[Image], Image], message: str) -> None:
    name = "coco_train2014_000000000030.npz"
    write_database(tmp_path, IMAGES | {name: damage(IMAGES[name])})
    with pytest.raises(DataError, match=message.format(name)) as caught:
        read(uniter.open_source(tmp_path, DEFAULTS), [0, 1, 2])
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


NEXT_TO_THIS = [
    {b"nd": True, b"type": "<f4", b"kind": b"O", b"shape": (1,), b"data": pickle.dumps(Trap())},
    {b"nd": True, b"type": "<f4", b"kind": b"O", b"shape": (1,), b"data": b"1234"},
    {b"nd": True, b"type": "|O", b"kind": b"", b"shape": (1,), b"data": b"12345678"},
    {b"nd": True, b"type": [["a", "<f4"]], b"kind": b"V", b"shape": (1,), b"data": b"1234"},
    {b"nd": True, b"type": "f4,f4", b"kind": b"", b"shape": (1,), b"data": b"12345678"},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (3,), b"data": b"12345678"},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (-1, -2), b"data": b"12345678"},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": ("2",), b"data": b"12345678"},
    {b"nd": False, b"type": "<f4", b"data": b"1234"},
    [1.0, 2.0],
]


@pytest.mark.parametrize("array", NEXT_TO_THIS)
def test_only_plain_arrays_are_decoded(array: Any) -> None:
    with pytest.raises(DataError, match="value: features"):
        decode("value", packed({"features": array, "conf": [1]}), ["features"])
    assert decode("value", packed({"features": array}), ["conf"]) == {}


def test_objects_are_not_unpickled() -> None:
    trap = np.array([Trap()], dtype=object)
    value = packed({"features": trap})
    with pytest.raises(SystemExit):  # the trap works
        msgpack.unpackb(value, object_hook=msgpack_numpy.decode)
    for pack in (value, lz4.frame.compress(value), archived({"features": trap})):
        with pytest.raises(DataError, match="features"):
            decode("value", pack, ["features"])


@pytest.mark.parametrize("value", [b"", b"\xc1", packed([1]), b"PK\x03\x04", b"\x04\x22\x4d\x18", b"\x81"])
def test_values_that_are_no_maps_are_refused(value: bytes) -> None:
    with pytest.raises(DataError):
        decode("value", value, ["features"])


@settings(max_examples=500)
@given(data=st.data(), number=st.integers(0, len(PACKERS) - 1), cut=st.booleans())
def test_random_damage_of_a_value_is_an_error_or_harmless(data: st.DataObject, number: int, cut: bool) -> None:
    image = make_image(3, 2)
    value = bytearray(PACKERS[number](image))
    position = data.draw(st.integers(0, len(value) - 1))
    if cut:
        del value[position:]
    else:
        value[position] ^= data.draw(st.integers(1, 255))
    try:
        arrays = decode("value", bytes(value), list(image))
    except DataError:
        return
    assert not cut
    for name, array in arrays.items():
        assert array.nbytes == image[name].nbytes
        if number in (2, 4):  # .npz files have checksums
            np.testing.assert_array_equal(array, image[name])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_database_is_an_error(tmp_path: Path, part: float) -> None:
    """A process that looks at pages beyond the end of the file would be killed."""
    many = {f"{number:04}.npz": make_image(10, 5, number) for number in range(40)}
    folder = tmp_path / "db"
    if not folder.exists():
        (tmp_path / "whole").write_bytes((write_database(folder, many) / "data.mdb").read_bytes())
    whole = (tmp_path / "whole").read_bytes()
    (folder / "data.mdb").write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ItrpipeError):
        uniter.open_source(folder, DEFAULTS)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page=st.integers(0, 14), position=st.integers(0, 4095), flip=st.integers(1, 255), header=st.booleans())
def test_random_damage_of_a_database_is_an_error_or_harmless(
    tmp_path: Path, page: int, position: int, flip: int, header: bool
) -> None:
    folder = tmp_path / "db"
    if not folder.exists():
        many = {f"{number:04}.npz": make_image(10, 5, number) for number in range(60)}
        (tmp_path / "whole").write_bytes((write_database(folder, many) / "data.mdb").read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    content[page * 4096 + (position % 64 if header else position)] ^= flip
    (folder / "data.mdb").write_bytes(content)
    with contextlib.suppress(ItrpipeError):
        source = uniter.open_source(folder, DEFAULTS)
        rows = read(source, list(range(len(source.names))))
        assert np.isfinite(rows["regions"]).all()


def test_what_is_no_database_of_images_is_refused(tmp_path: Path) -> None:
    texts = write_database(tmp_path / "texts", {"1": {"input_ids": np.arange(3)}})
    with pytest.raises(DataError, match="'1' holds neither 'features' nor 'x'"):
        uniter.open_source(texts, DEFAULTS)
    with pytest.raises(DataError, match="holds no image"):
        uniter.open_source(write_database(tmp_path / "empty", {}), DEFAULTS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock.mdb").write_bytes(b"")
    with pytest.raises(MissingInputError, match=r"other holds no data\.mdb and no \.npz files"):
        uniter.open_source(tmp_path / "other", DEFAULTS)
    (tmp_path / "other" / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(DataError, match=r"data\.mdb is not a whole LMDB database"):
        uniter.open_source(tmp_path / "other", DEFAULTS)


@pytest.mark.parametrize(("missing", "pack"), [("msgpack", packed), ("lz4", framed)])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, pack: Callable[[Image], bytes]
) -> None:
    write_database(tmp_path, IMAGES, pack)
    find = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(f"No module named '{missing}'")
        return find(name, *rest)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(MissingInputError, match=rf"needs {missing}: pip install 'itrpipe\[uniter\]'"):
        uniter.open_source(tmp_path, DEFAULTS)


def test_nothing_is_written_into_a_database(tmp_path: Path) -> None:
    folder = write_database(tmp_path / "db", IMAGES)
    (folder / "lock.mdb").unlink()
    content = (folder / "data.mdb").read_bytes()
    read(uniter.open_source(folder, DEFAULTS), [0, 1])
    assert [path.name for path in folder.iterdir()] == ["data.mdb"]
    assert (folder / "data.mdb").read_bytes() == content
