"""Artifacts: fingerprints, manifests, atomic writes, locks, and files that are checked whenever they are read."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import itrpipe
from itrpipe.datasets.definition import ModelDefinition, remember_model
from itrpipe.errors import DataError, DiskFullError, LockedError, MissingInputError, UnavailableError, UsageError
from itrpipe.storage import artifact as artifacts
from itrpipe.storage import disk
from itrpipe.storage.artifact import (
    DEFINITION,
    MANIFEST,
    WORK,
    Location,
    check_artifact,
    finish,
    open_artifact,
    open_partial,
    read_manifest,
)
from itrpipe.storage.disk import CHECKSUM, STAMP_HERE, atomic_file, check_stamp, file_digest, stamped, write_bytes
from itrpipe.storage.locks import HOURS, changing, holder, is_locked, locked, patience, unused


@pytest.fixture
def place(data_root: Path) -> Location:
    return Location(data_root, "tiny", "train", "aoq.vsrn", "ab" * 32)


def fields(place: Location) -> dict[str, Any]:
    known = {name: getattr(place, name) for name in ("stage", "dataset", "label", "fingerprint")}
    about = {"conf": "aoq", "schema_version": 1, "settings": {"title": "naïve ☃", "margin": 0.2}, "execution": {}}
    more = {"timings": {}, "metrics": {"rsum": 10.5}, "command": "itrpipe train", "finished": "2026-01-01"}
    return {**known, **about, **more}


@pytest.fixture
def whole(place: Location) -> Location:
    """A finished artifact with two files, one of them in a folder."""
    folder = open_partial(place)
    (folder / "images").mkdir()
    (folder / "images" / "1.jpg").write_bytes(b"jpeg")
    for name, text in (("a.bin", "0123456789"), (f"{WORK}/state", "to resume"), (".a.bin.4711.tmp", "killed")):
        (folder / name).write_text(text)
    finish(place, fields(place))
    return place


def flip(path: Path) -> None:
    """Changes one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_everything_that_determines_a_result_changes_the_fingerprint_of_canonical_json() -> None:
    text = '{"inputs":{"train":"00"},"schema":3,"settings":{"a":{"b":1,"c":2},"é":[0.5,true]},"stage":"mine"}'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert artifacts.fingerprint("mine", 3, {"é": [0.5, True], "a": {"c": 2, "b": 1}}, {"train": "00"}) == expected
    settings = [{"a": value} for value in (1, 1.0, True, "1", [1], "\u00e9", "e\u0301")]
    variants = [("s", 1, each, {"x": "0"}) for each in settings]
    variants += [("t", 1, {"a": 1}, {"x": "0"}), ("s", 2, {"a": 1}, {"x": "0"})]
    variants += [("s", 1, {"a": 1}, inputs) for inputs in ({"x": "1"}, {"y": "0"})]
    assert len({artifacts.fingerprint(*each) for each in variants}) == len(variants)


def test_a_finished_artifact_has_its_manifest_and_nothing_of_the_work(whole: Location) -> None:
    assert not whole.partial.exists()
    assert sorted(path.name for path in whole.folder.iterdir()) == ["a.bin", "images", MANIFEST]
    manifest = read_manifest(whole.folder)
    assert set(manifest.outputs) == {"a.bin", "images/1.jpg"}
    assert manifest.versions["itrpipe"]
    assert manifest.settings == {"title": "naïve ☃", "margin": 0.2}
    assert check_artifact(whole.folder, thorough=True) == manifest


UNREADABLE = "cannot be read as a (manifest|JSON object)"


@pytest.mark.parametrize(
    ("name", "old", "new", "damage"),
    [
        *((MANIFEST, None, each, UNREADABLE) for each in (b"", b"{", b"{}", b"[]", b"\xff\xfe", b'{"stage": 3}')),
        (MANIFEST, b'"checksum": "sha256', b'"more": "', UNREADABLE),
        (MANIFEST, b"10.5", b"10.4", "does not match its own checksum"),
        ("a.bin", None, b"01234567", "has 8 bytes instead of 10"),
        ("a.bin", b"9", b"0", "does not match its recorded sha256"),
        ("a.bin", None, None, "is missing"),
        (MANIFEST, None, None, UNREADABLE),
    ],
)
def test_damage_is_one_line_with_the_remedy(
    whole: Location, name: str, old: bytes | None, new: bytes | None, damage: str
) -> None:
    path = whole.folder / name
    path.unlink() if new is None else path.write_bytes(path.read_bytes().replace(old, new) if old else new)
    thorough = "recorded" in damage
    if thorough:
        check_artifact(whole.folder)
    with pytest.raises(DataError, match=rf"^{path}.* {damage}.*--damaged{' --verify' * thorough} --d.* {whole.root}`"):
        check_artifact(whole.folder, thorough=thorough)


@pytest.mark.parametrize(
    ("files", "message"),
    [(1, r"no space left while writing .*\.json .*, 3 MiB free"), (0, r"no room for another file .*\.json .*1,234")],
)
def test_a_write_that_fails_half_way_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, message: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "state.json"
    disk.write_json(path, {"rows": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        disk.write_json(path, {"rows": float("nan")})
    found = SimpleNamespace(f_files=1234, f_favail=files, f_bavail=3, f_frsize=1 << 20)
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    with pytest.raises(DiskFullError, match=message):
        disk.write_json(path, {"rows": 2})
    assert disk.read_json(path) == {"rows": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_a_kill_between_manifest_and_rename_loses_nothing_and_hides_no_damage(whole: Location) -> None:
    whole.folder.rename(whole.partial)
    flip(whole.partial / "a.bin")
    with pytest.raises(DataError, match=r"a\.bin does not match .*itrpipe gc --damaged"), locked(whole, part="1-of-2"):
        pytest.fail("a part was begun of what is whole")
    flip(whole.partial / "a.bin")
    artifacts.recover_sealed(whole)
    artifacts.recover_sealed(whole)
    check_artifact(whole.folder)


def test_everything_is_on_the_disk_before_the_name_is_and_then_the_name(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves has all of its content or no name."""
    calls: list[str] = []
    (open_partial(place) / "a.bin").write_bytes(b"0123456789")
    replace, fsync = os.replace, os.fsync
    on_disk = lambda file: Path(f"/proc/self/fd/{file}").resolve().name  # noqa: E731
    monkeypatch.setattr(os, "replace", lambda old, new: (replace(old, new), calls.append(f"named {Path(new).name}")))
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), calls.append(on_disk(file))))
    finish(place, fields(place))
    written, named = calls.index(f"named {MANIFEST}"), calls.index(f"named {place.folder.name}")
    assert calls[written - 1].startswith(f".{MANIFEST}.")
    assert "a.bin" in calls[:written]
    assert place.folder.parent.name in calls[named:]


# Digests and stamps


@pytest.mark.parametrize("size", [0, 1, (1 << 22) - 1, 1 << 22, (1 << 23) + 5])
def test_a_digest_and_a_stamp_are_of_all_bytes_however_long_the_file(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == hashlib.sha256(content).hexdigest()
    path = tmp_path / "checkpoint"
    path.write_bytes(stamped(STAMP_HERE.encode() + content))
    check_stamp(path, "remove it")
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DataError, match="does not match its own checksum"):
        check_stamp(path, "remove it")
    wanted = f"{path} is not a folder; name one that holds the files of a model"
    with pytest.raises(MissingInputError, match=wanted):
        artifacts.folder_digest("vision", path, artifacts.DigestCache(tmp_path / "none"))


CONTENT = stamped(json.dumps({CHECKSUM: STAMP_HERE, "rows": [1, 2, 3], "title": "naïve ☃"}).encode())


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_no_flipped_bit_passes_a_stamp(position: int, bit: int) -> None:
    check_stamp(Path("state.json"), "remove it", CONTENT)
    content = bytearray(CONTENT)
    content[position] ^= 1 << bit
    with pytest.raises(DataError, match=r"state\.json (has no checksum|does not match its own checksum).*; remove it"):
        check_stamp(Path("state.json"), "remove it", bytes(content))


# Files of artifacts; the campaign in tests/faults flips bits of every kind of file that a command reads


def test_a_large_file_is_hashed_once_while_it_stays_as_it_is_or_not_at_all_where_it_is_trusted(
    whole: Location, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Again where the memory of digests is damaged; small ones whenever their artifact is opened."""
    path, small = whole.folder / "a.bin", whole.folder / "images" / "1.jpg"
    hashed: list[Path] = []
    monkeypatch.setattr(artifacts, "SMALL", path.stat().st_size)
    monkeypatch.setattr(artifacts, "file_digest", lambda path, *more: hashed.append(path) or file_digest(path))
    whole.folder.rename(whole.partial)
    manifest = finish(whole, fields(whole))
    hashed.clear()
    for damaged in (False, False, True, False):
        if damaged:
            flip(whole.root / "tiny" / artifacts.CHECKED)
        assert open_artifact(whole.folder) == manifest
    assert "its files are hashed again" in capsys.readouterr().out
    assert hashed == [small, small, path, small, small]
    flip(path)
    for trust in (("--trust",), ()):
        invoke("train", "--dataset", "none", "--data", whole.root, *trust)
        if trust:
            open_artifact(whole.folder)
            continue
        for file in (path, small):
            with pytest.raises(DataError, match=f"^{file} does not match its recorded sha256.*and run `itrpipe train`"):
                open_artifact(whole.folder)
            flip(path)
            flip(small)


def test_a_copy_under_another_name_is_checked_in_full(whole: Location, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole.folder, tmp_path / "best"))
    assert open_artifact(copy).label == "aoq.vsrn"
    picture = copy / "images" / "1.jpg"
    for file, damage in ((copy / "a.bin", "does not match its recorded sha256"), (picture, "is not a file")):
        if file == picture:
            file.unlink()
            os.mkfifo(file)
        else:
            flip(file)
        with pytest.raises(DataError, match=f"^{file} {damage}; copy it again, or run `itrpipe train`"):
            open_artifact(copy)
        if file != picture:
            flip(file)


def test_a_training_is_opened_by_a_path_of_one_part(
    whole: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(whole.folder, tmp_path / "best"))
    found = read_manifest(copy)
    artifacts.write_manifest(copy, found.model_copy(update={"inputs": {"extract": found.as_input("gone")}}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInputError, match=r"/gone, which .*/best was made from, is not there; run `itrpipe"):
        itrpipe.load("best")


def test_an_input_that_was_made_again_is_not_taken_for_the_one_that_was_read(whole: Location) -> None:
    found = read_manifest(whole.folder)
    reader = found.model_copy(update={"inputs": {"model": found.as_input(whole.name)}})
    assert artifacts.existing_input(whole.folder, reader, "model") == whole.folder
    artifacts.write_manifest(whole.folder, found.model_copy(update={"outputs": {}}))
    with pytest.raises(MissingInputError, match=r"was made again after train/.* was made from it; run `itrpipe"):
        artifacts.existing_input(whole.folder, reader, "model")


# Locks: who holds one, how long others wait, file systems that have none, and what a run that fails leaves

HOLD = """
import sys
from pathlib import Path
from itrpipe.storage.artifact import Location
from itrpipe.storage.locks import locked
with locked(Location(Path(sys.argv[1]), "tiny", "train", "aoq.vsrn", "ab" * 32), part=sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(place: Location, part: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the artifact or of a part of it."""
    command = [sys.executable, "-c", HOLD, str(place.root), part]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_parts_are_made_side_by_side_but_never_beside_the_whole(place: Location) -> None:
    with locked(place, part="1-of-2"), locked(place, part="2-of-2"):
        assert place.partial.exists()
        for part in ("", "1-of-2"):
            with pytest.raises(LockedError, match=r"1-of-2.* is being written by"), locked(place, part=part):
                pytest.fail("it was made twice")
    with locked(place), pytest.raises(LockedError), locked(place, part="1-of-2"):
        pytest.fail("a part was begun beside the whole")


def test_a_second_job_of_one_part_waits_for_the_first_and_lets_others_begin(place: Location) -> None:
    waited: list[Path] = []

    def on_wait(path: Path) -> None:
        """Ends the first one, once a third has begun its part, since this one holds nothing."""
        waited.append(path)
        with holding(place, "2-of-2"):
            first.kill()

    with holding(place, "1-of-2") as first:
        with locked(place, on_wait, "1-of-2"):
            assert first.wait() != 0
            assert is_locked(place.partial)
        assert waited == [place.lock("1-of-2")]
    assert not is_locked(place.partial)


def test_a_lock_of_another_process_is_waited_for_and_dies_with_it(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not wait, or no longer, is told for whom, and what to do."""
    waited: list[Path] = []
    with holding(place) as other:
        assert is_locked(place.partial)
        assert holder(place.lock()).startswith(f"process {other.pid} on {os.uname().nodename} since 20")
        monkeypatch.setenv(HOURS, "0.0001")
        for on_wait in (None, waited.append):
            with pytest.raises(LockedError, match=f"by process {other.pid} on .*; wait for it.*{HOURS}"):
                locked(place, on_wait).__enter__()
        monkeypatch.delenv(HOURS)
        with locked(place, lambda path: other.kill()):
            assert is_locked(place.partial)
    assert waited == [place.lock()]


def test_who_waits_to_change_a_file_says_for_whom_and_not_for_ever(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := data_root / "tiny" / DEFINITION).parent.mkdir(parents=True)
    monkeypatch.setenv(HOURS, "0.0001")
    told = f"process {os.getpid()} on"
    with changing(path), ThreadPoolExecutor(1) as other:
        waiting = other.submit(remember_model, data_root, "tiny", "mine", ModelDefinition(method="triplet"))
        with pytest.raises(LockedError, match=told):
            waiting.result(timeout=60)
    assert told in capsys.readouterr().err


def test_two_writers_of_one_process_do_not_take_each_others_file(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    with atomic_file(path) as slower:
        write_bytes(path, b"of the faster one")
        assert path.read_bytes() == b"of the faster one"
        slower.write(b"of the slower one")
    assert path.read_bytes() == b"of the slower one"


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_hours_must_be_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(HOURS, text)
    with pytest.raises(UsageError, match=f"{HOURS}='{text}' is no number of hours"):
        patience()


def test_a_file_system_without_locks_is_named_and_nothing_waits(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file from elsewhere, as it lies there after copying, locks nothing."""

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    place.lock().parent.mkdir(parents=True)
    place.lock().touch()
    assert holder(place.lock()) == "another process"
    with locked(place):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UnavailableError, match=r"\.lock cannot be read or written now .*gives no locks; mount"),
        locked(place),
    ):
        pass
    with unused(place.folder) as free:
        assert not free


def run_and_fail(place: Location, *files: str, part: str = "") -> None:
    """Writes empty files into the work of an artifact, and fails."""
    with suppress(UsageError), locked(place, part=part):
        for path in (open_partial(place) / name for name in files):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        raise UsageError("the download failed")


BEGUN = (f"{WORK}/{artifacts.INPUTS}", f"{WORK}/parts/vit/{artifacts.DIVISION}")


@pytest.mark.parametrize("part", ["", "1-of-2"])
def test_a_run_that_made_nothing_leaves_no_folder_and_what_was_made_stays(place: Location, part: str) -> None:
    run_and_fail(place, *BEGUN, part=part)
    assert not place.partial.exists()
    for made in ("features.h5", f"{WORK}/parts/vit/000000.arrays"):
        run_and_fail(place, *BEGUN, made, part=part)
        run_and_fail(place)
        assert all((place.partial / name).exists() for name in (*BEGUN, made))
        (place.partial / made).unlink()


def test_a_folder_of_other_jobs_or_that_cannot_be_read_stays(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(place, "1-of-2"):
        run_and_fail(place, part="2-of-2")
        assert place.partial.exists()
    read = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == place.partial / WORK:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(os, "scandir", refuse)
    run_and_fail(place)
    assert place.partial.exists()


@pytest.mark.parametrize("links", [True, False])
def test_files_of_a_folder_are_linked_or_copied_where_that_cannot_be(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "source" / "inner" / "file"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"content")
    with pytest.raises(FileNotFoundError):
        disk.link_files(tmp_path / "absent", tmp_path / "target")
    disk.link_files(tmp_path / "source", tmp_path / "target")
    found = tmp_path / "target" / "inner" / "file"
    assert (found.read_bytes(), found.samefile(source)) == (b"content", links)
