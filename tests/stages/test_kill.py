"""`kill -9` at a random moment of every stage, the same command again, and the same bytes as without a kill."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from itrpipe.storage.artifact import read_manifest
from tests.chains import copied, only
from tests.commands import Command

RECIPE = """
dataset = "scenes"
features = "scenes"
title = "killed"

[set]
"prepare.train" = 48
"prepare.val" = 8
"prepare.test" = 12
"extract.batch" = 4
"train.epochs" = 3
"train.batch_size" = 16
"train.model.embed_dim" = 16
"train.model.word_dim" = 8
"train.model.caption_dim" = 8
"train.model.caption_word_dim" = 8
"train.loss.sum_epochs" = 1
"train.checkpoint_seconds" = 0
"mine_negatives.block" = 4
"mine_negatives.num_texts" = 20
"mine_negatives.num_images" = 5
"aoq.loss.top_texts" = 20
"aoq.loss.top_images" = 5
"evaluate.bootstrap_samples" = 100
"evaluate.ranking_depth" = 10
"report.bootstrap_samples" = 100
"report.examples" = 2

[[run]]
method = "triplet"
backbone = "vsrn"

[[run]]
method = "aoq"
backbone = "vsrn"
"""
CHAIN = ["prepare", "extract", "train", "mine_negatives", "evaluate", "report"]
pytestmark = pytest.mark.slow


def start(recipe: Path, data: Path) -> Command:
    return Command("run", recipe, "--data", data, small_parts=True)


def outputs(data: Path) -> dict[str, dict[str, Any]]:
    """Artifact -> its files with sizes and hashes, but for the page, which shows how long stages took."""
    found = {path.parent: read_manifest(path.parent) for path in sorted(data.glob("scenes/*/*/manifest.json"))}
    return {folder.name: {**each.outputs, "index.html": None} for folder, each in found.items()}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "killed.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def reference(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole chain, never interrupted."""
    data = tmp_path_factory.mktemp("reference")
    start(recipe, data).finish()
    return data


def test_a_chain_that_is_killed_in_every_stage_ends_with_the_same_bytes(
    recipe: Path, reference: Path, tmp_path: Path
) -> None:
    begun = {"train": "train/*.partial/.work/checkpoint.safetensors"}
    for stage in CHAIN:
        process = start(recipe, tmp_path)
        while process.running() and not list(tmp_path.glob(f"scenes/{begun.get(stage, f'{stage}/*.partial')}")):
            time.sleep(0.002)
        time.sleep(random.Random().uniform(0, 0.1))
        process.kill()
        for folder in tmp_path.glob(f"scenes/{stage}/[!.]*"):
            assert folder.name.endswith(".partial") or (folder / "manifest.json").exists(), f"{folder} looks finished"
    start(recipe, tmp_path).finish()
    assert outputs(tmp_path) == outputs(reference)
    assert not list(tmp_path.glob("scenes/*/*.partial"))
    # The training went on at its checkpoint.
    messages = [read_manifest(path.parent).messages for path in tmp_path.glob("scenes/train/*/manifest.json")]
    assert any("resumed" in each for said in messages for each in said)


def test_two_processes_on_one_chain_make_every_artifact_once(recipe: Path, reference: Path, tmp_path: Path) -> None:
    data = copied(reference, tmp_path / "data")
    for later in ("mine_negatives", "evaluate", "report"):
        shutil.rmtree(data / "scenes" / later)
    shutil.rmtree(only(data, "train/aoq.vsrn"))
    both = [start(recipe, data) for _ in range(2)]
    texts = [process.finish() for process in both]
    assert outputs(data) == outputs(reference)
    assert sum(text.count("\n  done in ") for text in texts) == 5, texts
