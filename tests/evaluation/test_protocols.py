"""Protocols: folds, their mean, and what they apply to."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.protocols import PROTOCOLS, Protocol, evaluate, metrics, protocol_ranks
from itrpipe.evaluation.ranks import ranks


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
    assert [len(fold.images_to_texts) for fold in protocol_ranks("three-folds", scores, caption_image)] == [10, 10, 10]


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


def test_too_small_a_split_and_an_unknown_name_are_refused(split):
    with pytest.raises(UsageError, match="coco-1k needs 5000 images, the split has 60"):
        evaluate("coco-1k", *split)
    with pytest.raises(UsageError, match="no protocol is called 'coco'"):
        evaluate("coco", *split)
