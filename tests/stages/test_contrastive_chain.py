"""Dual encoders of photographs through the chain: pretrained CLIP and SigLIP, random ones, and all negatives."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.numpy import load_file

import itrpipe
from itrpipe.config import bind, load_declaration, resolve
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.contrastive.method import ContrastiveMethod
from itrpipe.mining import filters
from itrpipe.models.declaration import backbone_names
from itrpipe.models.dual_encoder.network import JOINT
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import Sources, open_split
from itrpipe.training.saved import MODEL, load_model
from itrpipe.training.settings import TrainSettings, cited
from tests.chains import CLIP, FEW, Invoke, copied, done, encoders_of, goes_on, history, only, refused, sets
from tests.conftest import TINY_AOQ, Outcome, TinySource
from tests.encoders import zoo

FIND = importlib.util.find_spec
SCALE = {"clip": 1 / np.exp(2.6592), "siglip": 1.0}
MINED = ["--negatives", "mined,synthetic", "--weigh", "fne"]
LISTS = ["mine_negatives.num_texts=5", "mine_negatives.num_images=3", "vse-c.min_count=1"]
LISTS += ["contrastive.loss.top_texts=5", "contrastive.loss.top_images=3"]
LISTS += ["contrastive.sentences=vse-c", "contrastive.loss.temperature=own"]
QUICK = ["train.learning_rate=1e-2", "train.warmup_updates=0"]
LORA = ["train.adapter=lora", "train.lora_rank=2", "train.lora_dropout=0.2"]
PART = [*LORA, "train.layer_decay=0.5", "train.average=wise-ft:0.5", "train.encode_chunk=7"]
"""What is trained in part, and averaged."""


@pytest.fixture
def root(clip_chain: Path, tmp_path: Path) -> Path:
    """A data folder with CLIP as it is; this test's own."""
    return copied(clip_chain, tmp_path / "data")


def where(root: Path, encoders: Path, *more: str, kind: str = "clip") -> list[object]:
    return ["--dataset", "tiny", "--data", root, *sets(*CLIP, *encoders_of(encoders, kind), *more)]


def tuned(invoke: Invoke, root: Path, encoders: Path, *more: str, kind: str = "clip") -> Path:
    method = f"{kind}-finetune"
    done(invoke("train", "--method", method, *where(root, encoders, *QUICK, *more, kind=kind)))
    return only(root, f"train/{method}.dual-encoder")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "objective"), [("clip", "infonce"), ("siglip", "sigmoid")])
def test_a_pretrained_model_is_evaluated_mined_with_and_fine_tuned_with_all_negatives(
    kind: str, objective: str, root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    if kind == "siglip":
        shutil.rmtree(root / "tiny" / "train")
        shutil.rmtree(root / "tiny" / "evaluate")
    done(invoke("evaluate", "--method", "zero-shot", *where(root, saved_encoders, FEW, kind=kind)))
    assert [(row["epoch"], row["steps"]) for row in history(root, "zero-shot.dual-encoder")] == [(0, 0)]
    again = where(root, saved_encoders, "train.learning_rate=0.5", "train.schedule=cosine", kind=kind)
    assert "up to date" in done(invoke("train", "--method", "zero-shot", *again, "--dry-run"))  # nothing is trained

    chosen = [*LISTS, *(["contrastive.loss.bias=own"] if objective == "sigmoid" else []), "train.learning_rate=1e-4"]
    given = ["--method", "contrastive", "--backbone", "dual-encoder"]
    asked = [*MINED, "--objective", objective, "--negatives-from", "zero-shot"]
    out = done(invoke("train", *given, *asked, *where(root, saved_encoders, *chosen, kind=kind)))
    assert "✓ train/zero-shot.dual-encoder" in out
    folder = only(root, "train/contrastive.dual-encoder")
    assert only(root, "mine_negatives/exact.zero-shot.dual-encoder")
    assert {*read_manifest(folder).inputs} >= {"mine_negatives", "synthesize"}
    first = history(root, "contrastive.dual-encoder")[0]
    assert first["mean_temperature"] == pytest.approx(SCALE[kind], rel=0.01)
    assert {"mean_retained", "mean_text_candidates", "loss_contrastive"} <= first.keys()
    assert ("mean_bias" in first) is (objective == "sigmoid")
    combined = ['negatives=["mined","synthetic"]', "weigh=fne", "teacher=zero-shot", f"objective={objective}"]
    settings = [f"contrastive.loss.{each}" for each in combined]
    asked = [*given, *where(root, saved_encoders, *chosen, *settings, FEW, kind=kind)]
    assert f"✓ train/{folder.name}" in done(invoke("evaluate", *asked))
    out = done(invoke("report", "--dataset", "tiny", "--data", root))
    assert {"infonce": "InfoNCE, mined", "sigmoid": "sigmoid loss, mined"}[objective] in out


def test_an_interrupted_run_goes_on_to_the_same_weights(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    chosen = [*LISTS, "train.checkpoint_seconds=0", "contrastive.loss.min_count=0", "train.learning_rate=1e-3"]
    given = ["--method", "contrastive", "--backbone", "dual-encoder", *MINED, "--batches", "neighbours"]

    def run(each: Path) -> Outcome:
        return invoke("train", *given, *where(each, saved_encoders, *chosen))

    def trains_with_lists(trainer: Any) -> bool:
        return isinstance(trainer._method, ContrastiveMethod)

    goes_on(run, root, "contrastive.dual-encoder", 5, "epoch 2 after step 1", counts=trains_with_lists)


# Fine-tuning


def test_presets_train_from_published_encoders(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    kind = "siglip"
    folder = tuned(invoke, root, saved_encoders, kind=kind)
    settings = read_manifest(folder).settings
    assert (settings["schedule"], settings["optimizer"]) == ("cosine", f"adamw-{kind}")
    first = history(root, f"{kind}-finetune.dual-encoder")[0]
    assert first["mean_temperature"] == pytest.approx(SCALE[kind], rel=0.05)
    resolved = resolve(
        load_declaration("train"), f"{kind}-finetune", backbones=backbone_names(), backbone="dual-encoder"
    )
    declared = bind(TrainSettings, resolved, "train")
    assert declared.model.pretrained().keys() == {"vision", "text"}
    assert not declared.model.untrained()


def test_captions_that_say_the_same_are_no_negatives(
    root: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "plain_text", lambda _: "a dog")

    def loss(keep: str) -> float:
        tuned(invoke, root, saved_encoders, f"clip-finetune.loss.drop_duplicates={keep}")
        found = history(root, "clip-finetune.dual-encoder")[-1]["loss"]
        shutil.rmtree(only(root, "train/clip-finetune.dual-encoder"))
        return found

    assert (loss("true"), loss("false") > 1) == (pytest.approx(0, abs=1e-6), True)


def test_ways_of_training_are_cited() -> None:
    assert cited({"adapter": "none", "freeze": "text", "average": "ema:0.9"}) == ()
    every = {"adapter": "lora", "freeze": "vision", "average": "wise-ft:0.5"}
    assert [paper.key for paper in cited(every)] == ["hu2022lora", "zhai2022lit", "wortsman2022wiseft"]


def test_adapters_leave_a_plain_model_that_needs_no_peft_and_are_kept_for_peft(
    root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_file(only(root, "train/zero-shot.dual-encoder") / JOINT / MODEL)
    frozen = [*LORA, "train.freeze=vision"]
    folder = tuned(invoke, root, saved_encoders, *frozen)
    after = load_file(folder / JOINT / MODEL)
    assert after.keys() == before.keys()
    moved = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    adapted = {name for name in after if name.startswith("text_") and ("q_proj.w" in name or "v_proj.w" in name)}
    assert moved == {*adapted, "logit_scale"}
    assert 0 < read_manifest(folder).metrics["trained_weights"] < sum(value.size for value in after.values()) / 20
    given = ("--method", "clip-finetune")
    chosen = [*given, *where(root, saved_encoders, *QUICK, *frozen, FEW)]
    done(invoke("export", *chosen, "--make", "--to", tmp_path / "exported", "--adapter"))
    base = transformers.AutoModel.from_pretrained(saved_encoders / "clip")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "exported" / "adapter").eval()
    ours = transformers.AutoModel.from_pretrained(tmp_path / "exported").eval()
    tokens = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        vectors = [model.get_text_features(input_ids=tokens).pooler_output for model in (theirs, ours)]
    torch.testing.assert_close(vectors[0], vectors[1], rtol=0, atol=1e-5)
    monkeypatch.setitem(sys.modules, "peft", None)  # an import of it would fail
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else FIND(name, *more))
    assert "✓ train/" in done(invoke("evaluate", *chosen))
    refused(invoke("train", *given, *where(root, saved_encoders, *QUICK, *LORA, "train.seed=1")), 2, "itrpipe[lora]")


def test_interpolated_weights_lie_between_zero_shot_and_fine_tuned(
    root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    before = load_file(only(root, "train/zero-shot.dual-encoder") / JOINT / MODEL)

    def weights(name: str, *more: str) -> dict[str, np.ndarray]:
        each = copied(root, tmp_path / name)
        # One epoch, so that all choose it.
        return load_file(tuned(invoke, each, saved_encoders, "clip-finetune.epochs=1", *more) / JOINT / MODEL)

    plain, half, none = (weights("plain"), *(weights(each, f"train.average=wise-ft:{each}") for each in ("0.5", "0")))
    for name, found in half.items():
        if name == "logit_scale":  # that of training
            continue
        np.testing.assert_allclose(found, 0.5 * before[name] + 0.5 * plain[name], atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(none[name], before[name], err_msg=name)


def test_interrupted_fine_tuning_goes_on_to_the_same_bytes(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    def run(each: Path) -> Outcome:
        given = where(each, saved_encoders, *QUICK, *PART, "train.checkpoint_seconds=0")
        return invoke("train", "--method", "clip-finetune", *given)

    goes_on(run, root, "clip-finetune.dual-encoder", 5, "epoch 2 after step 1")


# Encoders of any kind


BATCHES = ["train.batch_size=20", "train.min_word_count=1"]
ONE = "train.epochs=1"
RANDOM = ["image_size=[32, 32]", "width=16", "vision_layers=1", "text_layers=1", "vision=random", "text=random"]


def train_encoders(invoke: Invoke, root: Path, *options: object, small: list[str]) -> Outcome:
    given = [*BATCHES, *small]
    return invoke("train", "--backbone", "dual-encoder", "--dataset", "tiny", "--data", root, *options, *sets(*given))


def random_encoders(*more: str) -> list[str]:
    chosen = dict(text.split("=", 1) for text in (*RANDOM, *more))
    return [f"train.model.{name}={value}" for name, value in chosen.items()]


def embedded_again(root: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of the validation split by the model that the folder holds."""
    saved = load_model(folder)
    split = PreparedDataset.open(only(root, "prepare/files")).split("val")
    sources = Sources(only(root, "prepare/files"))
    data = open_split(split, sources.images(split), saved.tokens, saved.settings, saved.images)
    with torch.inference_mode():
        images = saved.model.encode_images(data.images(np.arange(data.num_images))).embedding
        texts = saved.model.encode_texts(data.texts(np.arange(data.num_captions))).embedding
    return images.numpy(), texts.numpy()


def test_both_rounds_from_random_encoders_without_features(defined: Path, invoke: Invoke) -> None:
    small = [*random_encoders(), *TINY_AOQ, ONE, "aoq.loss.sum_epochs=0"]
    said = done(train_encoders(invoke, defined, "--method", "aoq", small=small))
    assert re.search(r"waited \d+\.\d s for data, \d+% of the time", said)
    assert not list(defined.glob("tiny/extract/[!.]*"))
    folder = only(defined, "train/aoq.dual-encoder")
    written = read_embeddings(folder / "embeddings.h5", "val")
    images, texts = embedded_again(defined, folder)
    np.testing.assert_allclose(images, written.images, atol=1e-3)  # stored in half precision
    np.testing.assert_allclose(texts, written.texts, atol=1e-3)
    given = ["--dataset", "tiny", "--data", defined]
    small = [*BATCHES, *small, FEW]
    out = done(invoke("evaluate", "--method", "aoq", "--backbone", "dual-encoder", *given, *sets(*small)))
    assert "✓ train/aoq.dual-encoder" in out
    assert only(defined, "train/triplet.dual-encoder")


def test_training_and_evaluation_say_how_much_of_the_captions_is_not_read(
    defined: Path, invoke: Invoke, precomp_dataset: TinySource
) -> None:
    """Test captions have words that training has never seen."""
    content = json.loads(precomp_dataset.captions.read_text())
    for image in content["images"]:
        for sentence in image["sentences"] if image["split"] == "test" else ():
            sentence["raw"] = re.sub(r"\b(?=\w)", "zz", sentence["raw"])
    precomp_dataset.captions.write_text(json.dumps(content))
    small = sets(*BATCHES, *random_encoders("max_words=2"), ONE)
    done(invoke("evaluate", "--backbone", "dual-encoder", "--dataset", "tiny", "--data", defined, *small))
    trained, evaluated = (only(defined, f"{stage}/triplet.dual-encoder") for stage in ("train", "evaluate"))
    said = [*read_manifest(trained).messages, *read_manifest(evaluated).messages]
    (line,) = [each for each in said if "2 words that the model reads" in each]
    assert all(f" {split} captions" in line for split in ("train", "val", "test"))
    metrics = read_manifest(trained).metrics
    assert [metrics[f"unknown_percent_of_{split}_words"] for split in ("val", "test")] == [0, 100]
    for folder in (trained, evaluated):
        assert any("100 % of the words of test captions" in line for line in read_manifest(folder).messages)


def test_pretrained_encoders_in_folders_are_loaded_and_the_trained_model_needs_them_no_more(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    root = copied(saved_encoders, tmp_path / "encoders")
    named = ["--vision", root / "vit", "--text", root / "bert"]
    done(train_encoders(invoke, defined, *named, small=[ONE, "train.learning_rate=1e-9"]))
    folder = only(defined, "train/triplet.dual-encoder")
    for name, side in (("vit", "vision"), ("bert", "text")):
        after = load_file(folder / side / MODEL)
        for key, value in load_file(root / name / MODEL).items():
            np.testing.assert_allclose(after[key], value, atol=1e-6, err_msg=key)
    images, texts = embedded_again(defined, folder)
    shutil.rmtree(root)
    again = embedded_again(defined, folder)
    assert np.array_equal(images, again[0])
    assert np.array_equal(texts, again[1])
    assert not any(str(root) in path.read_text() for path in folder.glob("*/*.json"))


def test_a_convolutional_network_and_a_text_encoder_are_trained_as_one(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    cnn = zoo.save("mobilenet_v2", tmp_path / "cnn")
    named = ["--method", "contrastive", "--vision", cnn, "--text", saved_encoders / "bert"]
    done(train_encoders(invoke, defined, *named, small=[ONE, "train.model.embed_dim=8"]))
    folder = only(defined, "train/contrastive.dual-encoder")
    written = read_embeddings(folder / "embeddings.h5", "val")
    shutil.rmtree(cnn)
    images, texts = embedded_again(defined, folder)
    np.testing.assert_allclose(images, written.images, atol=1e-3)  # stored in half precision
    np.testing.assert_allclose(texts, written.texts, atol=1e-3)
    assert images.std(axis=0).max() > 0.01


def test_encoders_in_folders_count_by_content_and_not_by_place(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    def plan(root: Path, *more: str) -> str:
        named = ["--vision", root / "vit", "--text", root / "bert", "--dry-run"]
        out = done(train_encoders(invoke, defined, *named, small=[*more]))
        (line,) = [line for line in out.splitlines() if "train/triplet" in line]
        return line.split()[1]

    first = plan(saved_encoders)
    moved = copied(saved_encoders, tmp_path / "moved")
    assert plan(moved) == first
    assert plan(moved, "train.model.augment.flip=false") != first
    config = moved / "bert" / "config.json"
    config.write_text(config.read_text() + "\n")
    assert plan(moved) != first


def test_naming_an_encoder_chooses_the_backbone_for_every_training_step(defined: Path, invoke: Invoke) -> None:
    named = ["--vision", "random", "--text", "random", "--dataset", "tiny", "--data", defined, "--dry-run"]
    plan = done(invoke("train", "--method", "aoq", *named))
    assert "train/aoq.dual-encoder-" in plan
    other = done(invoke("train", "--method", "aoq", *named, "--set", "train.model.width=256"))
    rounds = [{line.split()[1] for line in each.splitlines() if " train/" in line} for each in (plan, other)]
    assert len(rounds[0] | rounds[1]) == 4  # both trainings have other encoders


def test_region_tokens_with_their_boxes_are_trained_and_loaded(defined: Path, invoke: Invoke) -> None:
    sizes = [f"train.model.{each}" for each in RANDOM if not each.startswith(("image_size", "vision="))]
    small = [*sizes, "train.model.images=region-tokens", "train.model.image_pool=cls", "precomp.grid=[2,2]", ONE]
    done(train_encoders(invoke, defined, "--features", "precomp", small=small))
    folder = only(defined, "train/triplet.dual-encoder")
    names = load_file(folder / MODEL)
    assert {"sides.vision.start", "sides.vision.embedding.box.weight"} <= names.keys()
    assert "project_images.weight" not in names
    (features,) = defined.glob(f"tiny/extract/*/{FEATURES}")
    written = read_embeddings(folder / "embeddings.h5", "val")
    rows = FeatureFile.open(features).rows(written.image_ids.tolist())
    found = itrpipe.load(folder, device="cpu").encode_images(features)[rows]
    np.testing.assert_allclose(found, written.images, atol=1e-6)
