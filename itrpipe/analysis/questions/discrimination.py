"""Shares of negative sentences that score below the captions that they were made of, by the scores of a model alone.

A sentence is told from its caption where the image of both scores lower with the sentence. Scores that are equal count
as wrong, and so do sentences that the model reads as their caption.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Table 4 and section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.questions.base import BESIDE, BLIND, EvaluatedModel, blind_number, trigrams_of
from itrpipe.config import conf_title
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import mean_intervals
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.storage.artifact import DISCRIMINATION
from itrpipe.storage.disk import write_json
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.blind import Pairs, blind_accuracy, blind_points
from itrpipe.synthesis.sentences import SentenceFile


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for name, whole in found.items():
        conf, *written = name.split(".")  # by whom, and the seed
        title = ", ".join([conf_title("synthesize", conf) or conf, *written])
        for kind, own in {"": whole, **whole.get("kinds", {})}.items():
            told = f": {TITLES.get(kind, kind)}" if kind else ""
            yield ("", f"{title}{told} ({own['sentences']:,} sentences)"), own


def _cells(found: Mapping[str, Any]) -> Cells:
    return {row: Number.of(own["percent"]) for row, own in _rows(found)}


def _blind_cells(found: Mapping[str, Any]) -> Cells:
    return {row: blind_number(own.get("blind")) for row, own in _rows(found)}


TITLES = {"exchange": "two attributes exchanged", "ends": "ends of a relation exchanged", "side": "left and right"}
"""Kind -> what it is called where its name says little."""

_GAIN = 10.0
"""Points between two models from which on a kind is named in a sentence."""


def gained_and_lost(
    own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return kinds of edits that one model tells from captions better than another, and those that it tells worse.

    Each has its percentages. Those count that cannot be told without the image, where each interval of the one lies
    beyond all of the other.

    Args:
        own, others: what evaluations of each wrote, by seed.
    """
    gains, losses, first = [], [], own[0] if own else {}
    for name, kind in [(name, kind) for name, whole in first.items() for kind in whole.get("kinds", {})]:
        sides = [[each.get(name, {}).get("kinds", {}).get(kind) for each in side] for side in (own, others)]
        if not sides[1] or not all(each and each["sentences"] for side in sides for each in side):
            continue
        ours, theirs = ([each["percent"] for each in side] for side in sides)
        means = [float(np.mean([each["value"] for each in side])) for side in (ours, theirs)]
        blind = sides[0][0]["blind"]
        if abs(means[0] - means[1]) < _GAIN or blind["guessed"]:
            continue
        told = f"{means[0]:.1f} % (baseline {means[1]:.1f} %, without the image {blind['value']:.1f} %)"
        for found, upper, lower in ((gains, ours, theirs), (losses, theirs, ours)):
            if min(each["low"] for each in upper) > max(each["high"] for each in lower):
                found.append(f"{TITLES.get(kind, kind)} in {told}")
    return gains, losses


SHOWN = (
    Measured(
        "Captions preferred to edited sentences",
        DISCRIMINATION,
        _cells,
        "Negative sentences that were made of captions of the split; in percent, how many score below their caption "
        f"with its image. Ties count as wrong; 50 % is chance. {BESIDE}",
        turned=True,
        beside=(BLIND, _blind_cells),
    ),
)


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked of single models, where generators of sentences are named."""
    return evaluation.is_single and bool(evaluation.settings.discriminate)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Writes discrimination.json.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: sentences are of other captions.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    from itrpipe.analysis.sentences import compared, sentence_parser

    settings, parse = evaluation.settings, sentence_parser(evaluation)
    rows = PreparedDataset.open(evaluation.existing("prepare")).split(settings.split)
    rows = rows.without(np.setdiff1d(rows.image_ids, split.image_ids).tolist())
    features, found = FeatureFile.open(evaluation.existing("extract") / FEATURES), {}
    trigrams = trigrams_of(evaluation, split)
    for name, folder in evaluation.sentences.items():
        kept, owners = kept_sentences(folder, rows)
        scores = captions = np.empty(0, dtype=np.float32)
        if len(kept):
            scores, captions = compared(evaluation, parse, rows, features, kept, owners, name)
        texts = [rows.texts[row] for row in owners.tolist()]
        pairs = Pairs(texts, kept["text"].to_pylist(), rows.caption_image[owners])
        kinds = np.array(kept["kind"].to_pylist(), str)
        columns = owners, pairs.images, scores, captions, blind_points(pairs, kinds, trigrams)
        named = [kind for kind in np.unique(kinds).tolist() if kind]
        each = {kind: _figures(columns, kinds == kind, settings) for kind in named}
        guessed = [kind for kind, own in each.items() if own["blind"] and own["blind"]["guessed"]]
        found[name] = {**_figures(columns, ~np.isin(kinds, guessed), settings), "kinds": each}
        if found[name]["percent"] is not None:
            evaluation.metrics[f"preferred to {name}"] = f"{found[name]['percent']['value']:.1f} %"
    write_json(evaluation.folder / DISCRIMINATION, found)


def _figures(columns: Sequence[np.ndarray], rows: np.ndarray, settings: Any) -> dict[str, Any]:
    """Return figures of some sentences: see `discrimination`, and what models without images tell."""
    owners, images, scores, captions, blind = (each[rows] for each in columns)
    chances = settings.bootstrap_samples, settings.interval_level
    told = blind_accuracy(blind, images, *chances) if len(owners) else None
    return {"blind": told, **discrimination(owners, images, scores, captions, *chances)}


def kept_sentences(folder: Path, split: Split) -> tuple[pa.Table, np.ndarray]:
    """Sentences of an artifact of `synthesize` for captions of a split, and the row [S] of each one's caption.

    Raises:
        DataError: it has sentences, but none of them for these captions; or a file is damaged.
    """
    file = SentenceFile(folder)
    kept = file.read(("caption_id", "image_id", "text", "kind"))
    owners = rows_of(kept["caption_id"], split.captions["caption_id"].combine_chunks())
    if len(kept) and owners.max() < 0:
        raise DataError(
            f"{file.path} has no sentence for any caption of the split {split.name}; remove it and run "
            "`itrpipe synthesize` again"
        )
    return kept.filter(pa.array(owners >= 0)), owners[owners >= 0]


def discrimination(
    owners: np.ndarray, images: np.ndarray, scores: np.ndarray, caption_scores: np.ndarray, samples: int, level: float
) -> dict[str, Any]:
    """Return how many sentences are told from their captions.

    Images are resampled for the intervals, each with all its captions and sentences, of those that have some.

    Args:
        owners, images: int64 [S], row of each sentence's caption, and of its image.
        scores, caption_scores: float32 [S], of the image with the sentence, and with the caption.
        samples: resampled test sets.
        level: share of them inside an interval, 0..1.

    Returns:
        `percent` of the sentences that score below their caption, and `gap`, the mean of their raw scores less those of
        their captions: value, low and high, None without a sentence; how many `sentences` there are, and of how many
        `captions`.
    """
    counts = {"sentences": len(owners), "captions": len(np.unique(owners))}
    if not len(owners):
        return {"percent": None, "gap": None, **counts}
    used, rows = np.unique(images, return_inverse=True)
    values = {"percent": 100.0 * (scores < caption_scores), "gap": scores.astype(np.float64) - caption_scores}
    found = mean_intervals(values, rows, len(used), samples, level)
    return {name: each._asdict() for name, each in found.items()} | counts
