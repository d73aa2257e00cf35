"""`itrpipe mine-negatives`: libraries that agree, indexes, second models, windows, duplicates, what it prints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import itrpipe
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError
from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows, EmbeddingWriter, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile, FeatureSpec, write_features
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.faiss_engine import Indexing, Searching
from itrpipe.mining.files import FILES, MinedList, read_list
from itrpipe.mining.rescoring import Rescoring, encoded_scorer
from itrpipe.mining.statistics import WORDS
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.stages import mine_negatives
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.saved import load_model
from tests.chains import Invoke, interrupted, made, only, refused, sets
from tests.conftest import Outcome

TRAIN = ["train.epochs=1", "train.model.embed_dim=8", "train.model.word_dim=8", "train.min_word_count=1"]
TEXTS, IMAGES = 20, 6


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Invoke:
    """Mines with the first training of the dataset `tiny`, by default with the lists of the finished chain."""

    def mine(*arguments: object, texts: int = 5, images: int = 3) -> Outcome:
        small = sets(*TRAIN, "train.batch_size=16", f"num_texts={texts}", f"num_images={images}")
        return invoke("mine-negatives", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain, *small, *arguments)

    return mine


@dataclass
class Mining:
    """Mines successfully, as often as it is called.

    Attributes:
        run: the command.
        out: what was printed last.
    """

    run: Invoke
    out: str = ""

    def __call__(self, *arguments: object, **more: int) -> Path:
        outcome = self.run(*arguments, **more)
        self.out = outcome.out
        return made(outcome)


@pytest.fixture
def mine(run: Invoke) -> Mining:
    return Mining(run)


def statistics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "statistics.json").read_text())


def test_the_libraries_agree(mine: Mining) -> None:
    exact, faiss = mine("--library", "torch"), mine("--library", "faiss")
    assert exact != faiss
    for direction in FILES:
        ours, theirs = read_list(exact, direction), read_list(faiss, direction)
        np.testing.assert_array_equal(ours.anchor_ids, theirs.anchor_ids)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=2e-3)
        assert (ours.candidates == theirs.candidates).mean() > 0.95


def test_the_scores_are_those_of_the_precision_that_was_asked_for(mine: Mining, chain: Path) -> None:
    coarse = mine("--set=precision=bf16")
    trained = only(chain, "train/triplet.vsepp")
    embeddings = read_embeddings(trained / EMBEDDINGS, "train")
    images, texts = (torch.tensor(side) for side in (embeddings.images, embeddings.texts))
    exact, rounded = images @ texts.T, images.bfloat16().float() @ texts.bfloat16().float().T
    for direction, turned in (("texts_for_images", False), ("images_for_texts", True)):
        found = read_list(coarse, direction)
        ours, theirs = (
            np.take_along_axis(each.T.numpy() if turned else each.numpy(), found.candidates, axis=1)
            for each in (rounded, exact)
        )
        np.testing.assert_allclose(found.scores, ours, atol=5e-4)  # they are stored in half precision
        assert np.abs(found.scores - theirs).max() > 1e-3


def test_a_window_drops_what_it_says_and_the_table_shows_it(mine: Mining) -> None:
    full = mine()
    narrow = mine("--set", "range_min=1", "--set", "range_max=4")
    assert "cut by range_min" in mine.out
    assert "median" in mine.out
    before, after = read_list(full, "texts_for_images"), read_list(narrow, "texts_for_images")
    np.testing.assert_array_equal(after.candidates[:, :3], before.candidates[:, 1:4])
    assert (after.candidates[:, 3:] == -1).all()
    found = statistics_of(narrow)
    assert found["dropped"]["texts_for_images"] == {
        "range_min": len(before.candidates),
        "range_max": len(before.candidates),
    }
    assert found["candidates"]["texts_for_images"] == (after.candidates >= 0).sum()
    assert found["texts_for_images"]["maximum"] == pytest.approx(after.scores.max(), abs=1e-3)


def test_one_call_over_the_vectors_finds_the_same_lists(mine: Mining, chain: Path) -> None:
    window = {"range_min": 1, "absolute_margin": -0.1}
    folder = mine(*(f"--set={name}={value}" for name, value in window.items()))
    trained = only(chain, "train/triplet.vsepp")
    known = read_embeddings(trained / EMBEDDINGS, "train")
    arrays = np.array(known.images), torch.from_numpy(np.array(known.texts)), known.caption_image
    found = itrpipe.mine(*arrays, num_texts=5, num_images=3, **window)
    for direction, lists in (
        ("texts_for_images", found.texts_for_images),
        ("images_for_texts", found.images_for_texts),
    ):
        stored = read_list(folder, direction)
        np.testing.assert_array_equal(lists.candidates, stored.candidates)
        np.testing.assert_array_equal(lists.scores.astype(np.float16), stored.scores)
        assert 0 < (lists.candidates < 0).sum() < lists.candidates.size


def test_one_call_drops_texts_that_read_like_a_positive_and_refuses_what_does_not_fit() -> None:
    vectors, owners = np.eye(3, dtype=np.float64), [0, 1, 2]
    found = itrpipe.mine(vectors, vectors, owners, num_texts=2, num_images=2, captions=["A dog.", "a dog", "A cat"])
    assert found.texts_per_image.tolist() == [[2, -1], [2, -1], [0, 1]]
    assert found.images_per_text.tolist() == [[2, -1], [2, -1], [0, 1]]
    assert itrpipe.mine(vectors, vectors, owners).texts_per_image.shape == (3, 2)
    for bad, message in (
        ((vectors[0], vectors, owners), r"images are float64 \[3\] and not vectors"),
        ((vectors, vectors, np.zeros(3)), r"owners are float64 \[3\]"),
        ((vectors, vectors * np.nan, owners), "hold NaN or infinity"),
        ((vectors, vectors, [0, 1, 5]), r"captions name image rows 0\.\.5, but 3 images"),
    ):
        with pytest.raises(DataError, match=message):
            itrpipe.mine(*bad, num_texts=1, num_images=1)
    with pytest.raises(DataError, match="2 captions and 3 owners"):
        itrpipe.mine(vectors, vectors, owners, num_texts=1, num_images=1, captions=["a", "b"])


def test_duplicates_are_counted_always_and_dropped_when_asked(mine: Mining, chain: Path) -> None:
    found = statistics_of(mine())
    assert found["duplicates"]["captions"] == 0
    assert found["dropped"] == {"texts_for_images": {}, "images_for_texts": {}}
    asked = statistics_of(mine("--drop-duplicates"))
    assert asked["dropped"]["texts_for_images"] == {"duplicates": 0}


# Indexes


def test_an_index_that_searches_all_clusters_finds_the_exact_lists(mine: Mining) -> None:
    exact = mine("--library", "faiss")
    index = mine("--library", "faiss", "--set=index=ivf", "--set=num_lists=4", "--set=num_probes=4")
    assert index != exact
    for direction in FILES:
        np.testing.assert_allclose(read_list(index, direction).scores, read_list(exact, direction).scores, atol=2e-3)
    search = statistics_of(index)["search"]
    assert search["recall"] == {"texts_for_images": 1.0, "images_for_texts": 1.0}
    assert "search" not in statistics_of(exact)
    assert "warning" not in mine.out


def test_what_an_index_misses_is_measured_printed_and_warned_of(mine: Mining) -> None:
    exact = mine("--library", "torch", texts=TEXTS, images=IMAGES)
    index = mine("--library", "faiss", "--set=index=ivf", "--set=num_probes=2", texts=TEXTS, images=IMAGES)
    search = statistics_of(index)["search"]
    # 60 captions and 12 images, all of them sampled: 4 sqrt(60) = 31 clusters, and no more than 12.
    assert search["num_lists"] == {"texts_for_images": 31, "images_for_texts": 12}
    assert search["num_probes"] == {"texts_for_images": 2, "images_for_texts": 2}
    for direction in FILES:
        found, wanted = read_list(index, direction).candidates, read_list(exact, direction).candidates
        hits = sum(len(set(some) & set(all_)) for some, all_ in zip(found.tolist(), wanted.tolist(), strict=True))
        assert search["recall"][direction] == pytest.approx(hits / wanted.size, abs=0.02)
        assert search["recall"][direction] < 0.9
        shown = f"{WORDS[direction]}: found {100 * search['recall'][direction]:.1f}% of what exact search"
        assert shown in mine.out
    (warning,) = read_manifest(index).messages
    assert "with num_probes = 2; raise --set num_probes" in warning


# A second model


def scores_by(backbone: str, data: Path) -> np.ndarray:
    """Scores [N, T] of the training split by a trained model, each image and caption encoded alone."""
    saved = load_model(only(data, f"train/triplet.{backbone}"))
    split = PreparedDataset.open(only(data, "prepare/files")).split("train")
    features = FeatureFile.open(only(data, "extract/precomp") / FEATURES)
    tokens, lengths = saved.vocabulary.encode_all(split.tokens)
    scores = np.empty((len(split.image_ids), len(lengths)), np.float32)
    with torch.inference_mode():
        for text, length in enumerate(lengths):
            words = torch.from_numpy(tokens[text : text + 1, :length].astype(np.int64))
            encoded = saved.model.encode_texts(TextBatch(words, torch.tensor([int(length)])))
            for image, row in enumerate(features.rows(split.image_ids.tolist())):
                regions = ImageBatch(torch.from_numpy(features.arrays["regions"][row][None].copy()))
                scores[image, text] = saved.model.score_pairs(saved.model.encode_images(regions), encoded).item()
    return scores


def lists_of(folder: Path) -> dict[str, MinedList]:
    return {direction: read_list(folder, direction) for direction in FILES}


def test_a_second_model_puts_the_same_candidates_in_its_own_order(mine: Mining, chain: Path) -> None:
    first = lists_of(mine(texts=TEXTS, images=IMAGES))
    outcome = mine("--rescore-with", "bfan", texts=TEXTS, images=IMAGES)
    assert outcome.name.startswith("exact.triplet.vsepp+bfan-")
    assert "  + train/triplet.bfan-" in mine.out
    assert "are in the order of triplet.bfan, whose scores these are" in mine.out
    second, scores = lists_of(outcome), scores_by("bfan", chain)
    changed = 0
    for direction, pairs in (("texts_for_images", scores), ("images_for_texts", scores.T)):
        before, after = first[direction], second[direction]
        np.testing.assert_array_equal(after.anchor_ids, before.anchor_ids)
        np.testing.assert_array_equal(np.sort(after.candidates), np.sort(before.candidates))
        expected = np.take_along_axis(pairs, after.candidates, axis=1)
        np.testing.assert_allclose(after.scores, expected, atol=2e-3)
        assert (np.diff(expected, axis=1) <= 1e-5).all()
        changed += int((after.candidates != before.candidates).sum())
    assert changed > 100
    found, captions = statistics_of(outcome), np.arange(scores.shape[1])
    assert found["rescored"] == {"model": "triplet.bfan", "texts": TEXTS, "images": IMAGES}
    positives = scores[captions // 5, captions]
    assert found["positive_score"]["median"] == pytest.approx(np.median(positives), abs=1e-4)
    margins = positives - second["images_for_texts"].scores[:, 0]
    assert found["images_for_texts_margin"]["minimum"] == pytest.approx(margins.min(), abs=2e-3)


def test_a_cut_list_holds_the_top_of_the_first_one_only(mine: Mining) -> None:
    first = lists_of(mine(texts=TEXTS, images=IMAGES))
    arguments = ("--rescore-with", "scan", "--set=rescore_texts=4", "--set=rescore_images=2")
    cut = lists_of(mine(*arguments, texts=TEXTS, images=IMAGES))
    for direction, width in (("texts_for_images", 4), ("images_for_texts", 2)):
        assert cut[direction].candidates.shape == (len(first[direction].candidates), width)
        np.testing.assert_array_equal(
            np.sort(cut[direction].candidates), np.sort(first[direction].candidates[:, :width])
        )


def test_windows_go_by_the_scores_of_the_second_model(mine: Mining, chain: Path) -> None:
    full = lists_of(mine("--rescore-with", "bfan", texts=TEXTS, images=IMAGES))
    window = mine("--rescore-with", "bfan", "--set=absolute_margin=-0.01", texts=TEXTS, images=IMAGES)
    scores, captions = scores_by("bfan", chain), np.arange(60)
    positives = scores[captions // 5, captions]
    hardest = {"images_for_texts": positives, "texts_for_images": positives.reshape(-1, 5).min(axis=1)}
    for direction, limited in lists_of(window).items():
        pairs = scores if direction == "texts_for_images" else scores.T
        exact = np.take_along_axis(pairs, full[direction].candidates, axis=1)
        stays = exact <= hardest[direction][:, None] + 0.01
        assert 0 < stays.sum() < stays.size
        np.testing.assert_array_equal((limited.candidates >= 0).sum(axis=1), stays.sum(axis=1))
        assert statistics_of(window)["dropped"][direction] == {"absolute_margin": int((~stays).sum())}


def test_what_is_not_in_use_leaves_the_artifact_as_it_was(mine: Mining, run: Invoke) -> None:
    plain = mine()
    assert "up to date" in run("--set=rescore_with=", "--set=num_lists=0", "--dry-run").out
    rescored = mine("--rescore-with", "bfan")
    assert {plain, rescored} < {*plain.parent.iterdir()}
    index = ("--library", "faiss", "--set=index=ivf")
    assert mine(*index, "--set=num_probes=8") != mine(*index, "--set=num_probes=9")
    kept = mine_negatives.MineNegatives().fingerprinted(mine_negatives.MineSettings(**read_manifest(plain).settings))
    assert not {"rescore_with", "rescore_texts", "rescore_images", "index", "num_lists", "num_probes"} & kept.keys()
    assert rescored != mine("--rescore-with", "bfan", "--set=rescore_texts=2")
    inputs = read_manifest(rescored).inputs
    assert inputs["rescorer"].name.startswith("triplet.bfan-")
    assert inputs["train"].name.startswith("triplet.vsepp-")


@pytest.fixture
def without_one_image(chain: Path, mine: Mining, tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """A trained BFAN, the dataset, features that lack the training image 3, and a file of all training embeddings."""
    mine("--rescore-with", "bfan")
    path = only(chain, "train/triplet.vsepp") / EMBEDDINGS
    features = FeatureFile.open(only(chain, "extract/precomp") / FEATURES)
    embeddings = read_embeddings(path, "train")
    rows = features.rows([name for name in features.image_id.tolist() if name != embeddings.image_ids[3]])
    ids, kept = features.image_id[rows].tolist(), {name: array[rows] for name, array in features.arrays.items()}
    spec = FeatureSpec.of({name: array.shape[1:] for name, array in kept.items()})
    write_features(tmp_path / FEATURES, ids, spec, "precomp", [(np.arange(len(ids)), kept)])
    return only(chain, "train/triplet.bfan"), only(chain, "prepare/files"), tmp_path, path


def test_images_without_features_are_left_out_as_in_training(
    without_one_image: tuple[Path, ...], chain: Path, tmp_path: Path
) -> None:
    model, prepared, extracted, path = without_one_image
    folders = (model, prepared, extracted)
    with pytest.raises(DataError, match="hold 11 training rows and the mining model embedded 12"):
        encoded_scorer(*folders, EmbeddingRows.open(path, "train"), "cpu", 1 << 20)
    embeddings = read_embeddings(path, "train")
    kept = np.delete(np.arange(12), 3)
    captions = np.flatnonzero(embeddings.caption_image != 3)
    image = np.searchsorted(kept, embeddings.caption_image[captions])
    ids = embeddings.image_ids[kept], embeddings.caption_ids[captions]
    with EmbeddingWriter(tmp_path / EMBEDDINGS, "train", *ids, image, 8, embeddings.measure) as writer:
        writer.write("images", 0, embeddings.images[kept])
        writer.write("texts", 0, embeddings.texts[captions])
    scorer = encoded_scorer(*folders, EmbeddingRows.open(tmp_path / EMBEDDINGS, "train"), "cpu", 1 << 20)
    expected = scores_by("bfan", chain)[kept][:, captions]
    pairs = np.indices(expected.shape).reshape(2, -1)
    np.testing.assert_allclose(scorer(*pairs), expected.ravel(), atol=1e-5)


@pytest.fixture
def stopped(mine: Mining, run: Invoke) -> Callable[..., None]:
    """Mines without an interruption and with one at the second part, checks the bytes, and which parts are made when.

    Whatever the interrupted command has finished before it began the parts of `kept` has to stay.
    """

    def check(work: type[Any], parts: int, *arguments: str, kept: tuple[tuple[Any, str], ...] = ()) -> None:
        whole = mine(*arguments)
        expected = content(whole)
        shutil.rmtree(whole)
        with interrupted(2, work, "make") as first:
            assert run(*arguments).code == 130
        with ExitStack() as patches:
            for owner, name in kept:
                patches.enter_context(mock.patch.object(owner, name, side_effect=AssertionError("made again")))
            others = patches.enter_context(interrupted(99, work, "make"))
            assert content(mine(*arguments)) == expected
        assert [part.name for _, part, _ in (*first, *others)] == [f"{number:06}" for number in range(parts)]

    return check


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*FILES.values(), "statistics.json")}


def test_interrupted_scoring_goes_on_and_repeats_no_mining_and_no_pairs_that_were_scored(
    stopped: Callable[..., None],
) -> None:
    stopped(Rescoring, 3, "--rescore-with", "bfan", kept=((ExactMining, "make"), (ExactMining, "join")))


def test_interrupted_mining_goes_on_and_repeats_no_part(stopped: Callable[..., None]) -> None:
    stopped(ExactMining, 3, "--library", "torch", "--set=block=4")


def test_an_interrupted_search_of_clusters_goes_on_with_its_index(stopped: Callable[..., None]) -> None:
    index = ("--library", "faiss", "--set=index=ivf", "--set=block=25")
    stopped(Searching, 4, *index, kept=((Indexing, "make"),))  # 12 images, then 60 captions


@pytest.mark.parametrize("library", ["torch", "faiss"])
def test_parts_and_workers_change_no_byte(mine: Mining, library: str) -> None:
    whole = mine("--library", library)
    expected = content(whole)
    shutil.rmtree(whole)
    assert content(mine("--library", library, "--set=block=5", "--workers", "2")) == expected


# Further candidates


def write_candidates(path: Path, ids: list[str], width: int = 8) -> Path:
    """Captions of nobody that are as near to every image as can be: they are found by each of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    vectors = np.eye(len(ids), width, dtype=np.float32)
    pq.write_table(pa.table({"caption_id": ids, "embedding": list(vectors)}), path)
    return path


@pytest.mark.parametrize("library", ["torch", "faiss"])
def test_further_candidates_are_found_and_named(mine: Mining, chain: Path, tmp_path: Path, library: str) -> None:
    alone = mine(f"--library={library}")
    folder = mine(f"--library={library}", "--candidates", write_candidates(tmp_path / "more.parquet", ["a", "b", "c"]))
    assert folder != alone
    lists, plain = read_list(folder, "texts_for_images"), read_list(alone, "texts_for_images")
    assert lists.anchor_ids.tolist() == plain.anchor_ids.tolist()
    captions = len(read_list(alone, "images_for_texts").anchor_ids)
    further = json.loads((folder / "further_candidates.json").read_text())
    assert further == {"side": "caption", "ids": ["a", "b", "c"]}
    trained = only(chain, "train/triplet.vsepp")
    embeddings = read_embeddings(trained / EMBEDDINGS, "train")
    scores = np.asarray(embeddings.images) @ np.eye(3, 8, dtype=np.float32).T
    for own, kept, last in zip(scores, lists.candidates, plain.scores[:, -1], strict=True):
        wanted = {captions + row for row in np.flatnonzero(own > float(last) + 1e-2)}
        assert wanted <= set(kept.tolist())
    assert (lists.candidates >= captions).any()
    np.testing.assert_array_equal(
        read_list(folder, "images_for_texts").candidates, read_list(alone, "images_for_texts").candidates
    )


def test_candidates_that_cannot_be_are_refused(run: Invoke, chain: Path, tmp_path: Path) -> None:
    trained = only(chain, "train/triplet.vsepp")
    known = read_embeddings(trained / EMBEDDINGS, "train").caption_ids.tolist()
    narrow = write_candidates(tmp_path / "narrow.parquet", ["a"], 5)
    found = write_candidates(tmp_path / "known.parquet", ["a", known[0]])
    os.mkfifo(tmp_path / "pipe")
    refused(run("--set", f"candidates={tmp_path / 'pipe'}"), 3)  # it would be waited for without end
    refused(run("--candidates", tmp_path / "nothing.parquet"), 3, "is no file")
    refused(run("--candidates", found), 4, f"such as {known[0]}")
    refused(run("--candidates", narrow), 4, "width 5", "have 8")
    refused(run("--candidates", found, "--rescore-with", "bfan"), 2, "no features of further candidates")
