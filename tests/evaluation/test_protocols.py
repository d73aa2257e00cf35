"""Protocols: folds, their mean, and what they apply to."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.bootstrap import fold_intervals, intervals
from itrpipe.evaluation.metrics import PROTOCOLS, Protocol, evaluate, metrics, protocol_folds
from itrpipe.evaluation.metrics import ranks


@pytest.fixture
def split(monkeypatch):
    """60 images with 2 captions each, and a protocol of three folds of the first 30."""
    monkeypatch.setitem(PROTOCOLS, "three-folds", Protocol("three folds of ten", images=30, folds=3))
    generator = np.random.default_rng(1)
    caption_image = generator.permutation(np.repeat(np.arange(60), 2))
    scores = generator.standard_normal((60, 120))
    scores[caption_image, np.arange(120)] += 1
    return scores, caption_image


def test_folds_are_ranked_apart_and_averaged(split):
    scores, caption_image = split
    values = []
    for start in (0, 10, 20):
        columns = np.flatnonzero(np.isin(caption_image, np.arange(start, start + 10)))
        fold = ranks(scores[start : start + 10][:, columns], caption_image[columns] - start)
        values.append(metrics(fold))
    found = evaluate("three-folds", scores, caption_image)
    assert found == pytest.approx({name: np.mean([fold[name] for fold in values]) for name in values[0]})
    assert found["rsum"] > evaluate("full", scores, caption_image)["rsum"]  # a smaller gallery is easier
    assert [len(fold.images_to_texts) for fold, _ in protocol_folds("three-folds", scores, caption_image)] == [
        10,
        10,
        10,
    ]


def test_folds_are_resampled_apart_and_averaged(split):
    """With every fold drawn for itself, the mean over three varies less than one fold by the root of three."""
    folds = protocol_folds("three-folds", *split)
    assert fold_intervals(folds[:1], 300) == intervals(*folds[0], 300)
    found = fold_intervals(folds, 2000)
    means = {name: value for name, value in evaluate("three-folds", *split).items() if name in found}
    assert {name: each.value for name, each in found.items()} == pytest.approx(means)
    assert {"rsum", "t2i_r1", "i2t_mean_rank"} <= set(found)
    widths = [fold_intervals([each], 2000)["rsum"] for each in folds]
    single = np.sqrt(np.mean([(each.high - each.low) ** 2 for each in widths]))
    rsum = found["rsum"]
    assert rsum.low < rsum.value < rsum.high
    assert rsum.high - rsum.low == pytest.approx(single / np.sqrt(3), rel=0.1)


def test_full_is_the_plain_metrics(split):
    scores, caption_image = split
    found = evaluate("full", scores, caption_image)
    assert found == metrics(ranks(scores, caption_image))
    recalls = [found[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in (1, 5, 10)]
    assert found["rsum"] == pytest.approx(sum(recalls))
    assert len(found) == 11


def test_coco_protocols_are_as_published():
    assert (PROTOCOLS["coco-1k"].images, PROTOCOLS["coco-1k"].folds) == (5000, 5)
    assert (PROTOCOLS["coco-5k"].images, PROTOCOLS["coco-5k"].folds) == (5000, 1)
    assert [name for name, protocol in PROTOCOLS.items() if protocol.applies(1000)] == ["full"]
    assert [name for name, protocol in PROTOCOLS.items() if protocol.applies(5000)] == list(PROTOCOLS)


@pytest.fixture(scope="module")
def coco():
    """5,020 images with one to seven captions each in any order, more than the protocols look at."""
    generator = np.random.default_rng(2)
    caption_image = generator.permutation(np.r_[np.arange(5020), np.repeat([3, 1500, 4999, 5010], 6)])
    scores = generator.standard_normal((5020, len(caption_image)), dtype=np.float32)
    scores[caption_image, np.arange(len(caption_image))] += 4
    return scores, caption_image


def naive_fold(scores, caption_image, start, stop):
    """Metrics of images `start` to `stop - 1` with their first five captions, picked one by one."""
    seen, columns = dict.fromkeys(range(start, stop), 0), []
    for column, image in enumerate(caption_image.tolist()):
        if start <= image < stop and seen[image] < 5:
            columns.append(column)
            seen[image] += 1
    return metrics(ranks(scores[start:stop][:, columns], caption_image[columns] - start))


def test_coco_5k_takes_the_first_five_captions_of_the_first_5000_images(coco):
    scores, caption_image = coco
    found = evaluate("coco-5k", scores, caption_image)
    assert found == naive_fold(scores, caption_image, 0, 5000)
    assert found != evaluate("full", scores, caption_image)
    ((whole, _),) = protocol_folds("coco-5k", scores, caption_image)
    assert (len(whole.images_to_texts), len(whole.texts_to_images)) == (5000, 5000 + 3 * 4)


def test_coco_1k_is_the_mean_over_the_five_thousands(coco):
    scores, caption_image = coco
    folds = [naive_fold(scores, caption_image, start, start + 1000) for start in range(0, 5000, 1000)]
    expected = {name: np.mean([fold[name] for fold in folds]) for name in folds[0]}
    assert evaluate("coco-1k", scores, caption_image) == pytest.approx(expected)


def test_captions_in_the_order_of_their_images_are_not_copied(coco, monkeypatch):
    scores, shuffled = coco
    selected = []
    monkeypatch.setattr(
        "itrpipe.evaluation.metrics.ranks", lambda part, owners: selected.append(part) or ranks(part, owners)
    )
    protocol_folds("coco-1k", scores[:, :5020], np.arange(5020))
    assert len(selected) == 5
    assert all(np.shares_memory(part, scores) for part in selected)
    protocol_folds("coco-5k", scores, shuffled)
    assert not np.shares_memory(selected[-1], scores)


def test_too_small_a_split_and_an_unknown_name_are_refused(split):
    with pytest.raises(UsageError, match="coco-1k needs 5000 images, the split has 60"):
        evaluate("coco-1k", *split)
    with pytest.raises(UsageError, match="no protocol is called 'coco'"):
        evaluate("coco", *split)
