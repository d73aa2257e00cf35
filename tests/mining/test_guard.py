"""The guard of mined lists: probabilities beside candidates, and its figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.roc_area import roc_area
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.mining.guard import Guard
from itrpipe.mining.lists import NO_ROW, CandidateLists, drop
from itrpipe.mining.statistics import sentences
from tests.mining.mine import mine

FAMILIES, PER_FAMILY, WIDTH = 10, 2, 16
IMAGES = FAMILIES * PER_FAMILY
FAMILY = np.arange(IMAGES) // PER_FAMILY
CAPTION_IMAGE = np.repeat(np.arange(IMAGES), 2)


def embeddings(noise: float = 0.5) -> SplitEmbeddings:
    """Pairs of images that look alike, and captions that fit both."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((FAMILIES, WIDTH))[FAMILY] + 0.2 * rng.standard_normal((IMAGES, WIDTH))
    texts = images[CAPTION_IMAGE] + noise * rng.standard_normal((len(CAPTION_IMAGE), WIDTH))
    images, texts = (
        (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in (images, texts)
    )
    ids = [np.array([f"{kind}{row}" for row in range(count)]) for kind, count in (("i", IMAGES), ("c", 2 * IMAGES))]
    return SplitEmbeddings(images, ids[0], texts, ids[1], CAPTION_IMAGE, INNER_PRODUCT)


def mined(found: SplitEmbeddings):
    lists = mine(found.images, found.texts, found.caption_image, 8, 6)
    return {"texts_for_images": lists.texts_for_images, "images_for_texts": lists.images_for_texts}


def guarded(found: SplitEmbeddings, lists, at_once: int = 7, **settings):
    """Probabilities of all candidates, some anchors at a time, and the figures on them."""
    guard = Guard(found, **settings)
    probability = {}
    for name, each in lists.items():
        parts = [slice(start, start + at_once) for start in range(0, len(each.scores), at_once)]
        pieces = [guard.probability(name, CandidateLists(each.candidates[part], each.scores[part])) for part in parts]
        probability[name] = np.concatenate(pieces)
    return probability, guard.facts()


def test_candidates_that_match_are_likely_ones_and_the_counts_say_so():
    found = embeddings()
    lists = mined(found)
    probability, facts = guarded(found, lists, prior=0.05, batch_size=4)
    assert json.loads(json.dumps(facts)) == facts
    families = {
        "texts_for_images": (FAMILY, FAMILY[CAPTION_IMAGE]),
        "images_for_texts": (FAMILY[CAPTION_IMAGE], FAMILY),
    }
    for name, (anchors, candidates) in families.items():
        match = anchors[:, None] == candidates[lists[name].candidates]
        assert roc_area(probability[name].reshape(-1), match.reshape(-1)) > 0.99
        assert facts["above"][name] == {
            "0.5": int((probability[name] > 0.5).sum()), "0.01": int((probability[name] > 0.01).sum()),
        }  # fmt: skip
        assert 0 < facts["above"][name]["0.5"] <= facts["above"][name]["0.01"] < match.size


def test_behind_the_end_of_a_list_nothing_is_likely_or_counted():
    found = embeddings()
    lists = {
        name: drop(each, {"all but the first": np.arange(each.scores.shape[1]) > np.zeros((len(each.scores), 1))})[0]
        for name, each in mined(found).items()
    }
    probability, facts = guarded(found, lists, prior=0.9999, batch_size=4)
    for name, each in lists.items():
        assert (each.candidates[:, 1:] == NO_ROW).all()
        assert (probability[name][:, 1:] == 0).all()
        assert facts["above"][name]["0.01"] <= len(each.candidates)


def test_a_model_that_has_learned_nothing_gives_no_estimate():
    found = embeddings()
    upside_down = SplitEmbeddings(
        found.images, found.image_ids, -np.asarray(found.texts), found.caption_ids, CAPTION_IMAGE, INNER_PRODUCT
    )
    with pytest.raises(UsageError, match="--guard fne: the mining model ranks 0 training pairs above all others"):
        guarded(upside_down, mined(found), prior=1e-4, batch_size=8)


def test_the_printed_sentences_tell_the_counts():
    figures = {
        "candidates": {"texts_for_images": 40, "images_for_texts": 1200},
        "anchors": {"texts_for_images": 4, "images_for_texts": 6},
        "anchors_without_candidates": {"texts_for_images": 0, "images_for_texts": 0},
        "dropped": {"texts_for_images": {}, "images_for_texts": {}},
        "hardest_text_beats_own_caption_percent": None,
        "hardest_image_beats_own_image_percent": None,
        "guard": {"above": {"texts_for_images": {"0.5": 3}, "images_for_texts": {"0.5": 1100}}},
    }
    said = sentences(figures)
    assert "captions for images: 3 of 40 candidates are false negatives with a probability above 0.5" in said
    assert "images for captions: 1,100 of 1,200 candidates are false negatives with a probability above 0.5" in said
