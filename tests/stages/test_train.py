"""`itrpipe train`: runs that start from trained weights, and models read back from their files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from itrpipe.artifacts.artifact import MANIFEST, read_manifest
from itrpipe.commands.estimates import estimate
from itrpipe.config import bind, load_declaration, resolve
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import SPECIALS
from itrpipe.errors import DataError
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.features.scores import SCORES
from itrpipe.models.base import TextBatch
from itrpipe.negatives.lists import read_list
from itrpipe.plan.planning import Planner, parse_override
from itrpipe.stages.base import Need
from itrpipe.stages.train import backbones, fingerprinted
from itrpipe.training.encoding import Encoding
from itrpipe.training.saved import CONFIG, MODEL, load_model, start_from
from itrpipe.training.settings import NEWER, TrainSettings

Invoke = Callable[..., Any]
# As in the finished chain, so that its round one is up to date.
SAME = ["epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1"]
LISTS = ["aoq-fine-tune.top_texts=5", "aoq-fine-tune.top_images=3"]
LISTS += ["mine_negatives.num_texts=5", "mine_negatives.num_images=3"]


def folder_of(root: Path, label: str) -> Path:
    (folder,) = root.glob(f"tiny/train/{label}-*")
    return folder


def without_digests(artifact: Path, folder: Path) -> Path:
    """A copy whose files may be changed, as those of an exported model."""
    copy = Path(shutil.copytree(artifact, folder / "model"))
    (copy / MANIFEST).unlink()
    return copy


def fine_tune(invoke: Invoke, root: Path, *more: str) -> Any:
    sets = [f"--set={text}" for text in (*(f"train.{text}" for text in SAME), *LISTS, *more)]
    where = ["--dataset", "tiny", "--data", root]
    return invoke("train", "--method", "aoq-fine-tune", "--backbone", "vsepp", *where, *sets)


def test_fine_tuning_starts_from_the_weights_of_round_one(chain: Path, invoke: Invoke) -> None:
    outcome = fine_tune(invoke, chain, "aoq-fine-tune.learning_rate=1e-9")
    assert outcome.code == 0, outcome.err
    assert "✓ train/triplet.vsepp" in outcome.out
    before, after, scratch = (
        load_file(folder_of(chain, label) / MODEL) for label in ("triplet.vsepp", "aoq-fine-tune.vsepp", "aoq.vsepp")
    )
    assert before.keys() == after.keys()
    for name, weights in before.items():
        np.testing.assert_allclose(after[name], weights, atol=1e-6, err_msg=name)
    assert max(np.abs(scratch[name] - before[name]).max() for name in before) > 1e-4


def test_weights_of_another_width_cannot_be_started_from(chain: Path, invoke: Invoke) -> None:
    outcome = fine_tune(invoke, chain, "aoq-fine-tune.model.embed_dim=9")
    assert outcome.code == 2
    assert "was trained with model.embed_dim = 8, which model.embed_dim = 9 cannot start from" in outcome.err


def test_a_model_with_weights_that_are_not_finite_is_not_used(chain: Path, tmp_path: Path) -> None:
    folder = without_digests(folder_of(chain, "triplet.vsepp"), tmp_path)
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
    folder = without_digests(folder_of(chain, "triplet.vsepp"), tmp_path)
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


def test_embeddings_are_the_same_bytes_whoever_makes_them_and_whatever_was_made_before(
    chain: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = folder_of(chain, "triplet.vsepp")
    roots = [Path(shutil.copytree(chain, tmp_path / name)) for name in ("by-one", "by-two", "killed")]
    for root in roots:
        shutil.rmtree(folder_of(root, "triplet.vsepp"))
    sets = [f"--set=train.{text}" for text in SAME]

    def train(root: Path, *options: object) -> int:
        where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", root)
        return invoke("train", *where, *sets, *options).code

    assert train(roots[0], "--workers", 1) == 0
    assert train(roots[1], "--workers", 2) == 0
    make, made, left = Encoding.make, [], iter(range(2))

    def make_two(self: Encoding, worker: Any, part: Any, path: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        make(self, worker, part, path)
        made.append(part.name)

    def make_others(self: Encoding, worker: Any, part: Any, path: Path) -> None:
        make(self, worker, part, path)
        made.append(part.name)

    monkeypatch.setattr(Encoding, "make", make_two)
    assert train(roots[2]) == 130
    monkeypatch.setattr(Encoding, "make", make_others)
    assert train(roots[2]) == 0
    assert sorted(made) == [f"{number:06}" for number in range(6)]  # both sides of three splits, none of them twice
    for root in roots:
        assert (folder_of(root, "triplet.vsepp") / EMBEDDINGS).read_bytes() == (expected / EMBEDDINGS).read_bytes()
        assert not (folder_of(root, "triplet.vsepp") / SCORES).exists()


def test_a_training_that_patience_ends_says_so_and_counts_the_epochs_that_it_had(chain: Path, invoke: Invoke) -> None:
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain)
    sets = [f"--set=train.{text}" for text in (*SAME[1:], "learning_rate=1e-12", "patience=1")]
    outcome = invoke("train", *where, *sets, "--set=train.epochs=5", "--set=seed=4")
    assert outcome.code == 0, outcome.err
    manifest = read_manifest(folder_of(chain, "triplet.vsepp.s4"))
    assert manifest.metrics["epochs"] == 2
    assert manifest.messages == ["ended after 2 of 5 epochs: validation has been flat for 1"]
    longer = [parse_override(text.removeprefix("--set=")) for text in (*sets, "backbone=vsepp", "train.epochs=4")]
    (cost,) = estimate(chain, "tiny", [Planner(chain, "tiny", longer).plan(Need("train", "triplet"))])
    assert cost.seconds == 2 * manifest.timings["total"]
    assert cost.note.endswith("took with 2 epochs, scaled to 4")


def test_captions_without_a_known_word_are_refused(defined: Path, invoke: Invoke) -> None:
    where = ["--dataset", "tiny", "--backbone", "vsepp", "--data", defined]
    sets = [f"--set={text}" for text in SAME[:-1]]
    outcome = invoke("train", *where, *sets, "--set", "min_word_count=1000")
    assert outcome.code == 2
    assert "error: no word occurs min_word_count = 1,000 times in the captions" in outcome.err


def test_a_share_of_the_training_images_is_the_same_for_every_seed_and_lies_in_larger_ones(
    chain: Path, invoke: Invoke
) -> None:
    chosen = {}
    for share, seed in ((0.25, 0), (0.5, 0), (0.5, 1)):
        sets = [f"--set={text}" for text in (*(f"train.{text}" for text in SAME), f"train.train_share={share}")]
        where = ["--backbone", "vsepp", "--seed", seed, "--dataset", "tiny", "--data", chain]
        assert invoke("train", *where, *sets).code == 0
        manifests = [read_manifest(folder) for folder in chain.glob("tiny/train/triplet.vsepp*")]
        (made,) = [each for each in manifests if (each.settings["train_share"], each.settings["seed"]) == (share, seed)]
        path = chain / "tiny" / "train" / f"{made.label}-{made.fingerprint[:8]}" / "embeddings.h5"
        chosen[share, seed] = set(read_embeddings(path, "train").image_ids.tolist())
        assert len(read_embeddings(path, "val").image_ids) == 4
    assert (len(chosen[0.25, 0]), len(chosen[0.5, 0])) == (3, 6)
    assert chosen[0.25, 0] < chosen[0.5, 0] == chosen[0.5, 1]


def test_words_are_those_of_the_validation_images_and_of_the_training_images_that_are_used(
    chain: Path, invoke: Invoke
) -> None:
    sets = [f"--set={text}" for text in (*(f"train.{text}" for text in SAME), "train.train_share=0.25")]
    assert invoke("train", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain, *sets).code == 0
    trained = {read_manifest(folder).settings["train_share"]: folder for folder in chain.glob("tiny/train/triplet.v*")}
    (prepared,) = chain.glob("tiny/prepare/files-*")
    train, val = (PreparedDataset.open(prepared).split(name) for name in ("train", "val"))
    few, all_words = (
        {word for split in (used, val) for words in split.tokens.to_pylist() for word in words}
        for used in (train.share(0.25), train)
    )
    for share, words in ((0.25, few), (1.0, all_words)):
        assert load_model(trained[share]).vocabulary.ids.keys() - set(SPECIALS) == words
    assert few < all_words


def test_a_share_reaches_the_teacher_and_its_lists(chain: Path, invoke: Invoke) -> None:
    sets = [f"--set={text}" for text in (*(f"train.{text}" for text in SAME), "train_share=0.5")]
    lists = ["--set=mine_negatives.num_texts=5", "--set=mine_negatives.num_images=3", "--set=top_texts=5"]
    where = ["--method", "aoq", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain]
    outcome = invoke("train", *where, *sets, *lists, "--set=top_images=3", "--set=loss.sum_epochs=0")
    assert outcome.code == 0, outcome.err
    trained = [read_manifest(folder) for folder in chain.glob("tiny/train/aoq.vsepp*")]
    (half,) = [each for each in trained if each.settings["train_share"] == 0.5]
    mined = chain / "tiny" / "mine_negatives" / half.inputs["mine_negatives"].name
    teacher = chain / "tiny" / "train" / read_manifest(mined).inputs["train"].name
    assert read_manifest(teacher).settings["train_share"] == 0.5
    lists_of = read_list(mined, "texts_for_images")
    assert len(lists_of.anchor_ids) == 6
    own = read_embeddings(chain / "tiny" / "train" / f"{half.label}-{half.fingerprint[:8]}" / "embeddings.h5", "train")
    assert lists_of.anchor_ids.tolist() == own.image_ids.tolist()


@pytest.mark.parametrize("seed", [0, 7])
def test_initial_weights_are_those_of_the_seed(
    seed: int, chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class StopError(Exception):
        pass

    def build(*given: object) -> None:
        seen.append(torch.initial_seed())
        raise StopError

    monkeypatch.setattr("itrpipe.training.assembly.build_model", build)
    sets = [f"--set=train.{text}" for text in (*SAME, "learning_rate=0.5")]
    where = ["--backbone", "vsepp", "--seed", seed, "--dataset", "tiny", "--data", chain]
    with pytest.raises(StopError):
        invoke("train", *where, *sets)
    assert seen == [seed]


def test_the_epoch_is_chosen_on_the_validation_split(chain: Path, invoke: Invoke) -> None:
    """The split that validation looked at is told by its score: training and test split have others."""
    sets = [f"--set=train.{text}" for text in (*SAME, "validation_images=100", "learning_rate=0.01")]
    where = ["--backbone", "vsepp", "--dataset", "tiny", "--data", chain]
    assert invoke("train", *where, *sets).code == 0
    made = [(folder, read_manifest(folder)) for folder in chain.glob("tiny/train/triplet.vsepp*")]
    ((folder, manifest),) = [each for each in made if each[1].settings["learning_rate"] == 0.01]
    rsum = {}
    for split in ("train", "val", "test"):
        stored = read_embeddings(folder / "embeddings.h5", split)
        rsum[split] = metrics(ranks(stored.scores(), stored.caption_image))["rsum"]
    assert manifest.metrics["validation_rsum"] == pytest.approx(rsum["val"], abs=0.01)
    assert len({round(each, 2) for each in rsum.values()}) == 3


def test_the_precision_of_the_device_is_taken_and_recorded(chain: Path, invoke: Invoke) -> None:
    weights = {}
    for chosen in ("auto", "fp32"):
        sets = [f"--set=train.{text}" for text in (*SAME, f"precision={chosen}")]
        outcome = invoke("train", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain, *sets)
        assert outcome.code == 0, outcome.err
        made = [(folder, read_manifest(folder)) for folder in chain.glob("tiny/train/triplet.vsepp*")]
        ((folder, manifest),) = [each for each in made if each[1].settings["precision"] == chosen]
        weights[chosen] = load_file(folder / MODEL)
        assert manifest.metrics.get("precision") == ("fp32" if chosen == "auto" else None)
    for name, value in weights["auto"].items():
        np.testing.assert_array_equal(value, weights["fp32"][name])


def test_chunks_are_of_the_whole_batch_where_there_is_no_gpu(chain: Path, invoke: Invoke) -> None:
    """What `encode_chunk = "auto"` takes is told and recorded, and no part of the fingerprint."""
    sets = [f"--set=train.{text}" for text in (*SAME, "learning_rate=0.012")]
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain)
    outcome = invoke("train", *where, *sets, "--set=train.encode_chunk=auto")
    assert outcome.code == 0, outcome.err
    assert "encode_chunk 0 (the whole batch)" in outcome.out
    made = [read_manifest(folder) for folder in chain.glob("tiny/train/triplet.vsepp*")]
    assert [each.metrics["encode_chunk"] for each in made if each.settings["learning_rate"] == 0.012] == [0]
    assert "up to date" in invoke("train", *where, *sets, "--set=train.encode_chunk=3", "--dry-run").out
    for wrong in ("some", "-1"):
        refused = invoke("train", *where, *sets, f"--set=train.encode_chunk={wrong}")
        assert refused.code != 0
        assert "give a number of images or captions, 0 for the whole batch, or auto" in refused.err


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("validate_every", 3),
        ("weight_decay", 0.1),
        ("learning_rate_scaling", "sqrt"),
        ("base_batch_size", 64),
        ("layer_decay", 0.75),
        ("freeze", "text"),
        ("adapter", "lora"),
        ("average", "ema:0.99"),
        ("patience", 3),
    ],
)
def test_settings_that_came_later_leave_older_trainings_up_to_date(setting: str, value: object) -> None:
    resolved = resolve(load_declaration("train"), "triplet", backbones=backbones(), backbone="vsrn")
    usual = bind(TrainSettings, resolved, "train")
    assert fingerprinted(usual).keys().isdisjoint(NEWER)
    assert fingerprinted(usual.model_copy(update={setting: value})).keys() & set(NEWER) == {setting}
