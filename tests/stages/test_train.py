"""`itrpipe train`: runs that start from trained weights, and models read back from their files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from itrpipe.config import bind, load_declaration, resolve
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import SPECIALS
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.features.embeddings import EMBEDDINGS, SCORES, read_embeddings
from itrpipe.mining.files import read_list
from itrpipe.models.base import TextBatch
from itrpipe.pipeline.costs import cost_of, earlier_artifacts
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.stages.base import Need
from itrpipe.stages.train import Train
from itrpipe.storage.artifact import MANIFEST, Manifest, read_manifest
from itrpipe.training.encoding import Encoding
from itrpipe.training.saved import CONFIG, MODEL, load_model, start_from
from itrpipe.training.settings import TrainSettings, backbones, newer_defaults
from tests.chains import Invoke, copied, done, interrupted, only, refused, same_files, sets
from tests.conftest import TINY, TINY_AOQ, Outcome

LISTS = [text.removeprefix("aoq.") for text in TINY_AOQ]


def train(invoke: Invoke, root: Path, *more: str, options: tuple[object, ...] = ()) -> Outcome:
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", root)
    return invoke("train", *where, *options, *sets(*TINY[:-1], *more))


def trained_with(root: Path, **chosen: object) -> tuple[Path, Manifest]:
    """The one training of VSE++ with these settings."""
    found = [(folder, read_manifest(folder)) for folder in root.glob("tiny/train/triplet.vsepp*")]
    (one,) = [each for each in found if {key: each[1].settings[key] for key in chosen} == chosen]
    return one


def fine_tune(invoke: Invoke, root: Path, *more: str) -> Outcome:
    return train(invoke, root, *LISTS, *more, options=("--method", "aoq-fine-tune"))


def test_fine_tuning_starts_from_the_weights_of_round_one(chain: Path, invoke: Invoke) -> None:
    assert "✓ train/triplet.vsepp" in done(fine_tune(invoke, chain, "aoq-fine-tune.learning_rate=1e-9"))
    methods = ("triplet", "aoq-fine-tune", "aoq")
    before, after, scratch = (load_file(only(chain, f"train/{each}.vsepp") / MODEL) for each in methods)
    assert before.keys() == after.keys()
    for name, weights in before.items():
        np.testing.assert_allclose(after[name], weights, atol=1e-6, err_msg=name)
    assert max(np.abs(scratch[name] - before[name]).max() for name in before) > 1e-4
    refused(fine_tune(invoke, chain, "aoq-fine-tune.model.embed_dim=9"), 2, "embed_dim = 8", "embed_dim = 9")


def test_a_saved_model_gives_the_embeddings_that_training_wrote_and_damaged_ones_are_not_used(
    finished_chain: Path, tmp_path: Path
) -> None:
    folder = copied(only(finished_chain / "data", "train/triplet.vsepp"), tmp_path / "model")
    (folder / MANIFEST).unlink()  # its files may be changed, as those of an exported model
    saved, written = load_model(folder), read_embeddings(folder / EMBEDDINGS, "val")
    words = ["a", "horse", "number", "12", "is", "on", "the", "road", "0", "."]
    tokens = torch.tensor([[1, *(saved.vocabulary.ids[word] for word in words), 2]])
    with torch.inference_mode():
        embedding = saved.model.encode_texts(TextBatch(tokens, torch.tensor([tokens.shape[1]]))).embedding
    assert np.abs(written.texts - embedding.numpy()).max(axis=1).min() < 1e-3  # stored in half precision
    assert not saved.model.training
    state, config = load_file(folder / MODEL), (folder / CONFIG).read_text()
    name = next(iter(state))
    state[name][...] = np.nan
    save_file(state, folder / MODEL, {"format": "pt"})
    with pytest.raises(DataError, match=f"'{re.escape(name)}'.* no finite numbers"):
        load_model(folder)
    with pytest.raises(DataError, match=f"'{re.escape(name)}'.* no finite numbers"):
        start_from(folder, saved.model, saved.config, saved.tokens)
    (folder / CONFIG).write_text(config.replace('"vocabulary_size": ', '"vocabulary_size": 1'))
    with pytest.raises(DataError, match=r"config\.json and vocab\.json do not belong together"):
        load_model(folder)


def test_embeddings_are_the_same_bytes_whatever_was_made_before(chain: Path, tmp_path: Path, invoke: Invoke) -> None:
    root = copied(chain, tmp_path / "killed")
    shutil.rmtree(only(root, "train/triplet.vsepp"))
    with interrupted(3, Encoding, "make") as first:
        assert train(invoke, root).code == 130
    with interrupted(99, Encoding, "make") as others:
        done(train(invoke, root))
    # Both sides of three splits, none of them twice.
    found = [part for _, part, _ in (*first, *others)]
    assert sorted(part.name for part in found) == [f"{number:06}" for number in range(6)]
    assert all(part.rows == len(part.content[2]) for part in found)
    same_files("train/triplet.vsepp", (root, chain), EMBEDDINGS)
    assert not (only(root, "train/triplet.vsepp") / SCORES).exists()


def test_a_training_that_patience_ends_says_so_and_counts_the_epochs_that_it_had(chain: Path, invoke: Invoke) -> None:
    small = [*TINY[1:-1], "train.learning_rate=1e-12", "train.patience=1"]
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain)
    done(invoke("train", *where, *sets(*small, "train.epochs=5", "seed=4")))
    manifest = read_manifest(only(chain, "train/triplet.vsepp.s4"))
    assert manifest.metrics["epochs"] == 2
    assert manifest.messages == ["ended after 2 epochs: validation has been flat for 1"]
    longer = [parse_override(text) for text in (*small, "backbone=vsepp", "train.epochs=4")]
    step = Planner(chain, "tiny", longer).plan(Need("train", "triplet"))
    cost = cost_of(step, earlier_artifacts(step.location.folder.parent))
    assert cost.seconds == 2 * manifest.timings["total"]
    assert cost.note.endswith("took with 2 epochs, scaled to 4")


def test_a_share_of_the_training_images_lies_in_larger_ones_and_reaches_teacher_lists_and_words(
    chain: Path, invoke: Invoke
) -> None:
    done(train(invoke, chain, "train_share=0.5", *LISTS, "loss.sum_epochs=0", options=("--method", "aoq")))
    chosen = {}
    for share, seed in ((0.25, 0), (0.5, 0), (0.5, 1)):
        done(train(invoke, chain, f"train.train_share={share}", options=("--seed", seed)))
        path = trained_with(chain, train_share=share, seed=seed)[0] / EMBEDDINGS
        chosen[share, seed] = set(read_embeddings(path, "train").image_ids.tolist())
        assert len(read_embeddings(path, "val").image_ids) == 4
    assert (len(chosen[0.25, 0]), len(chosen[0.5, 0])) == (3, 6)
    assert chosen[0.25, 0] < chosen[0.5, 0] == chosen[0.5, 1]
    (half,) = [
        each for each in map(read_manifest, chain.glob("tiny/train/aoq.*")) if each.settings["train_share"] == 0.5
    ]
    mined = chain / "tiny" / "mine_negatives" / half.inputs["mine_negatives"].name
    assert {*read_list(mined, "texts_for_images").anchor_ids.tolist()} == chosen[0.5, 0]
    whole, val = (PreparedDataset.open(only(chain, "prepare/files")).split(name) for name in ("train", "val"))
    for share in (0.25, 1.0):
        folder, _ = trained_with(chain, train_share=share, seed=0)
        words = {word for split in (whole.share(share), val) for words in split.tokens.to_pylist() for word in words}
        assert load_model(folder).vocabulary.ids.keys() - set(SPECIALS) == words


def test_the_epoch_is_chosen_on_the_validation_split(chain: Path, invoke: Invoke) -> None:
    """The split that validation looked at is told by its score: training and test split have others."""
    given = ("train.validation_images=100", "train.learning_rate=0.01")
    said = done(train(invoke, chain, *given, "train.encode_chunk=auto"))
    folder, manifest = trained_with(chain, learning_rate=0.01)
    rsum = {}
    for split in ("train", "val", "test"):
        stored = read_embeddings(folder / "embeddings.h5", split)
        rsum[split] = metrics(ranks(stored.scores(), stored.caption_image))["rsum"]
    assert manifest.metrics["validation_rsum"] == pytest.approx(rsum["val"], abs=0.01)
    assert len({round(each, 2) for each in rsum.values()}) == 3
    # What the chunks of `auto` are, is told and recorded, and no part of the fingerprint.
    assert "encode_chunk 0 (the whole batch)" in said
    assert manifest.metrics["encode_chunk"] == 0
    again = train(invoke, chain, *given, "train.encode_chunk=3", options=("--dry-run",))
    assert f"✓ train/{folder.name}" in again.out


def test_settings_that_came_later_leave_older_trainings_up_to_date() -> None:
    resolved = resolve(load_declaration("train"), "triplet", backbones=backbones(), backbone="vsrn")
    usual = bind(TrainSettings, resolved, "train")
    newer, seen = {name for name, _ in newer_defaults()}, Train().fingerprinted
    assert seen(usual).keys().isdisjoint(newer)
    for setting, value in (("validate_every", 3), ("layer_decay", 0.75), ("average", "ema:0.99"), ("patience", 3)):
        assert seen(usual.model_copy(update={setting: value})).keys() & newer == {setting}
