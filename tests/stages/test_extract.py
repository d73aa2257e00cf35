"""`itrpipe extract` as a user types it: extractors, combinations, importers, parts, bad images, and kills."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image
from transformers import ResNetConfig, ViTConfig, ViTImageProcessor

from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, DiskFullError, IncompleteError, LockedError
from itrpipe.features import extraction
from itrpipe.features.extractors.vit import extractor as grids
from itrpipe.features.store import FeatureFile
from itrpipe.storage.artifact import MANIFEST, read_manifest
from tests.chains import Invoke, copied, done, refused, sets
from tests.commands import Command
from tests.conftest import Outcome, TinySource

PIXELS = ("--features", "pixels", *sets("height=6", "width=8"))


@pytest.fixture(scope="module")
def tiny_vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a vision transformer can be built from, without weights."""
    folder = tmp_path_factory.mktemp("vit")
    ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    ).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resnet")
    ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic").save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture
def prepared(data_root: Path, precomp_dataset: TinySource, invoke: Invoke) -> Path:
    """A data folder in which the dataset `mine` of twenty photographs is prepared."""
    done(invoke("prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root))
    return data_root


def extract(invoke: Invoke, root: Path, *arguments: object) -> Outcome:
    return invoke("extract", "--dataset", "mine", "--data", root, *arguments)


def features_of(root: Path, name: str) -> Path:
    (path,) = root.glob(f"mine/extract/{name}-*/features.h5")
    return path


def random_model(name: str, folder: Path) -> list[str]:
    return ["--features", name, *sets(f"model={folder}", "weights=random", "batch=3")]


def vit(folder: Path) -> list[str]:
    return random_model("vit", folder)


@pytest.fixture
def never_sent(any_hub: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that the hub offers, and does not send."""

    def end(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("the connection ended")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", end)
    return "someone/never-sent"


# Extractors


def test_pixels_are_the_photographs_resized(prepared: Path, precomp_dataset: TinySource, invoke: Invoke) -> None:
    assert "20/20 images" in done(extract(invoke, prepared, *PIXELS))
    file = FeatureFile.open(features_of(prepared, "pixels"))
    assert file.extractor == "pixels"
    for image_id, pixels in zip(file.image_id, file.arrays["pixels"], strict=True):
        with Image.open(precomp_dataset.images / f"{image_id}.jpg") as image:
            np.testing.assert_array_equal(pixels, np.asarray(image.resize((8, 6), Image.Resampling.BICUBIC)))
    assert "up to date" in done(extract(invoke, prepared))


def test_what_was_said_last_counts_however_it_is_spelled(prepared: Path, tiny_vit: Path, invoke: Invoke) -> None:
    several = ["--features", "vit+pixels", *sets(f"vit.model={tiny_vit}", "weights=random", "width=8")]
    for spelling in ("pixels.height=6", "height=7", "pixels.height=9"):
        done(extract(invoke, prepared, *several, "--set", spelling))
    heights = [FeatureFile.open(path).arrays["pixels"].shape[1] for path in prepared.glob("mine/extract/*/features.h5")]
    assert sorted(heights) == [6, 7, 9]
    again = extract(invoke, prepared, "--features", "vit+pixels", "--set", "vit.batch=3", "--dry-run")
    assert "up to date" in done(again)


def test_moving_a_model_changes_nothing_and_changing_it_does(
    prepared: Path, tiny_vit: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(extract(invoke, prepared, *vit(tiny_vit)))
    moved = copied(tiny_vit, tmp_path / "moved")
    assert "up to date" in extract(invoke, prepared, "--features", "vit", "--set", f"model={moved}").out
    monkeypatch.chdir(tmp_path)
    relative = ["train", "--dataset", "mine", "--data", prepared, "--backbone", "vsepp", "--dry-run"]
    kept = re.compile(r"extract/vit-\w+ +up to date")
    assert kept.search(invoke(*relative, "--set", "extract.model=moved").out)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    assert not kept.search(invoke(*relative, "--set", "extract.model=moved").out)


def test_what_extract_was_told_is_remembered_under_the_name(
    prepared: Path, tiny_vit: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_vit.parent)
    done(extract(invoke, prepared, *vit(Path(tiny_vit.name)), "--name", "small"))
    known = load_definition(prepared, "mine").features
    assert known.keys() == {"small"}
    assert known["small"].settings == {"model": str(tiny_vit), "weights": "random"}
    monkeypatch.chdir(prepared)
    assert "up to date" in extract(invoke, prepared).out
    assert "up to date" in extract(invoke, prepared, "--features", "small").out
    changed = extract(invoke, prepared, "--features", "small", "--set", "precision=bf16", "--dry-run")
    assert "precision fp32 → bf16" in changed.out
    assert load_definition(prepared, "mine").features == known


def test_random_weights_are_said_to_be_noise(prepared: Path, tiny_vit: Path, invoke: Invoke) -> None:
    assert "random weights: these features are noise" in done(extract(invoke, prepared, *vit(tiny_vit)))
    manifest = read_manifest(features_of(prepared, "vit").parent)
    assert any("noise" in message for message in manifest.messages)
    assert manifest.sources.keys() == {"model"}


def test_two_extractors_fill_one_file(prepared: Path, tiny_vit: Path, tiny_resnet: Path, invoke: Invoke) -> None:
    """Regions come from the first, and each contributes what it writes alone."""
    combined = ["--features", "resnet+pixels", *sets(f"resnet.model={tiny_resnet}", "weights=random", "batch=3")]
    done(extract(invoke, prepared, *combined, *sets("pixels.height=6", "width=8")))
    both = FeatureFile.open(features_of(prepared, "resnet+pixels")).arrays
    assert {"regions", "global", "pixels"} < both.keys()
    done(extract(invoke, prepared, *random_model("resnet", tiny_resnet)))
    for name, values in FeatureFile.open(features_of(prepared, "resnet")).arrays.items():
        np.testing.assert_array_equal(values, both[name])
    done(extract(invoke, prepared, *PIXELS))
    np.testing.assert_array_equal(FeatureFile.open(features_of(prepared, "pixels")).arrays["pixels"], both["pixels"])
    assert "up to date" in extract(invoke, prepared, "--features", "resnet+pixels").out


def test_features_that_nobody_named_are_asked_for(prepared: Path, invoke: Invoke) -> None:
    refused(extract(invoke, prepared), 3, "no features yet", "--features")
    refused(extract(invoke, prepared, "--features", "pixels", "--device", "cuda"), 2, "no CUDA device")
    assert load_definition(prepared, "mine").features == {}


# Images that cannot be used


def test_a_photograph_that_breaks_after_prepare_is_left_out_with_its_captions(
    prepared: Path, precomp_dataset: TinySource, invoke: Invoke
) -> None:
    """Its bytes are part of the dataset's fingerprint, so `prepare` runs again and says so too."""
    os.truncate(precomp_dataset.images / "1003.jpg", 200)
    assert "1 of 20 images" in done(extract(invoke, prepared, *PIXELS))
    assert FeatureFile.open(features_of(prepared, "pixels")).image_id.tolist().count("1003") == 0


def test_images_that_fail_in_extraction_are_listed_and_make_a_code_of_their_own(
    prepared: Path, precomp_dataset: TinySource, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at the sources and decoding, a file may still go."""
    monkeypatch.setattr("itrpipe.features.extraction.read_rgb", failing_for("1003.jpg"))
    outcome = extract(invoke, prepared, *PIXELS, "--set", "workers=0")
    refused(outcome, IncompleteError.exit_code, "1 image ", "1003", "is broken", "manifest.json")
    folder = features_of(prepared, "pixels").parent
    assert read_manifest(folder).failed == {"1003": "(flickr30k-images/1003.jpg) is broken"}
    file = FeatureFile.open(folder / "features.h5")
    assert len(file) == 19
    assert "1003" not in file.image_id
    # It stays finished, and says again what is missing.
    assert extract(invoke, prepared).code == IncompleteError.exit_code
    refused(extract(invoke, prepared, "--strict"), 4, f"remove {folder}")
    shutil.rmtree(folder)
    refused(extract(invoke, prepared, "--set", "workers=0", "--strict"), 4, "1003.jpg: is broken")


def failing_for(name: str) -> Callable[[Path], np.ndarray]:
    from itrpipe.datasets.pictures import read_rgb

    def read(path: Path) -> np.ndarray:
        if path.name == name:
            raise DataError("is broken")
        return read_rgb(path)

    return read


@pytest.mark.parametrize(("image", "trains"), [("1003", True), ("1018", False)])
def test_training_goes_on_without_a_training_image_but_never_without_one_of_test(
    prepared: Path, tiny_vit: Path, image: str, trains: bool, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.features.extraction.read_rgb", failing_for(f"{image}.jpg"))
    assert extract(invoke, prepared, *vit(tiny_vit), "--set", "workers=0").code == IncompleteError.exit_code
    small = sets("epochs=1", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1")
    outcome = invoke("train", "--backbone", "vsepp", "--dataset", "mine", "--data", prepared, *small)
    if trains:
        told = "1 of 12 training images have no features and are left out; the first: 1003"
        assert told in done(outcome)
    else:
        refused(outcome, 3, "image '1018'", "1 of 4 images")


# Importers


def test_features_of_another_tool_are_imported_by_the_schema(
    prepared: Path, tiny_resnet: Path, tmp_path: Path, invoke: Invoke
) -> None:
    """Our own file comes back as it was, whatever the order of its rows."""
    done(extract(invoke, prepared, *random_model("resnet", tiny_resnet)))
    source = shutil.copy(features_of(prepared, "resnet"), tmp_path / "theirs.h5")
    done(extract(invoke, prepared, "--from", source))
    theirs = FeatureFile.open(features_of(prepared, "arrays"))
    ours = FeatureFile.open(features_of(prepared, "resnet"))
    assert theirs.image_id.tolist() == ours.image_id.tolist()
    for name, values in ours.arrays.items():
        np.testing.assert_array_equal(theirs.arrays[name], values)


def test_arrays_are_mapped_on_the_command_line(
    prepared: Path, precomp_dataset: TinySource, tmp_path: Path, invoke: Invoke
) -> None:
    names = sorted(path.name for path in precomp_dataset.images.iterdir())
    values = np.random.default_rng(0).normal(size=(len(names), 3, 4)).astype(np.float32)
    np.savez(tmp_path / "theirs.npz", feats=values[::-1])
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in reversed(names)))
    mapped = ["--from", tmp_path / "theirs.npz", "--map", "regions=feats", "--ids", tmp_path / "names.txt"]
    done(extract(invoke, prepared, *mapped, "--name", "theirs"))
    file = FeatureFile.open(features_of(prepared, "theirs"))
    order = [names.index(f"{image_id}.jpg") for image_id in file.image_id]
    np.testing.assert_array_equal(file.arrays["regions"], values[order].astype(np.float16))
    assert "up to date" in extract(invoke, prepared, "--features", "theirs").out


@pytest.fixture
def mixed(precomp_dataset: TinySource, tmp_path: Path) -> Path:
    """A precomp folder with files that belong to other formats by their names."""
    folder = tmp_path / "f30k_precomp"
    shutil.copytree(precomp_dataset.features, folder)
    np.savez(folder / "sizes.npz", width=np.ones(3))
    (folder / "notes.tsv").write_text("image\tremark\n")
    return folder


def test_the_layout_that_is_complete_is_imported(prepared: Path, mixed: Path, invoke: Invoke) -> None:
    said = " ".join(done(extract(invoke, prepared, "--from", mixed)).split())
    assert features_of(prepared, "precomp").exists()
    assert f"--from {mixed} holds precomp (train_ims.npy and 8 more)" in said
    assert "butd-tsv (notes.tsv, without 6 or 10 columns in notes.tsv)" in said
    assert "uniter (sizes.npz, without features or x in sizes.npz); precomp alone is complete and is imported" in said


def test_two_complete_layouts_are_asked_for(prepared: Path, mixed: Path, invoke: Invoke) -> None:
    np.savez(mixed / "1000.npz", features=np.ones((3, 4), np.float32))
    refused(
        extract(invoke, prepared, "--from", mixed), 2, "uniter (1000.npz, sizes.npz)", "--features precomp | uniter"
    )
    done(extract(invoke, prepared, "--from", mixed, "--features", "precomp"))


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_of_incomplete_layouts_all_are_named(prepared: Path, mixed: Path, invoke: Invoke, content: bytes) -> None:
    for path in mixed.glob("*.txt"):
        path.unlink()
    (mixed / "sizes.npz").write_bytes(content)
    parts = ("without train_ids.txt or train_caps.txt", "without a whole sizes.npz", "precomp | butd-tsv | uniter")
    refused(extract(invoke, prepared, "--from", mixed), 2, *parts)


def test_a_later_step_waits_for_the_parts_of_other_jobs_and_not_for_ever(
    prepared: Path, tiny_vit: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "BATCHES_PER_PART", 1)
    monkeypatch.setattr(grids.GridExtractor, "batch", 4)
    monkeypatch.setenv("ITRPIPE_LOCK_HOURS", "0.0002")
    said = done(extract(invoke, prepared, *vit(tiny_vit), "--part", "1/2"))
    assert "part 1/2 is done (12 images); 2 of 5 are left to other jobs; who makes the last one joins all" in said
    share = ("--set", "extract.part=1/2", "--set", "extract.batch=3")
    outcome = invoke("train", "--dataset", "mine", "--data", prepared, *share)
    assert "waiting for 2 parts of other jobs (--part i/2)" in outcome.out
    refused(outcome, LockedError.exit_code, "2 parts of other jobs", "0.0002 hours")
    # An hour's work of another machine may lie there: gc leaves it alone.
    assert "in parts" in invoke("status", "--dataset", "mine", "--data", prepared).out
    assert "nothing to remove" in invoke("gc", "--yes", "--dataset", "mine", "--data", prepared).out
    assert len(list(prepared.glob("mine/extract/*.partial/.work/parts/vit/*.arrays"))) == 3


def test_features_of_another_name_made_meanwhile_stay_known(
    prepared: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from itrpipe.stages import extract as stage

    run_alone = stage.Extract.run

    def run_beside_another(self: Any, job: Any) -> None:
        monkeypatch.setattr(stage.Extract, "run", run_alone)
        done(extract(invoke, prepared, *PIXELS, "--name", "meanwhile"))
        run_alone(self, job)

    monkeypatch.setattr(stage.Extract, "run", run_beside_another)
    done(extract(invoke, prepared, *PIXELS, "--set", "fit=crop", "--name", "first"))
    assert load_definition(prepared, "mine").features.keys() == {"meanwhile", "first"}


# Downloads that fail


@pytest.mark.parametrize("how", [(), ("--part", "1/2"), ("--workers", "2")], ids=" ".join)
def test_a_download_that_fails_leaves_nothing(
    prepared: Path, never_sent: str, invoke: Invoke, how: tuple[str, ...]
) -> None:
    outcome = extract(invoke, prepared, "--features", "vit", "--set", f"model={never_sent}", *how)
    refused(outcome, 3, f"{never_sent} cannot be fetched from the hub")
    assert not list(prepared.glob("mine/extract/[!.]*"))


def test_a_disk_that_is_too_small_keeps_what_was_made_and_nothing_else(
    prepared: Path, tiny_vit: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(prepared)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
        assert extract(invoke, prepared, *vit(tiny_vit)).code == DiskFullError.exit_code
        assert not list(prepared.glob("mine/extract/[!.]*"))
    monkeypatch.setattr(extraction, "BATCHES_PER_PART", 1)
    monkeypatch.setattr(grids.GridExtractor, "batch", 4)
    done(extract(invoke, prepared, *vit(tiny_vit), "--part", "1/2"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
        assert extract(invoke, prepared, *vit(tiny_vit)).code == DiskFullError.exit_code
    assert "(resuming)" in done(extract(invoke, prepared, *vit(tiny_vit)))


def test_encoders_that_cannot_be_fetched_leave_no_training(prepared: Path, never_sent: str, invoke: Invoke) -> None:
    done(extract(invoke, prepared, *PIXELS))
    encoders = ["--backbone", "dual-encoder", "--vision", never_sent, "--text", never_sent]
    outcome = invoke("train", *encoders, "--features", "pixels", "--dataset", "mine", "--data", prepared)
    refused(outcome, 3, f"{never_sent} cannot be fetched from the hub")
    assert not list(prepared.glob("mine/train/[!.]*"))


# One go, shares, kills: the same bytes


def command(root: Path, *arguments: object) -> Command:
    return Command("extract", "--dataset", "mine", "--data", root, *arguments, small_parts=True)


@pytest.mark.slow
def test_one_go_shares_and_a_kill_give_the_same_bytes(prepared: Path, tiny_vit: Path, tmp_path: Path) -> None:
    small = sets(f"vit.model={tiny_vit}", "weights=random", "height=6", "width=8", "batch=3")
    several = ["--features", "vit+pixels", *small]

    def run(name: str, *more: str) -> str:
        return command(roots[name], *several, *more).finish()

    names = ("whole", "shares", "side by side", "gone on")
    roots = {name: copied(prepared, tmp_path / name) for name in names}
    run("whole")

    # Twenty photographs are five parts of the one extractor and one of the other.
    assert "part 1/2 is done (20 images); 2 of 6 are left" in run("shares", "--part", "1/2")
    assert not list(roots["shares"].glob("mine/extract/*/manifest.json"))
    joined = run("shares", "--part", "2/2")
    assert "part 2/2 is done (8 images); 0 of 6 are left" in joined
    assert "joining" in joined
    assert list(roots["shares"].glob("mine/extract/*/manifest.json"))

    both = [command(roots["side by side"], *several, "--part", share) for share in ("1/2", "2/2")]
    said = [process.finish() for process in both]
    assert sum("joining" in each for each in said) == 1

    run("gone on", "--part", "2/2")
    assert "joining" in run("gone on")  # one that makes all parts takes what is there

    roots["killed"] = kill_extraction(prepared, tmp_path, several)
    assert "resuming" in run("killed")
    contents = {name: features_of(root, "vit+pixels").read_bytes() for name, root in roots.items()}
    assert {name: content == contents["whole"] for name, content in contents.items()} == dict.fromkeys(contents, True)
    outputs = [read_manifest(features_of(root, "vit+pixels").parent).outputs for root in roots.values()]
    assert all(each == outputs[0] for each in outputs)


def kill_extraction(prepared: Path, folder: Path, arguments: list[str]) -> Path:
    """Kills an extraction at a random moment after it has begun to make parts; returns its data folder."""
    for attempt in range(8):
        root = copied(prepared, folder / f"killed {attempt}")
        process = command(root, *arguments)
        while process.running() and not list(root.glob("mine/extract/*.partial/.work/parts/*/*.arrays")):
            time.sleep(0.002)
        time.sleep(random.Random().uniform(0, 0.2) / 4**attempt)  # a fast machine needs a fast hand
        process.kill()
        if any(not (partial / MANIFEST).exists() for partial in root.glob("mine/extract/*.partial")):
            return root
    raise AssertionError("it was always finished before it could be killed")
