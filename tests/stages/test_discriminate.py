"""`itrpipe evaluate --discriminate` on a few scenes: figures against a count by hand, names, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch

from itrpipe.analysis.questions.discrimination import discrimination, kept_sentences
from itrpipe.analysis.sentences import compared
from itrpipe.cli.asked import run_stage
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import DataError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.progress import Reporter
from itrpipe.scene_graph.build import SentenceParser
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.stages.base import Need, load_stage
from itrpipe.storage.artifact import read_manifest
from itrpipe.synthesis.generators import Generator, generator_names
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.synthesis.swaps import open_rule_maker, tagged_captions
from itrpipe.training.data import PhraseSplitData, SplitData
from itrpipe.training.saved import SavedModel, load_model
from tests.chains import TINY_SSAMT, Invoke, copied, define_scenes, done, only, sets

IMAGES, PER_IMAGE = 4, 5
TRAIN = ("train.epochs=1", "train.batch_size=16", "train.min_word_count=1", "evaluate.bootstrap_samples=100")
UNITER = (
    "pretrain.model.embed_dim=16",
    "pretrain.model.layers=2",
    "pretrain.model.heads=2",
    "pretrain.model.feed_forward_dim=16",
)
MAKERS = (
    "phrases.copies=4",
    "phrases.draws=5",
    "phrases.keep=20",
    "phrases.block=16",
    "vse-c.min_count=2",
    "vse-c.keep=2",
    "parse.workers=1",
)
VSRN = ("triplet.model.embed_dim=8", "triplet.model.word_dim=8")
BOTH = ("--discriminate", "vse-c", "--discriminate", "phrases")


def evaluated(invoke: Invoke, root: Path, *options: str, small: tuple[str, ...]) -> str:
    return done(invoke("evaluate", "--data", root, *options, *sets(*TRAIN, *small)))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with twelve training scenes and a UNITER that is evaluated with two generators; copy it."""
    root = define_scenes(tmp_path_factory.mktemp("discriminate") / "data", val=IMAGES, test=IMAGES)
    chosen = ("method=pretrain", 'discriminate=["vse-c", "phrases"]', *TRAIN, *UNITER, *MAKERS)
    run_stage(root, "scenes", "evaluate", [parse_override(text) for text in chosen])
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(written, tmp_path / "data")


def figures_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "discrimination.json").read_text())


def scores_one_by_one(root: Path, trained: Path, rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Scores of sentences and of their captions, every pair on its own in a matrix of one image and one caption."""
    saved = load_model(trained)
    split = PreparedDataset.open(only(root, "prepare/scenes")).split("test")
    data = SplitData(split, FeatureFile.open(only(root, "extract/scenes") / FEATURES), saved.tokens)
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    places = {name: row for row, name in enumerate(split.image_ids.tolist())}

    def score(image_id: str, text: str) -> float:
        alone = Split("test", split.images, pa.table({"text": [text], "tokens": [tokenize(text)]}))
        tokens, lengths = saved.tokens.encode_split(alone)
        batch = TextBatch(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64)))
        image = data.images(np.array([places[image_id]]))
        assert isinstance(image, ImageBatch)
        with torch.inference_mode():
            return float(saved.model.score_matrix(saved.model.encode_images(image), saved.model.encode_texts(batch)))

    sentences = [score(row["image_id"], row["text"]) for row in rows]
    return sentences, [score(row["image_id"], texts[row["caption_id"]]) for row in rows]


def check_figures(root: Path, trained: Path, folder: Path) -> None:
    found = figures_of(folder)
    assert list(found) == ["phrases", "vse-c"]
    for name, label in (("phrases", "phrases.pretrain.uniter.test"), ("vse-c", "vse-c.test")):
        rows = SentenceFile(only(root, f"synthesize/{label}")).kept(("caption_id", "image_id", "text")).to_pylist()
        sentences, captions = scores_one_by_one(root, trained, rows)
        right = sum(sentence < caption for sentence, caption in zip(sentences, captions, strict=True))
        figures = found[name]
        assert figures["sentences"] == len(rows) > IMAGES * PER_IMAGE
        assert figures["captions"] == len({row["caption_id"] for row in rows})
        assert figures["percent"]["value"] == pytest.approx(100.0 * right / len(rows))
        assert figures["gap"]["value"] == pytest.approx(np.mean(sentences) - np.mean(captions), abs=1e-5)
        assert figures["percent"]["low"] <= figures["percent"]["value"] <= figures["percent"]["high"]
        assert 0 < figures["percent"]["value"] < 100


def test_the_figures_of_uniter_are_those_of_a_count_by_hand(written: Path) -> None:
    check_figures(written, only(written, "train/pretrain.uniter"), only(written, "evaluate/pretrain.uniter"))


def test_the_figures_of_a_dual_encoder_are_those_of_a_count_by_hand(root: Path, invoke: Invoke) -> None:
    models = (*UNITER, *MAKERS, *VSRN)
    out = evaluated(invoke, root, "--backbone", "vsrn", *BOTH, small=(*models, "encode_block=7"))
    folder = only(root, "evaluate/triplet.vsrn")
    check_figures(root, only(root, "train/triplet.vsrn"), folder)
    again = evaluated(invoke, root, "--backbone", "vsrn", *BOTH, small=models)
    assert "✓ evaluate/triplet.vsrn" in again
    for found in figures_of(folder).values():
        assert f"{found['percent']['value']:.1f}" in out.split()
        assert f"{found['percent']['value']:.1f}" in again.split()


def test_a_model_that_reads_phrases_reads_those_of_the_sentences(root: Path, invoke: Invoke) -> None:
    """Every sentence is scored as it would be as a caption of the dataset, parsed with all others."""
    options = ("--method", "ssamt", "--discriminate", "vse-c")
    evaluated(invoke, root, *options, small=(*MAKERS[4:], *TINY_SSAMT, "encode_block=7"))
    found = figures_of(only(root, "evaluate/ssamt.ssamt"))["vse-c"]
    kept = SentenceFile(only(root, "synthesize/vse-c.test")).kept(("caption_id", "image_id", "text"))
    parsed = only(root, "parse/rules.hanta")
    parser = SentenceParser(parsed, read_manifest(parsed), root / "work", Reporter())
    split = PreparedDataset.open(only(root, "prepare/scenes")).split("test")
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    own = [texts[name] for name in kept["caption_id"].to_pylist()]
    saved = load_model(only(root, "train/ssamt.ssamt"))
    ids = pa.array([str(row) for row in range(len(kept))])
    scores = []
    for each in (kept["text"], pa.chunked_array([own])):
        words = pa.array([tokenize(text) for text in each.to_pylist()])
        captions = pa.table({"caption_id": ids, "image_id": kept["image_id"], "text": each, "tokens": words})
        phrases = CaptionPhrases.read(parser(captions), saved.model.settings.max_words)  # pyright: ignore
        features = FeatureFile.open(only(root, "extract/scenes") / FEATURES)
        data = PhraseSplitData(Split("test", split.images, captions), features, saved.vocabulary, phrases, True)
        with torch.inference_mode():
            read = saved.model.encode_texts(data.texts(np.arange(len(kept))))
            seen = saved.model.encode_images(data.images(data.caption_image))
            scores.append(saved.model.score_pairs(seen, read).numpy())
    assert found["percent"]["value"] == pytest.approx(100.0 * (scores[0] < scores[1]).mean())
    assert found["gap"]["value"] == pytest.approx((scores[0] - scores[1]).mean(), abs=1e-5)
    assert 0 < found["percent"]["value"] < 100


def test_graphs_that_no_parser_makes_again_are_refused(written: Path, tmp_path: Path) -> None:
    folder = only(written, "parse/rules.hanta")
    manifest = read_manifest(folder)
    foreign = {"file": "graphs.json", "format": "", "tagger": "hanta"}
    with pytest.raises(UsageError, match="holds graphs out of a file, and written sentences are in none"):
        SentenceParser(folder, manifest.model_copy(update={"settings": foreign}), tmp_path, Reporter())
    with pytest.raises(UsageError, match="was made by the parser rules 0, and this is "):
        SentenceParser(folder, manifest.model_copy(update={"sources": {"parser": "rules 0"}}), tmp_path, Reporter())


def test_sentences_are_of_the_evaluated_split_and_their_nouns_of_the_training_split(written: Path) -> None:
    manifest = read_manifest(only(written, "evaluate/pretrain.uniter"))
    assert {"sentences_phrases", "sentences_vse-c", "prepare", "train"} == set(manifest.inputs)
    split = PreparedDataset.open(only(written, "prepare/scenes")).split("test")
    texts = set(split.texts)
    for label in ("phrases.pretrain.uniter.test", "vse-c.test"):
        kept = SentenceFile(only(written, f"synthesize/{label}")).kept(("caption_id", "image_id", "text"))
        assert set(kept["caption_id"].to_pylist()) <= set(split.caption_ids.tolist())
        assert set(kept["image_id"].to_pylist()) == set(split.image_ids.tolist())
        assert not texts & set(kept["text"].to_pylist())
    # By the rule of nouns every new noun is frequent in training captions.
    folders = only(written, "prepare/scenes"), only(written, "parse/rules.hanta")
    maker = open_rule_maker(*folders, 2, ["nouns"], 50, 0, "test").maker
    made, _ = maker.make(range(IMAGES * PER_IMAGE), 0)
    new = {word for sentence in made for edit in sentence.edits for word in edit.new.lower().split()}
    train = PreparedDataset.open(folders[0]).split("train")
    known = {
        word for each in tagged_captions(folders[1], train.caption_ids.tolist(), train.texts) for word in each.words
    }
    assert len(new) > 3
    assert new - {"a", "an"} <= known


def test_another_split_has_sentences_of_its_own(root: Path, invoke: Invoke) -> None:
    options = ("--method", "pretrain", "--split", "val", "--discriminate", "vse-c.s1")
    evaluated(invoke, root, *options, small=(*UNITER, *MAKERS[4:]))
    (name,) = figures_of(only(root, "evaluate/pretrain.uniter.val"))
    assert name == "vse-c.s1"
    assert read_manifest(only(root, "synthesize/vse-c.s1.val")).settings["split"] == "val"


def test_nothing_that_is_finished_goes_stale(tmp_path: Path) -> None:
    """Neither evaluations without sentences nor sentences of the training split know the new settings."""
    planner = Planner(tmp_path, "scenes")
    for stage, conf, name in (("evaluate", "recall", "discriminate"), ("synthesize", "vse-c", "split")):
        settings, _, _ = planner.configure_checked(Need(stage, conf))
        module = load_stage(stage)
        assert name in settings.model_dump()
        assert name not in module.fingerprinted(settings)
        other = {"discriminate": ("vse-c",), "split": "test"}[name]
        assert name in module.fingerprinted(settings.model_copy(update={name: other}))


@pytest.mark.parametrize(
    ("name", "expected", "shortest"),
    [
        ("phrases", Generator("phrases", "pretrain", 0), "phrases"),
        ("phrases.s1", Generator("phrases", "pretrain", 1), "phrases.s1"),
        ("phrases.pretrain.s01", Generator("phrases", "pretrain", 1), "phrases.s1"),
        ("words.tags", Generator("words", "tags", 0), "words.tags"),
        ("phrases.tags.s2", Generator("phrases", "tags", 2), "phrases.tags.s2"),
        ("vse-c.s0", Generator("vse-c", "", 0), "vse-c"),
    ],
)
def test_names_say_what_writes_in_one_way(name: str, expected: Generator, shortest: str) -> None:
    assert Generator.named(name) == expected
    assert expected.name == shortest
    assert Generator.named(shortest) == expected
    assert expected.wanted("test") == {"seed": expected.seed, "split": "test"} | (
        {"method": expected.method} if expected.method else {}
    )


def test_names_are_kept_in_one_order() -> None:
    assert generator_names(["vse-c", "phrases.s0", "phrases.tags"]) == ("phrases", "phrases.tags", "vse-c")


Scores = tuple[np.ndarray, np.ndarray]


def told(root: Path, label: str, split: Split, saved: SavedModel | None = None) -> tuple[np.ndarray, Scores]:
    """Caption of each sentence, and the scores of UNITER."""
    model = saved or load_model(only(root, "train/pretrain.uniter"))
    evaluation: Any = SimpleNamespace(saved=model, place="cpu", block=16, reporter=Reporter(), warn=print)
    sentences, owners = kept_sentences(only(root, f"synthesize/{label}"), split)
    features = FeatureFile.open(only(root, "extract/scenes") / FEATURES)
    return owners, compared(evaluation, None, split, features, sentences, owners, label)


def test_sentences_of_other_captions_are_refused(written: Path) -> None:
    val = PreparedDataset.open(only(written, "prepare/scenes")).split("val")
    with pytest.raises(DataError, match="has no sentence for any caption of the split val; remove it and run"):
        kept_sentences(only(written, "synthesize/vse-c.test"), val)


def test_only_captions_of_the_evaluated_images_count(written: Path) -> None:
    whole = PreparedDataset.open(only(written, "prepare/scenes")).split("test")
    owners, found = told(written, "vse-c.test", whole)
    _, part = told(written, "vse-c.test", whole.without(whole.image_ids[1:].tolist()))
    own = whole.caption_image[owners] == 0
    assert 0 < own.sum() < len(own)
    for one, other in zip(part, found, strict=True):
        np.testing.assert_allclose(one, other[own], atol=1e-5)


def test_sentences_that_the_model_reads_as_their_caption_are_ties(written: Path) -> None:
    """A model that knows none of the words reads every sentence of as many words as its caption alike."""
    split = PreparedDataset.open(only(written, "prepare/scenes")).split("test")
    saved = load_model(only(written, "train/pretrain.uniter"))

    def encode_split(split: Split) -> tuple[np.ndarray, np.ndarray]:
        tokens, lengths = saved.tokens.encode_split(split)
        return np.where(tokens > 3, 3, tokens), lengths

    label = "phrases.pretrain.uniter.test"
    blind = replace(saved, tokens=cast(Any, SimpleNamespace(encode_split=encode_split)))
    owners, found = told(written, label, split, blind)
    np.testing.assert_array_equal(*found)
    assert discrimination(owners, owners, *found, 100, 0.95)["percent"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    scores, captions = told(written, label, split)[1]
    assert (scores < captions).any()


def test_intervals_resample_images_with_all_their_sentences() -> None:
    """Two images, of which one is told perfectly and one never: a resampled test set holds 0, 1 or 2 of either."""
    owners, images = np.array([5, 5, 6, 9]), np.array([3, 3, 3, 7])
    scores = np.array([0, 0, 0, 1], dtype=np.float32)
    found = discrimination(owners, images, scores, np.full(4, 0.5, dtype=np.float32), 200, 0.95)
    assert (found["sentences"], found["captions"]) == (4, 3)
    assert found["percent"] == {"value": 75.0, "low": 0.0, "high": 100.0}
    assert found["gap"] == {"value": -0.25, "low": -0.5, "high": 0.5}
    none = np.empty(0, dtype=np.int64)
    assert discrimination(none, none, none, none, 100, 0.95) == {
        "percent": None,
        "gap": None,
        "sentences": 0,
        "captions": 0,
    }
