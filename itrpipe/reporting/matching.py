"""Matching accuracy: how often a pair beats its negative, and phrases that hold those that do not, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.seeds import Spread, by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, Cell, Row, Table
from itrpipe.storage.artifact import MATCHING

MEASURES = ("global", "local", "phrase")
NEGATIVES = {"uniform": "Random negatives", "hardest": "Hardest negatives"}
"""Choices of negatives with the titles of their tables."""
_MEANINGS = {
    "uniform": (
        "How many pairs of a caption and its image, in percent, beat a negative one: the image with another caption "
        "(image → text), or the caption with another image (text → image), drawn at random. "
        "Global: the score of the whole caption with the whole image is higher. "
        "Local: the score of words and phrases with regions is higher. "
        "Phrase: in the negative pair, the words and phrases that hold for the image score higher on average than the "
        "others. "
        "Chance is 50 % for global and local."
    ),
    "hardest": (
        "The same against the hardest negative of a batch of 128, chosen by the intra score, that of the encoders that "
        "see an image or a caption alone."
    ),
}


@dataclass(frozen=True)
class MatchingScores:
    """What one method reaches, in percent.

    Attributes:
        series: of the method, the newest run of every seed.
        values: choice of negatives -> direction -> measure -> mean over seeds; None where a seed has no such pairs.
    """

    series: Series[Run]
    values: dict[str, dict[str, dict[str, Spread | None]]]

    @property
    def runs(self) -> tuple[Run, ...]:
        """One of every seed."""
        return self.series.all


def matching_scores(series: Sequence[Series[Run]]) -> list[MatchingScores]:
    """Means over seeds of all runs whose evaluation measured matching, ablations in the order of their declaration.

    Matching is a property of a model: of a model whose scores were also re-ranked only the first run counts.

    Args:
        series: of all runs on one test set.
    """
    models: set[str] = set()
    found = []
    for each in series:
        runs = [
            run for run in by_seed(each).values() if run.figures(MATCHING) is not None and _model(run) not in models
        ]
        models |= {_model(run) for run in runs}
        if runs:
            found.append(MatchingScores(replace(each, all=tuple(runs)), _values(runs)))
    return sorted(found, key=lambda each: each.series.first.declared_place)


def matching_tables(scores: Sequence[MatchingScores]) -> list[Table]:
    """One table for each choice of negatives; none without scores.

    Args:
        scores: of one test set.
    """
    return [_table(choice, scores) for choice in NEGATIVES] if scores else []


def _model(run: Run) -> str:
    return run.members[0].artifact.path


def _values(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, Spread | None]]]:
    measured = [run.figures(MATCHING) for run in runs if run.figures(MATCHING) is not None]
    return {
        choice: {
            side: {name: _mean([each[choice][side][name] for each in measured]) for name in MEASURES}
            for side in DIRECTIONS
        }
        for choice in NEGATIVES
    }


def _mean(values: Sequence[float | None]) -> Spread | None:
    known = [each for each in values if each is not None]
    return spread(known) if len(known) == len(values) else None


def _table(choice: str, scores: Sequence[MatchingScores]) -> Table:
    columns = [(side, name) for side in DIRECTIONS for name in MEASURES]
    best = {}
    for side, name in columns:
        means = {mean.mean for each in scores if (mean := each.values[choice][side][name])}
        best[side, name] = max(means) if len(means) > 1 else None
    rows = []
    for each in scores:
        cells = [
            _cell(f"{side[0]}→{side[2]} {name}", each.values[choice][side][name], best[side, name])
            for side, name in columns
        ]
        rows.append(Row(each.series.name, cells, _seeds(each.runs)))
    return Table(NEGATIVES[choice], [name for _, name in columns], rows, _caption(choice, scores))


def _cell(title: str, mean: Spread | None, best: float | None) -> Cell:
    if mean is None:
        return Cell(title, DASH)
    deviation = "" if mean.deviation is None else f"± {mean.deviation:.1f}"
    return Cell(title, f"{mean.mean:.1f}", deviation, mean.mean == best)


def _seeds(runs: Sequence[Run]) -> str:
    return f"{'seed' if len(runs) == 1 else 'seeds'} {', '.join(str(run.seed) for run in runs)}"


def _caption(choice: str, scores: Sequence[MatchingScores]) -> str:
    parts = [_MEANINGS[choice], _pairs(choice, scores)]
    if any(len(each.runs) > 1 for each in scores):
        parts.append("Mean ± standard deviation over seeds.")
    if any(mean is None for each in scores for side in each.values[choice].values() for mean in side.values()):
        parts.append(f"{DASH}: there are no such pairs.")
    if len(scores) > 1:
        parts.append("Bold: best of the column.")
    return " ".join(parts)


def _pairs(choice: str, scores: Sequence[MatchingScores]) -> str:
    measured = [
        run.figures(MATCHING)[choice][side]
        for each in scores
        for run in each.runs
        if run.figures(MATCHING)
        for side in DIRECTIONS
    ]
    pairs, phrase_pairs = (_span([int(each[key] or 0) for each in measured]) for key in ("pairs", "phrase_pairs"))
    return f"Of {pairs} pairs in each direction; {phrase_pairs} of these have words or phrases of both kinds."


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
