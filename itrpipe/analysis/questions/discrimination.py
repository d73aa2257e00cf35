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

from itrpipe.analysis.questions.base import BESIDE, BLIND, SENTENCES, EvaluatedModel, blind_number, trigrams_of
from itrpipe.config import conf_title
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import as_figures, mean_intervals
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import EMBEDDINGS, SplitScores, read_embeddings
from itrpipe.storage.artifact import DISCRIMINATION
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.blind import Pairs, blind_accuracy, blind_points
from itrpipe.synthesis.sentences import SentenceFile


def _rows(found: Any) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Yield the name of each row and its figures: of all sentences of a generator, and of each kind of edit."""
    for name, whole in found.items():
        conf, *written = name.split(".")  # by whom, and the seed
        title = ", ".join([conf_title("synthesize", conf) or conf, *written])
        yield ("", f"{title} ({whole['sentences']:,} sentences)"), whole
        for kind, figures in whole.get("kinds", {}).items():
            yield ("", f"{title}: {TITLES.get(kind, kind)} ({figures['sentences']:,} sentences)"), figures


def _cells(found: Any) -> Cells:
    return {row: Number.of(figures["percent"]) for row, figures in _rows(found)}


def _blind_cells(found: Any) -> Cells:
    return {row: blind_number(figures.get("blind")) for row, figures in _rows(found)}


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
    gains, losses = [], []
    first = own[0] if own else {}
    for name, whole in first.items():
        for kind, figures in whole.get("kinds", {}).items():
            ours = _percentages(own, name, kind)
            theirs = _percentages(others, name, kind)
            if not ours or not theirs or figures["blind"]["guessed"]:
                continue
            mean = float(np.mean([each["value"] for each in ours]))
            baseline = float(np.mean([each["value"] for each in theirs]))
            if abs(mean - baseline) < _GAIN:
                continue
            text = (
                f"{TITLES.get(kind, kind)} in {mean:.1f} % (baseline {baseline:.1f} %, without the image "
                f"{figures['blind']['value']:.1f} %)"
            )
            if _lies_above(ours, theirs):
                gains.append(text)
            if _lies_above(theirs, ours):
                losses.append(text)
    return gains, losses


def _percentages(contents: Sequence[Mapping[str, Any]], name: str, kind: str) -> list[Mapping[str, float]]:
    """Return the percentage of a kind by seed; none where a seed has no sentences of it."""
    found = []
    for content in contents:
        figures = content.get(name, {}).get("kinds", {}).get(kind)
        if not figures or not figures["sentences"]:
            return []
        found.append(figures["percent"])
    return found


def _lies_above(upper: Sequence[Mapping[str, float]], lower: Sequence[Mapping[str, float]]) -> bool:
    return min(each["low"] for each in upper) > max(each["high"] for each in lower)


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


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model on the sentences of the named generators.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: sentences are of other captions.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    if not (evaluation.is_single and evaluation.settings.discriminate):
        return None
    from itrpipe.analysis.sentences import compared, sentence_parser
    from itrpipe.judging.captions import encode_once

    parse = sentence_parser(evaluation)
    rows = PreparedDataset.open(evaluation.existing("prepare")).split(evaluation.settings.split)
    rows = rows.without(np.setdiff1d(rows.image_ids, split.image_ids).tolist())
    pictures = evaluation.sources().images(rows)
    embeddings = None
    if EMBEDDINGS in evaluation.manifest.outputs:
        file = read_embeddings(evaluation.trained / EMBEDDINGS, rows.name)
        embeddings = file.images[rows_of(rows.images["image_id"].combine_chunks(), pa.array(file.image_ids))]
    trigrams = trigrams_of(evaluation, split)
    found = {}
    for name in evaluation.settings.discriminate:
        kept, owners = kept_sentences(evaluation.job.inputs[f"{SENTENCES}{name}"].folder, rows)
        scores = captions = np.empty(0, dtype=np.float32)
        if len(kept):
            scores, captions = compared(evaluation, parse, rows, pictures, kept, owners, name, embeddings)
        images = rows.caption_image[owners]
        pairs = Pairs([rows.texts[row] for row in owners.tolist()], kept["text"].to_pylist(), images)
        kinds = np.array(kept["kind"].to_pylist(), str)
        vectors = None
        if evaluation.settings.blind_encoder:
            texts = (*pairs.captions, *pairs.negatives)
            own, other = np.split(encode_once(evaluation.settings.blind_encoder, "main", texts, evaluation.place), 2)
            vectors = own - other
        blind = blind_points(pairs, kinds, trigrams, vectors)
        columns = owners, images, scores, captions, blind
        by_kind = {}
        for kind in np.unique(kinds[kinds != ""]).tolist():
            by_kind[kind] = _figures(columns, kinds == kind, evaluation.sampling)
        guessed = [kind for kind, figures in by_kind.items() if figures["blind"]["guessed"]]
        found[name] = {**_figures(columns, ~np.isin(kinds, guessed), evaluation.sampling), "kinds": by_kind}
        if found[name]["percent"] is not None:
            evaluation.job.metrics[f"preferred to {name}"] = f"{found[name]['percent']['value']:.1f} %"
    return dict(sorted(found.items()))


def _figures(columns: Sequence[np.ndarray], rows: np.ndarray, sampling: tuple[int, float]) -> dict[str, Any]:
    """Return figures of some sentences: see `discrimination`, and what models without images tell."""
    owners, images, scores, captions, blind = (column[rows] for column in columns)
    found = discrimination(owners, images, scores, captions, *sampling)
    found["blind"] = blind_accuracy(blind, images, *sampling) if len(owners) else None
    return found


def kept_sentences(folder: Path, split: Split) -> tuple[pa.Table, np.ndarray]:
    """Return sentences of an artifact of `synthesize` for captions of a split, and the row [S] of each one's caption.

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
    found = {"percent": None, "gap": None, "sentences": len(owners), "captions": len(np.unique(owners))}
    if len(owners):
        values = {"percent": 100.0 * (scores < caption_scores), "gap": scores.astype(np.float64) - caption_scores}
        found |= as_figures(mean_intervals(values, images, samples, level))
    return found
