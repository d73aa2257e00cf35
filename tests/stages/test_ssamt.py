"""SSAMT through the command line: both phases, its analyses, and scores of the best candidates alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.analysis.phrase_analysis import FRAGMENT_SCHEMA
from itrpipe.artifacts.artifact import read_manifest
from itrpipe.artifacts.files import MATCHING, METRICS, PHRASES
from itrpipe.features.scores import SCORES, read_scores
from itrpipe.scene_graph.phrase_arrays import CaptionPhrases

Invoke = Callable[..., Any]
SMALL = [
    "train.epochs=2",
    "train.max_updates=0",
    "train.warmup_updates=2",
    "train.batch_size=200",
    "train.min_word_count=1",
    "train.model.embed_dim=8",
    "train.model.heads=2",
    "train.model.feed_forward_dim=8",
    "train.learning_rate=0.01",
    "parse.tagger=lexicon",
    "evaluate.bootstrap_samples=100",
]


def evaluate(invoke: Invoke, root: Path, method: str, *options: object) -> Any:
    sets = [part for text in SMALL for part in ("--set", text)]
    return invoke("evaluate", "--method", method, "--dataset", "tiny", "--data", root, *sets, *options)


def folder_of(root: Path, stage: str, label: str) -> Path:
    (folder,) = root.glob(f"tiny/{stage}/{label}-*")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, finished_chain: Path) -> Path:
    """A data folder in which SSAMT is to be trained once for all tests; they only read."""
    import shutil

    return Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("ssamt") / "data"))


def test_the_chain_parses_trains_both_phases_and_evaluates(trained: Path, invoke: Invoke) -> None:
    outcome = evaluate(invoke, trained, "ssamt")
    assert outcome.code == 0, outcome.err
    planned = [line.split()[1].rpartition("-")[0] for line in outcome.out.splitlines() if line.startswith("  + ")]
    assert planned == ["parse/rules.lexicon", "train/ssamt-intra.ssamt", "train/ssamt.ssamt", "evaluate/ssamt.ssamt"]
    history = pq.read_table(folder_of(trained, "train", "ssamt.ssamt") / "history.parquet").to_pylist()
    assert {"loss_global", "loss_local", "loss_phrase"} <= history[0].keys()
    assert (
        "loss_intra" in pq.read_table(folder_of(trained, "train", "ssamt-intra.ssamt") / "history.parquet").column_names
    )
    again = evaluate(invoke, trained, "ssamt")
    assert "✓ evaluate/ssamt.ssamt" in again.out
    # Pairs are scored by what is evaluated alone, and not by a model that another one starts from.
    assert [path.parent.name.rpartition("-")[0] for path in trained.rglob(SCORES)] == ["ssamt.ssamt"]
    assert not list(trained.glob(f"tiny/train/*/{SCORES}"))


def test_matching_accuracy_counts_every_caption_and_both_choices_of_negatives(trained: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, trained, "ssamt").code == 0
    found = json.loads((folder_of(trained, "evaluate", "ssamt.ssamt") / MATCHING).read_text())
    assert found.keys() == {"uniform", "hardest"}
    for sides in found.values():
        for values in sides.values():
            assert values["pairs"] == 20
            assert 0 < values["phrase_pairs"] <= 20
            assert all(0 <= values[score] <= 100 for score in ("global", "local", "phrase"))
    manifest = read_manifest(folder_of(trained, "evaluate", "ssamt.ssamt"))
    assert {MATCHING, PHRASES} <= manifest.outputs.keys()


def test_every_word_of_an_example_is_scored_with_both_images(trained: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, trained, "ssamt").code == 0
    table = pq.read_table(folder_of(trained, "evaluate", "ssamt.ssamt") / PHRASES)
    assert table.schema.equals(FRAGMENT_SCHEMA)
    rows = table.to_pylist()
    for example in {row["example"] for row in rows}:
        own, wrong = (
            [row for row in rows if row["example"] == example and row["matched"] is side] for side in (True, False)
        )
        assert [row["starts"] for row in own] == [row["starts"] for row in wrong]
        assert own[0]["image_id"] != wrong[0]["image_id"]
        words = [row for row in own if row["kind"] == "word"]
        spoken = [row["text"][row["starts"][0] : row["ends"][0]] for row in words]
        assert "".join(spoken) == own[0]["text"].replace(" ", "")
        assert all(row["holds"] for row in own)  # the image's own captions say it
        assert not all(row["holds"] for row in wrong)
        assert {row["kind"] for row in own} >= {"word", "object"}
        assert all(-1.001 <= row["score"] <= 1.001 for row in rows)


def test_reranking_everything_gives_the_full_scores_and_few_says_so(trained: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, trained, "ssamt").code == 0
    full = json.loads((folder_of(trained, "evaluate", "ssamt.ssamt") / METRICS).read_text())["full"]
    everything = evaluate(invoke, trained, "ssamt", "--rerank", 20)
    assert everything.code == 0, everything.err
    again = json.loads((folder_of(trained, "evaluate", "ssamt.ssamt.rerank20") / METRICS).read_text())["full"]
    assert again == full
    assert evaluate(invoke, trained, "ssamt", "--rerank", 1).code == 0
    few = json.loads((folder_of(trained, "evaluate", "ssamt.ssamt.rerank1") / METRICS).read_text())["full"]
    assert few.keys() == full.keys()


def test_the_saved_scores_are_those_of_the_second_phase(trained: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, trained, "ssamt").code == 0
    assert evaluate(invoke, trained, "ssamt-intra").code == 0
    intra, inter = (
        read_scores(folder_of(trained, "evaluate", label) / SCORES, "test").matrix
        for label in ("ssamt-intra.ssamt", "ssamt.ssamt")
    )
    assert np.abs(intra).max() <= 1.001
    assert np.abs(inter - intra).max() > 1e-3
    assert np.abs(inter - intra).max() <= 0.5 + 1e-3  # mu1 + 2 mu2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--method", "triplet", "--backbone", "ssamt"], "method 'triplet' does not train backbone 'ssamt'"),
        (["train", "--method", "ssamt", "--backbone", "vsrn"], "method 'ssamt' does not train backbone 'vsrn'"),
        (
            ["evaluate", "--method", "triplet", "--rerank", "5"],
            "--rerank 5 is for single models that rank in two steps",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(
    trained: Path, invoke: Invoke, arguments: list[str], expected: str
) -> None:
    outcome = invoke(*arguments, "--dataset", "tiny", "--data", trained)
    assert outcome.code == 2
    assert expected in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_labels_of_the_tiny_captions_are_those_of_their_images(trained: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, trained, "ssamt").code == 0
    phrases = CaptionPhrases.read(folder_of(trained, "parse", "rules.lexicon"))
    own = phrases.caption_image
    words, found = phrases.positive(np.arange(len(phrases)), own)
    batch = phrases.batch(np.arange(len(phrases)))
    np.testing.assert_array_equal(words, batch.words >= 0)
    np.testing.assert_array_equal(found, batch.kinds >= 0)
