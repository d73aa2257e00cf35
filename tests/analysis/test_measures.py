"""Alignment and ECCV Caption: figures that are those of a loop over pairs and matches."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from itrpipe.analysis.questions import alignment
from itrpipe.analysis.questions.alignment import alignment_and_uniformity
from itrpipe.analysis.questions.discrimination import gained_and_lost
from itrpipe.analysis.questions.eccv_caption import Truth, eccv_caption_metrics, ground_truth
from itrpipe.errors import DataError
from tests.analysis.families import assert_recorded


def edits(blind: bool = False, **kinds: tuple[float, float]) -> dict[str, Any]:
    """What an evaluation wrote: middle and half the width of an interval of each kind."""
    told = {
        kind: {"sentences": 9, "percent": {"value": at, "low": at - half, "high": at + half}}
        | {"blind": {"value": 51.0, "guessed": blind}}
        for kind, (at, half) in kinds.items()
    }
    return {"graph-edits": {"kinds": told}}


def test_kinds_of_edits_that_a_model_gained_and_lost_are_told_alike() -> None:
    """By every seed, by ten points, and where they cannot be told without the image."""
    before = [edits(side=(49, 3), attribute=(80, 1)), edits(side=(51, 3), attribute=(82, 1))]
    after = [edits(side=(92, 2), attribute=(90, 1)), edits(side=(94, 2), attribute=(90, 1))]
    told = "left and right in {} % (baseline {} %, without the image 51.0 %)"
    assert gained_and_lost(after, before) == ([told.format("93.0", "50.0")], [])
    assert gained_and_lost(before, after) == ([], [told.format("50.0", "93.0")])
    none = [], []
    assert gained_and_lost([after[0], edits(side=(55, 2))], before) == none
    assert gained_and_lost([edits(True, side=(92, 2))], before) == none
    assert gained_and_lost(after, []) == gained_and_lost([], before) == none
    assert gained_and_lost(after, [{"graph-edits": {}}]) == none


@pytest.mark.parametrize("values", [1 << 22, 40])
def test_figures_are_those_of_all_pairs(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_BLOCK_VALUES", values)
    random = np.random.default_rng(0)
    owner = random.permutation(np.concatenate([np.arange(9), random.integers(0, 9, 20)]))
    images, texts = random.standard_normal((9, 6)), random.standard_normal((29, 6)) * 3
    found = alignment_and_uniformity(images, texts, owner)
    v, w = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (images, texts))
    firsts = [int(np.flatnonzero(owner == image)[0]) for image in range(9)]
    expected: dict[str, Any] = {
        "image_text": [np.linalg.norm(v[image] - w[row]) for row, image in enumerate(owner)],
        "text_text": [np.linalg.norm(w[a] - w[b]) for a, b in combinations(range(29), 2) if owner[a] == owner[b]],
        "images": [np.linalg.norm(v[a] - v[b]) for a, b in combinations(range(9), 2)],
        "texts": [np.linalg.norm(w[a] - w[b]) for a, b in combinations(firsts, 2)],
    }
    assert found.keys() == expected.keys()
    for name, distances in expected.items():
        assert found[name]["pairs"] == len(distances)
        assert found[name]["mean"] == pytest.approx(np.mean(distances))
        assert found[name]["variance"] == pytest.approx(np.var(distances))


def test_where_there_are_no_pairs_there_is_no_mean() -> None:
    found = alignment_and_uniformity(*np.ones((2, 3, 4)), np.arange(3))["text_text"]
    assert found == {"pairs": 0, "mean": None, "variance": None}


IMAGES = [900 + image for image in range(12)]
CAPTIONS = [10 + caption for caption in range(36)]


def made_up(seed: int) -> tuple[Truth, Truth, Truth]:
    """Twelve images of three captions; further matches of some, and in CxC of all but one caption."""
    random = np.random.default_rng(seed)
    own = {image: CAPTIONS[3 * row : 3 * row + 3] for row, image in enumerate(IMAGES)}
    more = {image: [*captions, *random.choice(CAPTIONS, 4).tolist()] for image, captions in own.items()}
    cxc = {image: [each for each in dict.fromkeys(more[image]) if each != CAPTIONS[0]] for image in IMAGES}

    def turned(side: dict[int, list[int]]) -> dict[int, list[int]]:
        return {
            caption: found for caption in CAPTIONS if (found := [image for image in IMAGES if caption in side[image]])
        }

    eccv_images = {image: [*more[image], 7777] for image in IMAGES[3:8]}  # a caption that is no candidate
    eccv_captions = {caption: images for caption, images in turned(more).items() if caption % 3 == 0}
    own_captions, cxc_captions = turned(own), turned(cxc)
    sides = ((own, own_captions), (eccv_images, eccv_captions), (cxc, cxc_captions))
    return tuple({"i2t": images, "t2i": captions} for images, captions in sides)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("extra", [0, 5])
def test_metrics_are_those_of_all_matches_by_their_ids(seed: int, extra: int) -> None:
    """What was recorded was equal to the definitions, one query after another."""
    random, (own, *truths) = np.random.default_rng(100 + seed), made_up(seed)
    image_ids = random.permutation(IMAGES).tolist()
    caption_ids = random.permutation([*CAPTIONS, *range(500, 500 + extra)]).tolist()  # sixth captions of some images
    scores = random.standard_normal((12, 36 + extra), dtype=np.float32)
    found = eccv_caption_metrics(scores, [*map(str, image_ids)], [*map(str, caption_ids)], own, *truths)
    assert_recorded(f"eccv {seed} {extra}", found, 1e-9)


def test_another_split_is_refused_in_one_line() -> None:
    truth, scores = made_up(0), np.zeros((11, 36))
    with pytest.raises(DataError, match=r"1 of 12 images of COCO's 5K test split .* among the 11 here .*image 911"):
        eccv_caption_metrics(scores, [*map(str, IMAGES[:11])], [*map(str, CAPTIONS)], *truth)
    names = [f"file-{caption}" for caption in CAPTIONS]
    with pytest.raises(DataError, match="36 of 36 captions of COCO's 5K test split"):
        eccv_caption_metrics(np.zeros((12, 36)), [*map(str, IMAGES)], names, *truth)


def test_the_installed_package_has_the_ground_truth_that_is_read() -> None:
    pytest.importorskip("eccv_caption")
    sizes = [(len(truth["i2t"]), len(truth["t2i"])) for truth in ground_truth()]
    assert sizes == [(5000, 25000), (1261, 1332), (5000, 24972)]
