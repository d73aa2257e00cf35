"""`itrpipe train`: weights, embeddings, shares, generated positives, false negatives, lists that are mined again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from itrpipe.config import parse_override
from itrpipe.datasets.decisions import Decision, DecisionFile
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import SPECIALS
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.features.embeddings import EMBEDDINGS, SCORES, read_embeddings
from itrpipe.methods.contrastive.method import ContrastiveMethod
from itrpipe.mining.lists import read_list
from itrpipe.models.base import TextBatch
from itrpipe.models.captions import CaptionPart, PieceIds, ends_of
from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.run import cost_of
from itrpipe.pipeline.steps import earlier_artifacts
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import FALSE_NEGATIVES, MANIFEST, Manifest, read_manifest
from itrpipe.training import mining, recipe
from itrpipe.training.encoding import Encoding
from itrpipe.training.saved import CONFIG, MODEL, load_model, start_from
from tests.chains import ONCE, Invoke, copied, done, history, interrupted, only, refused, same_files, sets
from tests.conftest import TINY, TINY_AOQ, Outcome
from tests.definitions import save_definition

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
    tokens = torch.tensor([[1, *(saved.tokens.ids[word] for word in words), 2]])
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
    assert all(part.rows == len(part.content[1]) for part in found)
    same_files("train/triplet.vsepp", (root, chain), EMBEDDINGS)
    assert not (only(root, "train/triplet.vsepp") / SCORES).exists()


def test_a_training_that_patience_ends_says_so_and_counts_the_epochs_that_it_had(chain: Path, invoke: Invoke) -> None:
    small = [*TINY[1:-1], "train.learning_rate=1e-12", "train.patience=1"]
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain)
    done(invoke("train", *where, *sets(*small, "train.epochs=5", "seed=4")))
    manifest = read_manifest(only(chain, "train/triplet.vsepp.s4"))
    assert manifest.metrics["epochs"] == 2
    assert manifest.messages == ["ended after 2 epochs: validation has not risen for 1"]
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
        assert load_model(folder).tokens.ids.keys() - set(SPECIALS) == words


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


# Generated positives


NARROW = ["model.embed_dim=8", "model.word_dim=8"]
CAPTIONER = ["model.caption_dim=8", "model.caption_word_dim=8", "model.graph_layers=1"]


def train_positives(invoke: Invoke, root: Path, *options: object, small: list[str]) -> Outcome:
    return invoke("train", "--positives", "ascl", *options, "--dataset", "tiny", "--data", root, *sets(*small))


@pytest.mark.parametrize(("backbone", "small"), [("vsrn", NARROW + CAPTIONER), ("bfan", NARROW)])
def test_backbones_of_every_kind_train_with_generated_positives(
    backbone: str, small: list[str], defined: Path, invoke: Invoke
) -> None:
    done(train_positives(invoke, defined, "--backbone", backbone, small=[*ONCE, *small]))
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
    small = [*ONCE, "loss.generated_positives=joined", "model.max_words=15"]
    done(train_positives(invoke, defined, *named, small=small))
    assert history(defined, "positives-triplet.dual-encoder")[0]["loss_positives"] > 0


def test_ends_are_what_the_tokenizer_puts_around_words(saved_encoders: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    from itrpipe.encoders.encoder import load_tokenizer

    folder = copied(saved_encoders / "siglip", tmp_path / "without-start")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])  # pyright: ignore
    made.save(str(folder / "tokenizer.json"))
    reading = CaptionPart(cleaned=True, max_words=30)
    both, behind = (PieceIds(load_tokenizer(each), reading, 16) for each in (saved_encoders / "siglip", folder))
    assert (ends_of(both), ends_of(behind)) == ((1, 1), (0, 1))
    np.testing.assert_array_equal(behind.tokenizer("dog")["input_ids"], both.tokenizer("dog")["input_ids"][1:])


# False negatives


MINING = [*TINY[:-1], "num_texts=5", "num_images=3"]


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Invoke:
    """Runs a command for VSE++ on the dataset `tiny`."""

    def on_tiny(command: str, *arguments: object) -> Any:
        return invoke(command, "--backbone", "vsepp", *arguments, "--dataset", "tiny", "--data", chain)

    return on_tiny


def test_fne_trains_and_is_evaluated(fne_chain: Path) -> None:
    folder, rows = only(fne_chain, "train/fne.vsepp"), history(fne_chain, "fne.vsepp")
    assert [row["loss_fne"] is None for row in rows] == [True, False, False]
    assert rows[0]["loss_triplet"] > 0
    assert all(0 <= row["mean_hardest_text_share"] <= 1 for row in rows[1:])
    assert not any("twin" in name for name in load_model(folder).model.state_dict())
    evaluated = only(fne_chain, "evaluate/fne.vsepp")
    found = json.loads((evaluated / FALSE_NEGATIVES).read_text())["hardest"]
    counts = {direction: each["candidates"] for direction, each in found.items()}
    assert counts == {"texts_for_images": 12 * 20, "images_for_texts": 60 * 11}
    assert not (only(fne_chain, "evaluate/triplet.vsepp") / FALSE_NEGATIVES).exists()


@pytest.mark.parametrize(("conf", "alike"), [("fne-paper", False), ("fne-memory-only", True), ("fne-neither", True)])
def test_every_configuration_trains(chain: Path, run: Invoke, conf: str, alike: bool) -> None:
    memory = () if conf == "fne-neither" else (f"{conf}.loss.memory_size=24",)
    done(run("train", "--method", conf, *sets("train.epochs=2", *TINY[1:-1], *memory)))
    _, last = history(chain, f"{conf}.vsepp")
    assert last["loss_fne"] > 0
    assert (last["mean_hardest_text_share"] == last["mean_hardest_image_share"] == 1) is alike


@pytest.mark.parametrize("judged", ["drop", "weigh", "soft"])
def test_methods_that_judges_help_have_judged_lists_made(chain: Path, run: Invoke, judged: str) -> None:
    lists = [text.replace("aoq.", "aoq-judged.loss.") for text in TINY_AOQ]
    asked = ("--method", "aoq-judged", "--judge", "captions:tfidf", "--judged", judged)
    done(run("train", *asked, *sets(*TINY[:-1], *lists)))
    trained = read_manifest(only(chain, "train/aoq-judged.vsepp"))
    mined = chain / "tiny" / "mine_negatives" / trained.inputs["mine_negatives"].name
    assert read_manifest(mined).settings["judges"] == ["captions:tfidf"]


# Lists that are mined again


REFRESHING = [
    "train",
    "--method",
    "contrastive",
    "--backbone",
    "vsepp",
    "--negatives",
    "mined",
    "--batches",
    "neighbours",
]
REFRESHED = ["train.batch_size=20", "train.min_word_count=1", "train.learning_rate=0.01"]
REFRESHED += ["train.model.embed_dim=8", "train.model.word_dim=8", "train.checkpoint_seconds=0"]
REFRESHED += ["mine_negatives.num_texts=5", "mine_negatives.num_images=3"]
REFRESHED += ["loss.top_texts=5", "loss.top_images=3", "loss.refresh_every=2", "triplet.loss.sum_epochs=0"]
FIRST_STEP_AFTER = 7
"""Three steps are an epoch, and the third epoch begins with other lists."""


def command(root: Path, *more: str, epochs: int = 3) -> list[object]:
    settings = sets(*REFRESHED, f"train.epochs={epochs}")
    return [*REFRESHING, "--dataset", "tiny", "--data", root, *settings, *more]


def stopped(call: int, target: Any = recipe.Trainer, name: str = "_step") -> AbstractContextManager[object]:
    """An interruption at the beginning of this call of a method, counted over trainings with lists alone."""

    def has_lists(caller: Any) -> bool:
        return not isinstance(caller, recipe.Trainer) or isinstance(caller._method, ContrastiveMethod)

    return interrupted(call, target, name, has_lists)


def test_lists_are_those_of_exact_mining_with_the_weights_of_the_epoch(
    defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine_again, refresh = mining.mine_again, ContrastiveMethod.refresh
    seen: list[tuple[np.ndarray, ...]] = []
    given: list[dict[str, np.ndarray]] = []

    def kept(images: np.ndarray, texts: np.ndarray, split: Split, *more: Any) -> dict[str, np.ndarray]:
        seen.append((images, texts, split.caption_image))
        return mine_again(images, texts, split, *more)

    monkeypatch.setattr(mining, "mine_again", kept)
    monkeypatch.setattr(ContrastiveMethod, "refresh", lambda self, lists: (given.append(lists), refresh(self, lists)))
    out = done(invoke(*command(defined)))
    assert out.count("mining again with the weights as they are") == 1
    ((images, texts, owners),) = seen
    scores = images @ texts.T
    scores[owners, np.arange(len(texts))] = -np.inf
    first, last = given
    np.testing.assert_array_equal(last["texts_for_images"], np.argsort(-scores, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(last["images_for_texts"], np.argsort(-scores.T, axis=1, kind="stable")[:, :3])
    assert (last["texts_for_images"] != first["texts_for_images"]).any()


def test_what_people_decided_holds_for_lists_that_are_mined_again(
    defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done(invoke("prepare", "--dataset", "tiny", "--data", defined))
    split = PreparedDataset.open(only(defined, "prepare/files")).split("train")
    fitting = np.flatnonzero(split.caption_image != 0)[:10]
    answers = [Decision("ada", split.image_ids[0], caption, "fits") for caption in split.caption_ids[fitting]]
    file = tmp_path / "decisions.parquet"
    DecisionFile(file).add(answers)
    given: list[dict[str, np.ndarray]] = []
    refresh = ContrastiveMethod.refresh
    monkeypatch.setattr(ContrastiveMethod, "refresh", lambda self, lists: (given.append(lists), refresh(self, lists)))
    done(invoke(*command(defined, *sets(f"mine_negatives.decisions={file}"))))
    assert len(given) == 2
    for lists in given:
        assert not np.isin(lists["texts_for_images"][0], fitting).any()
        assert (lists["images_for_texts"][fitting] != 0).all()


def test_an_interrupted_run_goes_on_to_the_same_weights(defined: Path, invoke: Invoke, tmp_path: Path) -> None:
    """While it mines again, after that, inside the epoch with the new lists, and inside the next one."""
    other = copied(defined, tmp_path / "other")
    done(invoke(*command(other, epochs=4)))
    for stop in (stopped(1, mining, "mine_again"), stopped(1), stopped(2), stopped(4)):
        with stop:
            assert invoke(*command(defined, epochs=4)).code == 130
    done(invoke(*command(defined, epochs=4)))
    same_files("train/contrastive.vsepp", (other, defined), MODEL, "history.parquet")


def test_lists_that_were_damaged_since_are_not_gone_on_with(
    defined: Path, invoke: Invoke, flipped: Callable[[Path], None]
) -> None:
    with stopped(FIRST_STEP_AFTER + 1):
        assert invoke(*command(defined)).code == 130
    (lists,) = defined.glob("tiny/train/contrastive.vsepp-*.partial/.work/refreshed/*.arrays")
    for damage in (flipped, Path.unlink):
        damage(lists)
        refused(invoke(*command(defined)), 4, f"remove {lists.parents[2]}")


PIXELS, NARROW = "backbone=dual-encoder", "train.model.embed_dim=8"
GRID = {"grid": [2, 2]}


@pytest.mark.usefixtures("any_hub")
@pytest.mark.parametrize(
    ("conf", "settings", "model", "lacks"),
    [
        ("precomp", {}, (PIXELS,), "dual-encoder reads the photographs themselves, .* leave --features mine out"),
        ("frcnn", {}, (PIXELS, "train.model.images=global", NARROW), "reads global vectors"),
        ("butd", {}, ("method=ascl", "backbone=ascl"), "--set train.model.fusion=none"),
        ("precomp", {}, ("method=itm", "backbone=uniter"), r"reads the boxes of regions, .* --set precomp.grid="),
        ("precomp", {}, ("backbone=vsrn", 'ensemble_with=["dual-encoder"]'), ""),
        ("butd+resnet", {}, ("method=ascl", "backbone=ascl"), ""),
        ("butd", {}, ("method=ascl", "backbone=ascl", "train.model.fusion=none"), ""),
        ("precomp", GRID, ("method=itm", "backbone=uniter"), ""),
        ("vit", {}, (PIXELS, "train.model.images=global", NARROW), ""),
    ],
)
def test_features_that_a_model_cannot_read_are_refused_when_they_are_planned(
    defined: Path, conf: str, settings: dict[str, Any], model: tuple[str, ...], lacks: str
) -> None:
    known = load_definition(defined, "tiny")
    features = {"mine": StageDefinition(conf=conf, source=known.features["precomp"].source, settings=settings)}
    save_definition(defined, "tiny", DatasetDefinition(prepare=known.prepare, features=features))
    planner = Planner(defined, "tiny", [parse_override(text) for text in ("features=mine", *model)])
    if not lacks:
        planner.plan(Need("evaluate", "recall"))
        return
    with pytest.raises(UsageError, match=lacks):
        planner.plan(Need("evaluate", "recall"))
