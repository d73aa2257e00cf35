"""`itrpipe mine-negatives`: libraries that agree, indexes, second models, windows, duplicates, what it prints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import itrpipe
from itrpipe.artifacts.artifact import read_manifest
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.engine.work import Part
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows, EmbeddingWriter, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile, FeatureWriter, create_features
from itrpipe.mining import merging
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.faiss_engine import Indexing, Searching
from itrpipe.mining.pair_scorer import encoded_scorer
from itrpipe.mining.rescore import Rescoring
from itrpipe.mining.statistics import WORDS
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.negatives.lists import FILES, MinedList, read_list
from itrpipe.stages import mine_negatives
from itrpipe.training.saved import load_model

Invoke = Callable[..., Any]
TRAIN = ["train.epochs=1", "train.model.embed_dim=8", "train.model.word_dim=8", "train.min_word_count=1"]
TEXTS, IMAGES = 20, 6


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Callable[..., Any]:
    """Mines with round one of the dataset `tiny`, by default with the lists of the finished chain."""

    def mine(*arguments: str, texts: int = 5, images: int = 3) -> Any:
        given = [*TRAIN, "train.batch_size=16", f"num_texts={texts}", f"num_images={images}"]
        command = ["mine-negatives", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain]
        return invoke(*command, *(f"--set={text}" for text in given), *arguments)

    return mine


@pytest.fixture
def mine(run: Callable[..., Any]) -> Callable[..., Path]:
    """Mines successfully and returns the artifact's folder; `mine.out` is what was printed."""

    def successfully(*arguments: str, **more: int) -> Path:
        outcome = run(*arguments, **more)
        assert outcome.code == 0, outcome.err
        successfully.out = outcome.out  # type: ignore[attr-defined]
        return Path(outcome.out.strip().splitlines()[-1])

    return successfully


def statistics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "statistics.json").read_text())


def test_the_libraries_agree(mine: Callable[..., Path]) -> None:
    exact, faiss = mine("--library", "torch"), mine("--library", "faiss")
    assert exact != faiss
    for direction in FILES:
        ours, theirs = read_list(exact, direction), read_list(faiss, direction)
        np.testing.assert_array_equal(ours.anchor_ids, theirs.anchor_ids)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=2e-3)
        assert (ours.candidates == theirs.candidates).mean() > 0.95


def test_the_scores_are_those_of_the_precision_that_was_asked_for(mine: Callable[..., Path], chain: Path) -> None:
    coarse = mine("--set=precision=bf16")
    (trained,) = chain.glob("tiny/train/triplet.vsepp-*")
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


def test_a_window_drops_what_it_says_and_the_table_shows_it(mine: Callable[..., Path]) -> None:
    full = mine()
    narrow = mine("--set", "range_min=1", "--set", "range_max=4")
    assert "cut by range_min" in mine.out  # type: ignore[attr-defined]
    assert "median" in mine.out  # type: ignore[attr-defined]
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


def test_one_call_over_the_vectors_finds_the_same_lists(mine: Callable[..., Path], chain: Path) -> None:
    window = {"range_min": 1, "absolute_margin": -0.1}
    folder = mine(*(f"--set={name}={value}" for name, value in window.items()))
    (trained,) = chain.glob("tiny/train/triplet.vsepp-*")
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
    with pytest.raises(UsageError, match="300 captions per image were asked for, but 2 candidates exist"):
        itrpipe.mine(vectors, vectors, owners)
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


def test_duplicates_are_counted_always_and_dropped_when_asked(mine: Callable[..., Path], chain: Path) -> None:
    found = statistics_of(mine())
    assert found["duplicates"]["captions"] == 0
    assert found["dropped"] == {"texts_for_images": {}, "images_for_texts": {}}
    asked = statistics_of(mine("--drop-duplicates"))
    assert asked["dropped"]["texts_for_images"] == {"duplicates": 0}


# Indexes


def test_an_index_that_searches_all_clusters_finds_the_exact_lists(mine: Callable[..., Path]) -> None:
    exact = mine("--library", "faiss")
    index = mine("--library", "faiss", "--set=index=ivf", "--set=num_lists=4", "--set=num_probes=4")
    assert index != exact
    for direction in FILES:
        np.testing.assert_allclose(read_list(index, direction).scores, read_list(exact, direction).scores, atol=2e-3)
    search = statistics_of(index)["search"]
    assert search["recall"] == {"texts_for_images": 1.0, "images_for_texts": 1.0}
    assert "search" not in statistics_of(exact)
    assert "warning" not in mine.out  # type: ignore[attr-defined]


def test_what_an_index_misses_is_measured_printed_and_warned_of(mine: Callable[..., Path]) -> None:
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
        assert shown in mine.out  # type: ignore[attr-defined]
    (warning,) = read_manifest(index).messages
    assert "with num_probes = 2; raise --set num_probes" in warning


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set=index=ivf"], "index = 'ivf' (from command line): torch searches everything"),
        (["--set=num_lists=4"], "num_lists = 4 (from command line): torch searches everything"),
        (["--set=num_probes=4"], "num_probes = 4 (from command line): torch searches everything"),
        (["--library=faiss", "--set=num_probes=4"], "num_probes = 4 (from command line): a flat index has no clusters"),
        (["--library=faiss", "--set=index=ivf", "--set=num_lists=13"], "num_lists = 13 do not fit 12 vectors"),
        (["--rescore-with", "vsepp"], "this model mines already"),
        (["--rescore-with", "VSE++"], "this model mines already"),
        (["--rescore-with", "bfn"], "there is no backbone of this name; did you mean 'bfan'?"),
        (["--rescore-with", "bfan", "--set=rescore_texts=6"], "rescore_texts = 6 (from command line): the lists hold"),
        (["--rescore-with", "bfan", "--set=rescore_images=4"], "the lists hold num_images = 3"),
        (["--set=rescore_images=2"], "there is no second model; add --rescore-with"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_settings_that_would_do_nothing_or_cannot_be_are_refused(
    run: Callable[..., Any], arguments: list[str], said: str
) -> None:
    outcome = run(*arguments)
    assert outcome.code == UsageError.exit_code
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_unknown_backbone_is_no_surprise(invoke: Invoke, chain: Path) -> None:
    outcome = invoke("mine-negatives", "--backbone", "vsnr", "--dataset", "tiny", "--data", chain)
    assert outcome.code == UsageError.exit_code
    assert (
        "backbone = 'vsnr' (from command line): there is no backbone of this name; did you mean 'vsrn'?" in outcome.err
    )


# A second model


def scores_by(backbone: str, data: Path) -> np.ndarray:
    """Scores [N, T] of the training split by a trained model, each image and caption encoded alone."""
    (folder,) = data.glob(f"tiny/train/triplet.{backbone}-*")
    (prepared,), (extracted,) = data.glob("tiny/prepare/files-*"), data.glob("tiny/extract/precomp-*")
    saved, split = load_model(folder), PreparedDataset.open(prepared).split("train")
    features = FeatureFile.open(extracted / FEATURES)
    assert features.regions is not None
    tokens, lengths = saved.vocabulary.encode_all(split.tokens)
    scores = np.empty((len(split.image_ids), len(lengths)), np.float32)
    with torch.inference_mode():
        for text, length in enumerate(lengths):
            words = torch.from_numpy(tokens[text : text + 1, :length].astype(np.int64))
            encoded = saved.model.encode_texts(TextBatch(words, torch.tensor([int(length)])))
            for image, row in enumerate(features.rows(split.image_ids.tolist())):
                regions = ImageBatch(torch.from_numpy(features.regions[row][None].copy()))
                scores[image, text] = saved.model.score_pairs(saved.model.encode_images(regions), encoded).item()
    return scores


def lists_of(folder: Path) -> dict[str, MinedList]:
    return {direction: read_list(folder, direction) for direction in FILES}


def test_a_second_model_puts_the_same_candidates_in_its_own_order(mine: Callable[..., Path], chain: Path) -> None:
    first = lists_of(mine(texts=TEXTS, images=IMAGES))
    outcome = mine("--rescore-with", "bfan", texts=TEXTS, images=IMAGES)
    assert outcome.name.startswith("exact.triplet.vsepp+bfan-")
    assert "  + train/triplet.bfan-" in mine.out  # type: ignore[attr-defined]
    assert "are in the order of triplet.bfan, whose scores these are" in mine.out  # type: ignore[attr-defined]
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


def test_a_cut_list_holds_the_top_of_the_first_one_only(mine: Callable[..., Path]) -> None:
    first = lists_of(mine(texts=TEXTS, images=IMAGES))
    arguments = ("--rescore-with", "scan", "--set=rescore_texts=4", "--set=rescore_images=2")
    cut = lists_of(mine(*arguments, texts=TEXTS, images=IMAGES))
    for direction, width in (("texts_for_images", 4), ("images_for_texts", 2)):
        assert cut[direction].candidates.shape == (len(first[direction].candidates), width)
        np.testing.assert_array_equal(
            np.sort(cut[direction].candidates), np.sort(first[direction].candidates[:, :width])
        )


def test_windows_go_by_the_scores_of_the_second_model(mine: Callable[..., Path], chain: Path) -> None:
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


def test_what_is_not_in_use_leaves_the_artifact_as_it_was(mine: Callable[..., Path], run: Callable[..., Any]) -> None:
    plain = mine()
    assert "up to date" in run("--set=rescore_with=", "--set=num_lists=0", "--dry-run").out
    rescored = mine("--rescore-with", "bfan")
    assert {plain, rescored} < {*plain.parent.iterdir()}
    index = ("--library", "faiss", "--set=index=ivf")
    assert mine(*index, "--set=num_probes=8") != mine(*index, "--set=num_probes=9")
    kept = mine_negatives.fingerprinted(mine_negatives.MineSettings(**read_manifest(plain).settings))
    assert not {"rescore_with", "rescore_texts", "rescore_images", "index", "num_lists", "num_probes"} & kept.keys()
    assert rescored != mine("--rescore-with", "bfan", "--set=rescore_texts=2")
    inputs = read_manifest(rescored).inputs
    assert inputs["rescorer"].name.startswith("triplet.bfan-")
    assert inputs["train"].name.startswith("triplet.vsepp-")


@pytest.fixture
def without_one_image(chain: Path, mine: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """A trained BFAN, the dataset, features that lack the training image 3, and a file of all training embeddings."""
    mine("--rescore-with", "bfan")
    (model,), (prepared,) = chain.glob("tiny/train/triplet.bfan-*"), chain.glob("tiny/prepare/files-*")
    (whole,), (trained,) = chain.glob("tiny/extract/precomp-*"), chain.glob("tiny/train/triplet.vsepp-*")
    path = trained / EMBEDDINGS
    features, embeddings = FeatureFile.open(whole / FEATURES), read_embeddings(path, "train")
    rows = features.rows([name for name in features.image_id.tolist() if name != embeddings.image_ids[3]])
    create_features(tmp_path / FEATURES, features.image_id[rows].tolist(), features.spec, "precomp")
    with FeatureWriter(tmp_path / FEATURES) as writer:
        writer.write(0, {name: array[rows] for name, array in features.arrays().items()})
    return model, prepared, tmp_path, path


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


class InterruptedMiningError(Exception):
    """Stands for a kill in the middle of the parts."""


Stop = Callable[..., tuple[dict[str, bytes], list[str]]]


@pytest.fixture
def stopped(mine: Callable[..., Path], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Stops a command at the second part of a map; the next one makes all.

    Gives what an undisturbed command makes, and the names of the parts that were made, which grows from then on.
    """

    def stop(work: type[Any], *arguments: str) -> tuple[dict[str, bytes], list[str]]:
        whole = mine(*arguments)
        expected, made, real = content(whole), list[str](), work.make
        shutil.rmtree(whole)

        def second_fails(self: Any, worker: Any, part: Part, path: Path) -> None:
            if made:
                raise InterruptedMiningError
            made.append(part.name)
            real(self, worker, part, path)

        monkeypatch.setattr(work, "make", second_fails)
        with pytest.raises(InterruptedMiningError):
            run(*arguments)
        monkeypatch.setattr(work, "make", lambda self, *more: (made.append(more[1].name), real(self, *more)))
        return expected, made

    return stop


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*FILES.values(), "statistics.json")}


def test_interrupted_scoring_goes_on_and_repeats_no_mining_and_no_pairs_that_were_scored(
    mine: Callable[..., Path], stopped: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--rescore-with", "bfan")
    expected, made = stopped(Rescoring, *arguments)
    assert made == ["000000"]
    monkeypatch.setattr(ExactMining, "make", lambda self, *more: pytest.fail("mined again"))
    monkeypatch.setattr(merging, "join_mined", lambda *more: pytest.fail("joined again"))
    resumed = mine(*arguments)
    assert made == ["000000", "000001", "000002"]
    assert content(resumed) == expected


def test_interrupted_mining_goes_on_and_repeats_no_part(mine: Callable[..., Path], stopped: Stop) -> None:
    arguments = ("--library", "torch", "--set=block=4")
    expected, made = stopped(ExactMining, *arguments)
    assert content(mine(*arguments)) == expected
    assert made == ["000000", "000001", "000002"]


def test_an_interrupted_search_of_clusters_goes_on_with_its_index(
    mine: Callable[..., Path], stopped: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--library", "faiss", "--set=index=ivf", "--set=block=25")
    expected, made = stopped(Searching, *arguments)
    monkeypatch.setattr(Indexing, "make", lambda self, *more: pytest.fail("clustered again"))
    assert content(mine(*arguments)) == expected
    assert made == ["000000", "000001", "000002", "000003"]  # 12 images, then 60 captions


@pytest.mark.parametrize("library", ["torch", "faiss"])
def test_parts_and_workers_change_no_byte(mine: Callable[..., Path], library: str) -> None:
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
def test_further_candidates_are_found_and_named(
    mine: Callable[..., Path], chain: Path, tmp_path: Path, library: str
) -> None:
    alone = mine(f"--library={library}")
    folder = mine(f"--library={library}", "--candidates", write_candidates(tmp_path / "more.parquet", ["a", "b", "c"]))
    assert folder != alone
    lists, plain = read_list(folder, "texts_for_images"), read_list(alone, "texts_for_images")
    assert lists.anchor_ids.tolist() == plain.anchor_ids.tolist()
    captions = len(read_list(alone, "images_for_texts").anchor_ids)
    further = json.loads((folder / "further_candidates.json").read_text())
    assert further == {"side": "caption", "ids": ["a", "b", "c"]}
    trained = next(chain.glob("tiny/train/triplet.vsepp-*"))
    embeddings = read_embeddings(trained / EMBEDDINGS, "train")
    scores = np.asarray(embeddings.images) @ np.eye(3, 8, dtype=np.float32).T
    for own, kept, last in zip(scores, lists.candidates, plain.scores[:, -1], strict=True):
        wanted = {captions + row for row in np.flatnonzero(own > float(last) + 1e-2)}
        assert wanted <= set(kept.tolist())
    assert (lists.candidates >= captions).any()
    np.testing.assert_array_equal(
        read_list(folder, "images_for_texts").candidates, read_list(alone, "images_for_texts").candidates
    )


def test_candidates_that_cannot_be_are_refused(run: Callable[..., Any], chain: Path, tmp_path: Path) -> None:
    trained = next(chain.glob("tiny/train/triplet.vsepp-*"))
    known = read_embeddings(trained / EMBEDDINGS, "train").caption_ids.tolist()
    os.mkfifo(tmp_path / "pipe")
    assert run("--set", f"candidates={tmp_path / 'pipe'}").code == 3, "it would be waited for without end"
    for path, kind, words in (
        (tmp_path / "nothing.parquet", "MissingInputError", "is no file"),
        (write_candidates(tmp_path / "known.parquet", ["a", known[0]]), "DataError", f"such as {known[0]}"),
        (write_candidates(tmp_path / "narrow.parquet", ["a"], 5), "DataError", "width 5 and the mining model's have 8"),
    ):
        outcome = run("--candidates", path)
        assert outcome.code == {"MissingInputError": 3, "DataError": 4}[kind]
        assert words in outcome.err
    outcome = run("--candidates", tmp_path / "known.parquet", "--rescore-with", "bfan")
    assert outcome.code == 2
    assert "no features of further candidates" in outcome.err
