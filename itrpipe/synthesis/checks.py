"""What is found of sentences: how many were made and kept, how hard and probable they are, and how many are negatives.

Whether a sentence is a true negative takes people who look at images; TAGS-DC had 96.5 % of its sentences found to be
true negatives that way. The embedded dataset `scenes` has logical forms: a sentence is read as one and judged against
the scene of its image.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from itrpipe.errors import DataError
from itrpipe.learning.sentences import REASONS
from itrpipe.printable import quantity
from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import describes
from itrpipe.scenes.readback import CaptionReader
from itrpipe.synthesis.english import ARTICLES, NUMBER_VALUES
from itrpipe.synthesis.sentences import SentenceFile

QUANTILES = {"minimum": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "maximum": 1.0}
VERDICTS = ("untrue", "true", "undecided", "unreadable")
"""What a sentence is of its image.

`undecided` is what would be true but for a word that the dataset has no truth about, such as the size of a bird;
`unreadable` where the grammar of the captions has no such sentence.
"""
_MEASURES = ("score", "positive_score", "log_probability", "caption_log_probability")
_NUMBERS = {word: value for word, value in NUMBER_VALUES.items() if word not in ARTICLES}
_DIGITS = 4


def synthesis_statistics(file: SentenceFile, num_captions: int) -> dict[str, Any]:
    """Figures on the sentences of a file, ready for JSON.

    The gap of a sentence is s(I, T') - s(I, T), s being the sigmoid of the model's score: above 0 the model takes the
    sentence for a better match than the caption that it was made of. The perplexity is a proxy, exp(-mean log p): how
    probable the written words are by the model that wrote them, and the caption's words in their places.

    Args:
        file: of `SentenceFile`.
        num_captions: captions that sentences were made of.

    Returns:
        `drawn` by reason; `sentences` kept, `captions` and `captions_without_sentences`; `words_changed`, the mean of
        the edits of a kept sentence; quantiles under `gap`, and `beats_caption_percent`; `perplexity` of the kept
        sentences and `caption_perplexity`. What no model scored is None.
    """
    kept = file.kept(("caption_id", "edits", *_MEASURES))
    score, positive, *logarithms = (kept[name].to_numpy().astype(np.float64) for name in _MEASURES)
    gap = (np.tanh(score / 2) - np.tanh(positive / 2)) / 2  # of sigmoids, without overflow
    gap = gap[np.isfinite(gap)]
    quantiles = np.quantile(gap, list(QUANTILES.values())).round(_DIGITS).tolist() if len(gap) else None
    known = [each[np.isfinite(each)] for each in logarithms]
    perplexity, own_perplexity = (round(float(np.exp(-each.mean())), 2) if len(each) else None for each in known)
    changed = len(kept["edits"].combine_chunks().flatten())
    return {
        "drawn": {reason: file.drawn.get(reason, 0) for reason in REASONS},
        "sentences": len(kept),
        "captions": num_captions,
        "captions_without_sentences": num_captions - len(kept["caption_id"].unique()),
        "words_changed": round(changed / len(kept), _DIGITS) if len(kept) else None,
        "gap": quantiles and dict(zip(QUANTILES, quantiles, strict=True)),
        "beats_caption_percent": _percent((gap > 0).sum(), len(gap)),
        "perplexity": perplexity,
        "caption_perplexity": own_perplexity,
    }


def _percent(part: float, whole: int) -> float | None:
    return round(100 * float(part) / whole, 2) if whole else None


def verdict(reader: CaptionReader, text: str, scene: Scene) -> str:
    """One of `VERDICTS` on a sentence; what can mean several things is true when one of them is."""
    readings = reader.readings(text)
    if not readings:
        return "unreadable"
    certain = {reading.certain for reading in readings if describes(reading.form, scene)}
    if True in certain:
        return "true"
    return "undecided" if certain else "untrue"


def true_negatives(
    file: SentenceFile, scenes: Mapping[str, Scene], advance: Callable[[int], object] = lambda sentences: None
) -> dict[str, Any]:
    """Figures on the sentences of a file, ready for JSON.

    Args:
        file: the sentences.
        scenes: image_id -> scene.
        advance: called with the number of sentences judged since.

    Returns:
        Of the kept sentences: `sentences`, how many there are, and how many of each verdict; `percent_of_decided`, the
        share of untrue ones among the untrue and the true; `percent`, the share of all that is not found true. The same
        for each kind under `by_kind`, for each number of edits under `by_places_changed`, and under `rejected` for each
        reason that sentences in the file were rejected for, which tells how right the filters are. A share of nothing
        is None.

    Raises:
        DataError: a sentence is of an unknown image, or the file is damaged.
    """
    reader = CaptionReader(_NUMBERS)
    kept: dict[int, Counter[str]] = defaultdict(Counter)
    rejected: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for table in file.row_groups(("image_id", "text", "edits", "kept", "reason", "kind")):
        places = pc.call_function("list_value_length", [table["edits"]]).to_pylist()
        columns = (table[name].to_pylist() for name in ("image_id", "text", "kept", "reason", "kind"))
        for image_id, text, is_kept, reason, kind, changed in zip(*columns, places, strict=True):
            if image_id not in scenes:
                raise DataError(f"{file.path}: no scene of the dataset is image {image_id!r}; synthesize again")
            found = verdict(reader, text, scenes[image_id])
            for counts in (kept[changed], kinds[kind]) if is_kept else (rejected[reason],):
                counts[found] += 1
        advance(len(table))
    return {
        **_figures(sum(kept.values(), Counter())),
        "by_kind": {kind: _figures(kinds[kind]) for kind in sorted(kinds) if kind},
        "by_places_changed": {str(changed): _figures(kept[changed]) for changed in sorted(kept)},
        "rejected": {reason: _figures(rejected[reason]) for reason in sorted(rejected)},
    }


def _figures(counts: Counter[str]) -> dict[str, Any]:
    """See `true_negatives`."""
    total, untrue, true = counts.total(), counts["untrue"], counts["true"]
    shares = {"percent_of_decided": _percent(untrue, untrue + true), "percent": _percent(total - true, total)}
    return {"sentences": total, **{verdict: counts[verdict] for verdict in VERDICTS}, **shares}


def table_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What became of the sentences, as the rows of a table, the heading first.

    Args:
        statistics: of `synthesis_statistics`.
    """
    drawn = statistics["drawn"]
    total = sum(drawn.values())
    rows = [
        (reason if reason == "kept" else f"rejected: {reason}", f"{count:,}", f"{count / total:.1%}" if total else "–")
        for reason, count in drawn.items()
    ]
    return [("sentences", "number", "share"), *rows, ("drawn", f"{total:,}", "")]


def facts(statistics: Mapping[str, Any]) -> list[str]:
    """What the table does not say, a sentence per fact.

    Args:
        statistics: of `synthesis_statistics`, and under `true_negatives`, where they are known, those of
            `true_negatives`.
    """
    captions, bare = statistics["captions"], statistics["captions_without_sentences"]
    said = [f"{quantity(statistics['sentences'], 'sentence')} for {quantity(captions, 'caption')}"]
    if statistics["words_changed"] is not None:
        said[0] += f", {statistics['words_changed']:.2f} places changed in each"
    if bare:
        said.append(f"{bare:,} caption{' has' if bare == 1 else 's have'} no sentence")
    if statistics["gap"] is not None:
        median, beaten = round(statistics["gap"]["median"], 3) + 0.0, statistics["beats_caption_percent"]
        said.append(f"median gap to the caption {median:.3f}; {beaten}% score above it")
    if statistics["perplexity"] is not None:
        captions_own = statistics["caption_perplexity"]
        said.append(f"perplexity of the written words {statistics['perplexity']}, of the caption's {captions_own}")
    judged = statistics.get("true_negatives")
    if not judged or not judged["sentences"]:
        return said
    if decided := judged["untrue"] + judged["true"]:
        said.append(
            f"{judged['percent_of_decided']}% true negatives of the {decided:,} sentences that can be judged: "
            f"{judged['true']:,} describe their image; {judged['percent']}% where {judged['unreadable']:,} that cannot "
            f"be read and {judged['undecided']:,} undecided ones count as negatives"
        )
    else:
        said.append(f"true negatives: none of {judged['sentences']:,} sentences can be judged")
    return said + [
        f"of {found['sentences']:,} rejected ({reason}) {found['true']:,} describe their image"
        for reason, found in judged["rejected"].items()
    ]
