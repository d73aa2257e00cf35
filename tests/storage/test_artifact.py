"""Fingerprints, manifests, atomic writes, locks, sealing, and full disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from itrpipe.commands.stages import run_stage
from itrpipe.errors import DataError, DiskFullError, LockedError, UnavailableError
from itrpipe.stages import prepare
from itrpipe.storage import artifact as artifacts
from itrpipe.storage import disk
from itrpipe.storage.artifact import MANIFEST, WORK, Location, check_artifact, finish, open_partial, read_manifest
from itrpipe.storage.locks import is_locked, locked


def fields(place: Location) -> dict[str, Any]:
    known = {name: getattr(place, name) for name in ("stage", "dataset", "label", "fingerprint")}
    inputs = {"prepare": {"stage": "prepare", "name": "files-12345678", "fingerprint": "1" * 64}}
    about = {"settings": {"title": "naïve ☃", "margin": 0.2}, "execution": {"device": "cpu"}, "inputs": inputs}
    more = {"timings": {"total": 1.5}, "metrics": {"rsum": 10.5}, "command": "itrpipe train", "finished": "2026-01-01"}
    return {**known, "conf": "aoq", "schema_version": 1, **about, **more}


@pytest.fixture
def whole(place: Location) -> Location:
    """A finished artifact with two files, one of them in a folder."""
    folder = open_partial(place)
    (folder / "a.bin").write_bytes(b"0123456789")
    (folder / "images").mkdir()
    (folder / "images" / "1.jpg").write_bytes(b"jpeg")
    (folder / WORK / "state").write_text("only for resuming")
    (folder / ".a.bin.4711.tmp").write_text("left by a killed write")
    finish(place, fields(place))
    return place


# Fingerprint


def test_fingerprint_is_the_sha256_of_canonical_json() -> None:
    text = '{"inputs":{"train":"00"},"schema":3,"settings":{"a":{"b":1,"c":2},"é":[0.5,true]},"stage":"mine"}'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert artifacts.fingerprint("mine", 3, {"é": [0.5, True], "a": {"c": 2, "b": 1}}, {"train": "00"}) == expected


def test_everything_that_determines_a_result_changes_the_fingerprint() -> None:
    settings = [{"a": value} for value in (1, 1.0, True, "1", [1], "\u00e9", "e\u0301")]
    variants = [("s", 1, each, {"x": "0"}) for each in settings]
    variants += [("t", 1, {"a": 1}, {"x": "0"}), ("s", 2, {"a": 1}, {"x": "0"})]
    variants += [("s", 1, {"a": 1}, inputs) for inputs in ({"x": "1"}, {"y": "0"})]
    assert len({artifacts.fingerprint(*each) for each in variants}) == len(variants)


# Manifest


def test_a_finished_artifact_has_its_manifest_and_nothing_of_the_work(whole: Location) -> None:
    assert not whole.partial.exists()
    assert sorted(path.name for path in whole.folder.iterdir()) == ["a.bin", "images", MANIFEST]
    manifest = read_manifest(whole.folder)
    assert set(manifest.outputs) == {"a.bin", "images/1.jpg"}
    assert manifest.outputs["a.bin"].bytes == 10
    assert manifest.outputs["a.bin"].sha256 == hashlib.sha256(b"0123456789").hexdigest()
    assert manifest.versions["itrpipe"]
    assert manifest.settings == {"title": "naïve ☃", "margin": 0.2}
    assert artifacts.Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert check_artifact(whole.folder, thorough=True) == manifest


@pytest.mark.parametrize(
    ("name", "content", "damage", "thorough"),
    [
        *((MANIFEST, each, "is (corrupt|not valid JSON)", False) for each in (b"", b"{", b"{}", b"[]", b"\xff\xfe")),
        (MANIFEST, b'{"stage": 3}', "is corrupt", False),
        (MANIFEST, "extra", "is corrupt", False),
        (MANIFEST, None, "is missing", False),
        ("a.bin", None, "is missing", False),
        ("a.bin", b"01234567", "has 8 bytes instead of 10", False),
        ("a.bin", b"0123456789AB", "has 12 bytes instead of 10", False),
        ("a.bin", b"0123456780", "does not match its recorded sha256", True),
    ],
)
def test_damage_is_one_line_with_the_remedy(
    whole: Location, name: str, content: bytes | str | None, damage: str, thorough: bool
) -> None:
    path = whole.folder / name
    if isinstance(content, str):
        content = json.dumps({**json.loads(path.read_text()), content: 1, "checksum": ""}).encode()
    path.unlink() if content is None else path.write_bytes(content)
    if thorough:
        assert check_artifact(whole.folder) == read_manifest(whole.folder)
    with pytest.raises(DataError, match=rf"{name} {damage}.*itrpipe gc") as caught:
        check_artifact(whole.folder, thorough=thorough)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


# Atomic write


@pytest.mark.parametrize(
    ("code", "files", "error", "message"),
    [
        (errno.EIO, 1, UnavailableError, r"state\.json cannot be read or written now"),
        (errno.ENOSPC, 1, DiskFullError, r"no space left while writing .*state\.json"),
        (errno.ENOSPC, 0, DiskFullError, r"no room for another file .*1,234"),
    ],
)
def test_a_write_that_fails_half_way_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, files: int, error: type[Exception], message: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    path = tmp_path / "state.json"
    disk.write_json(path, {"rows": 1})
    found = SimpleNamespace(f_files=1234, f_favail=files, f_bavail=0, f_frsize=1)
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    with pytest.raises(error, match=message) as caught:
        disk.write_json(path, {"rows": 2})
    assert "\n" not in str(caught.value)
    assert disk.read_json(path) == {"rows": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_refusals_of_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        disk.write_json(tmp_path / "metrics.json", {"rsum": float("nan")})
    assert not list(tmp_path.iterdir())
    (tmp_path / "sources.json").write_text('{"a": [1')
    with pytest.raises(DataError, match=r"sources\.json is not valid JSON"):
        disk.read_json(tmp_path / "sources.json")
    disk.require_space(tmp_path / "not" / "there", 1, "this")
    with pytest.raises(DiskFullError, match=r"drawing needs [\d,.]+ MiB but [\d,.]+ MiB are free at .*--data"):
        disk.require_space(tmp_path / "not" / "there", 2**62, "drawing")


def test_the_second_process_waits_and_finds_the_artifact_done(
    defined: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first process is this one; inside its stage it starts the second and waits until that one waits."""
    second: list[subprocess.Popen[str]] = []
    run = prepare.run

    def start_second_and_run(job: Any) -> None:
        code = "from itrpipe.cli import main; main()"
        arguments = ["prepare", "--dataset", "tiny", "--data", str(defined)]
        process = subprocess.Popen([sys.executable, "-uc", code, *arguments], stdout=subprocess.PIPE, text=True)
        second.append(process)
        assert process.stdout is not None
        assert any("is writing it; waiting for" in line for line in process.stdout)
        run(job)

    monkeypatch.setattr(prepare, "run", start_second_and_run)
    folder = run_stage(defined, "tiny", "prepare", [])
    made = (folder / MANIFEST).stat().st_mtime_ns
    rest, _ = second[0].communicate(timeout=60)
    assert second[0].returncode == 0
    assert "finished by another run" in rest
    assert (folder / MANIFEST).stat().st_mtime_ns == made
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


# Interruption


def test_a_kill_between_manifest_and_rename_loses_nothing(
    defined: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "seal", lambda place: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_stage(defined, "tiny", "prepare", [])
    (partial,) = (defined / "tiny" / "prepare").glob("*.partial")
    made = (partial / MANIFEST).stat().st_mtime_ns
    monkeypatch.setattr(prepare, "run", lambda job: pytest.fail("nothing was left to do"))
    folder = run_stage(defined, "tiny", "prepare", [])
    assert (folder / MANIFEST).stat().st_mtime_ns == made
    assert not partial.exists()
    check_artifact(folder, thorough=True)


def test_a_sealed_partial_that_is_damaged_is_refused_with_a_remedy_that_works(
    place: Location, data_root: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Any]
) -> None:
    (open_partial(place) / "a.bin").write_bytes(b"0123456789")
    assert not artifacts.recover_sealed(place)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "seal", lambda place: None)
        finish(place, fields(place))
    (place.partial / "a.bin").write_bytes(b"0123456780")
    with pytest.raises(DataError, match=r"a\.bin does not match its recorded sha256.*itrpipe gc --damaged"):
        artifacts.recover_sealed(place)
    assert not place.folder.exists()
    assert invoke("gc", "--damaged", "--yes", "--dataset", "tiny", "--data", data_root).code == 0
    assert not place.partial.exists()


def test_everything_is_on_the_disk_before_the_name_is_and_then_the_name(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves has all of its content or no name."""
    calls = []
    (open_partial(place) / "a.bin").write_bytes(b"0123456789")
    replace, fsync = os.replace, os.fsync

    def noted_replace(old: Any, new: Any) -> None:
        replace(old, new)
        calls.append(("named", Path(new).name))

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(("on disk", Path(f"/proc/self/fd/{descriptor}").resolve().name))

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    finish(place, fields(place))
    written = next(number for number, each in enumerate(calls) if each == ("named", MANIFEST))
    assert calls[written - 1][0] == "on disk"
    assert calls[written - 1][1].startswith(f".{MANIFEST}.")
    assert ("on disk", "a.bin") in calls[:written]
    named = calls.index(("named", place.folder.name))
    assert named > written
    assert ("on disk", place.folder.parent.name) in calls[named:]


# Parts


def test_parts_are_made_side_by_side_but_never_beside_the_whole(place: Location) -> None:
    def give_up(path: Path) -> None:
        raise LockedError(f"no {path == place.lock()}")

    with locked(place, part="1-of-2"), locked(place, part="2-of-2"):
        assert place.partial.exists()
        assert is_locked(place.partial)
        for part in ("", "1-of-2"):
            with pytest.raises(LockedError, match=r"1-of-2.* is being written by"), locked(place, part=part):
                pytest.fail("it was made twice")
    assert not is_locked(place.partial)
    with locked(place), pytest.raises(LockedError, match="no True"), locked(place, give_up, "1-of-2"):
        pytest.fail("a part was begun beside the whole")
