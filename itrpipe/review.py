"""Decisions of people about pairs of an image and a caption of others: which pairs are asked, and what was answered.

Candidates are the hardest of each anchor: of mined lists, or of the rankings of an evaluation, whose split is another
one. They are judged in one of these orders:

    calibration  spread over the judge's score: as many from each of its strata in turn, at random within a stratum
    sample       at random
    doubtful     the probability nearest to one half first
    harmful      what scores farthest above its caption's own image first: what a triplet loss pushes away hardest

A pair's lot is a random number that is always the same one. The pairs of a stratum with the smallest lots are a random
sample of it, whatever lists, judges and orders they were judged in, and tell the share of right answers.

Shapes: P candidates, N images, T captions, A anchors, K candidates of an anchor.

Source: Cohen, "A coefficient of agreement for nominal scales", 1960.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.decisions import UNSURE, Decisions, Judgement, unknown_pairs
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import DIFFERS, FITS, Decided, PairSet, rows_of_ids
from itrpipe.errors import UsageError
from itrpipe.evaluation.rankings import read_rankings
from itrpipe.features.declaration import model_inputs
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.judging.calibration import LEAST, Calibration, calibrate
from itrpipe.judging.shares import Share, share_of, share_right, strata_of
from itrpipe.printable import quantity
from itrpipe.storage.artifact import RANKINGS, open_artifact, open_input, read_manifest
from itrpipe.training.search_settings import JUDGE_INPUT

CALIBRATION, SAMPLE, DOUBTFUL, HARMFUL = ORDERS = ("calibration", "sample", "doubtful", "harmful")
SEARCH = "mine_negatives"
"""Input of judged lists: the artifact whose lists were judged."""
DEPTH = 10
"""Candidates of each anchor that are judged, the hardest."""
LIKELY = 0.5
"""Probability above which a judge takes a candidate for a right answer."""
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


@dataclass(frozen=True, kw_only=True)
class NamedPairs:
    """Pairs of an image and a caption of others, with the ids by which people's answers name them.

    Attributes:
        image_ids: text [N].
        caption_ids: text [T].
        pairs: P of their rows.
        log_odds: float32 [P, J] of each of the judges; None where none was asked.
    """

    image_ids: np.ndarray
    caption_ids: np.ndarray
    pairs: PairSet
    log_odds: np.ndarray | None = None

    @cached_property
    def images(self) -> np.ndarray:
        """Row of each pair's image, int64 [P]."""
        return self.pairs.image_rows

    @cached_property
    def captions(self) -> np.ndarray:
        """Row of each pair's caption, int64 [P]."""
        return self.pairs.caption_rows

    def ids(self, place: int) -> tuple[str, str]:
        """Ids of image and caption of a pair."""
        return str(self.image_ids[self.images[place]]), str(self.caption_ids[self.captions[place]])

    def places(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
        """Places int64 [n] of some ids of image and caption; -1 for what is no pair here."""
        return self.pairs.places(*rows_of_ids(pairs, self.image_ids, self.caption_ids))

    @cached_property
    def lots(self) -> np.ndarray:
        """A random number of each pair, float64 [P] in 0..1, which depends on nothing else.

        It is the fraction of the sum of the image's and the caption's, so that those of any two pairs are independent.
        """
        random = np.random.default_rng(0)
        of_images = random.random(len(self.image_ids))
        of_captions = random.random(len(self.caption_ids))
        return (of_images[self.images] + of_captions[self.captions]) % 1

    @cached_property
    def strata(self) -> np.ndarray:
        """Stratum of each pair by the judges' mean log-odds, int64 [P]; all in one where none was asked."""
        if self.log_odds is None:
            return np.zeros(len(self), dtype=np.int64)
        return strata_of(self.log_odds.mean(axis=1))

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True, kw_only=True)
class Candidates(NamedPairs):
    """Pairs that may be judged.

    Attributes:
        source: artifact of the search or evaluation that found them, as
            `mine_negatives/exact.triplet.vsepp-0f1e2d3c`, whoever judged its lists.
        model: label of the model that ranked them.
        split: of the dataset.
        prepared: folder of the dataset.
        trained: folder of the model.
        owners: int64 [T], row of each caption's own image.
        ranks: int64 [P], the better of both directions, from 1.
        scores: float32 [P].
        positives: float32 [P], score of the caption with its own image; NaN where it is not known.
        probability: float32 [P] to be right after all, by the judges' calibration; None where none was asked.
    """

    source: str
    model: str
    split: str
    prepared: Path
    trained: Path
    owners: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    positives: np.ndarray
    probability: np.ndarray | None = None


class Queue:
    """Candidates in the order in which they are judged.

    Args:
        candidates: all of them.
        order: one of `ORDERS`; empty: `calibration` of judged lists, else `sample`.

    Raises:
        UsageError: there is no such order, or it needs probabilities and there are none.

    Attributes:
        candidates, order: see above.
        places: of the candidates, int64 [P].
    """

    def __init__(self, candidates: Candidates, order: str = "") -> None:
        probability = candidates.probability
        if not order:
            order = SAMPLE if probability is None else CALIBRATION
        self.candidates, self.order = candidates, order
        if order not in ORDERS:
            raise UsageError(f"order {order!r}: there is none of this name; known: {', '.join(ORDERS)}")
        if order == SAMPLE:
            self.places = np.argsort(candidates.lots)
        elif order == HARMFUL:
            harm = np.nan_to_num(candidates.scores - candidates.positives, nan=-np.inf)
            self.places = np.lexsort((candidates.ranks, -harm))
        elif probability is None:
            raise UsageError(
                f"--order {order} needs lists with a judge's probabilities, and {candidates.source} has none; "
                f"mine with `--judge captions`, or choose --order {SAMPLE} or {HARMFUL}"
            )
        elif order == DOUBTFUL:
            self.places = np.lexsort((candidates.ranks, np.abs(probability - LIKELY)))
        else:
            self.places = _in_turn(candidates.strata, candidates.lots)

    def upcoming(self, answered: Iterable[tuple[str, str]], count: int) -> list[int]:
        """Places of the next candidates, `count` at most, without pairs of image and caption that are answered."""
        places = self.candidates.places(answered)
        is_answered = np.zeros(len(self.candidates), dtype=bool)
        is_answered[places[places >= 0]] = True
        return self.places[~is_answered[self.places]][:count].tolist()

    def judgement(self, place: int, reviewer: str, answer: str) -> Judgement:
        """Return what is written of an answer."""
        own = self.candidates
        return Judgement(reviewer, *own.ids(place), answer, own.model, own.source, self.order)


def _in_turn(strata: np.ndarray, lots: np.ndarray) -> np.ndarray:
    """Return the places [P] with one of each stratum in turn, those of a stratum by rising lots."""
    turns = np.empty(len(strata), dtype=np.int64)
    for stratum in np.unique(strata):
        own = np.flatnonzero(strata == stratum)
        turns[own[np.argsort(lots[own])]] = np.arange(len(own))
    return np.lexsort((-strata, turns))


# What the answers tell


@dataclass(frozen=True)
class Estimates:
    """What people's answers tell of pairs.

    Attributes:
        pairs: P of them.
        answers: [P] 1 right, 0 wrong, NaN where nobody was sure, or people do not agree.
        is_drawn: bool [P], which were judged, and are random ones of their stratum: their lots are below all lots of
            the stratum that nobody judged.
        probabilities: [P] by judges, of answered pairs by a curve that has not seen the answer; 0 where none was asked.
        calibration: of the judges; None where none was asked.
    """

    pairs: NamedPairs
    answers: np.ndarray
    is_drawn: np.ndarray
    probabilities: np.ndarray
    calibration: Calibration | None = None

    @classmethod
    def of(cls, pairs: NamedPairs, verdicts: Mapping[tuple[str, str], str]) -> Estimates:
        """Calibrate the judges of some pairs by `Decisions.verdicts`."""
        places = pairs.places(verdicts)
        is_judged = np.zeros(len(pairs), dtype=bool)
        is_judged[places[places >= 0]] = True
        answers = np.full(len(pairs), np.nan)
        for answer, value in ((FITS, 1.0), (DIFFERS, 0.0)):
            places = pairs.places([pair for pair, verdict in verdicts.items() if verdict == answer])
            answers[places[places >= 0]] = value
        limits = np.full(pairs.strata.max(initial=0) + 1, np.inf)
        np.minimum.at(limits, pairs.strata[~is_judged], pairs.lots[~is_judged])
        is_drawn = pairs.lots < limits[pairs.strata]
        if pairs.log_odds is None:
            return cls(pairs, answers, is_drawn, np.zeros(len(pairs)))
        sure = np.flatnonzero(~np.isnan(answers))
        calibration = calibrate(pairs.log_odds[sure], answers[sure] == 1, pairs.images[sure])
        probabilities = calibration.probabilities(pairs.log_odds)
        probabilities[sure] = calibration.held_out
        return cls(pairs, answers, is_drawn, probabilities, calibration)

    def share(self, rows: np.ndarray) -> Share:
        """Estimate the share of right ones among the pairs of some rows, by those that were drawn at random.

        Whoever was unsure counts for neither value, and for both ends of the interval.
        """
        drawn = np.flatnonzero(self.is_drawn[rows])
        answers = self.answers[rows[drawn]]

        def estimate(places: np.ndarray, fits: np.ndarray) -> Share:
            if self.calibration is None:
                return share_of(int(fits.sum()), len(fits), len(rows))
            return share_right(self.probabilities[rows], places, fits, self.pairs.strata[rows])

        is_sure = ~np.isnan(answers)
        sure = estimate(drawn[is_sure], answers[is_sure] == 1)
        low = estimate(drawn, answers == 1).low
        high = estimate(drawn, answers != 0).high
        return Share(sure.value, low, high, len(drawn))


def findings(candidates: Candidates, decisions: Decisions) -> dict[str, Any]:
    """Estimate the share of right answers, and calibrate the judge.

    Returns:
        Figures ready for JSON: the `share` of right answers among all candidates; `decisions`, the pairs on which
        people agree and were sure; how many a calibration has `needed`, None where no judge was asked; and once there
        are as many, what is known of the `judge`, see `Calibration`.
    """
    estimates = Estimates.of(candidates, decisions.verdicts)
    made = int((~np.isnan(estimates.answers)).sum())
    calibration = estimates.calibration
    needed = judge = None
    if calibration is not None:
        needed = LEAST
        if made >= LEAST:
            judge = {name: getattr(calibration, name) for name in ("knows", "precision", "recall")}
            judge["auc"] = calibration.auc and calibration.auc._asdict()
    share = estimates.share(np.arange(len(candidates)))
    return {"share": share._asdict(), "decisions": made, "needed": needed, "judge": judge}


def mined_candidates(mined: Path) -> Candidates:
    """Return those of an artifact of `mine-negatives`.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
        UsageError: it searched candidates from outside the dataset.
    """
    from itrpipe.mining.lists import FILES, read_list

    manifest = open_artifact(mined)
    if SEARCH in manifest.inputs:
        return _with_judges(mined_candidates(open_input(mined, manifest, SEARCH)), mined)
    if manifest.settings.get("candidates"):
        raise UsageError(f"{mined.name} holds candidates from outside the dataset, which nobody sees; mine without")
    image_list, caption_list = (read_list(mined, name, DEPTH) for name in FILES)
    (model,) = model_inputs(manifest.inputs)
    embeddings = read_embeddings(open_input(mined, manifest, model) / EMBEDDINGS, "train")
    own = np.full(len(caption_list.anchor_ids), np.nan, dtype=np.float32)
    if embeddings.measure == INNER_PRODUCT and not manifest.settings.get("rescore_with"):
        own = np.einsum("td,td->t", embeddings.images[embeddings.caption_image], embeddings.texts[:])
    sides = []
    for each in (image_list, caption_list):
        anchors = np.arange(len(each.anchor_ids))
        sides.append((anchors, each.candidates, each.scores))
    ids = (image_list.anchor_ids, caption_list.anchor_ids, embeddings.caption_image)
    return _each_once(mined, "train", ids, sides, own)


def _with_judges(candidates: Candidates, mined: Path) -> Candidates:
    """Add what the judges of mined lists say of the candidates that the search has found, if there are judges."""
    from itrpipe.mining.judged import Judgement

    manifest = read_manifest(mined)
    folders = {}
    for number, judge in enumerate(manifest.settings["judges"], 1):
        folders[judge] = open_input(mined, manifest, JUDGE_INPUT.format(number))
    if not folders:
        return candidates
    judgement = Judgement.read(folders, Decided.read(mined, candidates.image_ids, candidates.caption_ids))
    places = judgement.pairs.places(candidates.captions, candidates.images)
    log_odds = judgement.log_odds[places]
    return replace(candidates, log_odds=log_odds, probability=judgement.calibration.probabilities(log_odds))


def ranked_candidates(evaluated: Path) -> Candidates:
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
        candidates, scores = candidates[:, :DEPTH].copy(), scores[:, :DEPTH]
        queries = np.asarray(queries)
        anchors = np.broadcast_to(queries[:, None], candidates.shape)
        images, captions = (anchors, candidates) if number == 0 else (candidates, anchors)
        right = split.caption_image[captions] == images
        own[captions[right]] = scores[right]
        candidates[right] = -1
        sides.append((queries, candidates, scores))
    return _each_once(evaluated, split.name, (split.image_ids, split.caption_ids, split.caption_image), sides, own)


_Side = tuple[np.ndarray, np.ndarray, np.ndarray]
"""One direction: anchors [A], candidates [A, K] with -1 for none, and their scores."""


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
    for number, (anchors, candidates, scores) in enumerate(sides):
        there = candidates >= 0
        rows, columns = np.nonzero(there)
        images, captions = anchors[rows], candidates[there]
        if number == 1:
            images, captions = captions, images
        parts.append((images, captions, columns + 1, scores[there]))
    images, captions, ranks, scores = map(np.concatenate, zip(*parts, strict=True))
    pairs = PairSet.of(captions, images, len(ids[0]))
    places = pairs.places(captions, images)
    order = np.lexsort((ranks, places))
    kept = order[np.searchsorted(places[order], np.arange(len(pairs)))]
    manifest = read_manifest(folder)
    return Candidates(
        image_ids=ids[0],
        caption_ids=ids[1],
        pairs=pairs,
        source=f"{folder.parent.name}/{folder.name}",
        model=manifest.label,
        split=split,
        prepared=open_input(folder, manifest, "prepare"),
        trained=open_input(folder, manifest, model_inputs(manifest.inputs)[0]),
        owners=ids[2],
        ranks=ranks[kept].astype(np.int64),
        scores=scores[kept].astype(np.float32),
        positives=own[pairs.caption_rows],
    )


def reviewed(candidates: Candidates, order: str, decisions: Decisions) -> dict[str, Any]:
    """Return what was decided on some candidates, by whom, and what it tells, in figures ready for JSON."""
    counts = Counter(decisions.verdicts.values())
    agreed = []
    for both, agreement in agreements(decisions).items():
        agreed.append({"reviewers": list(both), **agreement._asdict()})
    decided = {
        "judgements": len(decisions),
        "pairs": {name: counts[name] for name in _WORDS},
        "unknown": unknown_pairs(decisions, candidates.prepared),
        "reviewers": {name: len(answers) for name, answers in decisions.answers.items()},
        "agreements": agreed,
    }
    return {
        "list": candidates.source,
        "order": Queue(candidates, order).order,
        "pairs": len(candidates),
        "decisions": decided,
        "findings": findings(candidates, decisions),
    }


_WORDS = {"fits": "pairs fit", "differs": "do not", "unsure": "unsure", "disputed": "disputed"}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return what was decided, a line for each fact."""
    decided, whole = found["decisions"], found["pairs"]
    yield f"{found['list']}: {quantity(whole, 'pair')} in the order {found['order']}"
    counts = ", ".join(f"{count:,} {_WORDS[name]}" for name, count in decided["pairs"].items() if count)
    yield f"  {quantity(decided['judgements'], 'judgement')}{f': {counts}' if counts else ''}"
    if decided["unknown"]:
        unknown = f"{quantity(decided['unknown'], 'pair')} of ids that the dataset does not have"
        yield f"  warning: {unknown}; name images and captions as its captions.parquet does"
    for name, count in decided["reviewers"].items():
        yield f"  {name}: {quantity(count, 'pair')}"
    for each in decided["agreements"]:
        both = " and ".join(each["reviewers"])
        kappa = "not defined, since both always said the same"
        if each["kappa"] is not None:
            kappa = f"{each['kappa']:.2f} ({each['low']:.2f} to {each['high']:.2f})"
        yield f"  {both} agree on {100 * each['same']:.0f} % of {each['pairs']:,} pairs; Cohen's kappa: {kappa}"
    yield from _told(found["findings"])


def _told(found: dict[str, Any]) -> Iterator[str]:
    """Yield what the answers tell, a line for each fact."""
    share, judge = found["share"], found["judge"]
    if share["decisions"]:
        value = "nobody was sure" if share["value"] is None else f"{100 * share['value']:.1f} %"
        interval = f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"
        yield f"  right answers among all of them: {value} ({interval}), by {share['decisions']:,} drawn at random"
    if found["needed"] and not judge:
        yield f"  the judge: {found['decisions']:,} of the {found['needed']} decisions that its calibration needs"
    if judge:
        facts = []
        if judge["auc"]:
            facts.append(f"AUC {judge['auc']['value']:.2f} ({judge['auc']['low']:.2f} to {judge['auc']['high']:.2f})")
        if not judge["knows"]:
            facts.append("the answers do not show that it knows anything, so that it marks nothing")
        elif judge["precision"] is not None:
            facts.append(f"above {LIKELY:g} it is right in {100 * judge['precision']:.0f} %")
            facts.append(f"finds {100 * judge['recall']:.0f} % of the right answers")
        yield f"  the judge, by {found['decisions']:,} decisions: {', '.join(facts)}"
