"""FNE through the command line: training, guarded lists, and what evaluation makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.learning.false_negatives import estimate_gaussians, probabilities
from itrpipe.mining.files import FILES, read_list
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES, read_manifest
from itrpipe.training.saved import load_model
from tests.chains import Invoke, done, history, made, only, refused, sets
from tests.conftest import TINY, TINY_AOQ

MINING = [*TINY[:-1], "num_texts=5", "num_images=3"]


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Invoke:
    """Runs a command for VSE++ on the dataset `tiny`."""

    def on_tiny(command: str, *arguments: object) -> Any:
        return invoke(command, "--backbone", "vsepp", *arguments, "--dataset", "tiny", "--data", chain)

    return on_tiny


def test_fne_trains_and_is_evaluated(fne_chain: Path) -> None:
    folder, rows = only(fne_chain, "train/fne.vsepp"), history(fne_chain, "fne.vsepp")
    assert [row["loss_fne"] is None for row in rows] == [True, False, False]
    assert rows[0]["loss_triplet"] > 0
    assert all(0 <= row["mean_hardest_text_share"] <= 1 for row in rows[1:])
    assert not any("twin" in name for name in load_model(folder).model.state_dict())
    evaluated = only(fne_chain, "evaluate/fne.vsepp")
    figures = json.loads((evaluated / FALSE_NEGATIVES).read_text())
    unknown = {"drawn": None, "hardest": None, "anchors": 32 * 16, "roc_area": None}
    assert figures["drawn"]["texts_for_images"] == unknown
    assert pq.read_table(evaluated / HARD_CANDIDATES).num_rows == 12 * 20 + 60 * 11
    assert {FALSE_NEGATIVES, HARD_CANDIDATES} <= read_manifest(evaluated).outputs.keys()
    assert not (only(fne_chain, "evaluate/triplet.vsepp") / FALSE_NEGATIVES).exists()


@pytest.mark.parametrize(("conf", "alike"), [("fne-paper", False), ("fne-memory-only", True), ("fne-neither", True)])
def test_every_configuration_trains(chain: Path, run: Invoke, conf: str, alike: bool) -> None:
    memory = () if conf == "fne-neither" else (f"{conf}.loss.memory_size=24",)
    done(run("train", "--method", conf, *sets("train.epochs=2", *TINY[1:-1], *memory)))
    _, last = history(chain, f"{conf}.vsepp")
    assert last["loss_fne"] > 0
    assert (last["mean_hardest_text_share"] == last["mean_hardest_image_share"] == 1) is alike


def test_the_guard_writes_the_probability_of_every_candidate(
    chain: Path, run: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = made(run("mine-negatives", *sets(*MINING)))
    guarded = made(run("mine-negatives", "--guard", "fne", *sets("guard_prior=0.2", "guard_batch_size=4", *MINING)))
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
        assert abs(facts["above"][direction]["0.5"] - above) <= 1
    # A model that is too weak is refused before it mines.
    monkeypatch.setattr("itrpipe.learning.false_negatives.Gaussians.usable", lambda _: False)
    monkeypatch.setattr("itrpipe.stages.mine_negatives._mined", lambda *_: pytest.fail("it mined"))
    refused(run("mine-negatives", "--guard", "fne", *sets(*MINING)), 2, "leave --guard out")


def test_guarded_aoq_has_guarded_lists_made(chain: Path, run: Invoke) -> None:
    lists = [text.replace("aoq.", "aoq-guarded.loss.") for text in TINY_AOQ]
    small = sets(*TINY[:-1], *lists, "mine_negatives.guard_batch_size=4")
    done(run("train", "--method", "aoq-guarded", *small))
    trained = read_manifest(only(chain, "train/aoq-guarded.vsepp"))
    mined = chain / "tiny" / "mine_negatives" / trained.inputs["mine_negatives"].name
    assert read_manifest(mined).settings["guard"] == "fne"
