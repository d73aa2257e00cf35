"""FNE through the command line: training, its refusals, killed runs, guarded lists and what evaluation makes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.learning.false_negatives import estimate_gaussians, probabilities
from itrpipe.mining.files import FILES, read_list
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES, read_manifest
from itrpipe.training.saved import MODEL, load_model, load_weights
from tests.chains import Invoke, copied, done, history, made, only, refused, sets
from tests.commands import Command

# As in the finished chain, so that its first training is up to date.
SAME = ["train.batch_size=16", "train.model.embed_dim=8", "train.model.word_dim=8", "train.min_word_count=1"]
FIRST_TRAINING = ["train.epochs=1", *SAME]
SMALL = ["train.epochs=3", *SAME, "fne.loss.memory_size=24", "fne.loss.min_count=0", "evaluate.bootstrap_samples=100"]


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Invoke:
    """Runs a command on the dataset `tiny`."""

    def on_tiny(command: str, *arguments: object) -> Any:
        return invoke(command, *arguments, "--dataset", "tiny", "--data", chain)

    return on_tiny


def test_fne_trains_and_is_evaluated(chain: Path, run: Invoke) -> None:
    done(run("evaluate", "--method", "fne", "--backbone", "vsepp", *sets(*SMALL)))
    folder, rows = only(chain, "train/fne.vsepp"), history(chain, "fne.vsepp")
    assert [row["loss_fne"] is None for row in rows] == [True, False, False]
    assert rows[0]["loss_triplet"] > 0
    assert all(0 <= row["mean_hardest_text_share"] <= 1 for row in rows[1:])
    model = load_model(folder).model
    load_weights(folder / MODEL, model)
    assert not any("twin" in name for name in model.state_dict())
    assert len(read_embeddings(folder / EMBEDDINGS, "test").images) == 4
    evaluated = only(chain, "evaluate/fne.vsepp")
    figures = json.loads((evaluated / FALSE_NEGATIVES).read_text())
    unknown = {"drawn": None, "hardest": None, "anchors": 32 * 16, "roc_area": None}
    assert figures["drawn"]["texts_for_images"] == unknown
    candidates = pq.read_table(evaluated / HARD_CANDIDATES)
    assert candidates.num_rows == 12 * 20 + 60 * 11
    assert {FALSE_NEGATIVES, HARD_CANDIDATES} <= read_manifest(evaluated).outputs.keys()
    assert not (only(chain, "evaluate/triplet.vsepp") / FALSE_NEGATIVES).exists()


@pytest.mark.parametrize("conf", ["fne-paper", "fne-memory-only", "fne-only", "fne-neither"])
def test_every_configuration_trains(chain: Path, run: Invoke, conf: str) -> None:
    memory = () if conf in ("fne-only", "fne-neither") else (f"{conf}.loss.memory_size=24",)
    done(run("train", "--method", conf, "--backbone", "vsepp", *sets("train.epochs=2", *SAME, *memory)))
    _, last = history(chain, f"{conf}.vsepp")
    assert last["loss_fne"] > 0
    if conf in ("fne-memory-only", "fne-neither"):
        assert last["mean_hardest_text_share"] == last["mean_hardest_image_share"] == 1


def training(root: Path) -> Command:
    small = sets("epochs=6", "checkpoint_seconds=0", *SMALL[1:-1])
    model = ("--method", "fne", "--backbone", "vsepp")
    return Command("train", *model, *small, "--dataset", "tiny", "--data", root)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(chain: Path, tmp_path: Path) -> None:
    whole = copied(chain, tmp_path / "whole")
    training(whole).finish()
    process = training(chain)
    checkpoint = ".work/checkpoint.safetensors"
    position: dict[str, Any] = {"step": 0, "epoch": 0}
    while process.running() and not (position["epoch"] and position["step"]):
        for path in chain.glob(f"tiny/train/fne*.partial/{checkpoint}"):
            with safe_open(path, framework="np") as file:
                position = json.loads(file.metadata()["position"])
        time.sleep(0.001)
    assert process.running(), "the run ended before it was killed"
    process.kill()
    assert "going on in epoch" in training(chain).finish()
    found, expected = (read_manifest(only(root, "train/fne.vsepp")).outputs for root in (chain, whole))
    assert found == expected


# Guarded lists


MINING = [*FIRST_TRAINING, "num_texts=5", "num_images=3"]


def test_the_guard_writes_the_probability_of_every_candidate(chain: Path, run: Invoke) -> None:
    plain = made(run("mine-negatives", "--backbone", "vsepp", *sets(*MINING)))
    asked = sets("guard_prior=0.2", "guard_batch_size=4", *MINING)
    outcome = run("mine-negatives", "--backbone", "vsepp", "--guard", "fne", *asked)
    guarded = made(outcome)
    stored = read_embeddings(only(chain, "train/triplet.vsepp") / EMBEDDINGS, "train")
    gaussians = estimate_gaussians(stored.images, stored.texts, stored.caption_image, batch_size=4)
    facts = json.loads((guarded / "statistics.json").read_text())["guard"]
    assert facts["mean"]["matches"] == pytest.approx(gaussians.mean[0].item(), abs=1e-5)
    for direction in FILES:
        ours, theirs = read_list(guarded, direction), read_list(plain, direction)
        np.testing.assert_array_equal(ours.candidates, theirs.candidates)
        assert theirs.false_negative_probability is None
        assert ours.false_negative_probability is not None
        expected = probabilities(ours.scores.astype(np.float32), gaussians, 0.2)
        np.testing.assert_allclose(ours.false_negative_probability, expected, atol=0.02)
        above = int((ours.false_negative_probability > 0.5).sum())
        assert f"{facts['above'][direction]['0.5']:,} of {ours.candidates.size:,} candidates are false" in outcome.out
        assert abs(facts["above"][direction]["0.5"] - above) <= 1


def test_a_model_that_is_too_weak_for_the_guard_is_refused_before_it_mines(
    run: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.learning.false_negatives.Gaussians.usable", lambda _: False)
    monkeypatch.setattr("itrpipe.stages.mine_negatives._mined", lambda *_: pytest.fail("it mined"))
    outcome = run("mine-negatives", "--backbone", "vsepp", "--guard", "fne", *sets(*MINING))
    refused(outcome, 2, "leave --guard out")


AOQ = ["aoq-guarded.loss.top_texts=5", "aoq-guarded.loss.top_images=3"]
LISTS = ["mine_negatives.num_texts=5", "mine_negatives.num_images=3", "mine_negatives.guard_batch_size=4"]


def test_guarded_aoq_has_guarded_lists_made(chain: Path, run: Invoke) -> None:
    asked = sets(*FIRST_TRAINING, *AOQ, *LISTS)
    done(run("train", "--method", "aoq-guarded", "--backbone", "vsepp", *asked))
    trained = read_manifest(only(chain, "train/aoq-guarded.vsepp"))
    (lists,) = chain.glob(f"tiny/mine_negatives/{trained.inputs['mine_negatives'].name}")
    assert read_manifest(lists).settings["guard"] == "fne"
