"""Arrays in files: every format against NumPy, whole and damaged, and never more than was asked for."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.storage import array_formats
from itrpipe.storage.array_formats import labels, open_arrays
from itrpipe.storage.arrays import StoredRows, take

FILES = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NUMBERS = ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<i4", ">i8", "|u1"]


def write_parquet(path: Path, values: np.ndarray) -> None:
    native = values.astype(values.dtype.newbyteorder("="))
    kind = pa.from_numpy_dtype(native.dtype) if values.ndim == 1 else pa.list_(pa.from_numpy_dtype(native.dtype))
    column = pa.array(list(native), kind)
    pq.write_table(pa.table({"it": column, "other": range(len(values))}), path, row_group_size=7)


def write_folder(path: Path, values: np.ndarray) -> None:
    path.mkdir(exist_ok=True)
    write_parquet(path / "b.parquet", values[len(values) // 3 :])
    write_parquet(path / "a.parquet", values[: len(values) // 3])


def write_numpy(path: Path, values: np.ndarray, save: Callable[..., object] = np.save) -> None:
    with path.open("wb") as file:  # NumPy leaves the name as it is
        save(file, values) if save is np.save else save(file, other=np.arange(3), it=values)


def write_hdf5(path: Path, values: np.ndarray, packed: bool = False) -> None:
    path.unlink(missing_ok=True)  # HDF5 may still have a file open that could not be read
    options = {"chunks": (1, *values.shape[1:]), "maxshape": (None, *values.shape[1:]), "compression": "gzip"}
    texts = {"data": values.tolist(), "dtype": h5py.string_dtype()} if values.dtype.kind == "U" else {"data": values}
    with h5py.File(path, "w") as file:
        file["group/other"] = np.arange(3)
        file.create_dataset("it", **texts, **(options if packed else {}))


WRITERS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "npy": write_numpy,
    "npz": partial(write_numpy, save=np.savez),
    "npz packed": partial(write_numpy, save=np.savez_compressed),
    "npy by columns": lambda path, values: write_numpy(path, np.asfortranarray(values)),
    "npz by columns": lambda path, values: write_numpy(path, np.asfortranarray(values), np.savez),
    "npz packed by columns": lambda path, values: write_numpy(path, np.asfortranarray(values), np.savez_compressed),
    "hdf5": write_hdf5,
    "hdf5 packed": partial(write_hdf5, packed=True),
    "parquet": write_parquet,
    "folder": write_folder,
}


@pytest.fixture(params=WRITERS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def array_in(path: Path) -> Any:
    found = open_arrays(path)
    return found["it" if "it" in found else ""]


@FILES
@given(
    dtype=st.sampled_from(NUMBERS),
    width=st.sampled_from([(), (3,), (2, 3)]),
    calls=st.lists(st.tuples(st.integers(0, 22), st.integers(0, 22)), max_size=6),
    rows=st.lists(st.integers(0, 19), min_size=1) | st.none(),
)
def test_rows_are_those_of_numpy(form: str, tmp_path: Path, dtype: str, width: Any, calls: Any, rows: Any) -> None:
    """Of 20 rows or, where none are asked for, of an array without rows, whose lists in Parquet have no width."""
    native, count, rows = form in ("parquet", "folder"), 0 if rows is None else 20, rows or []
    width = width[: bool(count)] if native else width
    path, values = tmp_path / "file", (np.arange(count * int(np.prod(width))).reshape(count, *width) * 3 % 251)
    values = values.astype(dtype)
    WRITERS[form](path, values)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(array_formats, "_BYTES_AT_ONCE", 24 * 3)
        found = array_in(path)
        if count and width:  # HDF5 gives a dataset without rows no place, and one column lies as rows do
            assert isinstance(found, StoredRows) == (form in ("npy", "npz", "hdf5"))
        assert (found.shape, found.dtype) == (values.shape, values.dtype.newbyteorder("=") if native else values.dtype)
        for start, stop in calls:
            read = found.read(start, stop)
            assert (read.dtype, read.flags.c_contiguous) == (found.dtype, True)
            np.testing.assert_array_equal(read, values[start : max(start, stop)])
        np.testing.assert_array_equal(take(found, np.array(rows, np.int64)), values[rows])


TEXTS = ["a", "größer", "", "b c"]
NOT_IDS = (np.zeros(3), np.zeros((2, 2), int), np.zeros(2, bool), np.array([b"\xff"] * 2))


def test_ids_are_texts_or_whole_numbers(form: str, tmp_path: Path) -> None:
    bytes_too = form not in ("npz packed", "parquet", "folder")  # Parquet has no such type
    for values in (TEXTS, [3, 1, 2**40], np.char.encode(np.array(TEXTS), "utf-8"))[: 2 + bytes_too]:
        WRITERS[form](tmp_path / "file", np.array(values))
        assert labels(array_in(tmp_path / "file")) == (values if isinstance(values, list) else TEXTS)
    for others in NOT_IDS[: 3 + bytes_too]:
        WRITERS[form](tmp_path / "file", others)
        with pytest.raises(DataError, match=r"file.*cannot be read as ids"):
            labels(array_in(tmp_path / "file"))


def header(shape: str, descr: str = "<f4", version: bytes = b"\x01\x00") -> bytes:
    """A `.npy` file that says that it is of this shape, and holds nothing."""
    about = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + len(about).to_bytes(2 if version[0] == 1 else 4, "little") + about


def zipped(path: Path, data: bytes) -> None:
    """The same in an archive, behind a local header that is longer than the directory says."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("it.npy", "w", force_zip64=True) as member:
        member.write(data)
        member.close()
        archive.writestr("read me.txt", "no array")


HEADERS = [
    (b"1, 2, 3", "cannot be read"),
    (header("(2,)", version=b"\x03\x00"), "cannot be read"),
    (header("(-4, 4)"), "by its header"),
    (header(f"({10**40}, 4)"), "by its header"),
    *((header("(3,)") + bytes(count), "bytes, and by its header") for count in (11, 13)),
    (header("(3,)", "|O"), "Python objects"),
    (header("(3,)", "<c8") + bytes(24), "holds complex64"),
]


def test_npy_is_read_mapped_of_python_2_and_when_it_became_shorter(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path, values = tmp_path / "a.npy", np.arange(12.0).reshape(4, 3)
    for write in (Path.write_bytes, zipped):
        write(path, header("(3L,)") + bytes(12))
        assert array_in(path).read().tolist() == [0, 0, 0]
    assert not [each for each in recwarn if each.category is not ResourceWarning]
    np.save(path, values)
    found = open_arrays(path).stored("")
    found.mapped()[:] = 7  # in memory alone
    np.testing.assert_array_equal(found.mapped(), values)
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(found.read(0, 3), values[:3])
    with pytest.raises(DataError, match="it ends before row 4"):
        found.read(3, 4)


def test_a_name_is_known_without_opening_its_array(tmp_path: Path) -> None:
    write_numpy(tmp_path / "a.npz", np.array([["a", 1]], dtype=object), np.savez)
    assert open_arrays(tmp_path / "a.npz").keys() & {"it", "more"} == {"it"}


def test_columns_are_those_that_all_files_have(tmp_path: Path) -> None:
    for name, more in (("a", "x"), ("b", "y")):
        half = pa.array([[1.0]] * 2, pa.list_(pa.float16(), 1))
        table = pa.table({more: [1, 2], "it": pa.array([name, "z"]).dictionary_encode(), "half": half})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found = open_arrays(tmp_path)
    assert list(found) == ["it", "half"]
    assert labels(found["it"]) == ["a", "z", "b", "z"]
    assert (found["half"].dtype, found["half"].shape) == (np.float16, (4, 1))


def test_datasets_of_hdf5_are_known_by_any_link_and_stored_where_they_lie_as_they_are(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", np.arange(2, dtype="<i4"), packed=True)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.attrs["version"], file["group"].attrs["measure"] = 3, "order"
        file["again"], file["soft"], file["nowhere"] = file["it"], h5py.SoftLink("/it"), h5py.SoftLink("/gone")
        file["group/up"] = file["/"]  # a hard link back, so that the groups form a ring
        file["type"], file["late"] = np.dtype("<f4"), np.zeros(0)
        odd = h5py.h5t.IEEE_F32LE.copy()
        odd.set_ebias(100)  # a float that NumPy does not have
        h5py.h5d.create(file.id, b"odd", odd, h5py.h5s.create_simple((2,)))
        file["odd"][:] = [0, 1]  # pyright: ignore[reportIndexIssue]
    found = open_arrays(tmp_path / "a.h5")
    assert set(found) == {"again", "it", "soft", "group/other", "late", "odd"}
    assert (found.attributes("")["version"], found.attributes("group")["measure"]) == (3, "order")
    assert found.stored("group/other").mapped("r")[:].tolist() == [0, 1, 2]
    for name in ("again", "it", "soft", "odd"):
        assert found[name].read(0, 2).tolist() == [0, 1]
    for name in ("it", "late", "odd", "gone"):
        with pytest.raises(DataError, match=f"'{name}' is missing or not contiguous"):
            found.stored(name)


def hdf5(path: Path, fill: Callable[[h5py.File, str], object]) -> None:
    write_hdf5(path.with_name("other"), np.arange(2, dtype="<f4"))
    with h5py.File(path, "w") as file:
        fill(file, str(path.with_name("other")))


def virtual(file: h5py.File, other: str) -> None:
    layout = h5py.VirtualLayout((2,), "<f4")
    layout[:] = h5py.VirtualSource(other, "it", (2,))
    file.create_virtual_dataset("it", layout)


def linked(file: h5py.File, other: str) -> None:
    file["deep"], file["it"] = h5py.ExternalLink(other, "/"), h5py.SoftLink("/deep/it")


def outside(file: h5py.File, other: str) -> None:
    file.create_dataset("it", (2,), "<f4", external=[(other, 0, h5py.h5f.UNLIMITED)])


REFUSALS: list[tuple[Callable[[Path], object], str]] = [
    *((partial(write, data=data), reason) for data, reason in HEADERS for write in (Path.write_bytes, zipped)),
    (lambda path: pq.write_table(pa.table({"it": [[1.0], [1.0, 2]]}), path), "'it'.*the expected size"),
    (lambda path: pq.write_table(pa.table({"it": [[1.0], None]}), path), "empty"),
    (lambda path: pq.write_table(pa.table({"it": [[1.0], [None]]}), path), "empty"),
    (Path.mkdir, "holds no Parquet file"),
    (partial(hdf5, fill=lambda file, _: file.create_dataset("it", (2,), h5py.ref_dtype)), "numbers or texts"),
    *((partial(hdf5, fill=fill), "lies in the file '.*other', which is") for fill in (outside, virtual, linked)),
]


@pytest.mark.parametrize(("write", "value"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals(tmp_path: Path, write: Callable[[Path], object], value: str) -> None:
    """Other arrays of the file do no harm; no other file is read."""
    write(tmp_path / "it")
    with pytest.raises(DataError, match=f"^{tmp_path}/it.*{value}"):
        array_in(tmp_path / "it").read(0, 2)


@pytest.mark.parametrize("form", ["npz", "npz packed", "hdf5 packed"])
def test_no_more_is_held_than_was_asked_for(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path / "file", np.zeros((64, 1 << 17)))  # 64 MiB
    tracemalloc.start()
    found = array_in(tmp_path / "file")
    assert sum(found.read(start, start + 4).nbytes for start in range(0, 64, 4)) == 1 << 26
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
