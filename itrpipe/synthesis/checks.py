"""Figures on sentences: how many were made and kept, how hard and probable they are, and how many are negatives.

True negatives are found by people who look at images; those of TAGS-DC found 96.5 % of its sentences to be some. The
embedded dataset `scenes` has logical forms: a sentence is read as one and judged against the scene of its image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.learning.sentences import REASONS
from itrpipe.printable import quantity
from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import describes
from itrpipe.scenes.readback import CaptionReader
from itrpipe.synthesis.english import ARTICLES, NUMBER_VALUES
from itrpipe.synthesis.sentences import SentenceFile

VERDICTS = ("untrue", "true", "undecided", "unreadable")
"""Verdicts on a sentence of an image.

`undecided` is what would be true but for a word that the dataset has no truth about, such as the size of a bird;
`unreadable` where the grammar of the captions has no such sentence.
"""
_MEASURES = ("score", "positive_score", "log_probability", "caption_log_probability")
_NUMBERS = {word: value for word, value in NUMBER_VALUES.items() if word not in ARTICLES}
_DIGITS = 4


def synthesis_statistics(
    file: SentenceFile,
    drawn: Mapping[str, int],
    num_captions: int,
) -> dict[str, Any]:
    """Measure the sentences of a file, ready for JSON.

    The gap of a sentence is s(I, T') - s(I, T), s being the sigmoid of the model's score: above 0 the model takes the
    sentence for a better match than the caption that it was made of. The perplexity is a proxy, exp(-mean log p): how
    probable the written words are by the model that wrote them, and the caption's words in their places.

    Args:
        file: the sentences.
        drawn: `kept`, or the reason that sentences were rejected for -> how many were drawn.
        num_captions: captions that sentences were made of.

    Returns:
        `drawn` by reason; `sentences` kept, `captions` and `captions_without_sentences`; `words_changed`, the mean of
        the edits of a kept sentence; `median_gap` and `beats_caption_percent`; `perplexity` of the kept
        sentences and `caption_perplexity`. What no model scored is None.
    """
    kept = file.read(("caption_id", "edits", *_MEASURES))
    values = {name: kept[name].to_numpy().astype(np.float64) for name in _MEASURES}
    # Half the hyperbolic tangents of the halves differ as the sigmoids do, without overflow.
    gap = np.tanh(values["score"] / 2) - np.tanh(values["positive_score"] / 2)
    gap = gap[np.isfinite(gap)] / 2
    median_gap = None
    if len(gap):
        median_gap = round(float(np.median(gap)), _DIGITS)
    words_changed = None
    if len(kept):
        num_edits = len(kept["edits"].combine_chunks().flatten())
        words_changed = round(num_edits / len(kept), _DIGITS)
    return {
        "drawn": {reason: drawn.get(reason, 0) for reason in REASONS},
        "sentences": len(kept),
        "captions": num_captions,
        "captions_without_sentences": num_captions - len(kept["caption_id"].unique()),
        "words_changed": words_changed,
        "median_gap": median_gap,
        "beats_caption_percent": _percent((gap > 0).sum(), len(gap)),
        "perplexity": _perplexity(values["log_probability"]),
        "caption_perplexity": _perplexity(values["caption_log_probability"]),
    }


def _perplexity(logarithms: np.ndarray) -> float | None:
    finite = logarithms[np.isfinite(logarithms)]
    if not len(finite):
        return None
    return round(float(np.exp(-finite.mean())), 2)


def _percent(part: float, whole: int) -> float | None:
    if not whole:
        return None
    return round(100 * float(part) / whole, 2)


def verdict(
    reader: CaptionReader,
    text: str,
    scene: Scene,
) -> str:
    """Judge a sentence, by one of `VERDICTS`; what can mean several things is true when one of them is."""
    meanings = reader.meanings(text)
    if not meanings:
        return "unreadable"
    certain = {meaning.certain for meaning in meanings if describes(meaning.form, scene)}
    if True in certain:
        return "true"
    if certain:
        return "undecided"
    return "untrue"


def true_negatives(
    file: SentenceFile,
    scenes: Mapping[str, Scene],
    advance: Callable[[int], object] = lambda sentences: None,
) -> dict[str, Any]:
    """Count the true negatives among the sentences of a file, ready for JSON.

    Args:
        file: the sentences.
        scenes: image_id -> scene.
        advance: called with the number of sentences judged since.

    Returns:
        `sentences`, how many there are, and how many of each verdict; `percent_of_decided`, the share of untrue ones
        among the untrue and the true; `percent`, the share of all that is not found true. A share of nothing is None.

    Raises:
        DataError: a sentence is of an unknown image, or the file is damaged.
    """
    reader = CaptionReader(**_NUMBERS)
    counts: dict[str, int] = dict.fromkeys(VERDICTS, 0)
    for table in file.row_groups(("image_id", "text")):
        for row in table.to_pylist():
            scene = scenes.get(row["image_id"])
            if scene is None:
                raise DataError(f"{file.path}: no scene of the dataset is image {row['image_id']!r}; synthesize again")
            counts[verdict(reader, row["text"], scene)] += 1
        advance(len(table))
    decided = counts["untrue"] + counts["true"]
    return {
        "sentences": len(file),
        **counts,
        "percent_of_decided": _percent(counts["untrue"], decided),
        "percent": _percent(len(file) - counts["true"], len(file)),
    }


def table_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what became of the sentences, as the rows of a table, the heading first.

    Args:
        statistics: of `synthesis_statistics`.
    """
    drawn = statistics["drawn"]
    total = sum(drawn.values())
    rows = [("sentences", "number", "share")]
    for reason, count in drawn.items():
        name = "kept" if reason == "kept" else f"rejected: {reason}"
        share = f"{count / total:.1%}" if total else "–"
        rows.append((name, f"{count:,}", share))
    return [*rows, ("drawn", f"{total:,}", "")]


def facts(statistics: Mapping[str, Any]) -> list[str]:
    """Say what the table does not, a sentence per fact.

    Args:
        statistics: of `synthesis_statistics`, and under `true_negatives`, where they are known, those of
            `true_negatives`.
    """
    counts = f"{quantity(statistics['sentences'], 'sentence')} for {quantity(statistics['captions'], 'caption')}"
    if statistics["words_changed"] is not None:
        counts += f", {statistics['words_changed']:.2f} places changed in each"
    lines = [counts]
    bare = statistics["captions_without_sentences"]
    if bare:
        verb = "has" if bare == 1 else "have"
        lines.append(f"{quantity(bare, 'caption')} {verb} no sentence")
    if statistics["median_gap"] is not None:
        median = round(statistics["median_gap"], 3) + 0.0
        lines.append(f"median gap to the caption {median:.3f}; {statistics['beats_caption_percent']}% score above it")
    if statistics["perplexity"] is not None:
        of_captions = statistics["caption_perplexity"]
        lines.append(f"perplexity of the written words {statistics['perplexity']}, of the caption's {of_captions}")
    judged = statistics.get("true_negatives")
    if judged and judged["sentences"]:
        decided = judged["untrue"] + judged["true"]
        if decided:
            lines.append(
                f"{judged['percent_of_decided']}% true negatives of the {decided:,} sentences that can be judged: "
                f"{judged['true']:,} describe their image; {judged['percent']}% where {judged['unreadable']:,} that "
                f"cannot be read and {judged['undecided']:,} undecided ones count as negatives"
            )
        else:
            lines.append(f"true negatives: none of {judged['sentences']:,} sentences can be judged")
    return lines
