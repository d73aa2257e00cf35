"""`itrpipe extract` as a user types it: extractors, combinations, importers, shares, and images that cannot be used."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.datasets.definition import load_definition
from itrpipe.datasets.pictures import read_rgb
from itrpipe.errors import DataError, DiskFullError, IncompleteError, LockedError
from itrpipe.features import extraction
from itrpipe.features.extractors.frcnn.extractor import FrcnnExtractor
from itrpipe.features.extractors.hog.extractor import HogExtractor
from itrpipe.features.extractors.vision.extractor import GridExtractor
from itrpipe.features.store import FeatureFile
from itrpipe.stages import extract as stage
from itrpipe.storage.artifact import read_manifest
from tests.chains import Invoke, copied, done, only, refused, sets
from tests.conftest import TINY, Outcome, TinySource

HOG = ("--features", "hog", *sets("grid=2", "cell=8", "workers=0"))

FRCNN = sets(
    *("frcnn.weights=random", "frcnn.min_regions=3", "frcnn.max_regions=3", "frcnn.proposals=20", "workers=0"),
    *("frcnn.short_side=64", "frcnn.long_side=96", "batch=3"),
)


@pytest.fixture
def prepared(data_root: Path, precomp_dataset: TinySource, invoke: Invoke) -> Path:
    """A data folder in which the dataset `mine` of twenty photographs is prepared."""
    done(invoke("prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root))
    return data_root


def extract(invoke: Invoke, root: Path, *arguments: object) -> Outcome:
    return invoke("extract", "--dataset", "mine", "--data", root, *arguments)


def features_of(root: Path, name: str) -> FeatureFile:
    return FeatureFile.open(only(root, f"extract/{name}") / "features.h5")


def vit(folder: Path, *more: str) -> list[str]:
    return ["--features", "vit", *sets(f"model={folder}", "weights=random", "batch=3", "workers=0", *more)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty photographs are five parts."""
    monkeypatch.setattr(extraction, "BATCHES_PER_PART", 1)
    for kind in (GridExtractor, HogExtractor, FrcnnExtractor):
        monkeypatch.setattr(kind, "batch", 4)


def failing_for(name: str) -> Callable[[Path], np.ndarray]:
    def read(path: Path) -> np.ndarray:
        if path.name == name:
            raise DataError("is broken")
        return read_rgb(path)

    return read


# Extractors


def test_features_are_named_once_and_made_once(prepared: Path, invoke: Invoke) -> None:
    refused(extract(invoke, prepared), 3, "--features")
    assert "20/20 images" in done(extract(invoke, prepared, *HOG))
    assert "up to date" in done(extract(invoke, prepared))


def test_moving_a_model_changes_nothing_and_changing_it_does(
    prepared: Path, saved_encoders: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "these features are noise" in done(extract(invoke, prepared, *vit(saved_encoders / "vit")))
    assert read_manifest(only(prepared, "extract/vit")).sources.keys() == {"model"}
    moved = copied(saved_encoders / "vit", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    relative = ["train", "--dataset", "mine", "--data", prepared, "--backbone", "vsepp", "--dry-run"]
    kept = re.compile(r"extract/vit-\w+ +up to date")
    assert kept.search(invoke(*relative, "--set", "extract.model=moved").out)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    assert not kept.search(invoke(*relative, "--set", "extract.model=moved").out)


def test_what_extract_was_told_is_remembered_under_the_name(
    prepared: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_alone = stage.ExtractStage.run

    def run_beside_another(self: Any, job: Any) -> None:
        monkeypatch.setattr(stage.ExtractStage, "run", run_alone)
        done(extract(invoke, prepared, *HOG, "--name", "meanwhile"))
        run_alone(self, job)

    monkeypatch.setattr(stage.ExtractStage, "run", run_beside_another)
    done(extract(invoke, prepared, *HOG[:2], *sets("grid=2", "cell=12", "workers=0"), "--name", "small"))
    known = load_definition(prepared, "mine").features
    assert known.keys() == {"meanwhile", "small"}
    assert known["small"].settings == {"grid": 2, "cell": 12}
    assert "up to date" in extract(invoke, prepared, "--features", "small").out
    changed = extract(invoke, prepared, "--features", "small", "--set", "cell=8", "--dry-run")
    assert "cell 12 → 8" in changed.out
    assert load_definition(prepared, "mine").features == known


@pytest.mark.usefixtures("small_parts")
def test_two_extractors_fill_one_file_whoever_makes_its_parts(prepared: Path, tmp_path: Path, invoke: Invoke) -> None:
    """Each contributes what it writes alone."""
    shared = copied(prepared, tmp_path / "shared")
    both = ["--features", "frcnn+hog", *FRCNN, *sets("hog.grid=2", "hog.cell=8")]
    done(extract(invoke, prepared, *both))
    arrays = features_of(prepared, "frcnn+hog").arrays
    done(extract(invoke, prepared, "--features", "frcnn", *FRCNN))
    for name, values in features_of(prepared, "frcnn").arrays.items():
        np.testing.assert_array_equal(values, arrays[name])
    done(extract(invoke, prepared, *HOG))
    np.testing.assert_array_equal(features_of(prepared, "hog").arrays["global"], arrays["global"])

    assert re.search(
        r"part 1/2 is done \(\d+ images\); \d of \d+ are left", done(extract(invoke, shared, *both, "--part", "1/2"))
    )
    assert not list(shared.glob("mine/extract/*/manifest.json"))
    assert "joining" in done(extract(invoke, shared, *both, "--part", "2/2"))
    outputs = [read_manifest(only(root, "extract/frcnn+hog")).outputs for root in (prepared, shared)]
    assert outputs[0] == outputs[1]


# Images that cannot be used


def test_images_that_fail_are_listed_and_make_a_code_of_their_own(
    prepared: Path, precomp_dataset: TinySource, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at the sources and decoding, a file may still go."""
    monkeypatch.setattr(extraction, "read_rgb", failing_for("1003.jpg"))
    refused(extract(invoke, prepared, *HOG), IncompleteError.exit_code, "1003")
    folder = only(prepared, "extract/hog")
    assert read_manifest(folder).failed == {"1003": "(flickr30k-images/1003.jpg) is broken"}
    file = features_of(prepared, "hog")
    assert (len(file), "1003" in file.image_id) == (19, False)
    # It stays finished, and says again what is missing.
    assert extract(invoke, prepared).code == IncompleteError.exit_code
    refused(extract(invoke, prepared, "--strict"), 4, f"remove {folder}")
    shutil.rmtree(folder)
    refused(extract(invoke, prepared, "--set", "workers=0", "--strict"), 4, "1003.jpg: is broken")
    # What broke since is no image of the dataset: `prepare` runs again and says so too.
    os.truncate(precomp_dataset.images / "1003.jpg", 200)
    assert "1 of 20 images" in done(extract(invoke, prepared, *HOG))


@pytest.mark.parametrize(("image", "trains"), [("1003", True), ("1018", False)])
def test_training_goes_on_without_a_training_image_but_never_without_one_of_test(
    prepared: Path, saved_encoders: Path, image: str, trains: bool, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "read_rgb", failing_for(f"{image}.jpg"))
    assert extract(invoke, prepared, *vit(saved_encoders / "vit")).code == IncompleteError.exit_code
    outcome = invoke("train", "--backbone", "vsepp", "--dataset", "mine", "--data", prepared, *sets(*TINY[:-1]))
    if trains:
        assert "1 of 12 training images have no features and are left out; the first: 1003" in done(outcome)
    else:
        refused(outcome, 3, "image '1018'")


# Importers


def test_arrays_are_mapped_on_the_command_line(
    prepared: Path, precomp_dataset: TinySource, tmp_path: Path, invoke: Invoke
) -> None:
    names = sorted(path.name for path in precomp_dataset.images.iterdir())
    values = np.random.default_rng(0).normal(size=(len(names), 3, 4)).astype(np.float32)
    np.savez(tmp_path / "theirs.npz", feats=values[::-1])
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in reversed(names)))
    mapped = ["--from", tmp_path / "theirs.npz", "--map", "regions=feats", "--ids", tmp_path / "names.txt"]
    done(extract(invoke, prepared, *mapped, "--name", "theirs"))
    file = features_of(prepared, "theirs")
    order = [names.index(f"{image_id}.jpg") for image_id in file.image_id]
    np.testing.assert_array_equal(file.arrays["regions"], values[order].astype(np.float16))
    assert "up to date" in extract(invoke, prepared, "--features", "theirs").out


def test_of_several_layouts_the_complete_one_is_imported_and_otherwise_they_are_named(
    prepared: Path, precomp_dataset: TinySource, tmp_path: Path, invoke: Invoke
) -> None:
    mixed = copied(precomp_dataset.features, tmp_path / "f30k_precomp")
    np.savez(mixed / "sizes.npz", width=np.ones(3))
    (mixed / "notes.tsv").write_text("image\tremark\n")
    said = " ".join(done(extract(invoke, prepared, "--from", mixed)).split())
    assert "butd-tsv (notes.tsv, without 6 or 10 columns in notes.tsv)" in said
    assert only(prepared, "extract/precomp")
    np.savez(mixed / "1000.npz", features=np.ones((3, 4), np.float32))
    refused(extract(invoke, prepared, "--from", mixed), 2, "--features precomp | uniter")
    done(extract(invoke, prepared, "--from", mixed, "--features", "precomp"))
    (mixed / "1000.npz").unlink()
    for path in mixed.glob("*.txt"):
        path.unlink()
    for content in (b"", b"no archive"):
        (mixed / "sizes.npz").write_bytes(content)
        refused(extract(invoke, prepared, "--from", mixed), 2, "without a whole sizes.npz", "precomp | butd-tsv")


# Other jobs, the hub and the disk


@pytest.mark.usefixtures("small_parts")
def test_a_later_step_waits_for_the_parts_of_other_jobs_and_not_for_ever(
    prepared: Path, saved_encoders: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITRPIPE_LOCK_HOURS", "0.0002")
    done(extract(invoke, prepared, *vit(saved_encoders / "vit"), "--part", "1/2"))
    where = ("--dataset", "mine", "--data", prepared)
    refused(
        invoke("train", *where, *sets("extract.part=1/2", "extract.batch=3")), LockedError.exit_code, "0.0002 hours"
    )
    # An hour's work of another machine may lie there: gc leaves it alone.
    assert "in parts" in invoke("status", *where).out
    assert "nothing to remove" in invoke("gc", "--yes", *where).out


def test_a_disk_that_is_too_small_is_found_out_before_anything_is_made(
    prepared: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(prepared)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
    assert extract(invoke, prepared, *HOG).code == DiskFullError.exit_code
    assert not list(prepared.glob("mine/extract/[!.]*"))
