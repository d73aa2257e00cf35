"""`kill -9` at a random moment of every stage, the same command again, and the same bytes as without a kill."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest
from safetensors import safe_open

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


def outputs(data: Path, *, page: bool = False) -> dict[str, dict]:
    """Artifact -> its files with sizes and hashes; the page only on request, because it shows how long stages took."""
    found = {
        f"{path.parent.parent.name}/{path.parent.name}": json.loads(path.read_text())["outputs"]
        for path in sorted(data.glob("scenes/*/*/manifest.json"))
    }
    return found if page else {name: {**files, "index.html": None} for name, files in found.items()}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "killed.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def reference(recipe, tmp_path_factory) -> Path:
    """The whole chain, never interrupted."""
    data = tmp_path_factory.mktemp("reference")
    start(recipe, data).finish()
    return data


def copy_up_to(stage: str, reference: Path, data: Path) -> None:
    """The reference without what `stage` made and all that was made from it."""
    shutil.copytree(reference, data)
    for later in CHAIN[CHAIN.index(stage) :]:
        shutil.rmtree(data / "scenes" / later)
    if stage == "mine_negatives":
        (second_round,) = data.glob("scenes/train/aoq*")
        shutil.rmtree(second_round)


@pytest.mark.parametrize("stage", CHAIN)
def test_a_killed_stage_ends_with_the_same_bytes(stage, recipe, reference, tmp_path):
    data = tmp_path / "data"
    copy_up_to(stage, reference, data)
    durations = [
        json.loads(path.read_text())["timings"]["total"] for path in reference.glob(f"scenes/{stage}/*/manifest.json")
    ]
    moment = random.Random().uniform(0, max(durations))
    process = start(recipe, data)
    while process.running() and not list(data.glob(f"scenes/{stage}/*.partial")):
        time.sleep(0.002)
    time.sleep(moment)
    process.kill()
    for folder in data.glob(f"scenes/{stage}/[!.]*"):
        assert folder.name.endswith(".partial") or (folder / "manifest.json").exists(), f"{folder} looks finished"

    output = start(recipe, data).finish()
    page = stage == "report"
    assert outputs(data, page=page) == outputs(reference, page=page), (
        f"killed after {moment:.3f} s of {stage}:\n{output}"
    )
    assert not list(data.glob("scenes/*/*.partial"))


def test_training_goes_on_at_its_checkpoint_and_not_from_the_start(recipe, reference, tmp_path):
    data = tmp_path / "data"
    copy_up_to("train", reference, data)
    process = start(recipe, data)
    while process.running() and not list(data.glob("scenes/train/triplet*.partial/.work/checkpoint.safetensors")):
        time.sleep(0.002)
    process.kill()
    (partial,) = data.glob("scenes/train/triplet*.partial")
    with safe_open(partial / ".work" / "checkpoint.safetensors", framework="np") as checkpoint:
        position = json.loads(checkpoint.metadata()["position"])
    assert (position["epoch"], position["step"]) != (0, 0)

    output = start(recipe, data).finish()
    assert f"going on in epoch {position['epoch'] + 1} after step {position['step']}" in output
    (manifest,) = data.glob("scenes/train/triplet*/manifest.json")
    record = json.loads(manifest.read_text())
    assert any("resumed" in message for message in record["messages"])
    assert outputs(data) == outputs(reference)


def test_two_processes_on_one_chain_make_every_artifact_once(recipe, reference, tmp_path):
    data = tmp_path / "data"
    copy_up_to("mine_negatives", reference, data)
    first, second = start(recipe, data), start(recipe, data)
    texts = [process.finish() for process in (first, second)]
    assert outputs(data) == outputs(reference)
    made = [text.count("\n  done in ") for text in texts]
    assert sum(made) == 5, texts


MINING = {
    "torch": ("--library", "torch"),
    "faiss": ("--library", "faiss"),
    "clusters": ("--library", "faiss", "--set=index=ivf"),
    "second model": ("--rescore-with", "bfan"),
    "guard": ("--guard", "fne", "--set=guard_batch_size=2"),  # hardly trained, the model ranks few pairs above more
}
SMALL_MINING = (
    *("train.epochs=1", "train.batch_size=16", "train.model.embed_dim=16", "train.model.word_dim=8"),
    *("num_texts=20", "num_images=5", "block=4"),
)


def start_mining(data: Path, how: str) -> Command:
    small = (f"--set={text}" for text in SMALL_MINING)
    return Command("mine-negatives", "--backbone", "vsepp", *small, *MINING[how], "--data", data)


@pytest.fixture(scope="module")
def mined(tmp_path_factory) -> Path:
    """A dataset with two models, and lists mined in every way without an interruption."""
    data = tmp_path_factory.mktemp("mined")
    Command("prepare", "--train", "48", "--val", "8", "--test", "12", "--data", data).finish()
    Command("extract", "--features", "scenes", "--set=batch=4", "--data", data).finish()
    for how in MINING:
        start_mining(data, how).finish()
    return data


@pytest.mark.parametrize("how", MINING)
def test_killed_mining_ends_with_the_same_lists(how, mined, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(mined, data)
    shutil.rmtree(data / "scenes" / "mine_negatives")
    moment = random.Random().uniform(0, 0.2)
    process = start_mining(data, how)
    while process.running() and not list(data.glob("scenes/mine_negatives/*.partial/.work/parts/*/0*")):
        time.sleep(0.002)
    time.sleep(moment)
    process.kill()
    start_mining(data, how).finish()
    (name,) = (f"mine_negatives/{path.parent.name}" for path in data.glob("scenes/mine_negatives/*/manifest.json"))
    expected = outputs(mined)[name]
    assert len([file for file in expected if file.endswith(".parquet")]) == 2
    assert outputs(data)[name] == expected, f"killed {moment:.3f} s after the first block"
    assert not list(data.glob("scenes/mine_negatives/*.partial"))
