"""Pretraining and both phases of TAGS through the command line: what each starts from, reads, and writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from itrpipe.analysis.words import CORRECTION_SCHEMA
from itrpipe.methods.pretrain.method import masked_word_logits
from itrpipe.methods.tags import method as tags
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.storage.artifact import WORD_CORRECTIONS, WORDS, read_manifest
from tests.chains import FEW, ONCE, TAGS, UNITER, Invoke, copied, done, history, only, sets, tags_loss


@pytest.fixture
def root(tags_chain: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(tags_chain, tmp_path / "data")


def trained(invoke: Invoke, root: Path, method: str, *more: str) -> Path:
    phases = tags_loss("tags") if method == "tags-dc" else ()
    done(invoke("train", "--method", method, "--data", root, *sets(*UNITER, *phases, *tags_loss(method), *more)))
    return only(root, f"train/{method}.uniter")


def test_pretraining_and_the_first_phase_come_first(tags_chain: Path) -> None:
    first, second = (history(tags_chain, label)[0] for label in ("pretrain.uniter", "tags.uniter"))
    assert {"loss_matching", "loss_words", "mean_masked_word_accuracy"} <= first.keys()
    losses = {name for name in second if name.startswith("loss_")}
    assert losses == {"loss_text_anchored", "loss_image_anchored", "loss_words", "loss_sentences"}
    assert 0 < second["mean_scored_sentences"] <= 20
    assert 0 < second["mean_sentences"] <= 3
    assert 0 < first["mean_matching_accuracy"] < 1
    assert sorted(read_manifest(only(tags_chain, "train/pretrain.uniter")).inputs) == ["extract", "prepare"]
    assert sorted(read_manifest(only(tags_chain, "train/tags.uniter")).inputs) == [
        "extract",
        "parse",
        "prepare",
        "start",
    ]


def test_the_second_phase_starts_from_the_first_with_heads_that_are_copies(root: Path, invoke: Invoke) -> None:
    shutil.rmtree(only(root, "train/tags-dc.uniter"))
    after = load_file(trained(invoke, root, "tags-dc", "tags-dc.learning_rate=1e-9") / "model.safetensors")
    before = load_file(only(root, "train/tags.uniter") / "model.safetensors")
    for name, source in (
        ("rank.weight", "rank.weight"),
        ("text.word.weight", "text.word.weight"),
        ("word_match.weight", "match.weight"),
        ("correction.transform.weight", "masked_word.transform.weight"),
        ("correction.bias", "masked_word.bias"),
    ):
        torch.testing.assert_close(after[name], before[source], atol=1e-6, rtol=0)
    assert not torch.equal(before["rank.weight"], before["match.weight"][1:])
    assert not torch.equal(before["correction.bias"], before["masked_word.bias"])
    row, _ = history(root, "tags-dc.uniter")
    assert min(row["loss_discrimination"], row["loss_correction"]) > 0
    for name in ("correction_accuracy", "accuracy_of_right_words", "accuracy_of_wrong_words"):
        assert 0 <= row[f"mean_{name}"] <= 1


def test_words_are_tested_in_the_phrases_that_the_model_was_trained_on(
    root: Path, invoke: Invoke, saved_gpt2: Path
) -> None:
    plain = only(root, "evaluate/tags-dc.uniter")
    assert pq.read_table(plain / WORD_CORRECTIONS).schema.equals(CORRECTION_SCHEMA)
    shutil.rmtree(plain)
    given = ("evaluate", "--method", "tags-dc", "--data", root, "--language-model", saved_gpt2, *sets(*TAGS, FEW))
    out = done(invoke(*given))
    folder = only(root, "evaluate/tags-dc.uniter")
    figures = json.loads((folder / WORDS).read_text())
    assert (figures["captions"], figures["mask"]) == (20, "phrases")
    assert figures["correction_masked"]["words"] >= figures["correction"]["words"] > 0
    shown = [f"{each:.1f}" for each in (figures["correction"]["percent"], figures["fluency"]["corrected"])]
    assert all(each in out for each in shown)
    graphs = only(root, "parse/rules.hanta")
    shutil.rmtree(folder)
    shutil.rmtree(graphs)
    done(invoke(*given))
    assert not (folder / WORDS).exists()
    (message,) = read_manifest(folder).messages
    assert str(graphs) in message


def test_the_static_generator_is_the_model_that_the_settings_name(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = set()

    def noted(model: UniterEncoder, *rest: Any) -> torch.Tensor:
        modes.add((model.training, model.rank.weight.requires_grad))
        return masked_word_logits(model, *rest)

    monkeypatch.setattr(tags, "masked_word_logits", noted)
    inputs = read_manifest(trained(invoke, root, "tags-static")).inputs
    assert modes == {(True, True), (False, False)}  # what is trained, and what writes
    assert sorted(inputs) == ["extract", "parse", "prepare", "start", "writer"]
    assert inputs["writer"].name.startswith("pretrain.uniter")
    first, _ = history(root, "tags-static.uniter")
    assert min(first["loss_sentences"], first["loss_words"]) > 0
    assert first["mean_masked_word_accuracy"] >= 0


def test_the_bank_and_other_models_read_written_sentences(root: Path, invoke: Invoke) -> None:
    write = [f"synthesize.{text}" for text in ("copies=4", "draws=5", "keep=6", "block=16")]
    inputs = read_manifest(trained(invoke, root, "tags-synthetic", *write)).inputs
    assert {"start", "synthesize"} <= inputs.keys()
    assert "parse" not in inputs
    first, _ = history(root, "tags-synthetic.uniter")
    assert first["loss_sentences"] > 0
    assert "loss_words" not in first
    assert 0 < first["mean_sentences"] <= 3
    uniter = [f"pretrain.{text.removeprefix('train.')}" for text in UNITER if "parse" not in text]
    small = (*ONCE, "synthetic-triplet.model.embed_dim=8", "synthetic-triplet.model.word_dim=8", "parse.workers=1")
    given = ("--method", "synthetic-triplet", "--backbone", "vsepp", "--data", root)
    assert "+ train/pretrain" not in done(invoke("train", *given, *sets(*small, *uniter, *write)))
    assert history(root, "synthetic-triplet.vsepp")[0]["loss_synthetic"] > 0


@pytest.mark.parametrize(
    ("method", "backbone", "dataset", "expected"),
    [
        ("tags", "uniter", "flickr30k", (5e-5, 5000, 31, 0.1, 1e-3)),
        ("tags", "uniter-large", "flickr30k", (4e-5, 5000, 23, 0.1, 5e-4)),
        ("tags", "uniter", "coco", (5e-5, 5000, 31, 0.05, 1e-4)),
        ("tags", "uniter-large", "coco", (4e-5, 5000, 23, 0.05, 5e-4)),
        ("tags-dc", "uniter", "flickr30k", (1e-5, 1500, 31, 0.1, 1e-3, 1e-3, 1e-3)),
        ("tags-dc", "uniter-large", "flickr30k", (1e-5, 1500, 23, 0.1, 5e-4, 5e-4, 5e-4)),
        ("tags-dc", "uniter", "coco", (1e-5, 1500, 31, 0.05, 1e-4, 5e-4, 5e-4)),
        ("tags-dc", "uniter-large", "coco", (1e-5, 1500, 23, 0.05, 5e-4, 5e-4, 5e-4)),
    ],
)
def test_the_published_numbers_are_declared(
    invoke: Invoke, tmp_path: Path, method: str, backbone: str, dataset: str, expected: tuple[float, ...]
) -> None:
    shown = invoke("show", "train", method, "--backbone", backbone, "--dataset", dataset, "--data", tmp_path)
    values = {words[0]: words[1] for line in done(shown).splitlines() if len(words := line.split()) > 2}
    names = ["learning_rate", "max_updates", "loss.keep", "loss.weight_words", "loss.weight_sentences"]
    names += ["loss.weight_discrimination", "loss.weight_correction"][: len(expected) - 5]
    assert tuple(float(values[name]) for name in names) == expected
    assert int(values["batch_size"]) * int(values["accumulate"]) == 128
    assert (values["loss.copies"], values["loss.draws"], values["loss.temperature"]) == ("20", "20", "1.5")
