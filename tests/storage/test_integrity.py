"""Contents that are checked on use: stamps of unfinished files, and files of artifacts against their manifests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.commands.stages import run_stage
from itrpipe.errors import DataError, MissingInputError, UnavailableError
from itrpipe.plan.planning import Override
from itrpipe.storage import disk, integrity
from itrpipe.storage.artifact import check_artifact, read_manifest, write_manifest
from itrpipe.storage.disk import CHECKSUM, STAMP_HERE, check_stamp, file_digest, stamped
from itrpipe.storage.integrity import checked
from tests.conftest import TINY

IMAGES = "images_for_texts"
MODEL_FILES = ("model.safetensors", "config.json", "vocab.json")
Tiny = Callable[..., list[Override]]


def only(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def flip(path: Path, position: int | None = None, bit: int = 1) -> None:
    """Changes one bit, in the middle unless told otherwise."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= bit
    path.write_bytes(bytes(content))


# Digests and stamps


@pytest.mark.parametrize("size", [0, 1, (1 << 22) - 1, 1 << 22, (1 << 23) + 5])
def test_a_digest_is_that_of_all_bytes_however_long_the_file(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    counts: list[int] = []
    assert file_digest(tmp_path / "file", counts.append) == hashlib.sha256(content).hexdigest()
    assert sum(counts) == size


CONTENT = stamped(json.dumps({CHECKSUM: STAMP_HERE, "rows": [1, 2, 3], "title": "naïve ☃"}).encode())


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_no_flipped_bit_passes_a_stamp(position: int, bit: int) -> None:
    check_stamp(Path("state.json"), "remove it", CONTENT)
    content = bytearray(CONTENT)
    content[position] ^= 1 << bit
    with pytest.raises(DataError, match=r"state\.json (has no checksum|does not match its own checksum).*; remove it"):
        check_stamp(Path("state.json"), "remove it", bytes(content))


def test_a_large_file_is_checked_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(stamped(STAMP_HERE.encode() + os.urandom(1000)))
    monkeypatch.setattr(disk, "_CHUNK", 256)
    check_stamp(path, "remove it")
    flip(path, 900)
    with pytest.raises(DataError, match="does not match its own checksum"):
        check_stamp(path, "remove it")


# Files of artifacts


def test_every_flipped_file_that_is_read_is_refused_by_its_reader(chain: Path, tiny: Tiny) -> None:
    """Each reader at an artifact of its own; the campaign in tests/faults does this for every kind of file."""
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.embeddings import read_embeddings
    from itrpipe.features.store import FeatureFile
    from itrpipe.negatives.lists import FILES, read_list
    from itrpipe.reporting.chain import read_table
    from itrpipe.training.saved import load_model

    tiny_data = chain / "tiny"
    trained = only(tiny_data, "train/aoq.vsepp-*")
    readers: list[tuple[Path, Callable[[Path], Any]]] = [
        *((path, lambda path: PreparedDataset.open(path.parent)) for path in tiny_data.glob("prepare/*-*/*s.parquet")),
        (only(tiny_data, "extract/*-*/features.h5"), FeatureFile.open),
        *((trained / name, lambda path: load_model(path.parent)) for name in MODEL_FILES),
        (trained / "embeddings.h5", lambda path: read_embeddings(path, "test")),
        (trained / "history.parquet", read_table),
        (only(tiny_data, f"mine_negatives/*-*/{FILES[IMAGES]}"), lambda path: read_list(path.parent, IMAGES)),
        (only(tiny_data, "evaluate/aoq.vsepp-*/metrics.json"), integrity.read_checked_json),
    ]
    assert len(readers) == 10
    for path, read in readers:
        whole = path.read_bytes()
        read(path)
        for position in (0, len(whole) // 2, len(whole) - 1):
            flip(path, position)
            with pytest.raises(DataError, match=r"does not match its recorded sha256.*gc --damaged --verify") as caught:
                read(path)
            assert f"{path.parent.parent.name}/{path.parent.name}" in str(caught.value)
            path.write_bytes(whole)
        read(path)


def test_a_flipped_file_stops_the_command_that_reads_it_and_the_printed_remedy_restores_it(
    chain: Path, invoke: Callable[..., Any], tiny: Tiny
) -> None:
    metrics = only(chain, "tiny/evaluate/triplet.vsepp-*/metrics.json")
    folder, whole = metrics.parent, metrics.read_bytes()
    flip(metrics)
    outcome = invoke("report", "--dataset", "tiny", "--data", chain)
    assert outcome.code == 4
    assert outcome.err.count("\n") == 1
    assert f"evaluate/{folder.name}" in outcome.err
    remedy = outcome.err.split("`")[1].split()
    assert remedy[0] == "itrpipe"
    assert invoke(*remedy[1:], "--yes").code == 0
    assert not folder.exists()
    run_stage(chain, "tiny", "evaluate", tiny("triplet"))
    assert metrics.read_bytes() == whole


def test_a_digit_of_a_manifest_cannot_change_unseen(chain: Path) -> None:
    folder = only(chain, "tiny/evaluate/aoq.vsepp-*")
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for key in (b'"finished": "', b'"total": ', b'"sha256": "', b'"bytes": '):
        flip(path, whole.index(key) + len(key), 1)
        with pytest.raises(DataError, match=r"manifest\.json (does not match its own checksum|has no checksum)"):
            check_artifact(folder)
        path.write_bytes(whole)
    write_manifest(folder, read_manifest(folder))
    assert path.read_bytes() == whole


def test_a_large_file_is_hashed_once_while_it_stays_as_it_is(
    chain: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at all where a stage has just written it, and again where the memory of digests is damaged."""
    path, hashed = only(chain, "tiny/extract/*-*/features.h5"), list[Path]()
    monkeypatch.setattr(integrity, "SMALL", 1)
    integrity.cache_of.cache_clear()
    monkeypatch.setattr(integrity, "file_digest", lambda path, *more: hashed.append(path) or file_digest(path))
    for _ in range(2):
        assert checked(checked(path)) == path
        integrity.cache_of.cache_clear()  # another process
    assert hashed == [path]
    flip(chain / "tiny" / integrity.CHECKED)
    checked(path)
    assert "its files are hashed again" in capsys.readouterr().out
    flip(path)
    with pytest.raises(DataError, match="does not match its recorded sha256"):
        checked(path)
    assert hashed == [path] * 3
    folder = run_stage(chain, "tiny", "evaluate", tiny("triplet", "ranking_depth=4"))
    hashed.clear()
    for name in read_manifest(folder).outputs:
        checked(folder / name)
    assert hashed == []


def test_trust_skips_large_files_only(chain: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Any]) -> None:
    features = only(chain, "tiny/extract/*-*/features.h5")
    metrics = only(chain, "tiny/evaluate/triplet.vsepp-*/metrics.json")
    monkeypatch.setattr(integrity, "SMALL", features.stat().st_size)
    flip(features, features.stat().st_size - 9)
    with pytest.raises(DataError):
        checked(features)
    chosen = [f"--set={each}" for each in TINY if each.startswith("train.")]
    planned = ("train", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain, *chosen, "--dry-run")
    assert invoke(*planned, "--trust").code == 0
    assert checked(features) == features
    flip(metrics)
    with pytest.raises(DataError):
        checked(metrics)
    assert invoke(*planned).code == 0
    with pytest.raises(DataError):
        checked(features)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_what_cannot_be_read_now_is_not_damaged(chain: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    opened, known = Path.open, Path.stat

    folder = only(chain, "tiny/evaluate/triplet.vsepp-*")

    def refusing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Path, *arguments: Any, **options: Any) -> Any:
            if self == refused:
                raise OSError(code, os.strerror(code), str(self))
            return method(self, *arguments, **options)

        return call

    monkeypatch.setattr(Path, "open", refusing(opened))
    monkeypatch.setattr(Path, "stat", refusing(known))
    for refused in (folder / "manifest.json", folder / "metrics.json"):
        with pytest.raises(UnavailableError, match=rf"{refused.name} cannot be .* now \({os.strerror(code)}"):
            check_artifact(folder, thorough=True)
    refused = folder
    check_artifact(folder, thorough=True)


def test_an_input_that_was_made_again_is_not_taken_for_the_one_that_was_read(chain: Path) -> None:
    from itrpipe.storage.artifact import existing_input

    evaluated = only(chain, "tiny/evaluate/triplet.vsepp-*")
    manifest = read_manifest(evaluated)
    trained = existing_input(evaluated, manifest, "train")
    found = read_manifest(trained)
    changed = {name: file.model_copy(update={"sha256": "0" * 64}) for name, file in found.outputs.items()}
    write_manifest(trained, found.model_copy(update={"outputs": changed}))
    with pytest.raises(MissingInputError, match=r"was made again after evaluate/.* was made from it; run `itrpipe"):
        existing_input(evaluated, manifest, "train")
