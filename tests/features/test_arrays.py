"""Arrays in .npy, .npz and HDF5 files: every dataset of the store is read back, what does not fit is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.importers.arrays import importer as arrays
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.arrays.importer import ArraysSource
from itrpipe.features.store import FeatureFile, FeatureSpec, write_features

N, R, D, G = 7, 4, 5, 3
SIZES = np.repeat([[480, 640]], N, axis=0)
IDS = [f"image {number}.jpg" for number in range(N)]

Content = dict[str, np.ndarray]


def make_content() -> Content:
    """All datasets of the store, with rubbish after `count`."""
    rng = np.random.default_rng(0)
    corners = np.sort(rng.uniform(size=(N, R, 2, 2)), axis=2).reshape(N, R, 4)
    return {
        "image_id": np.array(IDS),
        "regions": rng.normal(size=(N, R, D)).astype("f4"),
        "count": np.array([4, 3, 1, 4, 0, 2, 4]),
        "boxes": corners,
        "labels": rng.integers(1600, size=(N, R)),
        "scores": rng.uniform(size=(N, R)),
        "attributes": rng.integers(400, size=(N, R)).astype("u2"),
        "attribute_scores": rng.uniform(size=(N, R)).astype("f2"),
        "global": rng.normal(size=(N, G)).astype(">f8"),
        "pixels": rng.integers(256, size=(N, 6, 8, 3)).astype("u1"),
    }


def write_npz(folder: Path, content: Content) -> Path:
    np.savez(folder / "features.npz", **content)  # pyright: ignore[reportArgumentType]
    return folder / "features.npz"


def write_compressed(folder: Path, content: Content) -> Path:
    np.savez_compressed(folder / "features.npz", **content)  # pyright: ignore[reportArgumentType]
    return folder / "features.npz"


def write_hdf5(folder: Path, content: Content, **options: Any) -> Path:
    with h5py.File(folder / "features.h5", "w") as file:
        for name, array in content.items():
            if array.dtype.kind == "U":
                file.create_dataset(name, data=array.tolist(), dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=array, **options)
    return folder / "features.h5"


def write_chunked(folder: Path, content: Content) -> Path:
    return write_hdf5(folder, content, chunks=True, compression="gzip", shuffle=True)


WRITERS = [write_npz, write_compressed, write_hdf5, write_chunked]


def open_arrays(path: Path, map: Mapping[str, str] | None = None, ids: str = "", boxes: Any = "fractions"):
    return arrays.open_source(path, Arrays(kind="arrays", map=dict(map or {}), ids=ids, boxes=boxes))


def read_all(source: ArraysSource, block: int = 3) -> Content:
    parts = [np.arange(start, min(start + block, N)) for start in range(0, N, block)]
    blocks = [source.read(part, SIZES[part]) for part in parts]
    return {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}


def assert_rows(rows: Content, content: Content) -> None:
    real = np.arange(R) < content["count"][:, None]
    for name in rows:
        expected = content[name]
        if expected.shape[:2] == (N, R):
            expected = np.where(real.reshape(N, R, *[1] * (expected.ndim - 2)), expected, 0)
        np.testing.assert_allclose(rows[name], expected, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("write", WRITERS)
def test_all_datasets_are_read_back(tmp_path: Path, write: Callable[[Path, Content], Path]) -> None:
    content = make_content()
    source = open_arrays(write(tmp_path, content))
    assert source.names == IDS
    assert source.captions is None
    assert source.spec == FeatureSpec(R, D, G, boxes=True, labels=True, scores=True, attributes=True, pixels=(6, 8))
    rows = read_all(source)
    assert set(rows) == set(source.spec.shapes())
    assert_rows(rows, content)
    write_features(tmp_path / "written.h5", IDS, source.spec, "arrays", [(np.arange(N), rows)])
    own = open_arrays(tmp_path / "written.h5")  # itrpipe's own file is one more source
    assert own.names == IDS
    for name, values in read_all(own).items():
        assert values.dtype == rows[name].dtype
        np.testing.assert_array_equal(values, rows[name])
    np.testing.assert_array_equal(np.asarray(FeatureFile.open(tmp_path / "written.h5").labels), rows["labels"])


@pytest.mark.parametrize("write", WRITERS)
def test_names_are_mapped(tmp_path: Path, write: Callable[[Path, Content], Path]) -> None:
    content = make_content()
    other = {"feats": content["regions"], "n": content["count"], "cocoid": np.arange(N) + 100, "labels": np.zeros(2)}
    source = open_arrays(write(tmp_path, other), {"regions": "feats", "count": "n", "image_id": "cocoid", "labels": ""})
    assert source.names == [str(number + 100) for number in range(N)]
    assert source.spec == FeatureSpec(R, D)
    assert_rows(read_all(source), content)


def test_groups_of_hdf5_are_part_of_the_name(tmp_path: Path) -> None:
    content = make_content()
    path = write_hdf5(tmp_path, {"deep/er/x": content["global"], "names": np.array([name.encode() for name in IDS])})
    source = open_arrays(path, {"global": "deep/er/x"})
    assert source.names == IDS
    assert source.spec == FeatureSpec(0, 0, G)
    np.testing.assert_array_equal(read_all(source)["global"], content["global"].astype("f2"))


@pytest.mark.parametrize("name", ["regions", "global"])
def test_an_array_without_a_name_is_known_by_its_dimensions(tmp_path: Path, name: str) -> None:
    content = make_content()
    np.save(tmp_path / "features.npy", content[name])
    (tmp_path / "ids.txt").write_text("\n".join(IDS) + "\n")
    source = open_arrays(tmp_path / "features.npy", ids="ids.txt")
    assert source.names == IDS
    assert arrays.ids_file(source.path, Arrays(kind="arrays", map={}, ids="ids.txt", boxes="pixels")) == (
        tmp_path / "ids.txt"
    )
    rows = read_all(source)
    np.testing.assert_array_equal(rows[name], content[name].astype("f2"))
    assert set(rows) == ({"regions", "count"} if name == "regions" else {"global"})
    if name == "regions":
        assert rows["count"].tolist() == [R] * N


def test_boxes_in_pixels_become_fractions_of_each_image(tmp_path: Path) -> None:
    content = make_content()
    sizes = np.array([[100 + number, 200 + 3 * number] for number in range(N)])
    pixels = content["boxes"] * sizes[:, None, [1, 0, 1, 0]]
    for kind, boxes in (("floats", pixels), ("integers", pixels.round().astype("i4"))):
        (tmp_path / kind).mkdir()
        source = open_arrays(write_npz(tmp_path / kind, content | {"boxes": boxes}), boxes="pixels")
        rows = source.read(np.array([0, 6]), sizes[[0, 6]])
        np.testing.assert_allclose(rows["boxes"], content["boxes"][[0, 6]], atol=0.01)
    with pytest.raises(DataError, match=r"boxes=fractions: region 0 of image 'image 0\.jpg' has the box"):
        read_all(open_arrays(tmp_path / "floats" / "features.npz"))


def _set(name: str, value: np.ndarray) -> Callable[[Content], Content]:
    return lambda content: content | {name: value}


def _drop(*names: str) -> Callable[[Content], Content]:
    return lambda content: {name: array for name, array in content.items() if name not in names}


def _at(name: str, position: tuple[int, ...], value: float) -> Callable[[Content], Content]:
    def damage(content: Content) -> Content:
        array = content[name].copy()
        array[position] = value
        return content | {name: array}

    return damage


DAMAGES = [
    (_set("regions", np.zeros((N, D))), r"'regions' has shape \(7, 5\); regions need \[images, regions, width\]"),
    (_set("regions", np.zeros((N, R, 0))), r"'regions' has shape \(7, 4, 0\)"),
    (_set("regions", np.zeros((N, R, D), int)), "'regions' has type int64; regions are floating point"),
    (_set("boxes", np.zeros((N, R, 5))), r"boxes need \[images, regions, 4\]"),
    (_set("boxes", np.zeros((N, R - 1, 4))), "'boxes' has 3 regions and 'regions' 4"),
    (_set("scores", np.zeros((N - 1, R))), "'scores' has 6 rows and 'regions' 7"),
    (_set("labels", np.zeros((N, R))), "'labels' has type float64; labels are integers"),
    (_set("pixels", np.zeros((N, 2, 2, 3), "u2")), "pixels are uint8"),
    (_set("image_id", np.arange(N - 1)), "'regions' has 7 rows, but there are 6 ids"),
    (_set("image_id", np.zeros((N, 2), int)), "'image_id' has type int64 and shape"),
    (_set("image_id", np.zeros(N)), "'image_id' has type float64"),
    (_set("image_id", np.array([b"\xff"] * N)), "an id that is not UTF-8"),
    (_drop("image_id"), r"no image ids \(none of its arrays .* is called image_id, ids, names\)"),
    (_drop("regions"), "has count but no regions that they belong to"),
    (_drop("attribute_scores"), "only one of attributes and attribute_scores"),
    (_drop("regions", "global", "pixels"), "has no array named regions, global or pixels; its arrays are .*boxes"),
    (_at("regions", (1, 0, 2), np.nan), r"regions of image 'image 1\.jpg' hold nan, which float16"),
    (_at("global", (6, 1), 1e6), r"global of image 'image 6\.jpg' hold 1000000"),
    (_at("scores", (3, 1), np.inf), r"scores of image 'image 3\.jpg' hold inf"),
    (_at("labels", (0, 1), 40000), r"labels of image 'image 0\.jpg' hold 40000; 0 to 32767"),
    (_at("count", (5,), 5), r"count of image 'image 5\.jpg' hold 5; 0 to 4"),
    (_at("count", (5,), -1), r"count of image 'image 5\.jpg' hold -1"),
    (_at("boxes", (0, 1, 2), -0.5), r"region 1 of image 'image 0\.jpg' has the box"),
    (_at("boxes", (3, 1, 0), 1), r"region 1 of image 'image 3\.jpg' has the box \(1, "),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
@pytest.mark.parametrize("write", [write_npz, write_hdf5])
def test_what_does_not_fit_is_named(
    tmp_path: Path, write: Callable[[Path, Content], Path], damage: Callable[[Content], Content], message: str
) -> None:
    path = write(tmp_path, damage(make_content()))
    with pytest.raises(DataError, match=message) as caught:
        read_all(open_arrays(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rubbish_beyond_count_does_no_harm(tmp_path: Path) -> None:
    content = _at("regions", (1, 3, 2), np.nan)(_at("boxes", (2, 1, 0), -1)(make_content()))
    assert_rows(read_all(open_arrays(write_npz(tmp_path, content))), content)


def test_settings_that_name_nothing_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path, {"regions": np.zeros((2, 3, 4)), "ids": np.arange(2)})
    with pytest.raises(UsageError, match=r"map names 'features'; datasets are regions, count, boxes, .*, image_id"):
        open_arrays(path, {"features": "regions"})
    with pytest.raises(UsageError, match="no array 'bbox', which map names as boxes; its arrays are regions, ids"):
        open_arrays(path, {"boxes": "bbox"})
    with pytest.raises(UsageError, match=r"ids names ids\.txt and map the array 'ids' as image_id; give one"):
        open_arrays(path, {"image_id": "ids"}, ids="ids.txt")
    with pytest.raises(MissingInputError, match=r"ids\.txt: cannot be read"):
        open_arrays(path, ids="ids.txt")
    (tmp_path / "ids.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match="'regions' has 2 rows, but there are 3 ids"):
        open_arrays(path, ids="ids.txt")
    with pytest.raises(MissingInputError, match=r"absent\.npz is not a file with one of the suffixes \.npy, \.npz"):
        open_arrays(tmp_path / "absent.npz")
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"a\.npy has shape \(3,\); \[images, regions, width\] or"):
        open_arrays(tmp_path / "a.npy")


def test_hdf5_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("not HDF5")
    with pytest.raises(DataError, match=r"a\.h5 cannot be read as HDF5"):
        open_arrays(tmp_path / "a.h5")


@settings(max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), number=st.integers(0, len(WRITERS) - 1), cut=st.booleans())
def test_random_damage_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject, number: int, cut: bool) -> None:
    content = make_content()
    # The HDF5 library itself can loop for ever over damaged texts of variable length.
    content["image_id"] = np.char.encode(content["image_id"])
    path = WRITERS[number](tmp_path, content)
    damaged = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    if cut:
        del damaged[position:]
    else:
        damaged[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        source = open_arrays(path)
        rows = read_all(source)
    except ItrpipeError:
        return
    if number == 1 or cut:  # compressed .npz files have checksums
        assert_rows(rows, content)
    for name in rows.keys() - {"pixels"}:
        assert np.isfinite(rows[name]).all()
