"""The feature file: what is written is read, the bytes are those of always, and what cannot be stored is refused."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, DiskFullError, MissingInputError
from itrpipe.features.embeddings import ORDER, embedding_writer
from itrpipe.features.store import TYPES, FeatureFile, FeatureSpec, stored_rows, write_features

ALL = FeatureSpec(3, 4, 5, boxes=True, labels=True, scores=True, attributes=True)
N = 10
IDS = [f"image {row}" for row in range(N)]


def make_rows(n: int, spec: FeatureSpec = ALL) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    limits = {"<i2": (1, 3)}
    draw = lambda kind, shape: rng.integers(*limits[kind], shape) if kind in limits else rng.random(shape)  # noqa: E731
    return {name: draw(TYPES[name], (n, *shape)).astype(TYPES[name]) for name, shape in spec.items()}


def make_file(path: Path, spec: FeatureSpec = ALL) -> dict[str, np.ndarray]:
    rows = make_rows(N, spec)
    write_features(path, IDS, spec, "test", [(np.arange(N), rows)])
    return rows


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (ALL, "a3973c57"),
        (FeatureSpec(3, 4, 5, boxes=True, labels=True, scores=True), "f63cc04f"),
        (FeatureSpec(2, 8), "772846e3"),
        (FeatureSpec(global_dim=7), "9e4a237d"),
        (FeatureSpec(2, 1, boxes=True), "73c19692"),
    ],
)
def test_rows_come_back_as_written_and_the_bytes_never_change(tmp_path: Path, spec: FeatureSpec, digest: str) -> None:
    path = tmp_path / "features.h5"
    rows = make_file(path, spec)
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:8] == digest
    assert 0 <= spec.bytes_needed(N) - path.stat().st_size < 20_000
    file = FeatureFile.open(path)
    assert (len(file), file.image_id.tolist()) == (N, IDS)
    assert file.arrays.keys() == rows.keys()
    for name, stored in file.arrays.items():
        assert isinstance(stored, np.memmap)
        np.testing.assert_array_equal(stored, rows[name], strict=True)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(N)), st.integers(1, N))
def test_rows_and_datasets_may_come_in_any_order(tmp_path: Path, order: list[int], cut: int) -> None:
    rows = make_file(tmp_path / "whole.h5")
    pieces = [
        (own, {name: rows[name][own] for name in names})
        for names in (rows.keys() - {"regions"}, ["regions"])
        for own in np.split(np.array(order), [cut])
    ]
    write_features(tmp_path / "pieces.h5", IDS, ALL, "test", pieces)
    assert (tmp_path / "pieces.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=1, unique=True))
def test_any_unicode_identifier_finds_its_row_and_unknown_ones_are_named(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "features.h5"
    write_features(path, names, FeatureSpec(global_dim=1), "test", [])
    file = FeatureFile.open(path)
    assert file.image_id.tolist() == names
    np.testing.assert_array_equal(file.rows(names[::-1]), np.arange(len(names))[::-1], strict=True)
    wanted = ["lost\0", names[0], "gone\0"]
    assert file.absent(wanted) == ["lost\0", "gone\0"]
    with pytest.raises(MissingInputError, match=r"image 'lost\0' \(2 of 3 images missing\).*itrpipe extract"):
        file.rows(wanted)


def test_the_bytes_of_embeddings_never_change(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    images, texts = rng.normal(size=(3, 4)), rng.normal(size=(6, 4)).astype("<f4")
    names, captions = [f"i{row}" for row in range(3)], [f"größer {row}" for row in range(6)]
    owners = rng.permutation(np.repeat(range(3), 2))
    with embedding_writer(tmp_path / "embeddings.h5", "train", names, captions, owners, 4, ORDER) as write:
        write("texts", 2, texts[2:])
        write("texts", 0, texts[:2])
        write("images", 0, images)
    assert hashlib.sha256((tmp_path / "embeddings.h5").read_bytes()).hexdigest()[:8] == "d1942be2"


# What is stored


def test_values_are_converted_and_other_arrays_left_out() -> None:
    rows = make_rows(4, ALL)
    wide = {name: values.astype(np.int64 if values.dtype.kind in "iu" else np.float64) for name, values in rows.items()}
    stored, refused = stored_rows(ALL, wide | {"more": np.zeros(4)})
    assert not refused
    assert stored.keys() == rows.keys()
    for name, values in rows.items():
        np.testing.assert_array_equal(stored[name], values, strict=True)
    assert stored_rows(ALL, rows)[0]["regions"] is rows["regions"]  # nothing is copied that fits already


VALUES = [
    ("regions", 65504.0, ""),
    ("regions", 70000.0, "regions with the value 70000; float16 from -65504 to 65504"),
    ("regions", np.nan, "regions with the value nan"),
    ("global", np.float16(-np.inf), "global with the value -inf"),
    ("scores", 1e39, "scores with the value 1e+39"),
    ("labels", 32767, ""),
    ("labels", 40000, "labels with the value 40000; int16 from -1 to 32767"),
    ("labels", -1, ""),
    ("attributes", -2, "attributes with the value -2"),
    ("boxes", 1.0, ""),
    ("boxes", 1.001, "boxes with the value 1.001; float32 from 0 to 1"),
    ("boxes", -0.001, "boxes with the value -0.001"),
    ("count", 3, ""),
    ("count", 4, "count with the value 4; int16 from 1 to 3"),
    ("count", -1, "count with the value -1"),
    ("count", 0, "has no region"),
]


@pytest.mark.parametrize(("name", "value", "reason"), VALUES)
def test_an_image_whose_values_do_not_fit_is_refused(name: str, value: float, reason: str) -> None:
    rows = make_rows(4, ALL)
    wide = rows[name].astype(value.dtype if isinstance(value, np.generic) else type(value))
    wide[2, ...].flat[-1] = value
    stored, refused = stored_rows(ALL, rows | {name: wide})
    assert refused.keys() == ({2} if reason else set())
    assert reason in refused.get(2, "")
    if not reason:
        np.testing.assert_array_equal(stored[name], wide)


def test_another_shape_or_type_is_an_error() -> None:
    strings, decimals = np.zeros((2, 3, 4), "S3"), np.zeros((2, 3))
    wrong = [("regions", np.zeros((2, 3, 5))), ("regions", strings), ("labels", decimals), ("count", np.ones(1, int))]
    for name, values in wrong:
        with pytest.raises(DataError, match=f"^{name} of 2 images have type"):
            stored_rows(ALL, make_rows(2) | {name: values})


# What is refused


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with pytest.raises(MissingInputError, match="itrpipe extract"):
        FeatureFile.open(path)
    make_file(path)
    whole = path.read_bytes()
    for keep in (0, 2000, -1):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=rf"^{path} [^\n]*itrpipe extract[^\n]*$"):
            FeatureFile.open(path)


def replaced(name: str, data: np.ndarray, **options: Any) -> Callable[[h5py.File], object]:
    return lambda file: (file.pop(name, None), file.create_dataset(name, data=data, **options))


CHANGES: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "an older version": (lambda file: file.attrs.modify("schema_version", 0), "schema version 0, .* reads 1"),
    "no version": (lambda file: file.attrs.pop("schema_version"), "whole feature file"),
    "compressed": (replaced("scores", np.ones((N, 3), "f4"), compression="gzip"), "contiguous"),
    "no UTF-8": (replaced("image_id", np.full(N, b"\xff")), "whole feature file"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_file_is_refused(tmp_path: Path, name: str) -> None:
    path, (make, message) = tmp_path / "features.h5", CHANGES[name]
    make_file(path)
    with h5py.File(path, "r+") as file:
        make(file)
    with pytest.raises(DataError, match=message):
        FeatureFile.open(path)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r"features\.h5 needs [\d,]{9,}\.\d MiB but"):
        write_features(tmp_path / "features.h5", IDS, FeatureSpec(2**20, 2**30), "test", [])
    width = shutil.disk_usage(tmp_path).free // 16
    too_large = embedding_writer(tmp_path / "embeddings.h5", "train", IDS, IDS, np.arange(N), width, ORDER)
    with pytest.raises(DiskFullError, match="embedding train needs"), too_large:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "features.h5"
    make_file(path)
    before, pwrite = path.read_bytes(), os.pwrite
    rows = make_rows(N) | {"labels": np.zeros((N, 3), dtype="<i2")}
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(DiskFullError, match=r"no space left while writing .*features\.h5 \(.*[\d,]+ MiB free\)"):
        write_features(path, IDS, ALL, "test", [(np.arange(N), rows)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(os, "pwrite", lambda file, view, offset: pwrite(file, view[:13], offset))  # short writes
    write_features(path, IDS, ALL, "test", [(np.arange(N), rows)])
    np.testing.assert_array_equal(FeatureFile.open(path).arrays["labels"], rows["labels"])
