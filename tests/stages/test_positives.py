"""`itrpipe train --positives ascl`: backbones of every kind, and what encoders read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from itrpipe.training.captions import PieceIds, Reading, ends_of
from itrpipe.training.saved import CONFIG
from tests.chains import ONCE, Invoke, copied, done, history, only, sets
from tests.conftest import Outcome

NARROW = ["model.embed_dim=8", "model.word_dim=8"]
CAPTIONER = ["model.caption_dim=8", "model.caption_word_dim=8", "model.graph_layers=1"]


def train(invoke: Invoke, root: Path, *options: object, small: list[str]) -> Outcome:
    return invoke("train", "--positives", "ascl", *options, "--dataset", "tiny", "--data", root, *sets(*small))


@pytest.mark.parametrize(("backbone", "small"), [("vsrn", NARROW + CAPTIONER), ("bfan", NARROW)])
def test_backbones_of_every_kind_train_with_generated_positives(
    backbone: str, small: list[str], defined: Path, invoke: Invoke
) -> None:
    done(train(invoke, defined, "--backbone", backbone, small=[*ONCE, *small]))
    label = f"positives-triplet.{backbone}"
    config = json.loads((only(defined, f"train/{label}") / CONFIG).read_text())
    assert config["loss"]["generated_positives"] == "either"
    first = history(defined, label)[0]
    terms = {"loss_triplet", "loss_positives"} | ({"loss_auxiliary"} if backbone == "vsrn" else set())
    assert {name for name in first if name.startswith("loss_")} == terms
    assert first["loss_positives"] > 0
    assert first["loss_positives"] != first["loss_triplet"]
    assert first["loss"] == pytest.approx(sum(first[name] for name in terms))


def test_joined_captions_stay_within_what_a_pretrained_encoder_reads(
    defined: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    # Its twenty positions hold a caption of the dataset, but not two.
    named = ["--vision", saved_encoders / "clip", "--text", saved_encoders / "clip"]
    pixels = ["pixels.height=32", "pixels.width=32", "extract.workers=0"]
    small = [*ONCE, *pixels, "loss.generated_positives=joined", "model.max_words=15"]
    done(train(invoke, defined, *named, small=small))
    assert history(defined, "positives-triplet.dual-encoder")[0]["loss_positives"] > 0


def test_ends_are_what_the_tokenizer_puts_around_words(saved_encoders: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    from itrpipe.models.dual_encoder.network import load_tokenizer

    folder = copied(saved_encoders / "siglip", tmp_path / "without-start")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])  # pyright: ignore
    made.save(str(folder / "tokenizer.json"))
    reading = Reading(cleaned=True, max_words=30)
    both, behind = (PieceIds(load_tokenizer(each), reading, 16) for each in (saved_encoders / "siglip", folder))
    assert (ends_of(both), ends_of(behind)) == ((1, 1), (0, 1))
    np.testing.assert_array_equal(behind.tokenizer("dog")["input_ids"], both.tokenizer("dog")["input_ids"][1:])
