"""Ranks of the correct matches, and the metrics and protocols that papers report of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import DataError, UsageError

CUTOFFS = (1, 5, 10)
"""The K of R@K that papers report, and that the sum of recalls runs over."""
SIDES = ("i2t", "t2i")
RSUM = "rsum"
RECALLS = tuple(f"{side}_r{k}" for side in SIDES for k in CUTOFFS)
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
        DataError: a score is NaN or infinite, an image has no caption, or the captions do not fit the matrix.

    Source: VSE++ §4.1; the tie rule is ours.
    """
    if scores.shape[1] != len(caption_image) or not scores.size:
        raise DataError(
            f"scores of {scores.shape[0]} images and {scores.shape[1]} captions, of which {len(caption_image)} have an "
            "image: score the split the captions belong to"
        )
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
    check_finite(scores)
    pairs = match_image, match_caption
    return Ranks(_query_ranks(scores, *pairs), _query_ranks(scores.T, *pairs[::-1]))


def query_ranks(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> np.ndarray:
    """0-based ranks [Q] of the best correct match of every query, where candidates may be no match of any query.

    Args:
        scores: [Q, C] score of every query with every candidate.
        match_query: [M] query of each correct match; matches are distinct.
        match_candidate: [M] its candidate.

    Raises:
        DataError: a score is NaN or infinite, or a query has no match.
    """
    check_finite(scores)
    return _query_ranks(scores, match_query, match_candidate)


def _query_ranks(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> np.ndarray:
    refuse_unmatched(match_query, len(scores))
    matched = scores[match_query, match_candidate]  # [M]
    best = np.full(len(scores), -np.inf, dtype=scores.dtype)
    np.maximum.at(best, match_query, matched)
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    blocks = (slice(start, start + height) for start in range(0, len(scores), height))
    reached = np.concatenate([np.count_nonzero(scores[rows] >= best[rows, None], axis=1) for rows in blocks])
    # The best match, and any other one with its very score, were counted too.
    return reached - np.bincount(match_query[matched == best[match_query]], minlength=len(scores))


def refuse_unmatched(match_query: np.ndarray, queries: int) -> None:
    """Refuse queries without a correct match.

    Raises:
        DataError: there are some; the message names how many.
    """
    if (without := queries - np.count_nonzero(np.bincount(match_query, minlength=queries))) > 0:
        raise DataError(f"{without} of {queries} queries have no correct match to rank: leave them out of the scores")


def check_finite(scores: np.ndarray) -> None:
    """Refuse scores that cannot be ordered.

    Raises:
        DataError: a score is NaN or infinite; the message names how many.
    """
    height = max(1, _BLOCK_VALUES // max(1, scores.shape[1]))
    blocks = range(0, scores.shape[0], height)
    bad = scores.size - sum(int(np.count_nonzero(np.isfinite(scores[row : row + height]))) for row in blocks)
    if bad:
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


def rsum(ranks: Ranks) -> float:
    """Sum of the six recalls, 0..600.

        RSum = sum over K in (1, 5, 10) of R@K(image to text) + R@K(text to image)

    Args:
        ranks: 0-based ranks of both directions.

    Source: SCAN, published evaluation code; reported as "rsum" since.
    """
    return sum(recall(side, k) for side in (ranks.images_to_texts, ranks.texts_to_images) for k in CUTOFFS)


def metrics(split: Ranks) -> dict[str, float]:
    """All metrics of a set of ranks: `i2t_r1` .. `t2i_mean_rank` and `rsum`; recalls in percent, ranks from one.

        MedR = floor(median of rank(q)) + 1        MeanR = 1 / |Q| * sum of rank(q) + 1

    Source: VSE++, published evaluation code.
    """
    values: dict[str, float] = {}
    for direction, side in zip(SIDES, (split.images_to_texts, split.texts_to_images), strict=True):
        values |= {f"{direction}_r{k}": recall(side, k) for k in CUTOFFS}
        values[f"{direction}_median_rank"] = float(np.floor(np.median(side)) + 1)
        values[f"{direction}_mean_rank"] = float(np.mean(side)) + 1.0
    values[RSUM] = rsum(split)
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
    found |= {f"t2i_r{k}": 100 * min(k, images) / images for k in CUTOFFS}
    return {**found, RSUM: sum(found.values())}


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a split.

    Attributes:
        description: one line for reports.
        images: number of images looked at, from the first on; None for all.
        folds: number of equal, disjoint, consecutive parts they are cut into, each ranked on its own.
        captions: number of captions looked at of each image, from the first on; None for all.
    """

    description: str
    images: int | None = None
    folds: int = 1
    captions: int | None = None

    def applies(self, images: int) -> bool:
        """Whether a split of so many images is large enough."""
        return self.images is None or images >= self.images


PROTOCOLS = {
    "full": Protocol("every image and caption of the split"),
    "coco-1k": Protocol(
        "mean over five folds of 1,000 images with their first five captions, from the first 5,000", 5000, 5, 5
    ),
    "coco-5k": Protocol("the first 5,000 images at once, with their first five captions", images=5000, captions=5),
}
"""Protocols by name. `full` is what Flickr30K reports (1,000 images); COCO reports `coco-1k` and `coco-5k`.

The published features of COCO come with five captions of each image: 25,000 of its test split, whose annotations
hold a few more. Source: VSE++ and SCAN, published evaluation code and data.
"""


def evaluate(protocol: str, scores: np.ndarray, caption_image: np.ndarray) -> dict[str, float]:
    """Metrics of a score matrix under a protocol; over folds, the mean of each metric.

    Args:
        protocol: a name in `PROTOCOLS`.
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Raises:
        UsageError: there is no such protocol, or the split is too small for it.
        DataError: the scores cannot be ranked.
    """
    folds = [metrics(fold) for fold, _ in protocol_folds(protocol, scores, caption_image)]
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}


def protocol_folds(protocol: str, scores: np.ndarray, caption_image: np.ndarray) -> list[tuple[Ranks, np.ndarray]]:
    """Ranks within each fold of a protocol, in the order of the images, and the row of the image of each caption there.

    Arguments and errors are as for `evaluate`.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"no protocol is called {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    chosen, images = PROTOCOLS[protocol], scores.shape[0]
    if not chosen.applies(images):
        raise UsageError(f"protocol {protocol} needs {chosen.images} images, the split has {images}: use full")
    if chosen.images is None:
        return [(ranks(scores, caption_image), caption_image)]
    order = np.argsort(caption_image, kind="stable")
    grouped = caption_image[order]
    place = np.arange(len(order)) - np.searchsorted(grouped, grouped)  # of a caption within its image
    columns = np.sort(order if chosen.captions is None else order[place < chosen.captions])
    size, folds = chosen.images // chosen.folds, []
    for start in range(0, chosen.images, size):
        own = columns[(caption_image[columns] >= start) & (caption_image[columns] < start + size)]
        rows = caption_image[own] - start
        folds.append((ranks(scores[start : start + size, _slice_or(own)], rows), rows))
    return folds


def _slice_or(columns: np.ndarray) -> slice | np.ndarray:
    """The columns as a slice where they follow each other: selecting them then copies no scores."""
    if len(columns) and columns[-1] - columns[0] + 1 == len(columns):
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
