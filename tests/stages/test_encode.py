"""A frozen encoder reads everything once, and trainings that read its vectors are those that ask it in every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from itrpipe.encoders.encoder import Encoder
from itrpipe.methods.fne.method import FneMethod
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.recipe import CHECKPOINT
from itrpipe.training.saved import MODEL
from itrpipe.training.settings import TrainSettings
from tests.chains import Invoke, copied, done, goes_on, history, only, sets
from tests.conftest import TINY_AOQ, Outcome

HEADS = ("train.epochs=3", "train.batch_size=20", "train.min_word_count=1", "train.learning_rate=1e-2")
HEADS += ("train.model.embed_dim=8", "train.model.dropout=0.3")
REGIONS = ("--features", "precomp", *sets("train.model.images=regions", "train.freeze=text", "train.train_share=0.9"))
PHOTOGRAPHS = ("--vision", "{saved}/vit", "--set=train.model.normalisation=clip")
MINED = ("--negatives", "mined,synthetic", "--weigh", "fne", *sets("contrastive.sentences=vse-c", "vse-c.min_count=1"))
METHODS = {
    "contrastive": (
        *(*REGIONS, *MINED),
        *sets("contrastive.loss.top_texts=5", "contrastive.loss.min_count=0", *TINY_AOQ[2:]),
    ),
    "fne": (
        *(*PHOTOGRAPHS, *sets("fne.freeze=both", "fne.start_from=triplet")),
        *sets("fne.loss.memory_size=24", "fne.loss.min_count=0"),
    ),
    "aoq": (*PHOTOGRAPHS, *sets("train.freeze=both", *TINY_AOQ, "aoq.loss.sum_epochs=0")),
}
"""Methods that read lists, sentences, a copy of the model and encoders that another training has left."""


@pytest.fixture
def root(finished_chain: Path, tmp_path: Path) -> Path:
    return copied(finished_chain / "data", tmp_path / "data")


def train(invoke: Invoke, root: Path, saved: Path, method: str, *more: str) -> Outcome:
    asked = [each.replace("{saved}", str(saved)) for each in (*sets(*HEADS), *METHODS[method], *more)]
    where = ("--dataset", "tiny", "--data", root)
    return invoke("train", "--method", method, "--backbone", "dual-encoder", "--text", saved / "bert", *where, *asked)


def asked_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainSettings, "encoded_once", lambda _: {})


@pytest.mark.parametrize("method", METHODS)
def test_a_training_is_the_one_whose_encoder_reads_every_batch(
    method: str, root: Path, tmp_path: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copied(root, tmp_path / "other")
    label = f"{method}.dual-encoder"
    done(train(invoke, root, saved_encoders, method, "--set=encode.block=2"))
    asked_in_every_step(monkeypatch)
    done(train(invoke, other, saved_encoders, method))
    frozen = {name for name in read_manifest(only(root, f"train/{label}")).inputs if name.startswith("frozen_")}
    assert frozen == ({"frozen_text"} if method == "contrastive" else {"frozen_text", "frozen_vision"})
    assert not list(other.glob("tiny/encode/*"))
    for found, expected in zip(history(root, label), history(other, label), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["val_rsum"] == expected["val_rsum"]
    weights = load_file(only(other, f"train/{label}") / MODEL)
    for name, found in load_file(only(root, f"train/{label}") / MODEL).items():
        np.testing.assert_allclose(found, weights[name], atol=1e-5, err_msg=name)


def test_another_training_of_the_same_encoders_asks_them_nothing_and_keeps_no_second_copy(
    root: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(train(invoke, root, saved_encoders, "aoq"))
    read: list[int] = []

    def counted(encode: Any) -> Any:
        def encoded(self: Any, rows: Any, *more: Any) -> Any:
            read.append(len(rows))
            return encode(self, rows, *more)

        return encoded

    monkeypatch.setattr(Encoder, "encode_texts", counted(Encoder.encode_texts))
    monkeypatch.setattr(Encoder, "encode_images", counted(Encoder.encode_images))
    out = done(train(invoke, root, saved_encoders, "aoq", "--set=train.seed=1", "--set=train.train_share=0.9"))
    assert out.count("✓ encode/") == 2
    assert {*read} == {1}  # for the width of their vectors
    for side in ("vision", "text"):
        kept = [*root.glob(f"tiny/encode/{side}-*/encoder/{MODEL}"), *root.glob(f"tiny/train/aoq.*/{side}/{MODEL}")]
        assert (len(kept), len({path.stat().st_ino for path in kept})) == (3, 1)
    others = done(train(invoke, root, saved_encoders, "aoq", "--set=train.model.max_words=3", "--dry-run"))
    assert ("+ encode/text" in others, "✓ encode/vision" in others) == (True, True)


def test_random_changes_of_what_a_frozen_encoder_sees_are_refused(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    assert train(invoke, root, saved_encoders, "aoq", "--set=aoq.model.augment.flip=true", "--dry-run").code == 2


def test_an_interrupted_training_goes_on_to_the_same_bytes(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    """FNE's copy of the model has the frozen weights of the model itself; no checkpoint holds them."""

    def is_fne(trainer: Any) -> bool:
        checkpoint = trainer._work / CHECKPOINT
        held = load_file(checkpoint) if trainer._settings.frozen and checkpoint.exists() else {}
        assert not [name for name in held if ".network." in name]
        return isinstance(trainer._method, FneMethod)

    def run(each: Path) -> Outcome:
        return train(invoke, each, saved_encoders, "fne", "--set=train.checkpoint_seconds=0")

    goes_on(run, root, "fne.dual-encoder", 8, "epoch 3 after step 1", counts=is_fne)
