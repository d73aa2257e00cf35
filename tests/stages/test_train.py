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
from tests.conftest import Outcome

# As in the finished chain, so that its first training is up to date.
SAME = ["epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1"]
LISTS = ["aoq-fine-tune.top_texts=5", "aoq-fine-tune.top_images=3"]
LISTS += ["mine_negatives.num_texts=5", "mine_negatives.num_images=3"]


def without_digests(artifact: Path, folder: Path) -> Path:
    """A copy whose files may be changed, as those of an exported model."""
    copy = copied(artifact, folder / "model")
    (copy / MANIFEST).unlink()
    return copy


def train(invoke: Invoke, root: Path, *more: str, options: tuple[object, ...] = ()) -> Outcome:
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", root)
    return invoke("train", *where, *options, *sets(*(f"train.{text}" for text in SAME), *more))


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


def test_a_model_with_weights_that_are_not_finite_is_not_used(chain: Path, tmp_path: Path) -> None:
    folder = without_digests(only(chain, "train/triplet.vsepp"), tmp_path)
    saved = load_model(folder)
    state = load_file(folder / MODEL)
    name = next(iter(state))
    state[name][...] = np.nan
    save_file(state, folder / MODEL, {"format": "pt"})
    said = rf"model\.safetensors: '{re.escape(name)}' holds .* no finite numbers; run `itrpipe train` again"
    with pytest.raises(DataError, match=said):
        load_model(folder)
    with pytest.raises(DataError, match=said):
        start_from(folder, saved.model, saved.config, saved.tokens)


def test_a_saved_model_gives_the_embeddings_that_training_wrote(chain: Path, tmp_path: Path) -> None:
    folder = without_digests(only(chain, "train/triplet.vsepp"), tmp_path)
    saved = load_model(folder)
    written = read_embeddings(folder / "embeddings.h5", "val")
    words = ["a", "horse", "number", "12", "is", "on", "the", "road", "0", "."]
    tokens = torch.tensor([[1, *(saved.vocabulary.ids[word] for word in words), 2]])
    with torch.inference_mode():
        embedding = saved.model.encode_texts(TextBatch(tokens, torch.tensor([tokens.shape[1]]))).embedding
    distances = np.abs(written.texts - embedding.numpy()).max(axis=1)
    assert distances.min() < 1e-3  # stored in half precision
    assert not saved.model.training
    (folder / CONFIG).write_text((folder / CONFIG).read_text().replace('"vocabulary_size": ', '"vocabulary_size": 1'))
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
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain)
    small = [f"train.{text}" for text in (*SAME[1:], "learning_rate=1e-12", "patience=1")]
    done(invoke("train", *where, *sets(*small, "train.epochs=5", "seed=4")))
    manifest = read_manifest(only(chain, "train/triplet.vsepp.s4"))
    assert manifest.metrics["epochs"] == 2
    assert manifest.messages == ["ended after 2 epochs: validation has been flat for 1"]
    longer = [parse_override(text) for text in (*small, "backbone=vsepp", "train.epochs=4")]
    step = Planner(chain, "tiny", longer).plan(Need("train", "triplet"))
    cost = cost_of(step, earlier_artifacts(step.location.folder.parent))
    assert cost.seconds == 2 * manifest.timings["total"]
    assert cost.note.endswith("took with 2 epochs, scaled to 4")


def test_a_share_of_the_training_images_is_the_same_for_every_seed_and_lies_in_larger_ones(
    chain: Path, invoke: Invoke
) -> None:
    chosen = {}
    for share, seed in ((0.25, 0), (0.5, 0), (0.5, 1)):
        done(train(invoke, chain, f"train.train_share={share}", options=("--seed", seed)))
        path = trained_with(chain, train_share=share, seed=seed)[0] / EMBEDDINGS
        chosen[share, seed] = set(read_embeddings(path, "train").image_ids.tolist())
        assert len(read_embeddings(path, "val").image_ids) == 4
    assert (len(chosen[0.25, 0]), len(chosen[0.5, 0])) == (3, 6)
    assert chosen[0.25, 0] < chosen[0.5, 0] == chosen[0.5, 1]
    # Words are those of the validation images and of the training images that are used.
    whole, val = (PreparedDataset.open(only(chain, "prepare/files")).split(name) for name in ("train", "val"))
    few, every = (
        {word for split in (used, val) for words in split.tokens.to_pylist() for word in words}
        for used in (whole.share(0.25), whole)
    )
    for share, words in ((0.25, few), (1.0, every)):
        folder, _ = trained_with(chain, train_share=share, seed=0)
        assert load_model(folder).vocabulary.ids.keys() - set(SPECIALS) == words
    assert few < every


def test_a_share_reaches_the_teacher_and_its_lists(chain: Path, invoke: Invoke) -> None:
    lists = [text.removeprefix("aoq-fine-tune.") for text in LISTS]
    done(train(invoke, chain, "train_share=0.5", *lists, "loss.sum_epochs=0", options=("--method", "aoq")))
    trained = [read_manifest(folder) for folder in chain.glob("tiny/train/aoq.vsepp*")]
    (half,) = [each for each in trained if each.settings["train_share"] == 0.5]
    mined = chain / "tiny" / "mine_negatives" / half.inputs["mine_negatives"].name
    teacher = chain / "tiny" / "train" / read_manifest(mined).inputs["train"].name
    assert read_manifest(teacher).settings["train_share"] == 0.5
    lists_of = read_list(mined, "texts_for_images")
    assert len(lists_of.anchor_ids) == 6
    own = read_embeddings(chain / "tiny" / "train" / f"{half.label}-{half.fingerprint[:8]}" / "embeddings.h5", "train")
    assert lists_of.anchor_ids.tolist() == own.image_ids.tolist()


def test_the_epoch_is_chosen_on_the_validation_split(chain: Path, invoke: Invoke) -> None:
    """The split that validation looked at is told by its score: training and test split have others."""
    done(train(invoke, chain, "train.validation_images=100", "train.learning_rate=0.01"))
    folder, manifest = trained_with(chain, learning_rate=0.01)
    rsum = {}
    for split in ("train", "val", "test"):
        stored = read_embeddings(folder / "embeddings.h5", split)
        rsum[split] = metrics(ranks(stored.scores(), stored.caption_image))["rsum"]
    assert manifest.metrics["validation_rsum"] == pytest.approx(rsum["val"], abs=0.01)
    assert len({round(each, 2) for each in rsum.values()}) == 3


def test_the_precision_of_the_device_is_taken_and_recorded(chain: Path, invoke: Invoke) -> None:
    weights = {}
    for chosen in ("auto", "fp32"):
        done(train(invoke, chain, f"train.precision={chosen}"))
        folder, manifest = trained_with(chain, precision=chosen)
        weights[chosen] = load_file(folder / MODEL)
        assert manifest.metrics.get("precision") == ("fp32" if chosen == "auto" else None)
    for name, value in weights["auto"].items():
        np.testing.assert_array_equal(value, weights["fp32"][name])


def test_chunks_are_of_the_whole_batch_where_there_is_no_gpu(chain: Path, invoke: Invoke) -> None:
    """What `encode_chunk = "auto"` takes is told and recorded, and no part of the fingerprint."""

    def chunked(chunk: object, *options: object) -> Outcome:
        return train(invoke, chain, "train.learning_rate=0.012", f"train.encode_chunk={chunk}", options=options)

    assert "encode_chunk 0 (the whole batch)" in done(chunked("auto"))
    assert trained_with(chain, learning_rate=0.012)[1].metrics["encode_chunk"] == 0
    assert "up to date" in chunked(3, "--dry-run").out
    for wrong in ("some", "-1"):
        refused(chunked(wrong), 2, "0 for the whole batch, or auto")


def test_settings_that_came_later_leave_older_trainings_up_to_date() -> None:
    resolved = resolve(load_declaration("train"), "triplet", backbones=backbones(), backbone="vsrn")
    usual = bind(TrainSettings, resolved, "train")
    newer, seen = {name for name, _ in newer_defaults()}, Train().fingerprinted
    assert seen(usual).keys().isdisjoint(newer)
    for setting, value in (("validate_every", 3), ("layer_decay", 0.75), ("average", "ema:0.99"), ("patience", 3)):
        assert seen(usual.model_copy(update={setting: value})).keys() & newer == {setting}
