"""Shares of negative sentences that score below the captions that they were made of, by the scores of a model alone.

A sentence is told from its caption where the image of both scores lower with the sentence. Scores that are equal count
as wrong, and so do sentences that the model reads as their caption.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Table 4 and section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.questions.base import BESIDE, BLIND, SENTENCES, EvaluatedModel, blind_number, trigrams_of
from itrpipe.config import conf_title
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import Interval, mean_figures
from itrpipe.evaluation.tables import Cells, Content, Key, Measured
from itrpipe.features.embeddings import EMBEDDINGS, SplitScores, read_embeddings
from itrpipe.storage.artifact import DISCRIMINATION
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.blind import Pairs, blind_accuracy, blind_points
from itrpipe.synthesis.sentences import SentenceFile


def _rows(content: Content) -> Iterator[tuple[Key, Content]]:
    """Yield the name of each row and its figures: of all sentences of a generator, and of each kind of edit."""
    for name, whole in content.items():
        conf, *written = name.split(".")  # by whom, and the seed
        title = ", ".join([conf_title("synthesize", conf) or conf, *written])
        row = "", f"{title} ({whole['sentences']:,} sentences)"
        yield row, whole
        for kind, figures in whole.get("kinds", {}).items():
            words = TITLES.get(kind, kind)
            row = "", f"{title}: {words} ({figures['sentences']:,} sentences)"
            yield row, figures


def _cells(content: Content) -> Cells:
    cells = {}
    for row, figures in _rows(content):
        cells[row] = figures["percent"]
    return cells


def _blind_cells(content: Content) -> Cells:
    cells = {}
    for row, figures in _rows(content):
        cells[row] = blind_number(figures.get("blind"))
    return cells


TITLES = {
    "exchange": "two attributes exchanged",
    "ends": "ends of a relation exchanged",
    "side": "left and right",
}
"""Kind -> what it is called where its name says little."""

_GAIN = 10.0
"""Points between two models from which on a kind is named in a sentence."""


def gained_and_lost(
    model: Sequence[Content],
    baseline: Sequence[Content],
) -> tuple[list[str], list[str]]:
    """Return kinds of edits that a model tells from captions better than its baseline, and those that it tells worse.

    Each has its percentages. Those count that cannot be told without the image, where each interval of the one lies
    beyond all of the other.

    Args:
        model, baseline: contents of the evaluations, by seed.
    """
    gains = []
    losses = []
    first = next(iter(model), {})
    for name, whole in first.items():
        for kind, figures in whole.get("kinds", {}).items():
            of_model = _percentages(model, name, kind)
            of_baseline = _percentages(baseline, name, kind)
            if not of_model or not of_baseline or figures["blind"]["guessed"]:
                continue
            mean = np.mean([interval.value for interval in of_model])
            baseline_mean = np.mean([interval.value for interval in of_baseline])
            if abs(mean - baseline_mean) < _GAIN:
                continue
            blind = figures["blind"]["value"]
            text = (
                f"{TITLES.get(kind, kind)} in {mean:.1f} % (baseline {baseline_mean:.1f} %, without the image "
                f"{blind:.1f} %)"
            )
            if _lies_above(of_model, of_baseline):
                gains.append(text)
            if _lies_above(of_baseline, of_model):
                losses.append(text)
    return gains, losses


def _percentages(contents: Sequence[Content], name: str, kind: str) -> list[Interval]:
    """Return the percentage of a kind by seed; empty where a seed has no such sentences."""
    percentages = []
    for content in contents:
        kinds = content.get(name, {}).get("kinds", {})
        figures = kinds.get(kind)
        if not figures or not figures["sentences"]:
            return []
        percentages.append(Interval(**figures["percent"]))
    return percentages


def _lies_above(upper: Sequence[Interval], lower: Sequence[Interval]) -> bool:
    lowest = min(interval.low for interval in upper)
    highest = max(interval.high for interval in lower)
    return lowest > highest


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
    settings = evaluation.settings
    if not (evaluation.is_single and settings.discriminate):
        return None
    from itrpipe.analysis.sentences import compared, sentence_parser
    from itrpipe.judging.captions import encode_once

    parse = sentence_parser(evaluation)
    captions = PreparedDataset.open(evaluation.existing("prepare")).split(settings.split)
    unscored = np.setdiff1d(captions.image_ids, split.image_ids)
    captions = captions.without(unscored.tolist())
    pictures = evaluation.sources().images(captions)
    embeddings = None
    if EMBEDDINGS in evaluation.manifest.outputs:
        file = read_embeddings(evaluation.trained / EMBEDDINGS, captions.name)
        image_ids = captions.images["image_id"].combine_chunks()
        embeddings = file.images[rows_of(image_ids, pa.array(file.image_ids))]
    trigrams = trigrams_of(evaluation, split)
    results = {}
    for name in settings.discriminate:
        folder = evaluation.job.inputs[f"{SENTENCES}{name}"].folder
        sentences, owners = kept_sentences(folder, captions)
        scores = np.empty(0, dtype=np.float32)
        caption_scores = scores
        if len(sentences):
            scores, caption_scores = compared(
                evaluation,
                parse,
                captions,
                pictures,
                sentences,
                owners,
                name,
                embeddings,
            )
        images = captions.caption_image[owners]
        own_texts = [captions.texts[row] for row in owners.tolist()]
        pairs = Pairs(own_texts, sentences["text"].to_pylist(), images)
        kinds = np.array(sentences["kind"].to_pylist(), str)
        vectors = None
        if settings.blind_encoder:
            texts = (*pairs.captions, *pairs.negatives)
            encoded = encode_once(settings.blind_encoder, "main", texts, evaluation.place)
            caption_vectors, negative_vectors = np.split(encoded, 2)
            vectors = caption_vectors - negative_vectors
        blind = blind_points(pairs, kinds, trigrams, vectors)

        columns = owners, images, scores, caption_scores, blind
        by_kind = {}
        guessed = []
        for kind in np.unique(kinds[kinds != ""]).tolist():
            by_kind[kind] = _figures(columns, kinds == kind, evaluation.sampling)
            if by_kind[kind]["blind"]["guessed"]:
                guessed.append(kind)
        whole = _figures(columns, ~np.isin(kinds, guessed), evaluation.sampling)
        results[name] = {**whole, "kinds": by_kind}
        if whole["percent"] is not None:
            evaluation.job.metrics[f"preferred to {name}"] = f"{whole['percent']['value']:.1f} %"
    return dict(sorted(results.items()))


def _figures(
    columns: Sequence[np.ndarray],
    rows: np.ndarray,
    sampling: tuple[int, float],
) -> dict[str, Any]:
    """Return the figures of some sentences: see `discrimination`, and `blind`, the accuracy without images."""
    owners, images, scores, caption_scores, blind = (column[rows] for column in columns)
    figures = discrimination(owners, images, scores, caption_scores, *sampling)
    figures["blind"] = None
    if len(owners):
        figures["blind"] = blind_accuracy(blind, images, *sampling)
    return figures


def kept_sentences(folder: Path, split: Split) -> tuple[pa.Table, np.ndarray]:
    """Return sentences of an artifact of `synthesize` for captions of a split, and the row [S] of each one's caption.

    Raises:
        DataError: it has sentences, but none of them for these captions; or a file is damaged.
    """
    file = SentenceFile(folder)
    sentences = file.read(("caption_id", "image_id", "text", "kind"))
    owners = rows_of(sentences["caption_id"], split.captions["caption_id"].combine_chunks())
    if len(sentences) and owners.max() < 0:
        raise DataError(
            f"{file.path} has no sentence for any caption of the split {split.name}; remove it and run "
            "`itrpipe synthesize` again"
        )
    is_of_split = owners >= 0
    return sentences.filter(pa.array(is_of_split)), owners[is_of_split]


def discrimination(
    owners: np.ndarray,
    images: np.ndarray,
    scores: np.ndarray,
    caption_scores: np.ndarray,
    samples: int,
    level: float,
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
    figures = {
        "percent": None,
        "gap": None,
        "sentences": len(owners),
        "captions": len(np.unique(owners)),
    }
    if len(owners):
        values = {
            "percent": 100.0 * (scores < caption_scores),
            "gap": scores.astype(np.float64) - caption_scores,
        }
        figures |= mean_figures(values, images, samples, level)
    return figures
