"""Pretraining and both phases of TAGS through the command line: what each starts from, reads, and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from itrpipe.cli.asked import run_stage
from itrpipe.features.embeddings import SCORES
from itrpipe.methods.pretrain.method import masked_word_logits
from itrpipe.methods.tags import method as tags
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.pipeline.planning import parse_override
from itrpipe.storage.artifact import read_manifest
from tests.chains import Invoke, copied, define_scenes, done, goes_on, history, only, same_files, sets
from tests.conftest import Outcome

SIZES = (
    "train.epochs=2",
    "train.batch_size=16",
    "train.min_word_count=1",
    "train.warmup_updates=2",
    "parse.workers=1",
)
MODEL = (
    "train.model.embed_dim=16",
    "train.model.layers=2",
    "train.model.heads=2",
    "train.model.feed_forward_dim=16",
)
SENTENCES = ("copies=4", "draws=5", "keep=6", "block=16")


def loss(method: str) -> list[str]:
    numbers = {"sampled_negatives": 9, "hard_negatives": 3, "copies": 4, "draws": 5, "keep": 3}
    return [f"{method}.loss.{name}={value}" for name, value in numbers.items()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with twelve training scenes and the models of pretraining and of the first phase; copy it."""
    root = define_scenes(tmp_path_factory.mktemp("tags") / "data")
    chosen = (*SIZES, *MODEL, *loss("tags"))
    run_stage(root, "scenes", "train", [parse_override(text) for text in chosen], conf="tags")
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(written, tmp_path / "data")


def train(invoke: Invoke, root: Path, method: str, *options: str) -> Outcome:
    before = loss("tags") if method == "tags-dc" else []
    chosen = (*SIZES, *MODEL, *before, *loss(method))
    return invoke("train", "--method", method, "--data", root, *sets(*chosen), *options)


def test_pretraining_and_the_first_phase_come_first(written: Path) -> None:
    first, second = (history(written, label) for label in ("pretrain.uniter", "tags.uniter"))
    assert {"loss_matching", "loss_words", "mean_matching_accuracy", "mean_masked_word_accuracy"} <= first[0].keys()
    losses = {name for name in second[0] if name.startswith("loss_")}
    assert losses == {"loss_text_anchored", "loss_image_anchored", "loss_words", "loss_sentences"}
    assert 0 < second[0]["mean_scored_sentences"] <= 20
    assert 0 < second[0]["mean_sentences"] <= 3
    assert 0 < first[0]["mean_matching_accuracy"] < 1
    assert sorted(read_manifest(only(written, "train/pretrain.uniter")).inputs) == ["extract", "prepare"]
    assert sorted(read_manifest(only(written, "train/tags.uniter")).inputs) == ["extract", "parse", "prepare", "start"]


def test_the_second_phase_starts_from_the_first_with_heads_that_are_copies(root: Path, invoke: Invoke) -> None:
    done(train(invoke, root, "tags-dc", *sets("tags-dc.learning_rate=1e-9")))
    before, after = (
        load_file(only(root, f"train/{each}.uniter") / "model.safetensors") for each in ("tags", "tags-dc")
    )
    for name, source in (
        ("rank.weight", "rank.weight"),
        ("text.word.weight", "text.word.weight"),
        ("word_match.weight", "match.weight"),
        ("correction.transform.weight", "masked_word.transform.weight"),
        ("correction.bias", "masked_word.bias"),
    ):
        torch.testing.assert_close(
            after[name], before[source], atol=1e-6, rtol=0, msg=lambda m, name=name: f"{name}{m}"
        )
    assert not torch.equal(before["rank.weight"], before["match.weight"][1:])
    assert not torch.equal(before["correction.bias"], before["masked_word.bias"])
    row, _ = history(root, "tags-dc.uniter")
    assert row["loss_discrimination"] > 0
    assert row["loss_correction"] > 0
    for name in ("correction_accuracy", "accuracy_of_right_words", "accuracy_of_wrong_words"):
        assert 0 <= row[f"mean_{name}"] <= 1


def test_words_are_tested_in_the_phrases_that_the_model_was_trained_on(
    root: Path, invoke: Invoke, saved_gpt2: Path
) -> None:
    chosen = sets(*SIZES, *MODEL, *loss("tags"), *loss("tags-dc"), "evaluate.bootstrap_samples=100")
    given = ("evaluate", "--method", "tags-dc", "--data", root, "--language-model", saved_gpt2, *chosen)
    out = done(invoke(*given))
    folder = only(root, "evaluate/tags-dc.uniter")
    figures = json.loads((folder / "words.json").read_text())
    assert figures["mask"] == "phrases"
    assert figures["correction_masked"]["words"] >= figures["correction"]["words"] > 0
    shown = [f"{each:.1f}" for each in (figures["correction"]["percent"], figures["fluency"]["corrected"])]
    for printed in (out, invoke(*given).out):  # the second time it is finished, and asked for again
        assert all(each in printed for each in shown)
    (graphs,) = root.glob("scenes/parse/*/")
    shutil.rmtree(folder)
    shutil.rmtree(graphs)
    done(invoke(*given))
    assert not (folder / "words.json").exists()
    (message,) = read_manifest(folder).messages
    assert message == f"words.json is left out: {graphs}, which the model was trained on, is not there"


def test_training_that_was_stopped_goes_on_to_the_same_weights(root: Path, invoke: Invoke) -> None:
    def run(each: Path) -> Outcome:
        return train(invoke, each, "tags-dc", *sets("train.checkpoint_seconds=0"))

    whole = goes_on(run, root, "tags-dc.uniter", 7, "epoch 2 after step 2")
    chosen = sets(*SIZES, *MODEL, *loss("tags"), *loss("tags-dc"), "evaluate.bootstrap_samples=100")
    for each in (root, whole):
        done(invoke("evaluate", "--method", "tags-dc", "--data", each, *chosen))
    same_files("evaluate/tags-dc.uniter", (root, whole), SCORES)


def test_the_static_generator_is_the_model_that_the_settings_name(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = set()

    def noted(model: UniterEncoder, *rest: Any) -> torch.Tensor:
        modes.add((model.training, model.rank.weight.requires_grad))
        return masked_word_logits(model, *rest)

    monkeypatch.setattr(tags, "masked_word_logits", noted)
    done(train(invoke, root, "tags-static"))
    assert modes == {(True, True), (False, False)}  # what is trained, and what writes
    inputs = read_manifest(only(root, "train/tags-static.uniter")).inputs
    assert {"start", "writer", "parse"} <= inputs.keys()
    assert "synthesize" not in inputs
    assert inputs["writer"].name.startswith("pretrain.uniter")
    first, _ = history(root, "tags-static.uniter")
    assert first["loss_sentences"] > 0
    assert first["loss_words"] > 0
    assert first["mean_masked_word_accuracy"] >= 0


def test_the_bank_and_other_models_read_written_sentences(root: Path, invoke: Invoke) -> None:
    write = sets(*(f"synthesize.{text}" for text in SENTENCES))
    done(train(invoke, root, "tags-synthetic", *write))
    inputs = read_manifest(only(root, "train/tags-synthetic.uniter")).inputs
    assert {"start", "synthesize"} <= inputs.keys()
    assert "parse" not in inputs
    first, _ = history(root, "tags-synthetic.uniter")
    assert first["loss_sentences"] > 0
    assert "loss_words" not in first
    assert 0 < first["mean_sentences"] <= 3
    chosen = (*SIZES, "synthetic-triplet.model.embed_dim=8", "synthetic-triplet.model.word_dim=8")
    model = [f"pretrain.{text.removeprefix('train.')}" for text in MODEL]
    given = ("--method", "synthetic-triplet", "--backbone", "vsepp", "--data", root)
    done(invoke("train", *given, *sets(*chosen, *model), *write))
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
