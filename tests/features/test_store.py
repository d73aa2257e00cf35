"""The feature file: what is written is read, whatever happens in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from itrpipe.errors import DataError, DiskFullError, MissingInputError
from itrpipe.features.store import FeatureFile, FeatureSpec, FeatureWriter, create_features, largest_magnitudes

FULL = FeatureSpec(regions=3, region_dim=4, global_dim=5, boxes=True, labels=True, scores=True)
ALL = replace(FULL, attributes=True, pixels=(2, 3))


def make_rows(n: int, spec: FeatureSpec = FULL, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = {
        "regions": rng.normal(size=(n, spec.regions, spec.region_dim)).astype(np.float16),
        "count": rng.integers(0, spec.regions + 1, size=n).astype(np.int16),
        "boxes": np.sort(rng.random((n, spec.regions, 4)), axis=2).astype(np.float32),
        "labels": rng.integers(-1, 24, size=(n, spec.regions)).astype(np.int16),
        "scores": rng.random((n, spec.regions)).astype(np.float32),
        "global": rng.normal(size=(n, spec.global_dim)).astype(np.float16),
        "attributes": rng.integers(0, 400, size=(n, spec.regions)).astype(np.int16),
        "attribute_scores": rng.random((n, spec.regions)).astype(np.float32),
        "pixels": rng.integers(0, 256, size=(n, *spec.pixels, 3), dtype=np.uint8),
    }
    return {name: rows[name] for name in spec.shapes()}


def make_file(path: Path, n: int = 10, spec: FeatureSpec = FULL) -> dict[str, np.ndarray]:
    rows = make_rows(n, spec)
    create_features(path, [f"image {row}" for row in range(n)], spec, "test")
    with FeatureWriter(path) as writer:
        writer.write(0, rows)
    return rows


@pytest.mark.parametrize(
    "spec",
    [ALL, FULL, FeatureSpec(2, 8), FeatureSpec(0, 0, global_dim=7), FeatureSpec(1, 1, boxes=True)],
    ids=["everything", "detector", "regions", "global", "boxes"],
)
def test_rows_come_back_as_written(tmp_path: Path, spec: FeatureSpec) -> None:
    path = tmp_path / "features.h5"
    rows = make_file(path, spec=spec)
    file = FeatureFile.open(path)
    for name in ALL.shapes():
        stored = getattr(file, "global_" if name == "global" else name)
        if name in rows:
            assert isinstance(stored, np.memmap)
            np.testing.assert_array_equal(stored, rows[name])
            assert stored.dtype == rows[name].dtype
        else:
            assert stored is None
    assert file.spec == spec
    assert file.extractor == "test"
    assert len(file) == 10


def test_other_programs_read_the_file_with_h5py(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    rows = make_file(path)
    with h5py.File(path) as file:
        assert set(file) == {*rows, "image_id"}
        assert file.attrs["schema_version"] == 1
        for name, expected in rows.items():
            dataset = file[name]
            assert isinstance(dataset, h5py.Dataset)
            np.testing.assert_array_equal(dataset[()], expected)
            assert dataset.chunks is None
            assert dataset.id.get_offset() % 64 == 0
        names = file["image_id"]
        assert isinstance(names, h5py.Dataset)
        assert names.asstr()[3] == "image 3"


def test_rows_can_be_written_in_any_order_and_repeatedly(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole.h5", tmp_path / "pieces.h5"
    rows = make_file(whole)
    create_features(pieces, [f"image {row}" for row in range(10)], FULL, "test")
    with FeatureWriter(pieces) as writer:
        writer.write(2, make_rows(5, seed=9))
        for start, stop in ((7, 10), (0, 4), (4, 7), (4, 7)):
            writer.write(start, {name: values[start:stop] for name, values in rows.items()})
    assert pieces.read_bytes() == whole.read_bytes()


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    make_file(tmp_path / "first.h5")
    time.sleep(1.1)  # HDF5's timestamps, if there were any, have a resolution of a second
    make_file(tmp_path / "second.h5")
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), min_size=1, unique=True
    )
)
def test_any_unicode_identifier_finds_its_row(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "features.h5"
    create_features(path, names, FeatureSpec(0, 0, global_dim=1), "test")
    file = FeatureFile.open(path)
    assert file.image_id.tolist() == names
    np.testing.assert_array_equal(file.rows(names[::-1]), np.arange(len(names))[::-1])


def test_unknown_identifiers_are_named_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    file = FeatureFile.open(path)
    rows = file.rows(["image 7", "image 0"])
    assert rows.dtype == np.int64
    assert rows.tolist() == [7, 0]
    with pytest.raises(MissingInputError, match=r"image 'lost' \(2 of 3 images missing\).*itrpipe extract"):
        file.rows(["lost", "image 1", "gone"])


def test_size_on_disk_is_reserved_and_within_the_estimate(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    spec = FeatureSpec(36, 256, 64, boxes=True)
    create_features(path, [str(row) for row in range(100)], spec, "test")
    status = path.stat()
    assert 100 * 36 * 256 * 2 < status.st_size <= spec.bytes_needed(100)
    assert status.st_blocks * 512 >= status.st_size


KILLED = """
import sys
from pathlib import Path
import numpy as np
from itrpipe.features.store import FeatureWriter
rows = dict(np.load(sys.argv[2], allow_pickle=False))
with FeatureWriter(Path(sys.argv[1])) as writer:
    while True:
        for start in range(0, 60, 7):
            writer.write(start, {name: values[start : start + 7] for name, values in rows.items()})
            print("wrote", flush=True)
"""


def test_a_killed_writer_leaves_a_file_that_can_be_finished(tmp_path: Path) -> None:
    spec = FeatureSpec(36, 512, boxes=True)
    expected, killed = tmp_path / "expected.h5", tmp_path / "killed.h5"
    rows = make_file(expected, 60, spec)
    create_features(killed, [f"image {row}" for row in range(60)], spec, "test")
    np.savez(tmp_path / "rows.npz", **rows)  # pyright: ignore[reportArgumentType]
    command = [sys.executable, "-c", KILLED, str(killed), str(tmp_path / "rows.npz")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"wrote\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert len(FeatureFile.open(killed)) == 60
    with FeatureWriter(killed) as writer:
        writer.write(0, rows)
    assert killed.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("keep", [0, 100, 2000, -1], ids=["empty", "signature", "headers", "last byte"])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    path.write_bytes(path.read_bytes()[:keep])
    for attempt in (FeatureFile.open, FeatureWriter):
        with pytest.raises(DataError, match=rf"{path.name} .*itrpipe extract") as caught:
            attempt(path)
        assert "\n" not in str(caught.value)


def test_what_is_no_feature_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    path.write_text("not HDF5")
    with pytest.raises(DataError, match=r"features\.h5 is not a whole feature file"):
        FeatureFile.open(path)
    with pytest.raises(MissingInputError, match="itrpipe extract"):
        FeatureFile.open(tmp_path / "absent.h5")


@pytest.mark.parametrize("version", [0, 2, None])
def test_another_schema_version_is_refused(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    with h5py.File(path, "r+") as file:
        del file.attrs["schema_version"]
        if version is not None:
            file.attrs["schema_version"] = version
    with pytest.raises(DataError, match=r"schema version.*reads version 1"):
        FeatureFile.open(path)


def test_a_compressed_or_foreign_dataset_is_refused(tmp_path: Path) -> None:
    for name, options in (("scores", {"compression": "gzip"}), ("pixels", {})):
        path = tmp_path / f"{name}.h5"
        make_file(path)
        with h5py.File(path, "r+") as file:
            if name in file:
                del file[name]
            file.create_dataset(name, data=np.ones((10, 3), dtype="f4"), **options)
        with pytest.raises(DataError, match=r"contiguous|not part of the schema"):
            FeatureFile.open(path)


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_while_creating_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "features.h5"
    monkeypatch.setattr(os, "posix_fallocate", _refuse)
    with pytest.raises(DiskFullError, match=r"no space left while writing .*features\.h5 \(.*[\d,]+ MiB free\)"):
        create_features(path, ["a"], FULL, "test")
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with pytest.raises(DiskFullError, match=r"features\.h5 needs [\d,]{9,}\.\d MiB but"):
        create_features(path, ["a"], FeatureSpec(2**20, 2**30), "test")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_writing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "features.h5"
    rows = make_file(path)
    with FeatureWriter(path) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _refuse)
            with pytest.raises(
                DiskFullError, match=r"no space left while writing .*features\.h5 \(.*[\d,]+ MiB free\)"
            ):
                writer.write(0, rows)
        writer.write(0, rows)  # and once there is room again, the work goes on


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.h5", tmp_path / "features.h5"
    rows = make_file(whole)
    create_features(path, [f"image {row}" for row in range(10)], FULL, "test")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, view, offset: pwrite(file, view[:13], offset))
    with FeatureWriter(path) as writer:
        writer.write(0, rows)
    assert path.read_bytes() == whole.read_bytes()


REFUSED = [
    ("regions", np.full((2, 3, 4), 70000.0, dtype=np.float32), "regions holds the magnitude 70000.0; float16"),
    ("regions", np.full((2, 3, 4), np.nan), "regions holds the magnitude nan"),
    ("global", np.array([[0.0] * 5, [0, 0, -np.inf, 0, 0]]), "global holds the magnitude inf"),
    ("regions", np.full((2, 3, 4), np.nan, dtype=np.float16), "regions holds the magnitude nan"),
    ("global", np.full((2, 5), -np.inf, dtype=np.float16), "global holds the magnitude inf"),
    ("regions", np.zeros((2, 3, 5)), r"regions has shape \(2, 3, 5\)"),
    ("regions", np.zeros((2, 3, 4), dtype="S3"), "does not convert to float16"),
    ("labels", np.zeros((2, 3)), "labels has type float64, which does not convert to int16"),
    ("labels", np.full((2, 3), 40000), "labels reaches from 40000 to 40000"),
    ("boxes", np.full((2, 3, 4), 1.5), "boxes reaches from 1.5 to 1.5; boxes are fractions"),
    ("count", np.array([1, 4]), r"outside 0\.\.3"),
    ("count", np.array([1]), "differ in their number of rows"),
    ("pixels", np.zeros(2), "give datasets of the file"),
]


@pytest.mark.parametrize(("name", "values", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_values_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, name: str, values: np.ndarray, message: str
) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    before = path.read_bytes()
    with FeatureWriter(path) as writer, pytest.raises(DataError, match=message):
        writer.write(0, make_rows(2, seed=3) | {name: values})
    assert path.read_bytes() == before


@given(hnp.arrays(np.float16, (2, 3, 4), elements=st.floats(width=16)))
def test_largest_magnitudes_of_float16_are_those_of_float32(values: np.ndarray) -> None:
    expected = np.abs(values.astype(np.float32)).max(axis=(1, 2))
    np.testing.assert_array_equal(largest_magnitudes(values), expected)
    np.testing.assert_array_equal(largest_magnitudes(values.astype(np.float32)), expected)


@pytest.mark.parametrize("start", [-1, 9])
def test_rows_outside_the_file_are_refused(tmp_path: Path, start: int) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    with FeatureWriter(path) as writer, pytest.raises(DataError, match="has 10 rows"):
        writer.write(start, make_rows(2))


def test_datasets_may_be_written_one_after_the_other_but_not_none(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    rows = make_rows(2, seed=7)
    with FeatureWriter(path) as writer:
        for name, values in rows.items():
            writer.write(3, {name: values})
        with pytest.raises(DataError, match="give datasets of the file"):
            writer.write(0, {})
    file = FeatureFile.open(path)
    for name, values in file.arrays().items():
        np.testing.assert_array_equal(values[3:5], rows[name])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(10)), st.integers(1, 10))
def test_rows_may_be_written_in_any_order(tmp_path: Path, order: list[int], n: int) -> None:
    path = tmp_path / "features.h5"
    before = make_file(path)
    chosen = np.array(order[:n])
    rows = make_rows(n, seed=5)
    with FeatureWriter(path) as writer:
        writer.write(chosen, rows)
    for name, values in FeatureFile.open(path).arrays().items():
        expected = before[name].copy()
        expected[chosen] = rows[name]
        np.testing.assert_array_equal(values, expected)


def test_a_part_of_a_spec_has_the_datasets_of_its_groups() -> None:
    spec = replace(FULL, attributes=True, pixels=(5, 6))
    assert spec.groups() == {"regions", "global", "pixels"}
    regions = {"regions", "count", "boxes", "labels", "scores", "attributes", "attribute_scores"}
    assert set(spec.only({"regions"}).shapes()) == regions
    assert set(spec.only({"global"}).shapes()) == {"global"}
    assert spec.only({"pixels"}).shapes() == {"pixels": (5, 6, 3)}


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "no image"), (["a", "b", "a"], "'a' comes twice"), ([""], "empty"), (["a\0"], "NUL")],
)
def test_identifiers_that_cannot_be_keys_are_refused(tmp_path: Path, ids: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        create_features(tmp_path / "features.h5", ids, FULL, "test")
