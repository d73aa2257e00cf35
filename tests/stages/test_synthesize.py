"""`itrpipe synthesize` on a few scenes: by a model and by rules, what it depends on, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import pytest

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.pipeline.planning import Planner
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE
from itrpipe.stages import synthesize
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import read_manifest
from itrpipe.synthesis.checks import read_scenes, synthesis_statistics, true_negatives
from itrpipe.synthesis.language_model import LanguageModel
from itrpipe.synthesis.masked import ModelSettings, open_model_maker
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.synthesis.swaps import RULES, open_rule_maker
from tests.chains import UNITER, WRITTEN, Invoke, copied, made, only, refused, sets
from tests.conftest import Outcome

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
    return open_model_maker(sources_of(root) | changed, ModelSettings(copies=2), "cpu", 1 << 20, "train")


# By a model


def test_a_model_writes_sentences_for_every_training_caption(tags_chain: Path) -> None:
    folder = only(tags_chain, PHRASES)
    split = PreparedDataset.open(only(tags_chain, "prepare/scenes")).split("train")
    rows, file = rows_of(folder), SentenceFile(folder)
    ids = split.caption_ids.tolist()
    kept = Counter(row["caption_id"] for row in rows)
    assert ({*kept}, max(kept.values()), sum(file.drawn.values())) == ({*ids}, KEEP, CAPTIONS * 20)
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
    assert statistics == synthesis_statistics(file, CAPTIONS)
    assert judged == true_negatives(file, read_scenes(only(tags_chain, "prepare/scenes") / "scenes.jsonl"))


def test_asked_for_again_it_shows_the_table_memory_changes_nothing_and_the_block_does(
    root: Path, invoke: Invoke
) -> None:
    """What is drawn depends on the block, so that it must not be an execution setting."""
    before = only(root, PHRASES)
    whole, again = rows_of(before), run(invoke, root)
    assert made(again) == before
    assert f"{len(whole):,} sentences for {CAPTIONS} captions" in again.out
    assert "rejected: false negative" in again.out
    shutil.rmtree(before)
    assert made(run(invoke, root, *sets("memory_mib=1"))) == before
    scores, cut = (
        {(row["caption_id"], row["text"]): row["score"] for row in each} for each in (whole, rows_of(before))
    )
    same = scores.keys() & cut.keys()
    assert len(same) > 0.98 * len(scores) == 0.98 * len(cut)  # of two that score alike either may be kept
    assert [cut[name] for name in same] == pytest.approx([scores[name] for name in same], abs=1e-5)
    other = made(run(invoke, root, small=(*SMALL[:-1], "block=8")))
    assert other != before
    assert rows_of(other) != whole


def test_single_words_are_masked_without_scene_graphs_and_what_was_rejected_is_written_on_request(
    root: Path, invoke: Invoke
) -> None:
    shutil.rmtree(root / "scenes" / "parse")
    small = tuple(text for text in SMALL if not text.startswith("parse"))
    plain, folder = (
        made(run(invoke, root, "--by", "words", *more, small=small)) for more in ((), sets("write_rejected=true"))
    )
    assert folder.name.startswith("words.pretrain.uniter-")
    assert sorted(read_manifest(folder).inputs) == ["extract", "prepare", "train"]
    assert not (root / "scenes" / "parse").exists()
    rows = rows_of(folder)
    assert [row for row in rows if row["kept"]] == rows_of(plain)
    assert {row["reason"] for row in rows} >= {"kept", "outranked", "false negative"}
    assert read_manifest(folder).metrics["kept"] == len(rows_of(plain)) > CAPTIONS


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


def test_the_declared_values_are_those_of_the_paper(tmp_path: Path) -> None:
    """`ModelSettings` has them too; what is declared must not drift away from it."""
    for dataset in ("flickr30k", "scenes"):
        settings, _, _ = Planner(tmp_path, dataset).configure_checked(Need("synthesize", "phrases"))
        assert asdict(ModelSettings()).items() <= settings.model_dump().items()


# By rules


def test_rules_need_no_model_and_no_features(root: Path, invoke: Invoke) -> None:
    for stage in ("extract", "train", "synthesize"):
        shutil.rmtree(root / "scenes" / stage)

    def ruled(*options: str) -> Path:
        return made(run(invoke, root, "--by", "vse-c", *options, small=RULED))

    folder = ruled()
    assert sorted(read_manifest(folder).inputs) == ["parse", "prepare"]
    rows = rows_of(folder)
    assert all(row["score"] is None and row["kept"] for row in rows)
    assert Counter(row["caption_id"] for row in rows).most_common(1)[0][1] <= 3 * len(RULES)
    assert len(rows_of(ruled(*sets('rules=["numerals"]')))) < len(rows)
    assert [row["text"] for row in rows_of(ruled("--seed", "1"))] != [row["text"] for row in rows]


# What does not fit


def test_a_full_disk_is_found_out_before_anything_is_written(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "scenes" / "synthesize")
    monkeypatch.setattr(synthesize, "BYTES_PER_SENTENCE", 10**15)
    refused(run(invoke, root), 5, "the file of sentences")


def test_what_does_not_belong_together_is_refused(root: Path, finished_chain: Path, recorded: Any) -> None:
    with pytest.raises(UsageError, match="vsepp cannot write words; give --backbone uniter"):
        opened(root, train=only(finished_chain / "data", "train/triplet.vsepp"))
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
    assert len(found.texts) == CAPTIONS - 5
    assert found.num_tokens == len(Vocabulary.load(sources["train"] / "vocab.json")) + 1
    assert gone not in {sentence.image_id for sentence in found.maker.make(range(8), 0)[0]}
    rules = open_rule_maker(sources["prepare"], sources["parse"], 2, RULES, 3, 0)
    assert (len(rules.texts), rules.num_tokens) == (CAPTIONS, None)
