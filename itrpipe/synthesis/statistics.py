"""How many sentences were made, what the filters took away, and how hard and how fluent the kept ones are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.negatives.synthetic import REASONS
from itrpipe.printable import quantity
from itrpipe.synthesis.sentences import SentenceFile

QUANTILES = {"minimum": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "maximum": 1.0}
_COLUMNS = ("caption_id", "edits", "score", "positive_score", "log_probability", "caption_log_probability", "kept")
_MEASURES = ("score", "positive_score", "log_probability", "caption_log_probability")
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
    tables = [_kept(table) for table in file.row_groups(_COLUMNS)]
    kept = pa.concat_tables(tables) if tables else pa.table({name: [] for name in (*_MEASURES, "caption_id", "words")})
    columns = {name: kept[name].to_numpy().astype(np.float64) for name in _MEASURES}
    with np.errstate(over="ignore"):
        gap = _sigmoid(columns["score"]) - _sigmoid(columns["positive_score"])
    gap = gap[np.isfinite(gap)]
    return {
        "drawn": {reason: file.drawn.get(reason, 0) for reason in REASONS},
        "sentences": len(kept),
        "captions": num_captions,
        "captions_without_sentences": num_captions - len(kept["caption_id"].unique()),
        "words_changed": round(float(np.mean(kept["words"].to_numpy())), _DIGITS) if len(kept) else None,
        "gap": _quantiles(gap),
        "beats_caption_percent": round(100 * float((gap > 0).mean()), 2) if len(gap) else None,
        "perplexity": _perplexity(columns["log_probability"]),
        "caption_perplexity": _perplexity(columns["caption_log_probability"]),
    }


def _kept(table: pa.Table) -> pa.Table:
    table = table.filter(table["kept"])
    return table.append_column("words", pc.call_function("list_value_length", [table["edits"]])).drop_columns(
        ["edits", "kept"]
    )


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    found = np.quantile(values, list(QUANTILES.values())).round(_DIGITS).tolist()
    return dict(zip(QUANTILES, found, strict=True))


def _perplexity(log_probabilities: np.ndarray) -> float | None:
    known = log_probabilities[np.isfinite(log_probabilities)]
    return round(float(np.exp(-known.mean())), 2) if len(known) else None


def table_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What became of the sentences, as the rows of a table, the heading first.

    Args:
        statistics: of `synthesis_statistics`.
    """
    total = sum(statistics["drawn"].values())
    rows = [("sentences", "number", "share")]
    for reason, count in statistics["drawn"].items():
        name = reason if reason == "kept" else f"rejected: {reason}"
        rows.append((name, f"{count:,}", f"{100 * count / total:.1f}%" if total else "–"))
    return [*rows, ("drawn", f"{total:,}", "")]


def facts(statistics: Mapping[str, Any]) -> list[str]:
    """What the table does not say, a sentence per fact.

    Args:
        statistics: of `synthesis_statistics`, and under `true_negatives`, where they are known, those of
            `itrpipe.synthesis.true_negatives.true_negatives`.
    """
    captions, bare = statistics["captions"], statistics["captions_without_sentences"]
    said = [f"{quantity(statistics['sentences'], 'sentence')} for {quantity(captions, 'caption')}"]
    if statistics["words_changed"] is not None:
        said[0] += f", {statistics['words_changed']:.2f} places changed in each"
    if bare:
        said.append(f"{bare:,} caption{' has' if bare == 1 else 's have'} no sentence")
    if statistics["gap"] is not None:
        beaten = statistics["beats_caption_percent"]
        said.append(
            f"median gap to the caption {round(statistics['gap']['median'], 3) + 0.0:.3f}; {beaten}% score above it"
        )
    if statistics["perplexity"] is not None:
        captions_own = statistics["caption_perplexity"]
        said.append(f"perplexity of the written words {statistics['perplexity']}, of the caption's {captions_own}")
    return said + _judged(statistics.get("true_negatives"))


def _judged(figures: Mapping[str, Any] | None) -> list[str]:
    """What is said of true negatives; nothing where they are unknown or there is no sentence."""
    if figures is None or not figures["sentences"]:
        return []
    judged = figures["sentences"] - figures["unreadable"] - figures["undecided"]
    said = (
        f"{figures['percent_of_decided']}% true negatives of the {judged:,} sentences that can be judged: "
        f"{figures['true']:,} describe their image; {figures['percent']}% where {figures['unreadable']:,} that cannot "
        f"be read and {figures['undecided']:,} undecided ones count as negatives"
    )
    return [said if judged else f"true negatives: none of {figures['sentences']:,} sentences can be judged"] + [
        f"of {found['sentences']:,} rejected ({reason}) {found['true']:,} describe their image"
        for reason, found in figures["rejected"].items()
    ]
