"""Written sentences on a few scenes: `itrpipe synthesize`, and `itrpipe evaluate --discriminate`."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import pytest

from itrpipe.analysis.questions.discrimination import discrimination, kept_sentences
from itrpipe.analysis.sentences import compared
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import ImageBatch
from itrpipe.progress import Reporter
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE
from itrpipe.scenes.build import read_described
from itrpipe.stages import synthesize
from itrpipe.storage.artifact import read_manifest
from itrpipe.synthesis.checks import synthesis_statistics, true_negatives
from itrpipe.synthesis.generators import Generator, generator_names
from itrpipe.synthesis.language_model import LanguageModel
from itrpipe.synthesis.rules import open_rule_maker
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.synthesis.tagged import tagged_captions
from itrpipe.training.data import FeatureSplitData, TokenTexts
from itrpipe.training.saved import SavedModel, load_model
from tests.chains import FEW, ONCE, UNITER, WRITTEN, Invoke, copied, done, made, only, refused, sets
from tests.conftest import Outcome
from tests.definitions import sentence_settings
from tests.trained_model import pair_score

IMAGES, CAPTIONS, KEEP = 12, 60, 6
SMALL = (*UNITER, *(text.partition(".")[2] for text in WRITTEN[:4]))
RULED = ("min_count=2", "keep=3", "block=16", "parse.workers=1")
PHRASES = "synthesize/phrases.pretrain.uniter"


@pytest.fixture
def root(tags_chain: Path, tmp_path: Path) -> Path:
    """A data folder with a model and its sentences, this test's own."""
    return copied(tags_chain, tmp_path / "data")


def run(invoke: Invoke, root: Path, *options: object, small: tuple[str, ...] = SMALL) -> Outcome:
    return invoke("synthesize", "--data", root, *sets(*small), *options)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for table in SentenceFile(folder).row_groups() for row in table.to_pylist()]


def sources_of(root: Path) -> dict[str, Path]:
    folders = ("prepare/scenes", "extract/scenes", "train/pretrain.uniter", "parse/rules.hanta")
    return {name.partition("/")[0]: only(root, name) for name in folders}


def opened(root: Path, **changed: Path) -> Any:
    return synthesize.open_maker(sentence_settings("phrases", copies=2), sources_of(root) | changed, "cpu")


# By a model


def test_a_model_writes_sentences_for_every_training_caption(tags_chain: Path) -> None:
    folder = only(tags_chain, PHRASES)
    split = PreparedDataset.open(only(tags_chain, "prepare/scenes")).split("train")
    rows, file = rows_of(folder), SentenceFile(folder)
    ids = split.caption_ids.tolist()
    kept = Counter(row["caption_id"] for row in rows)
    assert ({*kept}, max(kept.values())) == ({*ids}, KEEP)
    order = [ids.index(row["caption_id"]) for row in rows]
    assert order == sorted(order)
    image_of = split.image_ids[split.caption_image].tolist()
    for row, place in zip(rows, order, strict=True):
        assert row["text"] != split.texts[place]
        assert (row["image_id"], "<" in row["text"]) == (image_of[place], False)
    assert len({row["score"] for row in rows}) > len(rows) / 2
    manifest = read_manifest(folder)
    assert sorted(manifest.inputs) == ["extract", "parse", "prepare", "train"]
    assert (manifest.metrics["kept"], manifest.metrics["captions"]) == (len(rows), CAPTIONS)
    assert any("its head for masked words is untrained" in message for message in manifest.messages)
    statistics = json.loads((folder / synthesize.STATISTICS).read_text())
    judged = statistics.pop("true_negatives")
    assert sum(statistics["drawn"].values()) == CAPTIONS * 20
    assert statistics == synthesis_statistics(file, statistics["drawn"], CAPTIONS)
    described = read_described(only(tags_chain, "prepare/scenes") / "scenes.jsonl")
    assert judged == true_negatives(file, {image_id: each.scene for image_id, each in described.items()})


def test_asked_for_again_it_shows_the_table_and_the_block_changes_sentences(root: Path, invoke: Invoke) -> None:
    """What is drawn depends on the block, so that it must not be an execution setting."""
    before = only(root, PHRASES)
    whole, again = rows_of(before), run(invoke, root)
    assert made(again) == before
    assert f"{len(whole):,} sentences for {CAPTIONS} captions" in again.out
    assert "rejected: false negative" in again.out
    other = made(run(invoke, root, small=(*SMALL[:-1], "block=8")))
    assert other != before
    assert rows_of(other) != whole


def test_single_words_are_masked_without_scene_graphs(root: Path, invoke: Invoke) -> None:
    shutil.rmtree(root / "scenes" / "parse")
    small = tuple(text for text in SMALL if not text.startswith("parse"))
    folder = made(run(invoke, root, "--by", "words", small=small))
    assert folder.name.startswith("words.pretrain.uniter-")
    assert sorted(read_manifest(folder).inputs) == ["extract", "prepare", "train"]
    assert not (root / "scenes" / "parse").exists()
    assert read_manifest(folder).metrics["kept"] == len(rows_of(folder)) > CAPTIONS


def test_a_language_model_measures_how_fluent_they_are(root: Path, invoke: Invoke, saved_gpt2: Path) -> None:
    few = sets("language_model_sentences=40")
    folder = made(run(invoke, root, "--language-model", saved_gpt2, *few))
    found = json.loads((folder / synthesize.STATISTICS).read_text())["language_model"]
    assert found["sentences"] == 40
    perplexities = LanguageModel(str(saved_gpt2)).perplexities([row["text"] for row in rows_of(folder)])
    assert min(perplexities) < found["perplexity"] < max(perplexities)
    # The model may lie anywhere; what is in its folder counts.
    moved = copied(saved_gpt2, root.parent / "elsewhere")
    assert made(run(invoke, root, "--language-model", moved, *few)) == folder
    shutil.copy(moved / "config.json", moved / "more.json")
    assert "! synthesize/" in run(invoke, root, "--language-model", moved, "--dry-run").out


# By rules


def test_rules_need_no_model_and_no_features(root: Path, invoke: Invoke) -> None:
    for stage in ("extract", "train", "synthesize"):
        shutil.rmtree(root / "scenes" / stage)

    def ruled(*options: str) -> Path:
        return made(run(invoke, root, "--by", "vse-c", *options, small=RULED))

    folder = ruled()
    assert sorted(read_manifest(folder).inputs) == ["parse", "prepare"]
    rows = rows_of(folder)
    assert all(row["score"] is None for row in rows)
    assert Counter(row["caption_id"] for row in rows).most_common(1)[0][1] <= 9
    assert len(rows_of(ruled(*sets('rules=["numerals"]')))) < len(rows)
    assert [row["text"] for row in rows_of(ruled("--seed", "1"))] != [row["text"] for row in rows]


# What does not fit


def test_a_full_disk_is_found_out_before_anything_is_written(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "scenes" / "synthesize")
    monkeypatch.setattr(synthesize, "BYTES_PER_SENTENCE", 10**15)
    refused(run(invoke, root), 5, "the file of sentences")


def test_what_does_not_belong_together_is_refused(root: Path, recorded: Any) -> None:
    graphs = only(root, "parse/rules.hanta") / SCENE_GRAPHS_FILE
    moved = graphs.rename(root / "graphs")
    with pytest.raises(MissingInputError, match=r"run `itrpipe parse`"):
        opened(root)
    moved.rename(graphs)
    vocabulary = only(root, "train/pretrain.uniter") / "vocab.json"
    Vocabulary([*Vocabulary.load(vocabulary).words, "foreign"]).save(vocabulary)
    recorded(vocabulary)
    with pytest.raises(DataError, match=r"config\.json and vocab\.json do not belong together"):
        opened(root)


def test_images_without_features_have_no_sentences_of_a_model(tags_chain: Path, tmp_path: Path) -> None:
    """They were left out of its training as well; rules do not look at images."""
    sources = sources_of(tags_chain)
    with h5py.File(sources["extract"] / FEATURES) as whole, h5py.File(tmp_path / FEATURES, "w") as fewer:
        fewer.attrs.update(whole.attrs)
        for name, values in whole.items():
            fewer[name] = values[1:]  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
    image_ids = PreparedDataset.open(sources["prepare"]).split("train").image_ids.tolist()
    (gone,) = FeatureFile.open(tmp_path / FEATURES).absent(image_ids)
    found = opened(tags_chain, extract=tmp_path)
    assert len(found.split.captions) == CAPTIONS - 5
    assert found.num_tokens == len(Vocabulary.load(sources["train"] / "vocab.json")) + 1
    assert gone not in {sentence.image_id for sentence in found.make(range(8), 0)[0]}
    rules = open_rule_maker(sources["prepare"], sources["parse"], sentence_settings("vse-c", min_count=2))
    assert (len(rules.split.captions), rules.num_tokens) == (CAPTIONS, None)


# Sentences that a model is to tell from captions


LABELS = {"phrases": "phrases.pretrain.uniter.test", "vse-c": "vse-c.test"}
COLUMNS = ("caption_id", "image_id", "text")


def figures_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "discrimination.json").read_text())


def split_of(root: Path, name: str = "test") -> Split:
    return PreparedDataset.open(only(root, "prepare/scenes")).split(name)


def scores_one_by_one(root: Path, trained: Path, rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Scores of sentences and of their captions, every pair on its own in a matrix of one image and one caption."""
    saved, split = load_model(trained), split_of(root)
    data = FeatureSplitData(
        split, FeatureFile.open(only(root, "extract/scenes") / FEATURES), TokenTexts.of(split, saved.tokens)
    )
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    places = {name: row for row, name in enumerate(split.image_ids.tolist())}

    def score(image_id: str, text: str) -> float:
        image = data.images(np.array([places[image_id]]))
        assert isinstance(image, ImageBatch)
        return pair_score(saved, image, text)

    sentences = [score(row["image_id"], row["text"]) for row in rows]
    return sentences, [score(row["image_id"], texts[row["caption_id"]]) for row in rows]


def check_figures(root: Path, label: str) -> None:
    found = figures_of(only(root, f"evaluate/{label}"))
    assert list(found) == ["phrases", "vse-c"]
    for name, figures in found.items():
        rows = SentenceFile(only(root, f"synthesize/{LABELS[name]}")).read((*COLUMNS, "kind")).to_pylist()
        sentences, captions = scores_one_by_one(root, only(root, f"train/{label}"), rows)
        if figures["kinds"]:  # all of which can be guessed here
            assert (figures["sentences"], figures["percent"]) == (0, None)
            figures = figures["kinds"]["nouns"]
            of_kind = [place for place, row in enumerate(rows) if row["kind"] == "nouns"]
            rows, sentences, captions = ([each[place] for place in of_kind] for each in (rows, sentences, captions))
        right = sum(sentence < caption for sentence, caption in zip(sentences, captions, strict=True))
        assert figures["sentences"] == len(rows) > 20
        assert figures["captions"] == len({row["caption_id"] for row in rows})
        assert figures["percent"]["value"] == pytest.approx(100.0 * right / len(rows))
        assert figures["gap"]["value"] == pytest.approx(np.mean(sentences) - np.mean(captions), abs=1e-5)
        assert figures["percent"]["low"] <= figures["percent"]["value"] <= figures["percent"]["high"]


def test_figures_are_those_of_a_count_by_hand(tags_chain: Path, tmp_path: Path, invoke: Invoke) -> None:
    check_figures(tags_chain, "tags-dc.uniter")
    root = copied(tags_chain, tmp_path / "data")
    uniter = sets(*(f"pretrain.{text.removeprefix('train.')}" for text in UNITER if "parse" not in text), *WRITTEN[:4])
    vsepp = (*ONCE, "train.model.embed_dim=8", "train.model.word_dim=8")
    small = sets(*(f"triplet.{text.removeprefix('train.')}" for text in vsepp), *WRITTEN[4:], "parse.workers=1", FEW)
    given = ("evaluate", "--backbone", "vsepp", "--data", root, *small, "--discriminate")
    out = done(invoke(*given, "vse-c", "--discriminate", "phrases", *uniter, *sets("encode_block=7")))
    check_figures(root, "triplet.vsepp")
    found = figures_of(only(root, "evaluate/triplet.vsepp"))
    assert f"{found['phrases']['percent']['value']:.1f}" in out.split()
    done(invoke(*given, "vse-c.s1", "--split", "val"))  # another split has sentences of its own
    assert list(figures_of(only(root, "evaluate/triplet.vsepp.val"))) == ["vse-c.s1"]
    assert read_manifest(only(root, "synthesize/vse-c.s1.val")).settings["split"] == "val"


def test_sentences_are_of_the_evaluated_split_and_their_nouns_of_the_training_split(tags_chain: Path) -> None:
    manifest = read_manifest(only(tags_chain, "evaluate/tags-dc.uniter"))
    assert {"sentences_phrases", "sentences_vse-c", "prepare", "train"} == set(manifest.inputs)
    split, train = split_of(tags_chain), split_of(tags_chain, "train")
    for label in LABELS.values():
        kept = SentenceFile(only(tags_chain, f"synthesize/{label}")).read(COLUMNS)
        assert set(kept["caption_id"].to_pylist()) <= set(split.caption_ids.tolist())
        assert set(kept["image_id"].to_pylist()) == set(split.image_ids.tolist())
        assert not {*split.texts} & set(kept["text"].to_pylist())
    # By the rule of nouns every new noun is frequent in training captions.
    folders = only(tags_chain, "prepare/scenes"), only(tags_chain, "parse/rules.hanta")
    nouns = sentence_settings("vse-c", rules=("nouns",), min_count=2, keep=50, split="test")
    made, _ = open_rule_maker(*folders, nouns).make(range(20), 0)
    new = {word for sentence in made for edit in sentence.edits for word in edit.new.lower().split()}
    captions = tagged_captions(folders[1], train.caption_ids.tolist())
    assert len(new - {"a", "an"}) > 3
    assert new - {"a", "an"} <= {word for each in captions for word in each.words}


@pytest.mark.parametrize(
    ("name", "expected", "shortest"),
    [
        ("phrases", Generator("phrases", "pretrain", 0), "phrases"),
        ("phrases.pretrain.s01", Generator("phrases", "pretrain", 1), "phrases.s1"),
        ("phrases.tags.s2", Generator("phrases", "tags", 2), "phrases.tags.s2"),
        ("vse-c.s0", Generator("vse-c", "", 0), "vse-c"),
    ],
)
def test_names_say_what_writes_in_one_way_and_order(name: str, expected: Generator, shortest: str) -> None:
    assert Generator.named(name) == Generator.named(shortest) == expected
    assert expected.name == shortest
    method = {"method": expected.method} if expected.method else {}
    assert expected.settings_for("test") == {"seed": expected.seed, "split": "test", **method}
    assert generator_names(["words", name, "phrases.s5"]) == tuple(sorted([shortest, "phrases.s5", "words"]))


Scores = tuple[np.ndarray, np.ndarray]


def told(root: Path, label: str, split: Split, saved: SavedModel | None = None) -> tuple[np.ndarray, Scores]:
    """Caption of each sentence, and the scores of UNITER."""
    model = saved or load_model(only(root, "train/pretrain.uniter"))
    job = SimpleNamespace(reporter=Reporter())
    evaluation: Any = SimpleNamespace(saved=model, place="cpu", block=16, job=job, warn=print)
    sentences, owners = kept_sentences(only(root, f"synthesize/{label}"), split)
    features = FeatureFile.open(only(root, "extract/scenes") / FEATURES)
    return owners, compared(evaluation, None, split, features, sentences, owners, label)


def test_only_captions_of_the_evaluated_images_count(tags_chain: Path) -> None:
    whole = split_of(tags_chain)
    owners, found = told(tags_chain, "vse-c.test", whole)
    _, part = told(tags_chain, "vse-c.test", whole.without(whole.image_ids[1:].tolist()))
    own = whole.caption_image[owners] == 0
    assert 0 < own.sum() < len(own)
    for one, other in zip(part, found, strict=True):
        np.testing.assert_allclose(one, other[own], atol=1e-5)
    with pytest.raises(DataError, match="has no sentence for any caption of the split val"):
        kept_sentences(only(tags_chain, "synthesize/vse-c.test"), split_of(tags_chain, "val"))


def test_sentences_that_the_model_reads_as_their_caption_are_ties(tags_chain: Path) -> None:
    """A model that knows none of the words reads every sentence of as many words as its caption alike."""
    saved, label = load_model(only(tags_chain, "train/pretrain.uniter")), LABELS["phrases"]

    def encode_split(split: Split) -> tuple[np.ndarray, np.ndarray]:
        tokens, lengths = saved.tokens.encode_split(split)
        return np.where(tokens > 3, 3, tokens), lengths

    blind = replace(saved, tokens=cast(Any, SimpleNamespace(encode_split=encode_split)))
    owners, found = told(tags_chain, label, split_of(tags_chain), blind)
    np.testing.assert_array_equal(*found)
    assert discrimination(owners, owners, *found, 100, 0.95)["percent"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_intervals_resample_images_with_all_their_sentences() -> None:
    """Two images, of which one is told perfectly and one never: a resampled test set holds 0, 1 or 2 of either."""
    owners, images = np.array([5, 5, 6, 9]), np.array([3, 3, 3, 7])
    scores = np.array([0, 0, 0, 1], dtype=np.float32)
    found = discrimination(owners, images, scores, np.full(4, 0.5, dtype=np.float32), 200, 0.95)
    assert (found["sentences"], found["captions"]) == (4, 3)
    assert found["percent"] == {"value": 75.0, "low": 0.0, "high": 100.0}
    assert found["gap"] == {"value": -0.25, "low": -0.5, "high": 0.5}
    none = np.empty(0, dtype=np.int64)
    nothing = {"percent": None, "gap": None, "sentences": 0, "captions": 0}
    assert discrimination(none, none, none, none, 100, 0.95) == nothing
