"""Tables of scores: of all models at a glance, under every protocol, and what training cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from itrpipe.evaluation.compare import AT_CHANCE, TOO_FEW
from itrpipe.evaluation.metrics import COMPARED, PROTOCOLS, RSUM, SIDES, random_recalls
from itrpipe.evaluation.results import FULL, ORACLE
from itrpipe.evaluation.tables import Cell, Cells, Measured, Number, Row, Table, duration, mean
from itrpipe.printable import quantity
from itrpipe.report.comparisons import ComparedSeries, Comparison
from itrpipe.report.names import join_departures
from itrpipe.report.published import Published
from itrpipe.report.runs import contents_of
from itrpipe.report.series import Series
from itrpipe.storage.artifact import METRICS

_OVERVIEW = {
    "RSum": RSUM,
    "R@1 image → text": "i2t_r1",
    "R@1 text → image": "t2i_r1",
}
"""Column of the table of all models -> metric."""
_AGAINST, _SEEDS, _TIME, _VERDICT = "against baseline", "over seeds", "same time", "result"
"""Columns of the table of all models that compare them with their baselines."""
_MOST_SETTINGS = 3
"""Settings of a model below its name."""
_GLOSSARY = {
    "in-batch": "In-batch negatives are the other captions and images of a batch.",
    "InfoNCE": "InfoNCE is the loss of CLIP, the cross-entropy of the own caption among all of a batch.",
    "mined": "Mined negatives are the hardest that a first model found in the whole training set.",
    "judge": "A judge says how likely each of them is right after all, and so counts less or is left out.",
}
"""Word in the name of a model -> a sentence that explains it."""


def overview_table(
    compared: ComparedSeries,
    published: Sequence[Published],
) -> Table:
    """Return all series of a test set, best RSum first, with their difference to the baseline and the verdict.

    Args:
        compared: the series and their comparisons, the significant ones marked.
        published: scores of whichever runs.
    """
    comparisons = compared.comparisons
    columns = list(_OVERVIEW)
    if comparisons:
        columns.append(_AGAINST)
    if any(comparison.rsum.seeds for comparison in comparisons):
        columns.append(_SEEDS)
    if compared.time_comparisons:
        columns.append(_TIME)
    if comparisons:
        columns.append(_VERDICT)

    metrics = [_OVERVIEW.get(column, "") for column in columns]
    comparison_of_series, time_comparison_of_series = {}, {}
    for comparison in comparisons:
        comparison_of_series[comparison.series.name] = comparison
    for comparison in compared.time_comparisons:
        time_comparison_of_series[comparison.series.name] = comparison
    baselines = {comparison.baseline.name for comparison in comparisons}
    rows = []
    for series in sorted(compared.series, key=Series.rsum, reverse=True):
        name = series.name
        comparison = comparison_of_series.get(name)
        cells: dict[str, Cell] = {}
        for column, metric in _OVERVIEW.items():
            cells[column] = series.score(metric)
        if name in time_comparison_of_series:
            cells[_TIME] = _rsum_difference(time_comparison_of_series[name])
        if name in baselines:
            cells[_VERDICT] = "baseline"
        if comparison is not None:
            cells[_VERDICT] = comparison.claim.word
            cells[_AGAINST] = _rsum_difference(comparison)
            if comparison.rsum.seeds is not None:
                cells[_SEEDS] = Number(*comparison.rsum.seeds, signed=True).spread
            if len(baselines) > 1:
                name += f", against {comparison.baseline.method}"
        if cells.get(_VERDICT) != AT_CHANCE and series.is_at_chance():
            cells[_VERDICT] = "learned little"
        run = series.first_run
        notes = [run.label]
        if len(series.run_of_seed) > 1:
            notes.append(f"{len(series.run_of_seed)} seeds")
        if run.departures:
            notes.append(join_departures(run.departures, _MOST_SETTINGS))
        rows.append(Row(name, list(map(cells.get, columns)), "; ".join(notes)))
        for scores in _published_of(series, published, FULL):
            if RSUM in scores.scores:
                rows.append(_quoted_row("published", scores.scores, metrics, scores.source))
    rows.append(_quoted_row("chance", random_recalls(*compared.series[0].first_run.size), metrics))
    return Table("", columns, rows, _overview_caption(compared, len(baselines)))


def _overview_caption(compared: ComparedSeries, baselines: int) -> str:
    level = 100 * compared.series[0].first_run.settings["interval_level"]
    sentences = [
        f"RSum is the sum of six recalls, 600 at best. Below a number its {level:g} % interval over images, or its "
        "standard deviation over seeds."
    ]
    if baselines > 1:
        sentences.append("A difference is to the baseline that its row names.")
    elif baselines:
        sentences.append("A difference is to the row that is marked as baseline.")
    if any(comparison.claim.word in TOO_FEW.values() for comparison in compared.comparisons):
        sentences.append(
            "A verdict takes three seeds of both: --seeds 5 of itrpipe run, or --seed 1, --seed 2 of evaluate."
        )
    for word, sentence in _GLOSSARY.items():
        if any(word in series.name for series in compared.series):
            sentences.append(sentence)
    return " ".join(sentences)


def _rsum_difference(comparison: Comparison) -> Number:
    """Return the difference in RSum, with the number of its seeds where the row of either series is of more seeds."""
    count = len(comparison.seeds)
    unit = ""
    if count < max(len(comparison.series.run_of_seed), len(comparison.baseline.run_of_seed)):
        unit = f" over {quantity(count, 'seed')}"
    return Number(*comparison.rsum.images, signed=True, unit=unit, marked=comparison.claim.significant)


def _published_of(
    series: Series,
    published: Sequence[Published],
    protocol: str,
) -> list[Published]:
    """Return the published scores of the runs of a series under a protocol."""
    names = set()
    for run in series.runs:
        names.update(run.names)
    return [scores for scores in published if scores.run in names and scores.protocol == protocol]


def _quoted_row(
    name: str,
    values: Mapping[str, float],
    metrics: Iterable[str],
    source: str = "",
) -> Row:
    """Return a row of numbers that were not measured here; metrics without a number have an empty cell."""
    return Row(name, [Number.of(values.get(metric)) for metric in metrics], source, quoted=True)


# -- Every protocol

# Metric -> its place in a table: the heading of a group of columns, and its own.
_RECALL_PLACES = {}
_PRECISION_PLACES = {}
for _side, _title in SIDES.items():
    for _rank in (1, 5, 10):
        _RECALL_PLACES[f"{_side}_r{_rank}"] = (_title, f"R@{_rank}")
    _PRECISION_PLACES[f"{_side}_map_at_r"] = (_title, "mAP@R")
    _PRECISION_PLACES[f"{_side}_r_precision"] = (_title, "R-P")
_RECALL_PLACES[RSUM] = ("", "RSum")
_TITLES = {FULL: "Own image or caption right", ORACLE: "All correct matches counted"}
_MEANINGS = {
    FULL: "Recall in percent, the whole split ranked at once.",
    ORACLE: "A caption can be true of several images. Here each of them counts as right.",
}


def _cells(
    protocol: str,
    places: Mapping[str, tuple[str, str]],
    metrics: Mapping[str, Any],
) -> Cells:
    """Return the metrics that have a place in a table, as a protocol gives them."""
    if protocol not in metrics:
        return {}
    cells = {}
    for name, place in places.items():
        cells[place] = Number.of(metrics[protocol][name])
    return cells


_PRECISIONS = Measured(
    "All correct matches gathered",
    METRICS,
    partial(_cells, ORACLE, _PRECISION_PLACES),
    "Of the R correct matches of a query, R-P (R-Precision) is the share among its first R candidates; mAP@R also "
    "counts in which of these places they are. In percent, mean over queries. Recall looks at the best match alone.",
)


def score_tables(all_series: Sequence[Series], published: Sequence[Published]) -> list[Table]:
    """Return one table for every protocol that the runs were evaluated with, and one for all correct matches."""
    protocols = set()
    for series in all_series:
        for run in series.runs:
            protocols.update(run.metrics)
    tables = []
    for protocol in sorted(protocols, key=[FULL, ORACLE, *PROTOCOLS].index):
        title = _TITLES.get(protocol, f"Protocol {protocol}")
        meaning = _MEANINGS.get(protocol) or f"Recall in percent: {PROTOCOLS[protocol].description}."
        recalls = Measured(title, METRICS, partial(_cells, protocol, _RECALL_PLACES), meaning)
        (table,) = measured_tables([recalls], all_series)
        rows = list(table.rows)
        for series in all_series:
            for scores in _published_of(series, published, protocol):
                rows.append(_quoted_row(scores.name, scores.scores, COMPARED, scores.source))
        if protocol == FULL:
            rows.append(_quoted_row("chance", random_recalls(*all_series[0].first_run.size), COMPARED))
        tables.append(replace(table, rows=rows))
    return tables + measured_tables([_PRECISIONS], all_series)


def recall_differences(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return the differences of all recalls to the baseline: own matches counted, and all correct ones, where known."""
    own, oracle = [], []
    for comparison in comparisons:
        for rows, differences in ((own, comparison.claim.differences), (oracle, comparison.oracle)):
            if differences is not None:
                cells = [Number(*differences[metric].images, signed=True) for metric in COMPARED]
                rows.append(Row(comparison.series.name, cells, f"against {comparison.baseline.name}"))

    spans = [*zip(SIDES.values(), (3, 3), strict=True), ("", 1)]
    headings = [heading for _, heading in _RECALL_PLACES.values()]
    caption = "In percentage points, mean over seeds, with the interval over images (paired bootstrap)."
    tables = []
    for suffix, rows in (("", own), (", all correct matches counted", oracle)):
        if rows:
            tables.append(Table(f"Differences to the baseline{suffix}", headings, rows, caption, spans))
    return tables


def measured_tables(measured: Iterable[Measured], all_series: Sequence[Series]) -> list[Table]:
    """Return the tables of numbers in files of evaluations, without tables that no series has numbers for."""
    tables = []
    for numbers in measured:
        contents = []
        for series in all_series:
            contents.append((series.name, contents_of(series.run_of_seed.values(), numbers.file)))
        table = numbers.table(contents)
        if table is not None:
            tables.append(table)
    return tables


def cost_table(all_series: Sequence[Series]) -> Table:
    """Return what training cost, with all that it was made from, and how much of it went to correct matches."""
    rows = []
    for series in all_series:
        epochs, seconds, shares = [], [], []
        for run in series.run_of_seed.values():
            epochs.append(Number.of(run.model.epochs, digits=0))
            seconds.append(Number.of(run.seconds))
            values = []
            for row in run.model.history:
                for name in ("mean_text_match_share", "mean_image_match_share"):
                    if row.get(name) is not None:
                        values.append(row[name])
            shares.append(Number(100 * float(np.mean(values))) if values else None)
        time = mean(seconds)
        cells: list[Cell] = [mean(epochs), time, mean(shares)]
        if time is not None:
            cells[1] = duration(time.value)
        rows.append(Row(series.name, cells))
    caption = (
        "Means over seeds, each with the models, mined lists and sentences that it was made from. Correct matches: "
        "percent of the gradient of all negatives that went to captions and images that match in truth, where the "
        "dataset knows that."
    )
    return Table("What training cost", ["epochs", "time", "correct matches among negatives, %"], rows, caption)
