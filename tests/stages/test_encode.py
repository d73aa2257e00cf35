"""A frozen encoder reads everything once, and trainings that read its vectors are those that ask it in every step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from itrpipe.storage.artifact import read_manifest
from itrpipe.training.saved import MODEL
from itrpipe.training.settings import TrainSettings
from tests.chains import Invoke, copied, done, goes_on, history, only, sets
from tests.conftest import TINY_AOQ, Outcome

HEADS = (
    "train.epochs=3",
    "train.batch_size=20",
    "train.min_word_count=1",
    "train.freeze=text",
    "train.learning_rate=1e-2",
)
HEADS += ("train.model.images=regions", "train.model.embed_dim=8")
MINED = (
    "--negatives",
    "mined,synthetic",
    "--weigh",
    "fne",
    "--set=contrastive.sentences=vse-c",
    "--set=vse-c.min_count=1",
)
METHODS = {
    "contrastive": (*MINED, *sets("contrastive.loss.top_texts=5", "contrastive.loss.min_count=0", *TINY_AOQ[2:])),
    "fne": sets("fne.loss.memory_size=24", "fne.loss.min_count=0"),
    "aoq": sets(*TINY_AOQ, "aoq.loss.sum_epochs=0"),
}


@pytest.fixture
def root(finished_chain: Path, tmp_path: Path) -> Path:
    return copied(finished_chain / "data", tmp_path / "data")


def train(invoke: Invoke, root: Path, text: Path, method: str, *more: str) -> Outcome:
    asked = ("--backbone", "dual-encoder", "--features", "precomp", "--text", text, *sets(*HEADS), *METHODS[method])
    return invoke("train", "--method", method, "--dataset", "tiny", "--data", root, *asked, *more)


def asked_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainSettings, "encoded_once", lambda _: {})


@pytest.mark.parametrize("method", METHODS)
def test_a_training_is_the_one_whose_encoder_reads_every_batch(
    method: str, root: Path, tmp_path: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copied(root, tmp_path / "other")
    label = f"{method}.dual-encoder"
    done(train(invoke, root, saved_encoders / "bert", method, "--set=encode.block=2"))
    asked_in_every_step(monkeypatch)
    done(train(invoke, other, saved_encoders / "bert", method))
    assert "frozen_text" in read_manifest(only(root, f"train/{label}")).inputs
    assert not list(other.glob("tiny/encode/*"))
    for found, expected in zip(history(root, label), history(other, label), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["val_rsum"] == expected["val_rsum"]
    weights = load_file(only(other, f"train/{label}") / MODEL)
    for name, found in load_file(only(root, f"train/{label}") / MODEL).items():
        np.testing.assert_allclose(found, weights[name], atol=1e-5, err_msg=name)


def test_another_training_of_the_same_encoder_asks_it_nothing(
    root: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(shutil.copytree(saved_encoders / "bert", root.parent / "bert"))
    done(train(invoke, root, text, "fne"))
    vectors = only(root, "encode/text")
    read: list[int] = []
    encode_texts: Any = Encoder.encode_texts

    def counted(self: Any, tokens: Any, *more: Any) -> Any:
        read.append(len(tokens))
        return encode_texts(self, tokens, *more)

    monkeypatch.setattr(Encoder, "encode_texts", counted)
    done(train(invoke, root, text, "fne", "--set=train.seed=1", "--set=train.model.dropout=0.1"))
    assert {*read} == {1}  # for the width of its vectors
    assert only(root, "encode/text") == vectors
    planned = done(train(invoke, root, text, "fne", "--set=train.model.max_words=3", "--dry-run"))
    assert "+ encode/text" in planned


def test_an_interrupted_training_goes_on_to_the_same_bytes(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    """FNE's copy of the model has the frozen weights of the model itself."""

    def run(each: Path) -> Outcome:
        return train(invoke, each, saved_encoders / "bert", "fne", "--set=train.checkpoint_seconds=0")

    goes_on(run, root, "fne.dual-encoder", 8, "epoch 3 after step 1")
