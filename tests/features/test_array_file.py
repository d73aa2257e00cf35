"""Rows of .npy and .npz files: right values, damaged files refused, and no more memory than the rows take."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.features.importers.array_file import StoredRows, StreamedRows, npz_names, open_npy, open_npz, runs

FILES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbers(shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


@FILES
@given(
    rows=st.lists(st.integers(0, 19), unique=True).map(sorted),
    dtype=st.sampled_from(["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<i4", "|u1"]),
    width=st.sampled_from([(), (3,), (2, 3)]),
    compressed=st.booleans(),
)
def test_rows_are_those_of_numpy(
    tmp_path: Path, rows: list[int], dtype: str, width: tuple[int, ...], compressed: bool
) -> None:
    array = (numbers((20, *width)) * 50).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", before=numbers((4,)), it=array)
    for opened in (open_npy(tmp_path / "a.npy"), open_npz(tmp_path / "a.npz", "it")):
        assert (opened.shape, opened.dtype) == (array.shape, array.dtype)
        read = opened.read(np.array(rows, dtype=np.int64))
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array[rows])


@given(st.lists(st.integers(0, 40), unique=True).map(sorted))
def test_runs_are_the_longest_ones(rows: list[int]) -> None:
    found = list(runs(np.array(rows, dtype=np.int64)))
    assert [row for start, stop in found for row in range(rows[start], rows[start] + stop - start)] == rows
    assert all(rows[stop] != rows[stop - 1] + 1 for _, stop in found[:-1])


def test_a_compressed_member_is_read_on_from_call_to_call(tmp_path: Path) -> None:
    array = numbers((3000, 700))
    np.savez_compressed(tmp_path / "a.npz", it=array)
    opened = open_npz(tmp_path / "a.npz", "it")
    assert isinstance(opened, StreamedRows)
    for rows in ([0, 1, 7], [8, 1500], [2999], [3]):
        np.testing.assert_array_equal(opened.read(np.array(rows)), array[rows])


def test_stored_members_are_found_after_a_local_header_of_their_own(tmp_path: Path) -> None:
    array = numbers((5, 4))
    np.save(tmp_path / "it.npy", array)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "not an array")
        with archive.open("it.npy", "w", force_zip64=True) as member:
            member.write((tmp_path / "it.npy").read_bytes())
    opened = open_npz(tmp_path / "a.npz", "it")
    assert isinstance(opened, StoredRows)
    np.testing.assert_array_equal(opened.read(np.arange(5)), array)
    assert npz_names(tmp_path / "a.npz") == ["it"]


def test_headers_of_python_2_are_read_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.save(tmp_path / "a.npy", numbers((4, 2)))
    content = (tmp_path / "a.npy").read_bytes()
    assert b"(4, 2), }  " in content
    (tmp_path / "a.npy").write_bytes(content.replace(b"(4, 2), }  ", b"(4L, 2L), }"))
    np.testing.assert_array_equal(open_npy(tmp_path / "a.npy").read(np.array([1])), numbers((4, 2))[[1]])
    assert not recwarn.list


def _fortran(path: Path) -> None:
    np.save(path, np.asfortranarray(numbers((3, 4))))


def _objects(path: Path) -> None:
    np.save(path, np.array([["a", 1]], dtype=object), allow_pickle=True)


def _structure(path: Path) -> None:
    np.save(path, np.zeros(3, dtype=[("a", "f4")]))


def _shorter(path: Path) -> None:
    np.save(path, numbers((3, 4)))
    path.write_bytes(path.read_bytes()[:-1])


def _longer(path: Path) -> None:
    np.save(path, numbers((3, 4)))
    path.write_bytes(path.read_bytes() + b"\0")


def _archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=numbers((3,)))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_fortran, "Fortran order"),
        (_objects, "cannot be read as .npy of numbers .it has type object"),
        (_structure, "cannot be read as .npy of numbers .it has type"),
        (_shorter, "175 bytes, and by its header 176"),
        (_longer, "177 bytes, and by its header 176"),
        (_archive, r"\.npz archive under the name of an \.npy file"),
        (lambda path: path.write_bytes(b""), "cannot be read as .npy"),
        (lambda path: path.write_text("1, 2, 3"), "cannot be read as .npy"),
    ],
)
def test_files_that_cannot_be_read_row_by_row_are_refused(tmp_path: Path, write, message: str) -> None:
    write(tmp_path / "a.npy")
    with pytest.raises(DataError, match=message) as caught:
        open_npy(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_in_an_archive_are_refused_only_when_they_are_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", it=numbers((2, 2)), info=np.array({"a": 1}, dtype=object))
    np.testing.assert_array_equal(open_npz(tmp_path / "a.npz", "it").read(np.arange(2)), numbers((2, 2)))
    with pytest.raises(DataError, match=r"'info' cannot be read as \.npy of numbers"):
        open_npz(tmp_path / "a.npz", "info")


def test_a_file_that_becomes_shorter_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers((3, 4)))
    opened = open_npy(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    np.testing.assert_array_equal(opened.read(np.array([0])), numbers((3, 4))[:1])
    with pytest.raises(DataError, match="became shorter"):
        opened.read(np.array([2]))


@settings(FILES, max_examples=400)
@given(data=st.data(), kind=st.sampled_from(["npy", "stored", "compressed"]), cut=st.booleans())
def test_damage_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject, kind: str, cut: bool) -> None:
    path = tmp_path / ("a.npy" if kind == "npy" else "a.npz")
    array = numbers((6, 5))
    {"npy": np.save, "stored": _save_stored, "compressed": _save_compressed}[kind](path, array)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if cut:
        del content[position:]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        if kind == "npy":
            opened = open_npy(path)
        else:
            assert set(npz_names(path)) <= {"it"} or not cut
            opened = open_npz(path, "it")
        values = opened.read(np.arange(opened.shape[0] if opened.shape else 0))
    except DataError:
        return
    assert not cut
    assert values.nbytes == array.nbytes
    if kind == "compressed":
        np.testing.assert_array_equal(values, array)


def _save_stored(path: Path, array: np.ndarray) -> None:
    np.savez(path, it=array)


def _save_compressed(path: Path, array: np.ndarray) -> None:
    np.savez_compressed(path, it=array)


# The largest resident memory comes from /proc: getrusage counts what the parent had, and could never grow.
MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
from itrpipe.features.importers.array_file import open_npy, open_npz

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

path = Path(sys.argv[1])
opened = open_npy(path) if path.suffix == ".npy" else open_npz(path, "it")
before = peak()
total = 0
for first in range(0, opened.shape[0], 256):
    total += opened.read(np.arange(first, min(first + 256, opened.shape[0]))).nbytes
print(total, (peak() - before) // 1024)
"""
ROWS, WIDTH = 2048, (36, 2048)
BYTES = ROWS * 36 * 2048 * 4  # 604 MB


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells a program its largest memory")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_600_mb_takes_no_more_memory_than_a_block(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "large.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (ROWS, *WIDTH)})
        file.truncate(file.tell() + BYTES)  # a hole: zeros that take no disk
    if compressed:
        with zipfile.ZipFile(tmp_path / "large.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.write(path, "it.npy")
        path = tmp_path / "large.npz"
    result = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    read, grown = map(int, result.stdout.split())
    assert read == BYTES
    assert 0 < grown < 350
