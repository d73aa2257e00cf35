"""`itrpipe train --positives ascl`: every kind of backbone, exact resume, and what cannot be combined."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import UsageError
from itrpipe.training import loop
from itrpipe.training.captions import PieceIds, Reading, ends_of
from itrpipe.training.saved import CONFIG, MODEL

Invoke = Callable[..., Any]
ONCE = ["epochs=1", "batch_size=16", "min_word_count=1"]
NARROW = ["model.embed_dim=8", "model.word_dim=8"]
CAPTIONER = ["model.caption_dim=8", "model.caption_word_dim=8", "model.graph_layers=1"]
ENCODERS = [f"model.{text}" for text in ("image_size=[32, 32]", "width=16", "vision_layers=1", "text_layers=1")]
ENCODERS += ["model.vision=random", "model.text=random"]
PIXELS = ["pixels.height=32", "pixels.width=32", "extract.workers=0"]


def train(invoke: Invoke, root: Path, *options: object, sets: list[str]) -> Any:
    where = ("--dataset", "tiny", "--data", root)
    return invoke("train", "--positives", "ascl", *options, *where, *(f"--set={text}" for text in sets))


def folder_of(root: Path, backbone: str) -> Path:
    (folder,) = root.glob(f"tiny/train/positives-triplet.{backbone}-????????")
    return folder


def first_epoch(folder: Path) -> dict[str, Any]:
    return pq.read_table(folder / "history.parquet").to_pylist()[0]


@pytest.mark.parametrize(
    ("backbone", "sets"),
    [
        ("vsepp", NARROW),
        ("vsrn", NARROW + CAPTIONER),
        ("scan", NARROW),
        ("bfan", NARROW),
        ("dual-encoder", ENCODERS + PIXELS),
    ],
)
def test_backbones_of_every_kind_train_with_generated_positives(
    backbone: str, sets: list[str], defined: Path, invoke: Invoke
) -> None:
    outcome = train(invoke, defined, "--backbone", backbone, sets=[*ONCE, *sets])
    assert outcome.code == 0, outcome.err
    folder = folder_of(defined, backbone)
    assert json.loads((folder / CONFIG).read_text())["loss"]["generated_positives"] == "either"
    history = first_epoch(folder)
    terms = {"loss_triplet", "loss_positives"} | ({"loss_auxiliary"} if backbone == "vsrn" else set())
    assert {name for name in history if name.startswith("loss_")} == terms
    assert history["loss_positives"] > 0
    assert history["loss_positives"] != history["loss_triplet"]
    assert history["loss"] == pytest.approx(sum(history[name] for name in terms))


def test_joined_captions_stay_within_what_a_pretrained_encoder_reads(
    defined: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    # Its twenty positions hold a caption of the dataset, but not two.
    named = ["--vision", saved_encoders / "clip", "--text", saved_encoders / "clip"]
    sets = [*ONCE, *PIXELS, "loss.generated_positives=joined", "model.max_words=15"]
    outcome = train(invoke, defined, *named, sets=sets)
    assert outcome.code == 0, outcome.err
    assert first_epoch(folder_of(defined, "dual-encoder"))["loss_positives"] > 0


def test_an_interrupted_run_goes_on_to_the_same_weights(
    defined: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [*ONCE, *NARROW, "checkpoint_seconds=0"]
    other = Path(shutil.copytree(defined, tmp_path / "other"))
    assert train(invoke, other, "--backbone", "vsepp", sets=sets).code == 0
    steps, step = [0], loop.Trainer._step

    def interrupted(trainer: loop.Trainer, *arguments: Any) -> bool:
        steps[0] += 1
        if steps[0] == 3:
            raise KeyboardInterrupt
        return step(trainer, *arguments)

    with monkeypatch.context() as stopping:
        stopping.setattr(loop.Trainer, "_step", interrupted)
        assert train(invoke, defined, "--backbone", "vsepp", sets=sets).code == 130
    outcome = train(invoke, defined, "--backbone", "vsepp", sets=sets)
    assert outcome.code == 0, outcome.err
    assert "going on in epoch 1 after step 2" in outcome.out
    for name in (MODEL, "history.parquet"):
        found, expected = (folder_of(root, "vsepp") / name for root in (defined, other))
        assert found.read_bytes() == expected.read_bytes(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--method", "aoq"],
            "--positives ascl adds captions to --method triplet, not to aoq; --method ascl makes them",
        ),
        (["--method", "ascl"], "--positives ascl adds captions to --method triplet, not to ascl; --method ascl makes"),
        (["--negatives", "synthetic"], "for both give --positives ascl --set loss.synthetic_sentences=4"),
        (["--method", "synthetic-triplet"], "--positives ascl and --negatives synthetic are two configurations"),
        (["--positives", "longer"], "--positives longer: there are none of this name; known: ascl"),
    ],
)
def test_what_cannot_be_combined_is_told_in_one_line(
    options: list[str], message: str, defined: Path, invoke: Invoke
) -> None:
    outcome = train(invoke, defined, *options, sets=[])
    assert outcome.code == UsageError.exit_code
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_sentences_of_synthesize_are_planned_for_beside_generated_positives(defined: Path, invoke: Invoke) -> None:
    sets = ["loss.synthetic_sentences=4", "precomp.grid=[2,2]"]
    outcome = train(invoke, defined, "--backbone", "vsepp", "--dry-run", sets=sets)
    assert outcome.code == 0, outcome.err
    assert "synthesize/phrases" in outcome.out
    assert "train/positives-triplet.vsepp" in outcome.out


def test_ends_are_what_the_tokenizer_puts_around_words(saved_encoders: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    from itrpipe.models.text_tower import load_tokenizer

    folder = Path(shutil.copytree(saved_encoders / "siglip", tmp_path / "without-start"))
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])  # pyright: ignore
    made.save(str(folder / "tokenizer.json"))
    reading = Reading(cleaned=True, max_words=30)
    both, behind = (PieceIds(load_tokenizer(each), reading, 16) for each in (saved_encoders / "siglip", folder))
    assert (ends_of(both), ends_of(behind)) == ((1, 1), (0, 1))
    np.testing.assert_array_equal(behind.tokenizer("dog")["input_ids"], both.tokenizer("dog")["input_ids"][1:])
