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


def ranks_of_matches(
    scores: np.ndarray,
    match_image: np.ndarray,
    match_caption: np.ndarray,
) -> Ranks:
    """Rank by any list of distinct image-caption pairs as the correct matches.

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


def query_ranks(
    scores: np.ndarray,
    match_query: np.ndarray,
    match_candidate: np.ndarray,
) -> np.ndarray:
    """Return 0-based ranks [Q] of every query's best correct match; candidates may be no match of any query.

    Args:
        scores: [Q, C] score of every query with every candidate.
        match_query: [M] query of each correct match; matches are distinct.
        match_candidate: [M] its candidate.

    Raises:
        DataError: a score is NaN or infinite, or a query has no match.
    """
    _check_rankable(scores, match_query)
    queries, candidates = scores.shape
    match_scores = scores[match_query, match_candidate]  # [M]
    best = np.full(queries, -np.inf, dtype=scores.dtype)
    np.maximum.at(best, match_query, match_scores)

    reached = np.empty(queries, np.int64)
    height = max(1, _BLOCK_VALUES // candidates)
    for start in range(0, queries, height):
        rows = slice(start, start + height)
        reached[rows] = np.count_nonzero(scores[rows] >= best[rows, None], axis=1)

    # The best match, and any other one with its very score, were counted too.
    is_best = match_scores == best[match_query]
    return reached - np.bincount(match_query[is_best], minlength=queries)


def precision_of_matches(
    scores: np.ndarray,
    match_query: np.ndarray,
    match_candidate: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return AP@R and R-Precision of every query, [Q] each, 0..1.

    A negative with the score of a match counts as ahead of it. Arguments and errors are as for `query_ranks`.
    """
    _check_rankable(scores, match_query)
    ahead = _negatives_ahead(scores, match_query, match_candidate)
    order = np.lexsort((ahead, match_query))
    query = match_query[order]
    matches = np.bincount(query)  # [Q] R
    first = np.searchsorted(query, query)  # place of the first match of the same query
    number = np.arange(1, len(query) + 1) - first
    place = ahead[order] + number

    is_hit = place <= matches[query]
    cells = query[is_hit], place[is_hit] - 1
    shape = len(scores), matches.max()
    precision = np.zeros(shape)
    precision[cells] = (number / place)[is_hit]
    hits = np.zeros(shape)
    hits[cells] = 1
    average = (precision / matches[:, None]).sum(axis=1)
    r_precision = (hits / matches[:, None]).sum(axis=1)
    return average, r_precision


def _negatives_ahead(
    scores: np.ndarray,
    match_query: np.ndarray,
    match_candidate: np.ndarray,
) -> np.ndarray:
    """Return how many negatives of its query have the score of each match [M], or a higher one."""
    ahead = np.empty(len(match_query), np.int64)
    order = np.argsort(match_query, kind="stable")
    bounds = np.searchsorted(match_query[order], np.arange(len(scores) + 1))
    for query, row in enumerate(scores):
        matches = order[bounds[query] : bounds[query + 1]]
        candidates = match_candidate[matches]
        negatives = np.delete(row, candidates)
        negatives.sort()
        lower = np.searchsorted(negatives, row[candidates])
        ahead[matches] = len(negatives) - lower
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
    return {
        "image_rank": image_rank,
        "text_rank": text_rank,
        "cross_rank": np.maximum(on_caption_scale, text_rank),
    }


def _check_rankable(scores: np.ndarray, match_query: np.ndarray) -> None:
    """Refuse scores without an order, and queries without a correct match."""
    check_finite(scores)
    matches = np.bincount(match_query, minlength=len(scores))
    unmatched = len(scores) - np.count_nonzero(matches)
    if unmatched:
        raise DataError(
            f"{unmatched} of {len(scores)} queries have no correct match to rank: leave them out of the scores"
        )


def check_finite(scores: np.ndarray) -> None:
    """Refuse scores that cannot be ordered.

    Raises:
        DataError: a score is NaN or infinite; the message names how many.
    """
    bad = scores.size - np.count_nonzero(np.isfinite(scores))
    if bad:
        raise DataError(
            f"{bad} of {scores.size} scores are NaN or infinite, so there is no ranking: train the model again, "
            "with a lower learning rate if its loss diverged"
        )


def recall(ranks: np.ndarray, k: int) -> float:
    """Return the share of the queries whose best correct match is among the first K candidates, in percent.

        R@K = 100 / |Q| * #{q : rank(q) < K}

    Args:
        ranks: [Q] 0-based ranks.
        k: number of candidates looked at, 1 or more.

    Source: VSE++ §4.1.
    """
    return 100.0 * float(np.mean(ranks < k))


def metrics(split: Ranks) -> dict[str, float]:
    """Return all metrics of ranks: `i2t_r1` .. `t2i_mean_rank` and `rsum`; recalls in percent, ranks from one.

        MedR = floor(median of rank(q)) + 1        MeanR = 1 / |Q| * sum of rank(q) + 1
        RSum = sum over K in (1, 5, 10) of R@K(image to text) + R@K(text to image)

    Source: VSE++, published evaluation code; RSum: SCAN, published evaluation code.
    """
    values = {}
    for side, side_ranks in split.sides.items():
        for k in CUTOFFS:
            values[f"{side}_r{k}"] = recall(side_ranks, k)
        median = np.floor(np.median(side_ranks))
        values[f"{side}_median_rank"] = float(median + 1)
        values[f"{side}_mean_rank"] = float(np.mean(side_ranks)) + 1.0
    values[RSUM] = sum(values[name] for name in RECALLS)
    return values


def random_recalls(images: int, captions: int) -> dict[str, float]:
    """Return the recalls in percent, and their sum, of a random order where only the own image or caption is right.

    Args:
        images: N.
        captions: T, as many for every image: of T captions in random order, none of an image's own T / N is among the
            first K with the probability of drawing K others.
    """
    recalls = {}
    others = captions - captions / images
    for k in CUTOFFS:
        drawn = np.arange(min(k, captions))  # captions that lie before each place
        misses = np.maximum(others - drawn, 0) / (captions - drawn)
        recalls[f"i2t_r{k}"] = 100 * float(1 - np.prod(misses))
    for k in CUTOFFS:
        recalls[f"t2i_r{k}"] = 100 * min(k, images) / images
    recalls[RSUM] = sum(recalls.values())
    return recalls


def remedy_of_chance(images: int) -> str:
    """Return the advice about a model that cannot be told from chance on so many test images."""
    if images < ENOUGH_IMAGES:
        return f"{images} images tell little: test on more (`itrpipe prepare --set test_fraction=0.3`), or {REMEDY}"
    return REMEDY


def reaches_chance(
    figures: Mapping[str, Mapping[str, float]],
    chance: Mapping[str, float],
) -> bool:
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
        "mean over five folds of 1,000 images with their first five captions, from the first 5,000",
        5000,
        folds=5,
    ),
    "coco-5k": Protocol("the first 5,000 images at once, with their first five captions", 5000),
}
"""Protocols by name. `full` is what Flickr30K reports (1,000 images); COCO reports `coco-1k` and `coco-5k`.

The published features of COCO come with five captions of each image: 25,000 of its test split, whose annotations
hold a few more. Source: VSE++ and SCAN, published evaluation code and data.
"""


def protocol_folds(
    protocol: str,
    scores: np.ndarray,
    caption_image: np.ndarray,
) -> list[tuple[Ranks, np.ndarray]]:
    """Return the ranks within each fold of a protocol, and the row of the image of each caption there.

    Folds come in the order of the images.

    Args:
        protocol: a name in `PROTOCOLS` that applies to as many images.
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Raises:
        DataError: the scores cannot be ranked.
    """
    images = PROTOCOLS[protocol].images
    if not images:
        return [(ranks(scores, caption_image), caption_image)]
    order = np.argsort(caption_image, kind="stable")
    owners = caption_image[order]
    place = np.arange(len(order)) - np.searchsorted(owners, owners)  # of a caption within its image
    usable = np.sort(order[place < _CAPTIONS])

    size = images // PROTOCOLS[protocol].folds
    folds = []
    for start in range(0, images, size):
        captions = usable[caption_image[usable] // size == start // size]
        columns = captions
        if len(captions) and captions[-1] - captions[0] + 1 == len(captions):
            columns = slice(captions[0], captions[-1] + 1)  # consecutive ones need no copy
        fold = scores[start : start + size][:, columns]
        rows = caption_image[captions] - start
        folds.append((ranks(fold, rows), rows))
    return folds
