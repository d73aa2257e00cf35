"""HDF5 files that would have another file read in their place are refused by every opener, before any byte is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.features.embeddings import read_embeddings
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.arrays.importer import open_source
from itrpipe.features.scores import read_scores
from itrpipe.features.store import FeatureFile

ROWS = np.arange(24, dtype="<f4").reshape(2, 3, 4)
Poison = Callable[[h5py.File, Path], None]
OPENERS = {
    "arrays": lambda path: open_source(path, Arrays(kind="arrays", ids="", boxes="pixels")),
    "features": FeatureFile.open,
    "embeddings": lambda path: read_embeddings(path, "test"),
    "scores": lambda path: read_scores(path, "test"),
}


def external_storage(file: h5py.File, other: Path) -> None:
    file.create_dataset("deep/regions", ROWS.shape, "<f4", external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(file: h5py.File, other: Path) -> None:
    layout = h5py.VirtualLayout(ROWS.shape, "<f4")
    layout[:] = h5py.VirtualSource(str(other), "regions", ROWS.shape)
    file.create_virtual_dataset("deep/regions", layout)


def external_link(file: h5py.File, other: Path) -> None:
    file["deep/regions"] = h5py.ExternalLink(str(other), "regions")


def soft_link_through_an_external_one(file: h5py.File, other: Path) -> None:
    file["deep/regions"] = h5py.ExternalLink(str(other), "/")
    file["regions"] = h5py.SoftLink("/deep/regions/regions")


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (external_storage, r"keeps its values in the file '.*other\.h5'"),
        (virtual_dataset, "is a virtual dataset, made of others"),
        (external_link, r"is a link to the file '.*other\.h5'"),
        (soft_link_through_an_external_one, r"is a link to the file '.*other\.h5'"),
    ],
)
def test_no_other_file_is_read(opener: str, poison: Poison, reason: str, tmp_path: Path) -> None:
    path, other = tmp_path / "given.h5", tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["regions"] = ROWS
    with h5py.File(path, "w") as file:
        file["image_id"] = np.array([b"a", b"b"])
        poison(file, other)
    with pytest.raises(DataError, match=rf"given\.h5: 'deep/regions' {reason}, which is never followed; write "):
        OPENERS[opener](path)


def test_what_lies_in_the_file_is_read_by_any_link(tmp_path: Path) -> None:
    path = tmp_path / "given.h5"
    with h5py.File(path, "w") as file:
        file["deep/er/values"] = ROWS
        file["regions"] = h5py.SoftLink("/deep/er/values")
        file["nowhere"] = h5py.SoftLink("/gone")
        file["deep/up"] = file["/"]  # a hard link back, so that the groups form a ring
        file["type"] = np.dtype("<f4")
        file["image_id"] = np.array([b"a", b"b"])
    source = open_source(path, Arrays(kind="arrays", ids="", boxes="pixels", map={"regions": "deep/er/values"}))
    assert np.array_equal(source.read(np.array([0, 1]), np.ones((2, 2)))["regions"], ROWS)
    with open_hdf5(path) as file:
        dataset = file["regions"]
        assert isinstance(dataset, h5py.Dataset)
        assert np.array_equal(dataset[:], ROWS)


def test_references_are_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "given.h5"
    with h5py.File(path, "w") as file:
        file["regions"] = ROWS
        file.create_dataset("image_id", (2,), h5py.ref_dtype)
    with pytest.raises(DataError, match="'image_id' holds a Reference; ids are texts or numbers"):
        OPENERS["arrays"](path)


def test_a_damaged_file_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "given.h5"
    with h5py.File(path, "w") as file:
        for number in range(50):
            file[f"group{number}/values"] = ROWS
    content = bytearray(path.read_bytes())
    refused = 0
    for start in range(0, len(content), 64):
        path.write_bytes(content[:start] + b"\xff" * 64 + content[start + 64 :])
        try:
            open_hdf5(path).close()
        except OSError as error:
            refused += bool(str(error))
    assert refused > 10
