"""The dual encoder through the chain: pixels, both trainings, evaluation, encoders in folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import itrpipe
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import open_encoders
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import open_split
from itrpipe.training.saved import CONFIG, MODEL, load_model
from tests.chains import FEW, Invoke, copied, done, only, sets
from tests.conftest import TINY_AOQ, Outcome

SMALL = ["train.batch_size=20", "train.min_word_count=1"]
ONE = "train.epochs=1"
PIXELS = ["pixels.height=32", "pixels.width=32", "extract.workers=0"]
RANDOM = ["image_size=[32, 32]", "width=16", "vision_layers=1", "text_layers=1", "vision=random", "text=random"]


def train(invoke: Invoke, root: Path, *options: object, small: list[str]) -> Outcome:
    given = [*SMALL, *([] if "--features" in options else PIXELS), *small]
    return invoke("train", "--backbone", "dual-encoder", "--dataset", "tiny", "--data", root, *options, *sets(*given))


def random_encoders(*more: str) -> list[str]:
    chosen = dict(text.split("=", 1) for text in (*RANDOM, *more))
    return [f"train.model.{name}={value}" for name, value in chosen.items()]


def embedded_again(root: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of the validation split by the model that the folder holds."""
    saved = load_model(folder)
    split = PreparedDataset.open(only(root, "prepare/files")).split("val")
    features = FeatureFile.open(only(root, "extract/pixels") / FEATURES)
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    with torch.inference_mode():
        images = saved.model.encode_images(data.images(np.arange(data.num_images))).embedding
        texts = saved.model.encode_texts(data.texts(np.arange(data.num_captions))).embedding
    return images.numpy(), texts.numpy()


def test_both_rounds_from_random_encoders_with_pixels_that_nobody_asked_for(defined: Path, invoke: Invoke) -> None:
    small = [*random_encoders(), *TINY_AOQ, ONE, "aoq.loss.sum_epochs=0"]
    done(train(invoke, defined, "--method", "aoq", small=small))
    (extracted,) = defined.glob("tiny/extract/[!.]*")
    assert read_manifest(extracted).settings == {"kind": "pixels", "height": 32, "width": 32, "fit": "stretch"}
    folder = only(defined, "train/aoq.dual-encoder")
    written = read_embeddings(folder / "embeddings.h5", "val")
    images, texts = embedded_again(defined, folder)
    np.testing.assert_allclose(images, written.images, atol=1e-3)  # stored in half precision
    np.testing.assert_allclose(texts, written.texts, atol=1e-3)
    where = ["--dataset", "tiny", "--data", defined]
    small = [*SMALL, *PIXELS, *small, FEW]
    out = done(invoke("evaluate", "--method", "aoq", "--backbone", "dual-encoder", *where, *sets(*small)))
    assert "✓ train/aoq.dual-encoder" in out
    assert only(defined, "train/triplet.dual-encoder")


def test_training_and_evaluation_say_how_many_captions_are_longer_than_is_read(defined: Path, invoke: Invoke) -> None:
    small = sets(*SMALL, *PIXELS, *random_encoders("max_words=2"), ONE)
    done(invoke("evaluate", "--backbone", "dual-encoder", "--dataset", "tiny", "--data", defined, *small))
    trained, evaluated = (only(defined, f"{stage}/triplet.dual-encoder") for stage in ("train", "evaluate"))
    said = {
        name: [line for line in read_manifest(folder).messages if "2 words that the model reads" in line]
        for name, folder in (("training", trained), ("test", evaluated))
    }
    assert [line.split("captions")[0].split()[-1] for lines in said.values() for line in lines] == list(said)
    assert read_manifest(trained).metrics["cut_captions"].keys() == {"train", "val", "test"}


def test_pretrained_encoders_in_folders_are_loaded_and_the_trained_model_needs_them_no_more(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    root = copied(saved_encoders, tmp_path / "encoders")
    named = ["--vision", root / "vit", "--text", root / "bert"]
    done(train(invoke, defined, *named, small=[ONE, "train.learning_rate=1e-9"]))
    folder = only(defined, "train/triplet.dual-encoder")
    after = load_file(folder / MODEL)
    encoders = open_encoders(DualEncoder(vision=str(root / "vit"), text=str(root / "bert")))
    assert encoders.vision is not None
    assert encoders.text is not None
    before = {"vision": encoders.vision.state_dict(), "text": encoders.text.state_dict()}
    for name, value in ((f"{side}.{name}", value) for side, state in before.items() for name, value in state.items()):
        np.testing.assert_allclose(after[name], value, atol=1e-6, err_msg=name)
    images, texts = embedded_again(defined, folder)
    shutil.rmtree(root)
    again = embedded_again(defined, folder)
    assert np.array_equal(images, again[0])
    assert np.array_equal(texts, again[1])
    assert str(tmp_path) not in json.dumps(json.loads((folder / CONFIG).read_text())["networks"])


def test_encoders_in_folders_count_by_content_and_not_by_place(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    def plan(root: Path, *more: str) -> str:
        named = ["--vision", root / "vit", "--text", root / "bert", "--dry-run"]
        out = done(train(invoke, defined, *named, small=[*more]))
        (line,) = [line for line in out.splitlines() if "train/triplet" in line]
        return line.split()[1]

    first = plan(saved_encoders)
    moved = copied(saved_encoders, tmp_path / "moved")
    assert plan(moved) == first
    assert plan(moved, "train.model.augment=none") != first
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
    small = [*random_encoders("images=region-tokens", "image_pool=cls"), "precomp.grid=[2,2]", ONE]
    done(train(invoke, defined, "--features", "precomp", small=small))
    folder = only(defined, "train/triplet.dual-encoder")
    names = load_file(folder / MODEL)
    assert {"vision.start", "vision.embedding.box.weight"} <= names.keys()
    assert "project_images.weight" not in names
    (features,) = defined.glob(f"tiny/extract/*/{FEATURES}")
    written = read_embeddings(folder / "embeddings.h5", "val")
    assert not list(defined.glob("tiny/extract/pixels-*"))
    rows = FeatureFile.open(features).rows(written.image_ids.tolist())
    found = itrpipe.load(folder, device="cpu").encode_images(features)[rows]
    np.testing.assert_allclose(found, written.images, atol=1e-6)


@pytest.mark.usefixtures("any_hub")
def test_pixels_do_not_make_the_choice_of_features_ambiguous(defined: Path, invoke: Invoke) -> None:
    where = ["--dataset", "tiny", "--data", defined]
    done(invoke("extract", "--features", "pixels", *where, *sets("height=32", "width=32", "workers=0")))
    assert "extract/precomp-" in done(invoke("train", "--backbone", "vsepp", *where, "--dry-run"))
    assert "✓ extract/pixels-" in done(invoke("train", "--backbone", "dual-encoder", *where, "--dry-run"))
