"""Decisions of people about pairs of an image and a caption of others: the order of pairs, and findings by answers.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.datasets.decisions import Decision, Decisions, unknown_pairs
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import FITS, UNSURE, Decided, PairSet, rows_of_ids
from itrpipe.errors import UsageError
from itrpipe.evaluation.rankings import read_rankings
from itrpipe.features.declaration import model_inputs
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.judging.calibration import Calibration, calibrate
from itrpipe.judging.shares import LEAST, Share, drawn_at_random, lots_of, share_with_doubts, strata_of
from itrpipe.printable import quantity
from itrpipe.storage.artifact import JUDGED, RANKINGS, open_artifact, open_input, read_manifest
from itrpipe.storage.tables import read_table, write_table
from itrpipe.training.search_settings import JUDGE_INPUT

CALIBRATION, SAMPLE, DOUBTFUL, HARMFUL = ORDERS = ("calibration", "sample", "doubtful", "harmful")
SEARCH = "mine_negatives"
"""Input of judged lists: the artifact whose lists were judged."""
DEPTH = 10
"""Candidates of each anchor that are judged, the hardest."""
LIKELY = 0.5
"""Probability above which a judge takes a candidate for a right answer."""
_JUDGED_SCHEMA = pa.schema(
    {
        "image_id": pa.string(),
        "caption_id": pa.string(),
        "log_odds": pa.list_(pa.float32()),
        "probability": pa.float32(),
    }
)
_NORMAL = NormalDist().inv_cdf(0.975)


# Agreement of reviewers


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
    by_reviewers = {}
    for (one, answers), (other, other_answers) in combinations(decisions.answers.items(), 2):
        fits = []
        other_fits = []
        for pair, answer in answers.items():
            other_answer = other_answers.get(pair, UNSURE)
            if UNSURE not in (answer, other_answer):
                fits.append(answer == FITS)
                other_fits.append(other_answer == FITS)
        if fits:
            by_reviewers[one, other] = agreement_of(np.array(fits), np.array(other_fits))
    return by_reviewers


def agreement_of(one: np.ndarray, other: np.ndarray) -> Agreement:
    """Compute Cohen's kappa of the answers, bool [n], that two reviewers gave on the same pairs."""
    pairs = len(one)
    same = float((one == other).mean())
    chance = float(one.mean() * other.mean() + (1 - one.mean()) * (1 - other.mean()))
    if chance == 1.0:
        return Agreement(pairs, same)
    kappa = (same - chance) / (1 - chance)
    reach = _NORMAL * math.sqrt(same * (1 - same) / pairs) / (1 - chance)
    return Agreement(pairs, same, kappa, max(-1.0, kappa - reach), min(1.0, kappa + reach))


# Pairs to judge


@dataclass(frozen=True, kw_only=True)
class ReviewCandidates:
    """Pairs of an image and a caption of others that may be judged, with the ids by which people's answers name them.

    Attributes:
        image_ids: text [N].
        caption_ids: text [T].
        pairs: P of their rows.
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
        log_odds: float32 [P, J] of each of the judges; None where none was asked.
        probability: float32 [P] to be right after all, by the judges' calibration; None where none was asked.
    """

    image_ids: np.ndarray
    caption_ids: np.ndarray
    pairs: PairSet
    source: str
    model: str
    split: str
    prepared: Path
    trained: Path
    owners: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    positives: np.ndarray
    log_odds: np.ndarray | None = None
    probability: np.ndarray | None = None

    def ids(self, place: int) -> tuple[str, str]:
        """Return the ids of image and caption of a pair."""
        image_id = self.image_ids[self.pairs.image_rows[place]]
        caption_id = self.caption_ids[self.pairs.caption_rows[place]]
        return str(image_id), str(caption_id)

    def places(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
        """Return the places int64 [n] of some ids of image and caption; -1 for what is no pair here."""
        return self.pairs.places(*rows_of_ids(pairs, self.image_ids, self.caption_ids))

    def __len__(self) -> int:
        return len(self.pairs)


def strata_by_judges(pairs: PairSet, log_odds: np.ndarray | None) -> np.ndarray:
    """Return the stratum of each pair by the judges' mean log-odds, int64 [P]; all in one where none was asked."""
    if log_odds is None:
        return np.zeros(len(pairs), dtype=np.int64)
    return strata_of(log_odds.mean(axis=1))


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

    def __init__(self, candidates: ReviewCandidates, order: str = "") -> None:
        probability = candidates.probability
        if not order:
            order = SAMPLE if probability is None else CALIBRATION
        if order not in ORDERS:
            raise UsageError(f"order {order!r}: there is none of this name; known: {', '.join(ORDERS)}")
        self.candidates = candidates
        self.order = order
        lots = lots_of(candidates.pairs)
        if order == SAMPLE:
            self.places = np.argsort(lots)
        elif order == HARMFUL:
            harm = np.nan_to_num(candidates.scores - candidates.positives, nan=-np.inf)
            self.places = np.lexsort((candidates.ranks, -harm))
        elif probability is None:
            raise UsageError(
                f"--order {order} needs lists with a judge's probabilities, and {candidates.source} has none; "
                f"mine with `--judge captions`, or choose --order {SAMPLE} or {HARMFUL}"
            )
        elif order == DOUBTFUL:
            doubt = np.abs(probability - LIKELY)
            self.places = np.lexsort((candidates.ranks, doubt))
        else:  # one of each stratum in turn, those of a stratum by rising lots
            strata = strata_by_judges(candidates.pairs, candidates.log_odds)
            turns = np.empty(len(candidates), dtype=np.int64)
            for stratum in np.unique(strata):
                members = np.flatnonzero(strata == stratum)
                order_of_members = np.argsort(lots[members])
                turns[members[order_of_members]] = np.arange(len(members))
            self.places = np.lexsort((-strata, turns))

    def upcoming(self, answered: Iterable[tuple[str, str]], count: int) -> list[int]:
        """Return the places of the next candidates, `count` at most, without pairs that are answered.

        Args:
            answered: ids of image and caption.
            count: of candidates.
        """
        places = self.candidates.places(answered)
        is_answered = np.zeros(len(self.candidates), dtype=bool)
        is_answered[places[places >= 0]] = True
        upcoming = self.places[~is_answered[self.places]]
        return upcoming[:count].tolist()

    def judgement(self, place: int, reviewer: str, answer: str) -> Decision:
        """Return the row that is written of an answer."""
        candidates = self.candidates
        image_id, caption_id = candidates.ids(place)
        return Decision(reviewer, image_id, caption_id, answer, candidates.model, candidates.source, self.order)


# Estimates by the answers


@dataclass(frozen=True)
class Estimates:
    """Estimates of which pairs are right, by people's answers.

    Attributes:
        strata: int [P] of the pairs.
        answers: [P] 1 right, 0 wrong, NaN where nobody was sure, or people do not agree.
        is_drawn: bool [P], see `drawn_at_random`.
        probabilities: [P] by judges, of answered pairs by a curve that has not seen the answer; where none was asked,
            the share of right ones among the drawn.
        calibration: of the judges; None where none was asked.
    """

    strata: np.ndarray
    answers: np.ndarray
    is_drawn: np.ndarray
    probabilities: np.ndarray
    calibration: Calibration | None = None

    @classmethod
    def of(cls, pairs: PairSet, log_odds: np.ndarray | None, decided: Decided) -> Estimates:
        """Calibrate the judges of some pairs, whose log-odds are [P, J], by what people decided."""
        strata = strata_by_judges(pairs, log_odds)
        answers, is_judged = decided.answers(pairs)
        is_drawn = drawn_at_random(strata, lots_of(pairs), is_judged)
        sure = np.flatnonzero(~np.isnan(answers))
        if log_odds is None:
            drawn = answers[is_drawn & ~np.isnan(answers)]
            return cls(strata, answers, is_drawn, np.full(len(pairs), drawn.sum() / max(1, len(drawn))))
        calibration = calibrate(log_odds[sure], answers[sure] == 1, pairs.image_rows[sure])
        probabilities = calibration.probabilities(log_odds)
        probabilities[sure] = calibration.held_out
        return cls(strata, answers, is_drawn, probabilities, calibration)

    def share(self, rows: np.ndarray) -> Share:
        """Estimate the share of right ones among the pairs of some rows, by those that were drawn at random."""
        drawn = np.flatnonzero(self.is_drawn[rows])
        answers = self.answers[rows[drawn]]
        return share_with_doubts(self.probabilities[rows], drawn, answers, self.strata[rows])


def findings(candidates: ReviewCandidates, decisions: Decisions) -> dict[str, Any]:
    """Estimate the share of right answers, and calibrate the judge.

    Returns:
        Figures ready for JSON: the `share` of right answers among all candidates; `decisions`, the pairs on which
        people agree and were sure; how many a calibration has `needed`, None where no judge was asked; and once there
        are as many, what is known of the `judge`, see `Calibration`.
    """
    decided = Decided.of(decisions.verdicts, candidates.image_ids, candidates.caption_ids)
    estimates = Estimates.of(candidates.pairs, candidates.log_odds, decided)
    made = int((~np.isnan(estimates.answers)).sum())
    share = estimates.share(np.arange(len(candidates)))
    calibration = estimates.calibration
    needed = None
    judge = None
    if calibration is not None:
        needed = LEAST
        if made >= LEAST:
            judge = {
                "knows": calibration.knows,
                "likely": sum(probability > LIKELY for probability in calibration.held_out),
                "precision": calibration.precision,
                "recall": calibration.recall,
                "auc": calibration.auc and calibration.auc._asdict(),
            }
    return {"share": share._asdict(), "decisions": made, "needed": needed, "judge": judge}


def mined_candidates(mined: Path) -> ReviewCandidates:
    """Return the candidates of an artifact of `mine-negatives`.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
        UsageError: it searched candidates from outside the dataset.
    """
    from itrpipe.mining.lists import FILES, read_list

    manifest = open_artifact(mined)
    if SEARCH in manifest.inputs:
        search = open_input(mined, manifest, SEARCH)
        return _with_judges(mined_candidates(search), mined)
    if manifest.settings.get("candidates"):
        raise UsageError(f"{mined.name} holds candidates from outside the dataset, which nobody sees; mine without")
    image_list, caption_list = (read_list(mined, name, DEPTH) for name in FILES)
    (model,) = model_inputs(manifest.inputs)
    embeddings = read_embeddings(open_input(mined, manifest, model) / EMBEDDINGS, "train")
    positives = np.full(len(caption_list.anchor_ids), np.nan, dtype=np.float32)
    if embeddings.measure == INNER_PRODUCT and not manifest.settings.get("rescore_with"):
        positives = np.einsum("td,td->t", embeddings.images[embeddings.caption_image], embeddings.texts[:])
    sides = []
    for lists in (image_list, caption_list):
        anchors = np.arange(len(lists.anchor_ids))
        sides.append((anchors, lists.candidates, lists.scores))
    ids = (image_list.anchor_ids, caption_list.anchor_ids, embeddings.caption_image)
    return _each_once(mined, "train", ids, sides, positives)


def _with_judges(candidates: ReviewCandidates, mined: Path) -> ReviewCandidates:
    """Add the log-odds and probabilities that the judges of mined lists give the candidates that the search found."""
    from itrpipe.mining.judged import Judgement

    manifest = read_manifest(mined)
    folders = {}
    for number, judge in enumerate(manifest.settings["judges"], 1):
        folders[judge] = open_input(mined, manifest, JUDGE_INPUT.format(number))
    if not folders:
        return candidates
    decided = Decided.read(mined, candidates.image_ids, candidates.caption_ids)
    judgement = Judgement.read(folders, decided)
    places = judgement.pairs.places(candidates.pairs.caption_rows, candidates.pairs.image_rows)
    log_odds = judgement.log_odds[places]
    return replace(candidates, log_odds=log_odds, probability=judgement.calibration.probabilities(log_odds))


def ranked_candidates(evaluated: Path) -> ReviewCandidates:
    """Return the candidates of an artifact of `evaluate`: what it ranked first that is not the own image or caption.

    Where the evaluation asked judges, candidates have what these say.

    Raises:
        MissingInputError: what it was made from was removed.
        DataError: a file is damaged.
    """
    manifest = open_artifact(evaluated)
    prepared = open_input(evaluated, manifest, "prepare")
    split = PreparedDataset.open(prepared, tokens=False).split(manifest.settings["split"])
    positives = np.full(len(split.caption_ids), np.nan, dtype=np.float32)
    rankings = read_rankings(evaluated / RANKINGS, split.image_ids, split.caption_ids)
    sides = []
    for number, (queries, candidates, scores) in enumerate(rankings):
        candidates = candidates[:, :DEPTH].copy()
        scores = scores[:, :DEPTH]
        queries = np.asarray(queries)
        images = np.broadcast_to(queries[:, None], candidates.shape)
        captions = candidates
        if number == 1:  # captions look for images
            images, captions = captions, images
        is_own = split.caption_image[captions] == images
        positives[captions[is_own]] = scores[is_own]
        candidates[is_own] = -1
        sides.append((queries, candidates, scores))
    ids = (split.image_ids, split.caption_ids, split.caption_image)
    candidates = _each_once(evaluated, split.name, ids, sides, positives)
    if JUDGED not in manifest.outputs:
        return candidates
    judged = read_table(evaluated / JUDGED, _JUDGED_SCHEMA, "remove its folder and evaluate again")
    pairs = zip(judged["image_id"].to_pylist(), judged["caption_id"].to_pylist(), strict=True)
    places = candidates.places(pairs)
    order = np.argsort(places)
    order = order[places[order] >= 0]
    log_odds = np.array(judged["log_odds"].to_pylist(), dtype=np.float32)
    probability = judged["probability"].to_numpy()
    return replace(
        candidates,
        log_odds=log_odds[order],
        probability=probability[order],
    )


def write_judged(
    folder: Path,
    image_ids: np.ndarray,
    caption_ids: np.ndarray,
    log_odds: np.ndarray,
    probability: np.ndarray,
) -> None:
    """Write what judges say of the pairs that an evaluation ranked first, for `ranked_candidates`.

    Args:
        folder: of the evaluation.
        image_ids, caption_ids: text [P].
        log_odds: [P, J].
        probability: [P], by the judges' calibration.
    """
    columns = {
        "image_id": image_ids.tolist(),
        "caption_id": caption_ids.tolist(),
        "log_odds": log_odds.tolist(),
        "probability": probability.tolist(),
    }
    write_table(folder / JUDGED, pa.table(columns, schema=_JUDGED_SCHEMA))


def _each_once(
    folder: Path,
    split: str,
    ids: tuple[np.ndarray, np.ndarray, np.ndarray],
    sides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    own: np.ndarray,
) -> ReviewCandidates:
    """Return the candidates of images and of captions that an artifact holds; pairs of both directions come once.

    Args:
        folder: of the artifact.
        split: of its images and captions.
        ids: of the images [N] and captions [T], and the row [T] of each caption's image.
        sides: captions for images, and images for captions: anchors [A], candidates [A, K] with -1 for none, and their
            scores.
        own: score [T] of each caption with its own image.
    """
    image_ids, caption_ids, owners = ids
    parts: list[tuple[np.ndarray, ...]] = []
    for number, (anchors, candidates, scores) in enumerate(sides):
        is_there = candidates >= 0
        rows, columns = np.nonzero(is_there)
        images = anchors[rows]
        captions = candidates[is_there]
        if number == 1:
            images, captions = captions, images
        parts.append((images, captions, columns + 1, scores[is_there]))
    images, captions, ranks, scores = map(np.concatenate, zip(*parts, strict=True))
    pairs = PairSet.of(captions, images, len(image_ids))
    places = pairs.places(captions, images)
    order = np.lexsort((ranks, places))
    kept = order[np.searchsorted(places[order], np.arange(len(pairs)))]
    manifest = read_manifest(folder)
    return ReviewCandidates(
        image_ids=image_ids,
        caption_ids=caption_ids,
        pairs=pairs,
        source=f"{folder.parent.name}/{folder.name}",
        model=manifest.label,
        split=split,
        prepared=open_input(folder, manifest, "prepare"),
        trained=open_input(folder, manifest, model_inputs(manifest.inputs)[0]),
        owners=owners,
        ranks=ranks[kept].astype(np.int64),
        scores=scores[kept].astype(np.float32),
        positives=own[pairs.caption_rows],
    )


def reviewed(candidates: ReviewCandidates, order: str, decisions: Decisions) -> dict[str, Any]:
    """Return the decisions on some candidates, who made them, and the findings, in figures ready for JSON."""
    counts = Counter(decisions.verdicts.values())
    reviewers = {}
    for name, answers in decisions.answers.items():
        reviewers[name] = len(answers)
    agreed = []
    for names, agreement in agreements(decisions).items():
        agreed.append({"reviewers": list(names), **agreement._asdict()})
    decided = {
        "judgements": len(decisions),
        "pairs": {verdict: counts[verdict] for verdict in _WORDS},
        "unknown": unknown_pairs(decisions, candidates.prepared),
        "reviewers": reviewers,
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
"""Verdict on a pair -> words for it."""


def lines(review: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of `reviewed`, a line for each fact."""
    decided = review["decisions"]
    yield f"{review['list']}: {quantity(review['pairs'], 'pair')} in the order {review['order']}"
    counts = ", ".join(f"{count:,} {_WORDS[verdict]}" for verdict, count in decided["pairs"].items() if count)
    judgements = f"  {quantity(decided['judgements'], 'judgement')}"
    if counts:
        judgements += f": {counts}"
    yield judgements
    if decided["unknown"]:
        unknown = f"{quantity(decided['unknown'], 'pair')} of ids that the dataset does not have"
        yield f"  warning: {unknown}; name images and captions as its captions.parquet does"
    for name, count in decided["reviewers"].items():
        yield f"  {name}: {quantity(count, 'pair')}"
    for agreement in decided["agreements"]:
        names = " and ".join(agreement["reviewers"])
        kappa = "not defined, since both always said the same"
        if agreement["kappa"] is not None:
            kappa = f"{agreement['kappa']:.2f} ({agreement['low']:.2f} to {agreement['high']:.2f})"
        same = f"{100 * agreement['same']:.0f} % of {agreement['pairs']:,} pairs"
        yield f"  {names} agree on {same}; Cohen's kappa: {kappa}"

    figures = review["findings"]
    share = figures["share"]
    judge = figures["judge"]
    made = figures["decisions"]
    if share["high"] - share["low"] < 1:
        value = f"{100 * share['value']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f})"
        yield f"  right answers among all of them: {value}, by {share['decisions']:,} drawn at random"
    if figures["needed"] and not judge:
        yield f"  the judge: {made:,} of the {figures['needed']} decisions that its calibration needs"
    if judge:
        facts = []
        auc = judge["auc"]
        if auc:
            facts.append(f"AUC {auc['value']:.2f} ({auc['low']:.2f} to {auc['high']:.2f})")
        if not judge["knows"]:
            facts.append("the answers do not show that it knows anything, so that it marks nothing")
        elif judge["precision"] is not None:
            likely = quantity(judge["likely"], "pair")
            facts.append(f"above {LIKELY:g} it is right in {100 * judge['precision']:.0f} % of {likely}")
            facts.append(f"finds {100 * judge['recall']:.0f} % of the right answers")
        yield f"  the judge, by {made:,} decisions: {', '.join(facts)}"
