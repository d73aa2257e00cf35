"""Which pairs are judged, and in which order.

Candidates are the hardest of each anchor: of mined lists, or of the rankings of an evaluation, whose split is another
one. They are judged in one of these orders:

    sample    at random, so that the pairs judged so far tell the share of false negatives among all
    guard     at random among those that mining's guard takes for false negatives, which tells its precision
    doubtful  the probability nearest to one half first
    harmful   what scores farthest above its caption's own image first: what a triplet loss pushes away hardest

Shapes: P candidates, N images, T captions, A anchors, K candidates of an anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from itrpipe.datasets.truth import PairSet
from itrpipe.errors import UsageError
from itrpipe.review.agreement import Share, share_of
from itrpipe.review.decisions import DISPUTED, FITS, UNSURE, Decisions, Judgement
from itrpipe.storage.artifact import RANKINGS, existing_input, read_manifest

SAMPLE, GUARD, DOUBTFUL, HARMFUL = ORDERS = ("sample", "guard", "doubtful", "harmful")
RANDOM = (SAMPLE, GUARD)
"""Orders whose first pairs are a simple random sample."""
DEPTH = 10
"""Candidates of each anchor that are judged, the hardest."""
LIKELY = 0.5
"""Probability above which the guard takes a candidate for a false negative."""
_SEED = 0


@dataclass(frozen=True)
class Candidates:
    """Pairs of an image and a caption of others that may be judged, each once.

    Attributes:
        source: artifact that they come from, as `mine_negatives/exact.triplet.vsepp-0f1e2d3c`.
        model: label of the model that ranked them.
        split: of the dataset.
        prepared: folder of the dataset.
        trained: folder of the model.
        image_ids: text [N].
        caption_ids: text [T].
        owners: int64 [T], row of each caption's own image.
        images, captions: int64 [P] rows.
        ranks: int64 [P], the better of both directions, from 1.
        scores: float32 [P].
        positives: float32 [P], score of the caption with its own image; NaN where it is not known.
        probability: float32 [P] to be a false negative; None where mining did not estimate it.
    """

    source: str
    model: str
    split: str
    prepared: Path
    trained: Path
    image_ids: np.ndarray
    caption_ids: np.ndarray
    owners: np.ndarray
    images: np.ndarray
    captions: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    positives: np.ndarray
    probability: np.ndarray | None

    def ids(self, place: int) -> tuple[str, str]:
        """Ids of image and caption of a candidate."""
        return str(self.image_ids[self.images[place]]), str(self.caption_ids[self.captions[place]])

    def place(self, image_id: str, caption_id: str) -> int | None:
        """Place of the candidate of these ids; None where it is none."""
        found = (self.image_ids[self.images] == image_id) & (self.caption_ids[self.captions] == caption_id)
        return int(found.argmax()) if found.any() else None

    def ordered(self, order: str) -> np.ndarray:
        """Places of the candidates in an order, int64 [P], or fewer for `guard`.

        Raises:
            UsageError: there is no such order, or it needs probabilities and there are none, or none above one half.
        """
        check_order(order)
        if order == SAMPLE:
            return np.random.default_rng(_SEED).permutation(len(self.scores))
        if order == HARMFUL:
            return np.lexsort((self.ranks, -np.nan_to_num(self.scores - self.positives, nan=-np.inf)))
        if self.probability is None:
            raise UsageError(
                f"--order {order} needs lists that say how likely each candidate is a false negative, and "
                f"{self.source} does not; mine with `--guard fne`, or choose --order {SAMPLE} or {HARMFUL}"
            )
        if order == DOUBTFUL:
            return np.lexsort((self.ranks, np.abs(self.probability - LIKELY)))
        likely = np.flatnonzero(self.probability > LIKELY)
        if not len(likely):
            raise UsageError(
                f"--order {GUARD}: the guard takes none of the {len(self):,} candidates of {self.source} for a false "
                f"negative; raise guard_prior, such as --set guard_prior=0.01, or choose --order {SAMPLE}"
            )
        return np.random.default_rng(_SEED).permutation(likely)

    def __len__(self) -> int:
        return len(self.scores)


def check_order(order: str) -> None:
    """Refuses what is none of `ORDERS`.

    Raises:
        UsageError: it is none.
    """
    if order not in ORDERS:
        raise UsageError(f"order {order!r}: there is none of this name; known: {', '.join(ORDERS)}")


class Queue:
    """Candidates in the order in which they are judged.

    Args:
        candidates: all of them.
        order: one of `ORDERS`.

    Raises:
        UsageError: the candidates do not have what the order needs.
    """

    def __init__(self, candidates: Candidates, order: str) -> None:
        self.candidates, self.order = candidates, order
        self.places = candidates.ordered(order)

    def upcoming(self, answered: Collection[tuple[str, str]], count: int) -> list[int]:
        """Places of the next candidates that are not answered yet.

        Args:
            answered: image and caption of pairs that are left out.
            count: how many at most.
        """
        found: list[int] = []
        for place in map(int, self.places):
            if len(found) == count:
                break
            if self.candidates.ids(place) not in answered:
                found.append(place)
        return found

    def judged(self, answered: Collection[tuple[str, str]]) -> int:
        """How many pairs of the queue are among those answered."""
        own, ids = self.candidates, np.array(list(answered), dtype=str).reshape(-1, 2)
        pairs = PairSet.of_ids((ids[:, 0], ids[:, 1]), own.image_ids, own.caption_ids)
        return int(pairs.has(own.captions[self.places], own.images[self.places]).sum())

    def judgement(self, place: int, reviewer: str, answer: str) -> Judgement:
        """What is written of an answer."""
        own = self.candidates
        return Judgement(reviewer, *own.ids(place), answer, own.model, own.source, self.order)

    def sampled(self, decisions: Decisions) -> Share:
        """The share of false negatives among all of the queue, by those at its beginning that somebody judged.

        As long as these are a random order's first ones, they are a simple random sample, whoever judged them and why.
        Whoever was unsure, or disputed, counts for neither value, and for both ends of the interval.
        """
        verdicts = decisions.verdicts
        known = dict(zip(zip(verdicts.image_ids, verdicts.caption_ids, strict=True), verdicts.verdict, strict=True))
        told = list(self._told(known))
        fits = sum(verdict == FITS for verdict in told)
        open_ = sum(verdict in (UNSURE, DISPUTED) for verdict in told)
        sure = fits / (len(told) - open_) if len(told) > open_ else None
        low, high = (share_of(count, len(told), len(self)) for count in (fits, fits + open_))
        return Share(len(told), sure, low.low, high.high)

    def _told(self, known: dict[tuple[str, str], str]) -> Iterator[str]:
        for place in map(int, self.places):
            verdict = known.get(self.candidates.ids(place))
            if verdict is None:
                return
            yield verdict

    def __len__(self) -> int:
        return len(self.places)


def mined_candidates(mined: Path, depth: int = DEPTH) -> Candidates:
    """Those of an artifact of `mine-negatives`.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
        UsageError: it searched candidates from outside the dataset.
    """
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
    from itrpipe.learning.mined import FILES, read_list

    manifest = read_manifest(mined)
    if manifest.settings.get("candidates"):
        raise UsageError(f"{mined.name} holds candidates from outside the dataset, which nobody sees; mine without")
    lists = {name: read_list(mined, name, depth) for name in FILES}
    image_ids, caption_ids = (lists[name].anchor_ids for name in FILES)
    trained = existing_input(mined, manifest, "train")
    embeddings = read_embeddings(trained / EMBEDDINGS, "train")
    own = np.full(len(caption_ids), np.nan, dtype=np.float32)
    if embeddings.measure == INNER_PRODUCT and not manifest.settings.get("rescore_with"):
        own = np.einsum("td,td->t", embeddings.images[embeddings.caption_image], embeddings.texts[:])
    sides = []
    for number, found in enumerate(lists.values()):
        anchors = np.broadcast_to(np.arange(len(found.anchor_ids))[:, None], found.candidates.shape)
        images, captions = (anchors, found.candidates) if number == 0 else (found.candidates, anchors)
        ranks = np.broadcast_to(np.arange(1, found.candidates.shape[1] + 1), found.candidates.shape)
        known = found.false_negative_probability
        values = (images, captions, ranks, found.scores, np.zeros(images.shape) if known is None else known)
        sides.append([each[found.candidates >= 0] for each in values])
    guarded = all(each.false_negative_probability is not None for each in lists.values())
    return _each_once(
        sides,
        own,
        guarded=guarded,
        source=f"{mined.parent.name}/{mined.name}",
        model=manifest.label,
        split="train",
        prepared=existing_input(mined, manifest, "prepare"),
        trained=trained,
        image_ids=image_ids,
        caption_ids=caption_ids,
        owners=embeddings.caption_image,
    )


def ranked_candidates(evaluated: Path, depth: int = DEPTH) -> Candidates:
    """Those of an artifact of `evaluate`: what it ranked first that is not the own image or caption.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
    """
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.evaluation.rankings import read_rankings

    manifest = read_manifest(evaluated)
    prepared = existing_input(evaluated, manifest, "prepare")
    split = PreparedDataset.open(prepared, tokens=False).split(manifest.settings["split"])
    found = read_rankings(evaluated / RANKINGS, split.image_ids, split.caption_ids)
    own = np.full(len(split.caption_ids), np.nan, dtype=np.float32)
    sides = []
    for number, (queries, candidates, scores) in enumerate(found):
        candidates, scores = candidates[:, :depth], scores[:, :depth]
        queries = np.broadcast_to(queries[:, None], candidates.shape)
        images, captions = (queries, candidates) if number == 0 else (candidates, queries)
        right = split.caption_image[captions] == images
        own[captions[right]] = scores[right]
        ranks = np.broadcast_to(np.arange(1, candidates.shape[1] + 1), candidates.shape)
        values = (images, captions, ranks, scores, np.zeros(images.shape))
        sides.append([each[~right] for each in values])
    return _each_once(
        sides,
        own,
        guarded=False,
        source=f"{evaluated.parent.name}/{evaluated.name}",
        model=manifest.label,
        split=split.name,
        prepared=prepared,
        trained=existing_input(evaluated, manifest, "train"),
        image_ids=split.image_ids,
        caption_ids=split.caption_ids,
        owners=split.caption_image,
    )


def _each_once(sides: list[list[np.ndarray]], own: np.ndarray, *, guarded: bool, **facts: object) -> Candidates:
    """Candidates of both directions, of which some are in both."""
    images, captions, ranks, scores, probability = (np.concatenate(each) for each in zip(*sides, strict=True))
    images, captions = images.astype(np.int64), captions.astype(np.int64)
    order = np.argsort(ranks, kind="stable")
    _, first = np.unique((captions * (images.max(initial=0) + 1) + images)[order], return_index=True)
    kept = order[first]
    return Candidates(
        images=images[kept],
        captions=captions[kept],
        ranks=ranks[kept].astype(np.int64),
        scores=scores[kept].astype(np.float32),
        positives=own[captions[kept]],
        probability=probability[kept].astype(np.float32) if guarded else None,
        **facts,  # pyright: ignore[reportArgumentType]
    )
