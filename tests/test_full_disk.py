"""Every stage on a file system that is really full."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from itrpipe.errors import DiskFullError
from itrpipe.pipeline.planning import Override
from itrpipe.storage.artifact import read_manifest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    # Lazily: a library that failed in the middle of a write may still hold its file.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def outputs_of(root: Path) -> dict[str, dict[str, str]]:
    """Content hashes of the outputs of every artifact of `tiny`."""
    manifests = [read_manifest(path.parent) for path in sorted(root.glob("tiny/*/*/manifest.json"))]
    return {
        f"{each.stage}/{each.label}": {name: file.sha256 for name, file in each.outputs.items()} for each in manifests
    }


# Runs the same command again and again in one process and frees two pages after each failure for want of space.
LOOP = """
import contextlib, io, json, os, sys
from itrpipe.cli import main

ballast, pages, *arguments = sys.argv[1:]
sys.argv, code = ["itrpipe", *arguments], None
while code in (None, 5):
    if code:
        pages = int(pages) - 2
        os.truncate(ballast, pages * 4096)
    errors, code = io.StringIO(), 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code or 0
    print(json.dumps([code, errors.getvalue()]))
"""


def test_on_a_full_disk_every_stage_stops_with_one_line_and_goes_on_after_space_is_freed(
    small_disk: Path, finished_chain: Path, tiny: Callable[..., list[Override]]
) -> None:
    """So little is freed at a time that every kind of write meets the full disk."""
    root, ballast = small_disk / "data", small_disk / "ballast"
    (root / "tiny").mkdir(parents=True)
    for name in ("dataset.json", "sources.json"):
        (root / "tiny" / name).write_bytes((finished_chain / "data" / "tiny" / name).read_bytes())
    sets = [f"--set={item.scope}.{item.key}={item.value}" for item in tiny("aoq") if item.scope]
    command = ["evaluate", "--method", "aoq", "--backbone", "vsepp", "-d", "tiny", "--data", str(root), *sets]
    pages = os.statvfs(small_disk).f_bavail
    ballast.write_bytes(bytes(pages * 4096))
    # A process of its own: a library that a full disk brings down must not take the tests with it.
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(ballast), str(pages), *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *failures, (code, errors) = map(json.loads, done.stdout.splitlines())
    assert (code, errors) == (0, "")
    assert len(failures) > 10
    for code, errors in failures:
        assert code == DiskFullError.exit_code
        assert re.fullmatch(r"error: [^\n]*(no space left while writing|MiB are free at) [^\n]*\n", errors)
        assert str(small_disk) in errors
    assert outputs_of(root).items() <= outputs_of(finished_chain / "data").items()
    assert len(outputs_of(root)) == 6
