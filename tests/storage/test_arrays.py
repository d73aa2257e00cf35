"""Arrays in files: every format against NumPy, whole and damaged, and never more than was asked for."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
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
from itrpipe.storage import arrays
from itrpipe.storage.arrays import FetchedRows, StoredRows, labels, open_arrays, take

FILES = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NUMBERS = ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<i4", ">i8", "|u1"]


def write_parquet(path: Path, values: np.ndarray) -> None:
    native = values.astype(values.dtype.newbyteorder("="))
    if values.ndim == 2:
        column = pa.FixedSizeListArray.from_arrays(native.reshape(-1), values.shape[1]).cast(
            pa.list_(pa.from_numpy_dtype(native.dtype))
        )
    else:
        column = pa.array(native)
    pq.write_table(pa.table({"it": column, "other": range(len(values))}), path, row_group_size=7)


def write_folder(path: Path, values: np.ndarray) -> None:
    path.mkdir(exist_ok=True)
    write_parquet(path / "b.parquet", values[len(values) // 3 :])
    write_parquet(path / "a.parquet", values[: len(values) // 3])


def write_numpy(path: Path, save: Callable[..., object], *values: np.ndarray, **named: np.ndarray) -> None:
    with path.open("wb") as file:  # NumPy leaves the name as it is
        save(file, *values, **named)


def write_hdf5(path: Path, values: np.ndarray, **options: Any) -> None:
    path.unlink(missing_ok=True)  # HDF5 may still have a file open that could not be read
    with h5py.File(path, "w") as file:
        file["group/other"] = np.arange(3)
        if values.dtype.kind == "U":
            file.create_dataset("it", data=values.tolist(), dtype=h5py.string_dtype(), **options)
        else:
            file.create_dataset("it", data=values, **options)


WRITERS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "npy": lambda path, values: write_numpy(path, np.save, values),
    "npz": lambda path, values: write_numpy(path, np.savez, other=np.arange(3), it=values),
    "npz packed": lambda path, values: write_numpy(path, np.savez_compressed, other=np.arange(3), it=values),
    "hdf5": write_hdf5,
    "hdf5 packed": lambda path, values: write_hdf5(path, values, chunks=(2, *values.shape[1:]), compression="gzip"),
    "parquet": write_parquet,
    "folder": write_folder,
}
AS_THEY_LIE = ("npy", "npz", "hdf5")


@pytest.fixture(params=WRITERS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def array_in(path: Path, form: str) -> Any:
    return open_arrays(path)["" if form == "npy" else "it"]


@FILES
@given(
    dtype=st.sampled_from(NUMBERS),
    width=st.sampled_from([(), (3,), (2, 3)]),
    calls=st.lists(st.tuples(st.integers(0, 22), st.integers(0, 22)), max_size=6),
    rows=st.lists(st.integers(0, 19)),
)
def test_rows_are_those_of_numpy(
    form: str, tmp_path: Path, dtype: str, width: tuple[int, ...], calls: list[tuple[int, int]], rows: list[int]
) -> None:
    if form in ("parquet", "folder"):
        width = width[:1]
    path, values = tmp_path / "file", (np.arange(20 * int(np.prod(width))).reshape(20, *width) * 3 % 251).astype(dtype)
    WRITERS[form](path, values)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrays, "_BYTES_AT_ONCE", 24 * 3)
        found = array_in(path, form)
        assert isinstance(found, StoredRows) == (form in AS_THEY_LIE)
        assert found.shape == values.shape
        assert found.dtype == (values.dtype.newbyteorder("=") if form in ("parquet", "folder") else values.dtype)
        for start, stop in calls:
            read = found.read(start, stop)
            assert read.dtype == found.dtype
            np.testing.assert_array_equal(read, values[start : max(start, stop)])
        np.testing.assert_array_equal(take(found, np.array(rows, np.int64)), values[rows])


TEXTS = ["a", "größer", "", "b c"]


@pytest.mark.parametrize("values", [TEXTS, [3, 1, 2**40]], ids=["texts", "numbers"])
def test_ids_are_texts_or_whole_numbers(form: str, tmp_path: Path, values: list[Any]) -> None:
    WRITERS[form](tmp_path / "file", np.array(values))
    assert labels(array_in(tmp_path / "file", form)) == values


@pytest.mark.parametrize("form", [*AS_THEY_LIE, "hdf5 packed"])
def test_bytes_are_texts(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path / "file", np.char.encode(np.array(TEXTS), "utf-8"))
    assert labels(array_in(tmp_path / "file", form)) == TEXTS
    WRITERS[form](tmp_path / "file", np.array([b"\xff"] * 2))
    with pytest.raises(DataError, match="'utf-8' codec"):
        labels(array_in(tmp_path / "file", form))


@pytest.mark.parametrize(
    "values", [np.zeros(3), np.zeros((2, 2), int), np.zeros(2, bool)], ids=["f8", "matrix", "bool"]
)
def test_ids_are_nothing_else(form: str, tmp_path: Path, values: np.ndarray) -> None:
    WRITERS[form](tmp_path / "file", values)
    with pytest.raises(DataError, match="cannot be read as ids"):
        labels(array_in(tmp_path / "file", form))


def test_empty_arrays_have_their_shape(form: str, tmp_path: Path) -> None:
    shape = (0,) if form in ("parquet", "folder") else (0, 4)
    WRITERS[form](tmp_path / "file", np.zeros(shape, "f4")) if form != "hdf5 packed" else None
    if form == "hdf5 packed":
        write_hdf5(tmp_path / "file", np.zeros(shape, "f4"), maxshape=(None, 4))
    found = array_in(tmp_path / "file", form)
    assert found.shape == found.read(0, 5).shape == take(found, np.arange(0)).shape == shape


def damaged(path: Path, position: int, mask: int) -> None:
    """Turns bits of a byte, or without a mask cuts the file off there."""
    content = bytearray(path.read_bytes())
    position %= len(content)
    if mask:
        content[position] ^= mask
    else:
        del content[position:]
    path.write_bytes(content)


@settings(FILES, max_examples=40)
@given(position=st.integers(0, 5_000), mask=st.integers(0, 255))
def test_damage_is_one_error_or_harmless(form: str, tmp_path: Path, position: int, mask: int) -> None:
    values = np.arange(30, dtype="f4").reshape(6, 5)
    WRITERS[form](tmp_path / "file", values)
    path = tmp_path / "file" / "a.parquet" if form == "folder" else tmp_path / "file"
    damaged(path, position, mask)
    try:
        found = array_in(tmp_path / "file", form)
        read = found.read(0, found.shape[0] if found.shape else 0)
    except DataError as error:
        told = str(error)
        assert told.startswith(str(path.parent if form == "folder" else path))
        assert "\n" not in told
    except KeyError:
        assert mask  # a bit of the name
    else:
        assert mask
        assert read.nbytes <= 2 * values.nbytes
        if form == "npz packed":
            np.testing.assert_array_equal(read, values)


def header(shape: str, descr: str = "<f4", version: bytes = b"\x01\x00") -> bytes:
    """A `.npy` file that says that it is of this shape, and holds nothing."""
    about = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + len(about).to_bytes(2 if version[0] == 1 else 4, "little") + about


def objects(path: Path) -> None:
    np.save(path, np.array([["a", 1]], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1, 2, 3", "cannot be read"),
        (b"", "cannot be read"),
        (b"\x93NUMPY", "cannot be read"),
        (header("(2,)", version=b"\x03\x00"), "cannot be read"),
        (header("(2,)")[:20], "cannot be read"),
        (header("(2,)")[:9] + b"\xff", "cannot be read"),
        (header("(-4, 4)"), "by its header"),
        (header("(4611686018427387904, 4)"), "by its header"),
        (header(f"({10**40}, 4)"), "by its header"),
        (header("(3,)") + b"\0" * 11, "bytes, and by its header"),
        (header("(3,)") + b"\0" * 13, "bytes, and by its header"),
        (header("(3,)", "|O"), "Python objects"),
        (header("(3,)", "<c8") + b"\0" * 24, "holds complex64"),
        (header("(3,)", "<M8[s]") + b"\0" * 24, "holds datetime64"),
    ],
    ids=range(14),
)
def test_headers_that_lie_are_one_error(
    tmp_path: Path, content: bytes, reason: str, packed: bool, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "it.npy"
    path.write_bytes(content)
    if packed:
        path = tmp_path / "it.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("it.npy", content)
            archive.writestr("read me.txt", "no array")
    with pytest.raises(DataError, match=reason) as caught:
        array_in(path, "npz" if packed else "npy")
    assert not [each for each in recwarn if each.category is not ResourceWarning]
    assert str(caught.value).startswith(f"{path}: 'it' cannot" if packed else f"{path} cannot")
    assert "\n" not in str(caught.value)


def test_other_arrays_of_an_archive_do_no_harm(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", it=np.eye(2), info=np.array({"a": 1}, dtype=object), fortran=np.asfortranarray(np.eye(3, 2))
    )
    found = open_arrays(tmp_path / "a.npz")
    assert list(found) == ["it", "info", "fortran"]
    np.testing.assert_array_equal(found["it"].read(0, 2), np.eye(2))
    with pytest.raises(DataError, match=r"'info' cannot be read as an array.*holds Python objects"):
        found["info"]
    with pytest.raises(DataError, match="column by column"):
        found["fortran"]


def test_npy_column_by_column_is_read(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "a.npy", values)
    found = array_in(tmp_path / "a.npy", "npy")
    assert isinstance(found, FetchedRows)
    np.testing.assert_array_equal(found.read(1, 3), values[1:3])
    assert found.read(1, 3).flags.c_contiguous


def test_headers_of_python_2_are_read_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.save(tmp_path / "a.npy", np.eye(4, 2))
    content = (tmp_path / "a.npy").read_bytes()
    assert b"(4, 2), }  " in content
    (tmp_path / "a.npy").write_bytes(content.replace(b"(4, 2), }  ", b"(4L, 2L), }"))
    np.testing.assert_array_equal(array_in(tmp_path / "a.npy", "npy").read(0, 4), np.eye(4, 2))
    assert not [each for each in recwarn if each.category is not ResourceWarning]


def test_members_are_found_after_a_local_header_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "it.npy", np.eye(5))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("it.npy", "w", force_zip64=True) as member:
        member.write((tmp_path / "it.npy").read_bytes())
    np.testing.assert_array_equal(array_in(tmp_path / "a.npz", "npz").read(1, 5), np.eye(5)[1:])


def test_a_file_that_becomes_shorter_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    found = array_in(tmp_path / "a.npy", "npy")
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    np.testing.assert_array_equal(found.read(0, 2), np.eye(3)[:2])
    with pytest.raises(DataError, match="it ends before row 3"):
        found.read(2, 3)


@pytest.mark.parametrize(
    "columns", [[[1.0], [1.0, 2]], [[1.0], None], [[1.0], [None]]], ids=["ragged", "null", "empty"]
)
def test_lists_without_one_length_are_no_matrix(tmp_path: Path, columns: list[Any]) -> None:
    pq.write_table(pa.table({"it": columns}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"empty values|one length"):
        array_in(tmp_path / "a.parquet", "parquet").read(0, 2)


def test_columns_are_those_that_all_files_have(tmp_path: Path) -> None:
    for name, more in (("a", "x"), ("b", "y")):
        text = pa.array([name, "z"]).dictionary_encode()
        pq.write_table(
            pa.table({more: [1, 2], "it": text, "half": pa.array([[1.0]] * 2, pa.list_(pa.float16(), 1))}),
            tmp_path / f"{name}.parquet",
        )
    found = open_arrays(tmp_path)
    assert list(found) == ["it", "half"]
    assert labels(found["it"]) == ["a", "z", "b", "z"]
    assert (found["half"].dtype, found["half"].shape) == (np.float16, (4, 1))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no Parquet file"):
        open_arrays(tmp_path / "none")


def test_only_rows_that_lie_as_they_are_count_as_stored(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", np.arange(6, dtype="<i4"), compression="gzip")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.attrs["version"], file["group"].attrs["measure"] = 3, "order"
        file["late"] = np.zeros(0)
        odd = h5py.h5t.IEEE_F32LE.copy()
        odd.set_ebias(100)  # a float that NumPy does not have
        h5py.h5d.create(file.id, b"odd", odd, h5py.h5s.create_simple((3,)))
        file["odd"][:] = [1, 2, 3]  # pyright: ignore[reportIndexIssue]
    found = open_arrays(tmp_path / "a.h5")
    assert (found.attributes("")["version"], found.attributes("group")["measure"]) == (3, "order")
    assert found.stored("group/other").mapped()[:].tolist() == [0, 1, 2]
    assert found["odd"].read(0, 3).tolist() == [1, 2, 3]
    for name in ("it", "late", "odd", "gone"):
        with pytest.raises(DataError, match=f"'{name}' is missing or not contiguous"):
            found.stored(name)


def test_what_is_mapped_may_be_written_to_and_stays_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    found = open_arrays(tmp_path / "a.npy").stored("")
    found.mapped()[:] = 7
    np.testing.assert_array_equal(found.mapped(), np.eye(3))


def _storage(file: h5py.File, other: Path) -> None:
    file.create_dataset("deep/it", (2,), "<f4", external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File, other: Path) -> None:
    layout = h5py.VirtualLayout((2,), "<f4")
    layout[:] = h5py.VirtualSource(str(other), "it", (2,))
    file.create_virtual_dataset("deep/it", layout)


def _link(file: h5py.File, other: Path) -> None:
    file["deep/it"] = h5py.ExternalLink(str(other), "it")


def _soft(file: h5py.File, other: Path) -> None:
    file["deep/it"] = h5py.ExternalLink(str(other), "/")
    file["it"] = h5py.SoftLink("/deep/it/it")


@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (_storage, "keeps its values in"),
        (_virtual, "is a virtual dataset"),
        (_link, "is a link to"),
        (_soft, "is a link to"),
    ],
)
def test_no_other_file_is_read(tmp_path: Path, poison: Callable[[h5py.File, Path], None], reason: str) -> None:
    write_hdf5(tmp_path / "other.h5", np.arange(2, dtype="<f4"))
    write_hdf5(tmp_path / "a.h5", np.arange(2)) if poison is not _soft else None
    with h5py.File(tmp_path / "a.h5", "a") as file:
        poison(file, tmp_path / "other.h5")
    with pytest.raises(DataError, match=f"a.h5: 'deep/it' {reason}.*, which is never followed"):
        open_arrays(tmp_path / "a.h5")


def test_what_lies_in_an_hdf5_file_is_read_by_any_link(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", np.arange(2))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["again"], file["soft"], file["nowhere"] = file["it"], h5py.SoftLink("/it"), h5py.SoftLink("/gone")
        file["group/up"] = file["/"]  # a hard link back, so that the groups form a ring
        file["type"] = np.dtype("<f4")
        file.create_dataset("references", (2,), h5py.ref_dtype)
    found = open_arrays(tmp_path / "a.h5")
    assert {"again", "it", "soft", "group/other"} <= {*found}
    assert {"nowhere", "type", "group"}.isdisjoint(found)
    for name in ("again", "it", "soft"):
        assert found[name].read(0, 2).tolist() == [0, 1]
    with pytest.raises(DataError, match="'references' cannot be read as an array of numbers or texts"):
        found["references"]


@pytest.mark.parametrize("form", ["npy", "npz", "npz packed", "hdf5", "hdf5 packed"])
def test_no_more_is_held_than_was_asked_for(form: str, tmp_path: Path) -> None:
    values = np.zeros((64, 1 << 17))  # 64 MiB
    if form == "hdf5 packed":
        write_hdf5(tmp_path / "file", values, chunks=(1, 1 << 17), compression="gzip")
    else:
        WRITERS[form](tmp_path / "file", values)
    del values
    tracemalloc.start()
    found = array_in(tmp_path / "file", form)
    assert sum(found.read(start, start + 4).nbytes for start in range(0, 64, 4)) == 1 << 26
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
