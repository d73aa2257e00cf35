"""Ranks of the correct matches, and the metrics and protocols that papers report of them.

For a query with R correct matches, of whose ranking rel(i) tells whether place i (from one) holds a match:

    R-Precision = 1/R sum_{i<=R} rel(i)        AP@R = 1/R sum_{i<=R} rel(i) P(i)        P(i) = 1/i sum_{j<=i} rel(j)

mAP@R is the mean of AP@R over the queries. Recall looks at the best match alone; these look at all of them.

Source: mAP@R by Musgrave et al., "A Metric Learning Reality Check", ECCV 2020, section 3.2, and for image-text
retrieval Chun et al., "ECCV Caption", ECCV 2022, section 4. The rule for ties is ours. Radovanović et al., "Hubs in
space", JMLR 2010, for items that are the answer to many queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from itrpipe.errors import DataError

CUTOFFS = (1, 5, 10)
"""The K of R@K that papers report, and that the sum of recalls runs over."""
SIDES = {"i2t": "Image → text", "t2i": "Text → image"}
"""Directions of retrieval, and their headings."""
RSUM = "rsum"
RECALLS = tuple(f"{side}_r{k}" for side in SIDES for k in CUTOFFS)
COMPARED = (*RECALLS, RSUM)
"""Metrics in which models are compared."""
REMEDY = "use better features, another method or another learning rate"
ENOUGH_IMAGES = 50
"""Images of a test set; with fewer, chance reaches into the interval of a model that is twice as good."""
_BLOCK_VALUES = 1 << 20
"""Scores compared at a time: small enough for the comparison to stay in the cache of a core."""


@dataclass(frozen=True)
class Ranks:
    """0-based ranks of the best correct match of each query: the number of negatives ahead of it.

    Attributes:
        images_to_texts: [N] int64, image queries (sentence retrieval).
        texts_to_images: [T] int64, caption queries (image retrieval).
    """

    images_to_texts: np.ndarray
    texts_to_images: np.ndarray

    @property
    def sides(self) -> dict[str, np.ndarray]:
        """Return the ranks of both directions by their names in `SIDES`."""
        return {"i2t": self.images_to_texts, "t2i": self.texts_to_images}


def ranks(scores: np.ndarray, caption_image: np.ndarray) -> Ranks:
    """Rank every image and every caption of a score matrix.

        rank(q) = #{negatives n of q : S(q, n) >= max over positives p of S(q, p)}

    A negative with the score of the best positive counts as ahead of it: ties count against the model, so that
    a model that scores everything alike ranks last and not first. Without ties this is the position in the
    descending sort, as in the published evaluations.

    Args:
        scores: [N, T] score of image n with caption t, higher is better.
        caption_image: [T] row of the image each caption belongs to; any number of captions per image.

    Raises:
        DataError: a score is NaN or infinite, or an image has no caption.

    Source: VSE++ §4.1; the tie rule is ours.
    """
    return ranks_of_matches(scores, caption_image, np.arange(scores.shape[1]))


def ranks_of_matches(scores: np.ndarray, match_image: np.ndarray, match_caption: np.ndarray) -> Ranks:
    """Ranks where the correct matches are any list of distinct image-caption pairs.

    Where all images that a caption truly describes are known, these ranks tell how much of a model's error is in the
    annotation.

    Args:
        scores: [N, T] score of image n with caption t.
        match_image: [M] row of the image of each correct match.
        match_caption: [M] column of its caption.

    Raises:
        DataError: a score is NaN or infinite, or an image or a caption has no match.
    """
    return Ranks(
        query_ranks(scores, match_image, match_caption),
        query_ranks(scores.T, match_caption, match_image),
    )


def query_ranks(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> np.ndarray:
    """0-based ranks [Q] of the best correct match of every query, where candidates may be no match of any query.

    Args:
        scores: [Q, C] score of every query with every candidate.
        match_query: [M] query of each correct match; matches are distinct.
        match_candidate: [M] its candidate.

    Raises:
        DataError: a score is NaN or infinite, or a query has no match.
    """
    _refuse(scores, match_query)
    matched = scores[match_query, match_candidate]  # [M]
    best = np.full(len(scores), -np.inf, dtype=scores.dtype)
    np.maximum.at(best, match_query, matched)
    reached = np.empty(len(scores), np.int64)
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    for start in range(0, len(scores), height):
        rows = slice(start, start + height)
        reached[rows] = np.count_nonzero(scores[rows] >= best[rows, None], axis=1)
    # The best match, and any other one with its very score, were counted too.
    return reached - np.bincount(match_query[matched == best[match_query]], minlength=len(scores))


def precision_of_matches(
    scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """AP@R and R-Precision of every query, [Q] each, 0..1. A negative with the score of a match counts as ahead of it.

    Arguments and errors are as for `query_ranks`.
    """
    _refuse(scores, match_query)
    ahead = _negatives_ahead(scores, match_query, match_candidate)
    order = np.lexsort((ahead, match_query))
    query = match_query[order]
    matches = np.bincount(query)  # [Q] R
    number = np.arange(1, len(query) + 1) - np.searchsorted(query, query)  # of a match among those of its query
    place = ahead[order] + number
    hit = place <= matches[query]
    places = query[hit], place[hit] - 1
    precision, hits = np.zeros((2, len(scores), matches.max()))
    precision[places] = (number / place)[hit]
    hits[places] = 1
    average, r_precision = ((each / matches[:, None]).sum(axis=1) for each in (precision, hits))
    return average, r_precision


def _negatives_ahead(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> np.ndarray:
    """Return how many negatives of its query have the score of each match [M], or a higher one."""
    ahead = np.empty(len(match_query), np.int64)
    order = np.argsort(match_query, kind="stable")
    bounds = np.searchsorted(match_query[order], np.arange(len(scores) + 1))
    for query, row in enumerate(scores):
        own = order[bounds[query] : bounds[query + 1]]
        negatives = np.sort(np.delete(row, match_candidate[own]))
        ahead[own] = len(negatives) - np.searchsorted(negatives, row[match_candidate[own]])
    return ahead


def cross_retrieval(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, np.ndarray]:
    """Rank every positive pair against the pairs that share its caption and those that share its image.

        r_i = 1 + #{images n != i : S(n, t) >= S(i, t)}
        r_t = 1 + #{captions n of other images than i : S(i, n) >= S(i, t)}
        cross rank = max(ceil((r_i - 1) T / N) + 1, r_t)

    With five captions for each image this is the paper's max(5 r_i - 4, r_t). Where the T captions are spread
    unevenly over the N images, their mean number takes the place of the five, rounded up. As in `ranks`, ties
    count against the model.

    Args:
        scores: [N, T] score of image n with caption t, higher is better.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        1-based ranks int64 [T] of each caption with its image: `image_rank`, 1..N, of the image for its caption;
        `text_rank`, 1..T, of the caption for its image; `cross_rank`, 1..T, the worse on the scale of captions.

    Raises:
        DataError: as for `ranks`.

    Source: AOQ §4.3 and Fig. 5; the tie rule and other numbers of captions are ours.
    """
    images, texts = scores.shape
    image_rank = ranks(scores, caption_image).texts_to_images + 1
    text_rank = _negatives_ahead(scores, caption_image, np.arange(texts)) + 1
    on_caption_scale = -((1 - image_rank) * texts // images) + 1
    return {"image_rank": image_rank, "text_rank": text_rank, "cross_rank": np.maximum(on_caption_scale, text_rank)}


def _refuse(scores: np.ndarray, match_query: np.ndarray) -> None:
    """Refuses scores without an order, and queries without a correct match."""
    check_finite(scores)
    if without := len(scores) - np.count_nonzero(np.bincount(match_query, minlength=len(scores))):
        raise DataError(
            f"{without} of {len(scores)} queries have no correct match to rank: leave them out of the scores"
        )


def check_finite(scores: np.ndarray) -> None:
    """Refuse scores that cannot be ordered.

    Raises:
        DataError: a score is NaN or infinite; the message names how many.
    """
    if bad := scores.size - np.count_nonzero(np.isfinite(scores)):
        raise DataError(
            f"{bad} of {scores.size} scores are NaN or infinite, so there is no ranking: train the model again, "
            "with a lower learning rate if its loss diverged"
        )


def recall(ranks: np.ndarray, k: int) -> float:
    """Share of the queries whose best correct match is among the first K candidates, in percent.

        R@K = 100 / |Q| * #{q : rank(q) < K}

    Args:
        ranks: [Q] 0-based ranks.
        k: number of candidates looked at, 1 or more.

    Source: VSE++ §4.1.
    """
    return 100.0 * float(np.mean(ranks < k))


def metrics(split: Ranks) -> dict[str, float]:
    """All metrics of a set of ranks: `i2t_r1` .. `t2i_mean_rank` and `rsum`; recalls in percent, ranks from one.

        MedR = floor(median of rank(q)) + 1        MeanR = 1 / |Q| * sum of rank(q) + 1
        RSum = sum over K in (1, 5, 10) of R@K(image to text) + R@K(text to image)

    Source: VSE++, published evaluation code; RSum: SCAN, published evaluation code.
    """
    values = {}
    for side, found in split.sides.items():
        for k in CUTOFFS:
            values[f"{side}_r{k}"] = recall(found, k)
        values[f"{side}_median_rank"] = float(np.floor(np.median(found)) + 1)
        values[f"{side}_mean_rank"] = float(np.mean(found)) + 1.0
    values[RSUM] = sum(values[name] for name in RECALLS)
    return values


def random_recalls(images: int, captions: int) -> dict[str, float]:
    """Recalls in percent, and their sum, that a random order may expect where only the own image or caption is right.

    Args:
        images: N.
        captions: T, as many for every image: of T captions in random order, none of an image's own T / N is among the
            first K with the probability of drawing K others.
    """
    found = {}
    for k in CUTOFFS:
        places = np.arange(min(k, captions))
        missed = np.prod(np.maximum(captions - captions / images - places, 0) / (captions - places))
        found[f"i2t_r{k}"] = 100 * float(1 - missed)
    for k in CUTOFFS:
        found[f"t2i_r{k}"] = 100 * min(k, images) / images
    found[RSUM] = sum(found.values())
    return found


def remedy_of_chance(images: int) -> str:
    """Return what to do about a model that cannot be told from chance on so many test images."""
    if images < ENOUGH_IMAGES:
        return f"{images} images tell little: test on more (`itrpipe prepare --set test_fraction=0.3`), or {REMEDY}"
    return REMEDY


def reaches_chance(figures: Mapping[str, Mapping[str, float]], chance: Mapping[str, float]) -> bool:
    """Return whether the interval of RSum, from its `low` on, reaches down to the RSum of a random order."""
    return figures[RSUM]["low"] <= chance[RSUM]


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a split.

    Attributes:
        description: one line for reports.
        images: number of images looked at, from the first on, of a split that has as many; 0 for all.
        folds: number of equal, disjoint, consecutive parts they are cut into, each ranked on its own.
    """

    description: str
    images: int = 0
    folds: int = 1


_CAPTIONS = 5
"""Captions of each image, from the first on, that a protocol of some images looks at."""
PROTOCOLS = {
    "full": Protocol("every image and caption of the split"),
    "coco-1k": Protocol(
        "mean over five folds of 1,000 images with their first five captions, from the first 5,000", 5000, folds=5
    ),
    "coco-5k": Protocol("the first 5,000 images at once, with their first five captions", 5000),
}
"""Protocols by name. `full` is what Flickr30K reports (1,000 images); COCO reports `coco-1k` and `coco-5k`.

The published features of COCO come with five captions of each image: 25,000 of its test split, whose annotations
hold a few more. Source: VSE++ and SCAN, published evaluation code and data.
"""


def protocol_folds(protocol: str, scores: np.ndarray, caption_image: np.ndarray) -> list[tuple[Ranks, np.ndarray]]:
    """Ranks within each fold of a protocol, in the order of the images, and the row of the image of each caption there.

    Args:
        protocol: a name in `PROTOCOLS` that applies to as many images.
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Raises:
        DataError: the scores cannot be ranked.
    """
    chosen = PROTOCOLS[protocol]
    if not chosen.images:
        return [(ranks(scores, caption_image), caption_image)]
    order = np.argsort(caption_image, kind="stable")
    grouped = caption_image[order]
    place = np.arange(len(order)) - np.searchsorted(grouped, grouped)  # of a caption within its image
    columns = np.sort(order[place < _CAPTIONS])
    size = chosen.images // chosen.folds
    folds = []
    for start in range(0, chosen.images, size):
        captions = columns[caption_image[columns] // size == start // size]
        fold = scores[start : start + size]
        if len(captions) and captions[-1] - captions[0] + 1 == len(captions):
            fold = fold[:, captions[0] : captions[-1] + 1]  # consecutive ones need no copy
        else:
            fold = fold[:, captions]
        rows = caption_image[captions] - start
        folds.append((ranks(fold, rows), rows))
    return folds
