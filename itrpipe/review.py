"""Decisions of people about pairs of an image and a caption of others: which pairs are asked, and what was answered.

Candidates are the hardest of each anchor: of mined lists, or of the rankings of an evaluation, whose split is another
one. They are judged in one of these orders:

    sample    at random, so that the pairs judged so far tell the share of false negatives among all
    guard     at random among those that mining's guard takes for false negatives, which tells its precision
    doubtful  the probability nearest to one half first
    harmful   what scores farthest above its caption's own image first: what a triplet loss pushes away hardest

Shapes: P candidates, N images, T captions, A anchors, K candidates of an anchor.

Source: Cohen, "A coefficient of agreement for nominal scales", 1960.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.decisions import DISPUTED, UNSURE, Decisions, Judgement
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import FITS, pair_set
from itrpipe.errors import UsageError
from itrpipe.evaluation.rankings import read_rankings
from itrpipe.features.declaration import model_inputs
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.judging.shares import Share, share_of
from itrpipe.printable import quantity
from itrpipe.storage.artifact import RANKINGS, open_artifact, open_input, read_manifest

SAMPLE, GUARD, DOUBTFUL, HARMFUL = ORDERS = ("sample", "guard", "doubtful", "harmful")
RANDOM = (SAMPLE, GUARD)
"""Orders whose first pairs are a simple random sample."""
DEPTH = 10
"""Candidates of each anchor that are judged, the hardest."""
LIKELY = 0.5
"""Probability above which the guard takes a candidate for a false negative."""
_NORMAL = NormalDist().inv_cdf(0.975)


# How far it can be relied on


class Agreement(NamedTuple):
    """The agreement of two reviewers.

    Attributes:
        pairs: that both judged.
        same: share of them with the same answer, 0..1.
        kappa: how far that is above chance, 1 where they agree in all; None where both always gave the same answer.
        low, high: its 95 % interval, by Cohen's large-sample error.
    """

    pairs: int
    same: float
    kappa: float | None = None
    low: float | None = None
    high: float | None = None


def agreements(decisions: Decisions) -> dict[tuple[str, str], Agreement]:
    """Compute the agreement of every two reviewers on the pairs that both were sure of, where there are any."""
    found = {}
    for (one, answers), (other, others) in combinations(decisions.answers.items(), 2):
        fits, others_fit = [], []
        for pair, answer in answers.items():
            if UNSURE not in (answer, others.get(pair, UNSURE)):
                fits.append(answer == FITS)
                others_fit.append(others[pair] == FITS)
        if fits:
            found[one, other] = agreement_of(np.array(fits), np.array(others_fit))
    return found


def agreement_of(one: np.ndarray, other: np.ndarray) -> Agreement:
    """Cohen's kappa of the answers, bool [n], that two gave on the same pairs."""
    same = float((one == other).mean())
    chance = float(one.mean() * other.mean() + (1 - one.mean()) * (1 - other.mean()))
    if chance == 1.0:
        return Agreement(len(one), same)
    kappa = (same - chance) / (1 - chance)
    reach = _NORMAL * math.sqrt(same * (1 - same) / len(one)) / (1 - chance)
    return Agreement(len(one), same, kappa, max(-1.0, kappa - reach), min(1.0, kappa + reach))


# What is asked


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
        found = (self.image_ids == image_id)[self.images] & (self.caption_ids == caption_id)[self.captions]
        return int(found.argmax()) if found.any() else None

    def __len__(self) -> int:
        return len(self.scores)


class Queue:
    """Candidates in the order in which they are judged.

    Args:
        candidates: all of them.
        order: one of `ORDERS`.

    Raises:
        UsageError: there is no such order, or it needs probabilities and there are none, or none above one half.

    Attributes:
        candidates, order: as given.
        places: of the candidates, int64 [P], or fewer for `guard`.
    """

    def __init__(self, candidates: Candidates, order: str) -> None:
        if order not in ORDERS:
            raise UsageError(f"order {order!r}: there is none of this name; known: {', '.join(ORDERS)}")
        self.candidates, self.order, known = candidates, order, candidates.probability
        random = np.random.default_rng(0)
        if order == SAMPLE:
            self.places = random.permutation(len(candidates))
        elif order == HARMFUL:
            harm = np.nan_to_num(candidates.scores - candidates.positives, nan=-np.inf)
            self.places = np.lexsort((candidates.ranks, -harm))
        elif known is None:
            raise UsageError(
                f"--order {order} needs lists that say how likely each candidate is a false negative, and "
                f"{candidates.source} does not; mine with `--guard fne`, or choose --order {SAMPLE} or {HARMFUL}"
            )
        elif order == DOUBTFUL:
            self.places = np.lexsort((candidates.ranks, np.abs(known - LIKELY)))
        else:
            self.places = random.permutation(np.flatnonzero(known > LIKELY))
        if order == GUARD and not len(self.places):
            raise UsageError(
                f"--order {GUARD}: the guard takes none of the {len(candidates):,} candidates of {candidates.source} "
                f"for a false negative; raise guard_prior, such as --set guard_prior=0.01, or choose --order {SAMPLE}"
            )

    def upcoming(self, answered: Collection[tuple[str, str]], count: int) -> list[int]:
        """Places of the next candidates, `count` at most, without pairs of image and caption that are answered."""
        found = []
        for place in self.places.tolist():
            if len(found) == count:
                break
            if self.candidates.ids(place) not in answered:
                found.append(place)
        return found

    def judged(self, answered: Collection[tuple[str, str]]) -> int:
        """Return how many pairs of the queue are among those answered."""
        own = self.candidates
        pairs = pair_set(answered, own.image_ids, own.caption_ids)
        return int(pairs.has(own.captions[self.places], own.images[self.places]).sum())

    def judgement(self, place: int, reviewer: str, answer: str) -> Judgement:
        """Return what is written of an answer."""
        own = self.candidates
        return Judgement(reviewer, *own.ids(place), answer, own.model, own.source, self.order)

    def sampled(self, decisions: Decisions) -> Share:
        """The share of false negatives among all of the queue, by those at its beginning that somebody judged.

        As long as these are a random order's first ones, they are a simple random sample, whoever judged them and why.
        Whoever was unsure, or disputed, counts for neither value, and for both ends of the interval.
        """
        counts = Counter[str]()
        for place in self.places.tolist():
            verdict = decisions.verdicts.get(self.candidates.ids(place))
            if verdict is None:
                break
            counts[verdict] += 1
        judged, fits, unsure = counts.total(), counts[FITS], counts[UNSURE] + counts[DISPUTED]
        low, high = share_of(fits, judged, len(self)).low, share_of(fits + unsure, judged, len(self)).high
        return Share(fits / (judged - unsure) if judged > unsure else None, low, high, judged)

    def __len__(self) -> int:
        return len(self.places)


def mined_candidates(mined: Path, depth: int = DEPTH) -> Candidates:
    """Return those of an artifact of `mine-negatives`.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
        UsageError: it searched candidates from outside the dataset.
    """
    from itrpipe.mining.lists import FILES, read_list

    manifest = open_artifact(mined)
    if manifest.settings.get("candidates"):
        raise UsageError(f"{mined.name} holds candidates from outside the dataset, which nobody sees; mine without")
    image_list, caption_list = (read_list(mined, name, depth) for name in FILES)
    (model,) = model_inputs(manifest.inputs)
    embeddings = read_embeddings(open_input(mined, manifest, model) / EMBEDDINGS, "train")
    own = np.full(len(caption_list.anchor_ids), np.nan, dtype=np.float32)
    if embeddings.measure == INNER_PRODUCT and not manifest.settings.get("rescore_with"):
        own = np.einsum("td,td->t", embeddings.images[embeddings.caption_image], embeddings.texts[:])
    sides = []
    for each in (image_list, caption_list):
        anchors = np.arange(len(each.anchor_ids))
        sides.append((anchors, each.candidates, each.scores, each.false_negative_probability))
    ids = (image_list.anchor_ids, caption_list.anchor_ids, embeddings.caption_image)
    return _each_once(mined, "train", ids, sides, own)


def ranked_candidates(evaluated: Path, depth: int = DEPTH) -> Candidates:
    """Return those of an artifact of `evaluate`: what it ranked first that is not the own image or caption.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
    """
    manifest = open_artifact(evaluated)
    prepared = open_input(evaluated, manifest, "prepare")
    split = PreparedDataset.open(prepared, tokens=False).split(manifest.settings["split"])
    own, sides = np.full(len(split.caption_ids), np.nan, dtype=np.float32), []
    found = read_rankings(evaluated / RANKINGS, split.image_ids, split.caption_ids)
    for number, (queries, candidates, scores) in enumerate(found):
        candidates, scores = candidates[:, :depth].copy(), scores[:, :depth]
        queries = np.asarray(queries)
        anchors = np.broadcast_to(queries[:, None], candidates.shape)
        images, captions = (anchors, candidates) if number == 0 else (candidates, anchors)
        right = split.caption_image[captions] == images
        own[captions[right]] = scores[right]
        candidates[right] = -1
        sides.append((queries, candidates, scores, None))
    ids = (split.image_ids, split.caption_ids, split.caption_image)
    return _each_once(evaluated, split.name, ids, sides, own)


_Side = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]
"""One direction: anchors [A], candidates [A, K] with -1 for none, their scores, and probabilities where known."""


def _each_once(
    folder: Path, split: str, ids: tuple[np.ndarray, np.ndarray, np.ndarray], sides: Sequence[_Side], own: np.ndarray
) -> Candidates:
    """The candidates of images and of captions that an artifact holds; pairs of both directions are there once.

    Args:
        folder: of the artifact.
        split: of its images and captions.
        ids: of the images [N] and captions [T], and the row [T] of each caption's image.
        sides: captions for images, and images for captions.
        own: score [T] of each caption with its own image.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    for number, (anchors, candidates, scores, known) in enumerate(sides):
        there = candidates >= 0
        rows, columns = np.nonzero(there)
        images, captions = anchors[rows], candidates[there]
        if number == 1:
            images, captions = captions, images
        likely = np.zeros(len(rows)) if known is None else known[there]
        parts.append((images, captions, columns + 1, scores[there], likely))
    images, captions, ranks, scores, probability = map(np.concatenate, zip(*parts, strict=True))
    images, captions = images.astype(np.int64), captions.astype(np.int64)
    order = np.argsort(ranks, kind="stable")
    _, first = np.unique((captions * (images.max(initial=0) + 1) + images)[order], return_index=True)
    kept, manifest = order[first], read_manifest(folder)
    return Candidates(
        source=f"{folder.parent.name}/{folder.name}",
        model=manifest.label,
        split=split,
        prepared=open_input(folder, manifest, "prepare"),
        trained=open_input(folder, manifest, model_inputs(manifest.inputs)[0]),
        image_ids=ids[0],
        caption_ids=ids[1],
        owners=ids[2],
        images=images[kept],
        captions=captions[kept],
        ranks=ranks[kept].astype(np.int64),
        scores=scores[kept].astype(np.float32),
        positives=own[captions[kept]],
        probability=None if any(side[3] is None for side in sides) else probability[kept].astype(np.float32),
    )


def reviewed(candidates: Candidates, order: str, decisions: Decisions) -> dict[str, Any]:
    """Return what was decided on some candidates, by whom, and how well these agree, in figures ready for JSON."""
    queue, counts = Queue(candidates, order), Counter(decisions.verdicts.values())
    agreed = []
    for both, agreement in agreements(decisions).items():
        agreed.append({"reviewers": list(both), **agreement._asdict()})
    decided = {
        "judgements": len(decisions),
        "pairs": {name: counts[name] for name in _WORDS},
        "reviewers": {name: len(answers) for name, answers in decisions.answers.items()},
        "agreements": agreed,
    }
    sample = queue.sampled(decisions)._asdict() if order in RANDOM else None
    return {"list": candidates.source, "order": order, "pairs": len(queue), "decisions": decided, "sample": sample}


_WORDS = {"fits": "pairs fit", "differs": "do not", "unsure": "unsure", "disputed": "disputed"}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return what was decided, a line for each fact."""
    decided, whole = found["decisions"], found["pairs"]
    yield f"{found['list']}: {quantity(whole, 'pair')} in the order {found['order']}"
    counts = ", ".join(f"{count:,} {_WORDS[name]}" for name, count in decided["pairs"].items() if count)
    yield f"  {quantity(decided['judgements'], 'judgement')}{f': {counts}' if counts else ''}"
    for name, count in decided["reviewers"].items():
        yield f"  {name}: {quantity(count, 'pair')}"
    for each in decided["agreements"]:
        both = " and ".join(each["reviewers"])
        kappa = "not defined, since both always said the same"
        if each["kappa"] is not None:
            kappa = f"{each['kappa']:.2f} ({each['low']:.2f} to {each['high']:.2f})"
        yield f"  {both} agree on {100 * each['same']:.0f} % of {each['pairs']:,} pairs; Cohen's kappa: {kappa}"
    if found["sample"] and found["sample"]["decisions"]:
        share = found["sample"]
        interval = f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"
        value = "nobody was sure" if share["value"] is None else f"{100 * share['value']:.1f} %"
        yield f"  false negatives among all of them: {value} ({interval}) of {share['decisions']:,} judged"
