"""`itrpipe mine-negatives`: libraries that agree, windows, indexes, second models, further candidates, itrpipe.mine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import itrpipe
from itrpipe.datasets.decisions import Decision, DecisionFile
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.judging.pairs import JudgedPairs
from itrpipe.mining.lists import FILES, MinedList, read_list
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.storage.arrays import ArrayFile
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.saved import load_model
from tests.chains import Invoke, copied, interrupted, made, only, refused, sets
from tests.conftest import TINY, Outcome
from tests.judging.lookers import save

SMALL = sets(*TINY[:-1], "num_texts=20", "num_images=6")
WAYS: dict[str, tuple[str, ...]] = {
    "exact": ("--drop-duplicates",),
    "bf16": ("--set=precision=bf16",),
    "window": ("--set=range_min=1", "--set=range_max=4", "--set=absolute_margin=-0.01"),
    "faiss": ("--library", "faiss"),
    "clusters": ("--library", "faiss", "--set=index=ivf", "--set=num_probes=2"),
    "all clusters": ("--library", "faiss", "--set=index=ivf", "--set=num_lists=4", "--set=num_probes=4"),
    "second model": ("--rescore-with", "bfan"),
    "its window": ("--rescore-with", "bfan", "--set=absolute_margin=-0.01", "--set=rescore_images=2"),
}


@pytest.fixture(scope="module")
def root(pairs_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with VSE++ and BFAN, in which the tests mine."""
    return copied(pairs_chain, tmp_path_factory.mktemp("mined") / "data")


def mine(invoke: Invoke, root: Path, *options: object) -> Outcome:
    return invoke("mine-negatives", "--backbone", "vsepp", "--dataset", "tiny", "--data", root, *SMALL, *options)


@pytest.fixture
def mined(root: Path, invoke: Invoke) -> Callable[[str], Path]:
    """Gives the artifact of one of `WAYS`."""
    return lambda way: made(mine(invoke, root, *WAYS[way]))


def statistics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "statistics.json").read_text())


def lists_of(folder: Path) -> dict[str, MinedList]:
    return {direction: read_list(folder, direction) for direction in FILES}


def vectors(root: Path) -> SplitEmbeddings:
    return read_embeddings(only(root, "train/triplet.vsepp") / EMBEDDINGS, "train")


def scores_by(backbone: str, data: Path) -> np.ndarray:
    """Scores [N, T] of the training split by a trained model, each image and caption encoded alone."""
    saved = load_model(only(data, f"train/triplet.{backbone}"))
    split = PreparedDataset.open(only(data, "prepare/files")).split("train")
    features = FeatureFile.open(only(data, "extract/precomp") / FEATURES)
    tokens, lengths = saved.tokens.encode_all(split.tokens)
    scores = np.empty((len(split.image_ids), len(lengths)), np.float32)
    with torch.inference_mode():
        for text, length in enumerate(lengths):
            words = torch.from_numpy(tokens[text : text + 1, :length].astype(np.int64))
            encoded = saved.model.encode_texts(TextBatch(words, torch.tensor([int(length)])))
            for image, row in enumerate(features.rows(split.image_ids.tolist())):
                regions = ImageBatch(torch.from_numpy(features.arrays["regions"][row][None].copy()))
                scores[image, text] = saved.model.score_pairs(saved.model.encode_images(regions), encoded).item()
    return scores


def test_libraries_and_precisions_find_the_scores_that_they_should(mined: Callable[..., Path], root: Path) -> None:
    exact, faiss, coarse = (lists_of(mined(way)) for way in ("exact", "faiss", "bf16"))
    images, texts = (torch.tensor(side) for side in (vectors(root).images, vectors(root).texts))
    rounded = (images.bfloat16().float() @ texts.bfloat16().float().T).numpy()
    for direction, scores in (("texts_for_images", rounded), ("images_for_texts", rounded.T)):
        ours, theirs, found = (each[direction] for each in (exact, faiss, coarse))
        assert ours.anchor_ids.tolist() == theirs.anchor_ids.tolist()
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=2e-3)
        assert (ours.candidates == theirs.candidates).mean() > 0.95
        expected = np.take_along_axis(scores, found.candidates, axis=1)
        np.testing.assert_allclose(found.scores, expected, atol=5e-4)  # they are stored in half precision
    assert {"search", "rescored"}.isdisjoint(statistics_of(mined("exact")))


def test_it_says_that_the_model_is_to_train_longer_and_that_nobody_has_judged(root: Path, invoke: Invoke) -> None:
    outcome = mine(invoke, root, "--set=range_max=5")  # by a model of one epoch
    statistics = statistics_of(made(outcome))
    assert "too few epochs" in outcome.out
    assert "nobody has judged" in outcome.out
    assert statistics["judge"] is None


def test_a_window_drops_what_it_says_and_the_statistics_count_it(mined: Callable[..., Path], root: Path) -> None:
    folder, full = mined("window"), statistics_of(mined("exact"))
    assert full["dropped"] == {direction: {"duplicates": 0} for direction in FILES}
    assert full["duplicates"]["captions"] == 0
    found, after = statistics_of(folder), lists_of(folder)
    assert {"range_min": 12, "range_max": 12 * 16}.items() <= found["dropped"]["texts_for_images"].items()
    assert found["candidates"]["texts_for_images"] == (after["texts_for_images"].candidates >= 0).sum()
    known = vectors(root)
    arrays = np.array(known.images), torch.from_numpy(np.array(known.texts)), known.caption_image
    window = {"range_min": 1, "range_max": 4, "absolute_margin": -0.01}
    once = itrpipe.mine(*arrays, num_texts=20, num_images=6, **window)  # one call over the vectors
    for direction in FILES:
        np.testing.assert_array_equal(getattr(once, direction), after[direction].candidates)
        scores = getattr(once, f"{direction}_scores")
        np.testing.assert_array_equal(scores.astype(np.float16), after[direction].scores)


def test_one_call_drops_texts_that_read_like_a_positive_and_refuses_what_does_not_fit() -> None:
    units, owners = np.eye(3, dtype=np.float64), [0, 1, 2]
    found = itrpipe.mine(units, units, owners, num_texts=2, num_images=2, captions=["A dog.", "a dog", "A cat"])
    assert found.texts_for_images.tolist() == found.images_for_texts.tolist() == [[2, -1], [2, -1], [0, 1]]
    assert itrpipe.mine(units, units, owners).texts_for_images.shape == (3, 2)
    for images, texts, of, captions, message in (
        (units[0], units, owners, None, r"float64 \[3\] and not vectors"),
        (units, units, np.zeros(3), None, r"owners are float64 \[3\]"),
        (units, units * np.nan, owners, None, "NaN or infinity"),
        (units, units, [0, 1, 5], None, r"image rows 0\.\.5, but 3 images"),
        (units, units, owners, ["a", "b"], "2 captions and 3 owners"),
    ):
        with pytest.raises(DataError, match=message):
            itrpipe.mine(images, texts, of, num_texts=1, num_images=1, captions=captions)


def test_what_an_index_misses_is_measured_and_warned_of(mined: Callable[..., Path]) -> None:
    folder, exact = mined("clusters"), lists_of(mined("exact"))
    search = statistics_of(folder)["search"]
    # 60 captions and 12 images, all of them sampled: 4 sqrt(60) = 31 clusters, and no more than 12.
    assert search["num_lists"] == {"texts_for_images": 31, "images_for_texts": 12}
    assert search["num_probes"] == {"texts_for_images": 2, "images_for_texts": 2}
    for direction, found in lists_of(folder).items():
        wanted = exact[direction].candidates.tolist()
        hits = sum(len({*some} & {*every}) for some, every in zip(found.candidates.tolist(), wanted, strict=True))
        assert search["recall"][direction] == pytest.approx(hits / found.candidates.size, abs=0.02)
        assert search["recall"][direction] < 0.9
    (warning,) = (each for each in read_manifest(folder).messages if each.startswith("the index"))
    assert "num_probes = 2" in warning
    assert set(statistics_of(mined("all clusters"))["search"]["recall"].values()) == {1.0}
    assert not any("index" in each for each in read_manifest(mined("all clusters")).messages)


# A second model


def test_a_second_model_puts_the_same_candidates_in_its_own_order(mined: Callable[..., Path], root: Path) -> None:
    folder, first = mined("second model"), lists_of(mined("exact"))
    assert folder.name.startswith("exact.triplet.vsepp+bfan-")
    second, scores = lists_of(folder), scores_by("bfan", root)
    captions = np.arange(scores.shape[1])
    positives = scores[captions // 5, captions]
    window = lists_of(mined("its window"))
    hardest = {"images_for_texts": positives, "texts_for_images": positives.reshape(-1, 5).min(axis=1)}
    for direction, pairs in (("texts_for_images", scores), ("images_for_texts", scores.T)):
        before, after = first[direction], second[direction]
        np.testing.assert_array_equal(np.sort(after.candidates), np.sort(before.candidates))
        assert (after.candidates != before.candidates).any()
        expected = np.take_along_axis(pairs, after.candidates, axis=1)
        np.testing.assert_allclose(after.scores, expected, atol=2e-3)
        assert (np.diff(expected, axis=1) <= 1e-5).all()
        # Its lists may be shorter, and windows go by its scores.
        width = 20 if direction == "texts_for_images" else 2
        exact = np.take_along_axis(pairs, before.candidates[:, :width], axis=1)
        stays = (exact <= hardest[direction][:, None] + 0.01).sum(axis=1)
        np.testing.assert_array_equal((window[direction].candidates >= 0).sum(axis=1), stays)
    found = statistics_of(folder)
    assert found["rescored"] == {"model": "triplet.bfan", "texts": 20, "images": 6}
    assert found["positive_score"]["median"] == pytest.approx(np.median(positives), abs=1e-4)
    inputs = read_manifest(folder).inputs
    assert [inputs[name].name.rpartition("-")[0] for name in ("rescorer", "train")] == ["triplet.bfan", "triplet.vsepp"]


# Judges

JUDGED = ("--judge", "captions:tfidf", "--judge", "graphs")


def test_judges_say_of_the_lists_of_a_search_how_likely_each_candidate_is(root: Path, invoke: Invoke) -> None:
    outcome = mine(invoke, root, *JUDGED)
    assert outcome.out.splitlines()[-1].startswith("next: itrpipe export-negatives")
    assert " ".join(JUDGED) in outcome.out.splitlines()[-1]
    found, judged = made(mine(invoke, root)), made(outcome)
    inputs = read_manifest(judged).inputs
    assert inputs["mine_negatives"].fingerprint == read_manifest(found).fingerprint
    assert judged.name.startswith("exact.triplet.vsepp+captions+graphs-")
    scores = ArrayFile(root / "tiny" / "judge" / inputs["judge_1"].name / "pairs.arrays")
    assert (np.diff(scores["codes"].read()) > 0).all()
    before, after = lists_of(found), lists_of(judged)
    for direction in FILES:
        np.testing.assert_array_equal(after[direction].candidates, before[direction].candidates)
        np.testing.assert_array_equal(after[direction].scores, before[direction].scores)
        probability = after[direction].false_negative_probability
        assert probability is not None
        marked = statistics_of(judged)["judged"][direction]["marked"]
        assert marked == pytest.approx((probability > 0.5).sum(), abs=1)


def test_decisions_ask_no_judge_again_and_leave_out_what_fits(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    before = lists_of(made(mine(invoke, root, *JUDGED)))["texts_for_images"]
    captions = lists_of(made(mine(invoke, root)))["images_for_texts"].anchor_ids.tolist()
    file = tmp_path / "decisions.parquet"
    verdicts = (captions[before.candidates[0, 0]], "fits"), (captions[before.candidates[0, 1]], "differs")
    DecisionFile(file).add([Decision("ada", before.anchor_ids[0], *verdict) for verdict in verdicts])
    outcome = mine(invoke, root, *JUDGED, "--decisions", file, "--part", "1/2")  # which is one job's work
    assert outcome.out.count("✓ judge/") == 2
    after = lists_of(made(outcome))["texts_for_images"]
    assert after.false_negative_probability is not None
    assert after.candidates[0, 0] == before.candidates[0, 1]
    assert after.false_negative_probability[0, 0] == 0
    table = tmp_path / "decisions.csv"
    rows = [f"{before.anchor_ids[0]},{caption},{answer}\n" for caption, answer in (*verdicts, ("nobody's", "fits"))]
    table.write_text("".join(["image_id,caption_id,answer\n", *rows]))
    outcome = mine(invoke, root, "--decisions", table)
    assert "1 pair of ids that the dataset does not have" in outcome.out
    alone = made(outcome)
    assert alone.name.startswith("exact.triplet.vsepp+decisions-")
    assert statistics_of(alone)["decided"] == {"decisions": 3, "mined": 2, "left_out": 1, "kept": 1}
    np.testing.assert_array_equal(lists_of(alone)["texts_for_images"].candidates, after.candidates)


def test_judges_have_what_they_read(root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path) -> None:
    read = {f"captions:{saved_encoders / 'bert'}": {"text"}, f"itm:{save('blip', tmp_path / 'blip')}": set()}
    for judge, inputs in read.items():
        folder = made(mine(invoke, root, "--judge", judge, "--set=range_max=3"))
        judged = read_manifest(root / "tiny" / "judge" / read_manifest(folder).inputs["judge_1"].name)
        assert judged.inputs.keys() - {"prepare", "train", "mine_negatives"} == inputs


def test_a_judge_that_is_interrupted_goes_on_to_the_same_bytes(
    pairs_chain: Path, invoke: Invoke, tmp_path: Path
) -> None:
    whole, other = (copied(pairs_chain, tmp_path / name) for name in ("whole", "other"))
    asked = ("--judge", "captions:tfidf", "--set=range_max=7", "--set=judge.block=16", "--set=judge.workers=1")
    expected = made(mine(invoke, whole, *asked))
    with interrupted(3, JudgedPairs, "make"):
        assert mine(invoke, other, *asked).code == 130
    found = made(mine(invoke, other, *asked))
    judged = Path("tiny", "judge", read_manifest(found).inputs["judge_1"].name)
    for folder, same in ((found, expected), (other / judged, whole / judged)):
        for path in folder.iterdir():
            assert path.name == "manifest.json" or path.read_bytes() == (same / path.name).read_bytes()


# Further candidates


def write_candidates(path: Path, ids: list[str], width: int = 8) -> Path:
    """Captions of nobody, each along an axis."""
    pq.write_table(pa.table({"caption_id": ids, "embedding": list(np.eye(len(ids), width, dtype=np.float32))}), path)
    return path


@pytest.mark.parametrize("library", ["torch", "faiss"])
def test_further_candidates_are_found_and_named(
    mined: Callable[..., Path], root: Path, invoke: Invoke, tmp_path: Path, library: str
) -> None:
    more = write_candidates(tmp_path / "more.parquet", ["a", "b", "c"])
    folder = made(mine(invoke, root, f"--library={library}", "--candidates", more))
    lists, plain = lists_of(folder), lists_of(mined("exact"))
    further = json.loads((folder / "further_candidates.json").read_text())
    assert further == {"side": "caption", "ids": ["a", "b", "c"]}
    scores = np.asarray(vectors(root).images) @ np.eye(3, 8, dtype=np.float32).T
    found = lists["texts_for_images"].candidates
    for own, kept, last in zip(scores, found, plain["texts_for_images"].scores[:, -1], strict=True):
        assert {60 + row for row in np.flatnonzero(own > float(last) + 1e-2)} <= {*kept.tolist()}
    assert (found >= 60).any()
    images = [np.sort(each["images_for_texts"].candidates) for each in (lists, plain)]
    assert (images[0] == images[1]).mean() > 0.95


def test_candidates_that_cannot_be_are_refused(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    known = vectors(root).caption_ids.tolist()
    found = write_candidates(tmp_path / "known.parquet", ["a", known[0]])
    refused(mine(invoke, root, "--candidates", found), 4, f"such as {known[0]}")
    refused(mine(invoke, root, "--candidates", write_candidates(found, ["a"], 5)), 4, "width 5")
    refused(mine(invoke, root, "--candidates", found, "--rescore-with", "bfan"), 2, "further candidates")
    refused(mine(invoke, root, "--candidates", tmp_path / "nothing.parquet"), 3, "is no file")
