"""Tables of scores: of all models at a glance, under every protocol, and what training cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from itrpipe.evaluation.compare import AT_CHANCE, TOO_FEW
from itrpipe.evaluation.intervals import Difference
from itrpipe.evaluation.metrics import COMPARED, PROTOCOLS, RSUM, SIDES, random_recalls
from itrpipe.evaluation.results import FULL, ORACLE
from itrpipe.evaluation.tables import Cell, Cells, Measured, Number, Row, Table, duration, mean
from itrpipe.printable import quantity
from itrpipe.report.claims import Comparison, all_at_chance, rsum_of, score_of
from itrpipe.report.names import join_departures
from itrpipe.report.published import Published
from itrpipe.report.runs import Series, contents_of, newest_by_seed
from itrpipe.storage.artifact import METRICS

_OVERVIEW = {
    "RSum": RSUM,
    "R@1 image → text": "i2t_r1",
    "R@1 text → image": "t2i_r1",
}
"""Column of the table of all models -> metric."""
_AGAINST, _SEEDS, _TIME, _WORD = "against baseline", "over seeds", "same time", "result"
"""Columns of the table of all models that compare them."""
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
    series: Sequence[Series],
    claims: Sequence[Comparison],
    timed: Sequence[Comparison],
    published: Sequence[Published],
) -> Table:
    """Return all models on a test set, best RSum first, with their difference to the baseline and the verdict.

    Args:
        series: of all runs on it.
        claims: against the baseline of as many updates, judged.
        timed: against the baseline of as much time.
        published: scores of whichever runs.
    """
    columns = list(_OVERVIEW)
    if claims:
        columns.append(_AGAINST)
    if any(claim.rsum.seeds for claim in claims):
        columns.append(_SEEDS)
    if timed:
        columns.append(_TIME)
    if claims:
        columns.append(_WORD)

    metrics = [_OVERVIEW.get(column, "") for column in columns]
    claim_of_model, timed_of_model = {}, {}
    for claim in claims:
        claim_of_model[claim.series.name] = claim
    for claim in timed:
        timed_of_model[claim.series.name] = claim
    baselines = {claim.baseline.name for claim in claims}
    rows = []
    for each in sorted(series, key=rsum_of, reverse=True):
        name = each.name
        claim = claim_of_model.get(name)
        cells: dict[str, Cell] = {}
        for column, metric in _OVERVIEW.items():
            cells[column] = score_of(each, metric)
        if name in timed_of_model:
            cells[_TIME] = _rsum_difference(timed_of_model[name])
        if name in baselines:
            cells[_WORD] = "baseline"
        if claim is not None:
            cells[_WORD] = claim.claim.word
            cells[_AGAINST] = _rsum_difference(claim)
            if claim.rsum.seeds is not None:
                cells[_SEEDS] = Number(*claim.rsum.seeds, signed=True).spread
            if len(baselines) > 1:
                name += f", against {claim.baseline.method}"
        if cells.get(_WORD) != AT_CHANCE and all_at_chance(each):
            cells[_WORD] = "learned little"
        notes = [each.first.label]
        seeds = newest_by_seed(each)
        if len(seeds) > 1:
            notes.append(f"{len(seeds)} seeds")
        if each.first.departures:
            notes.append(join_departures(each.first.departures, _MOST_SETTINGS))
        rows.append(Row(name, list(map(cells.get, columns)), "; ".join(notes)))
        for scores in _published_of(each, published, FULL):
            if RSUM in scores.scores:
                rows.append(_quoted_row("published", scores.scores, metrics, scores.source))
    rows.append(_quoted_row("chance", random_recalls(*series[0].first.size), metrics))
    return Table("", columns, rows, _overview_caption(series, claims, len(baselines)))


def _overview_caption(
    series: Sequence[Series],
    claims: Sequence[Comparison],
    baselines: int,
) -> str:
    level = 100 * series[0].first.settings["interval_level"]
    sentences = [
        f"RSum is the sum of six recalls, 600 at best. Below a number its {level:g} % interval over images, or its "
        "standard deviation over seeds."
    ]
    if baselines > 1:
        sentences.append("A difference is to the baseline that its row names.")
    elif baselines:
        sentences.append("A difference is to the row that is marked as baseline.")
    if any(claim.claim.word in TOO_FEW.values() for claim in claims):
        sentences.append(
            "A verdict takes three seeds of both: --seeds 5 of itrpipe run, or --seed 1, --seed 2 of evaluate."
        )
    for word, sentence in _GLOSSARY.items():
        if any(word in each.name for each in series):
            sentences.append(sentence)
    return " ".join(sentences)


def _over_images(difference: Difference) -> Number:
    """Return a difference with its interval over images."""
    return Number(*difference.images, signed=True)


def _rsum_difference(comparison: Comparison) -> Number:
    """Return the difference in RSum, with the number of its seeds where the rows of both models are of others, too."""
    count = len(comparison.seeds)
    unit = ""
    if count < max(len(newest_by_seed(comparison.series)), len(newest_by_seed(comparison.baseline))):
        unit = f" over {quantity(count, 'seed')}"
    return replace(_over_images(comparison.rsum), unit=unit, marked=comparison.claim.significant)


def _published_of(
    series: Series,
    published: Sequence[Published],
    protocol: str,
) -> list[Published]:
    """Return what was published of the runs of a series under a protocol."""
    names = set()
    for run in series.all:
        names.update(run.names)
    return [each for each in published if each.run in names and each.protocol == protocol]


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


def score_tables(series: Sequence[Series], published: Sequence[Published]) -> list[Table]:
    """Return one table for every protocol that the runs were evaluated with, and one for all correct matches."""
    protocols = set()
    for each in series:
        for run in each.all:
            protocols.update(run.metrics)
    tables = []
    for protocol in sorted(protocols, key=[FULL, ORACLE, *PROTOCOLS].index):
        title = _TITLES.get(protocol, f"Protocol {protocol}")
        meaning = _MEANINGS.get(protocol) or f"Recall in percent: {PROTOCOLS[protocol].description}."
        recalls = Measured(title, METRICS, partial(_cells, protocol, _RECALL_PLACES), meaning)
        (table,) = measured_tables([recalls], series)
        rows = list(table.rows)
        for each in series:
            for scores in _published_of(each, published, protocol):
                rows.append(_quoted_row(scores.name, scores.scores, COMPARED, scores.source))
        if protocol == FULL:
            rows.append(_quoted_row("chance", random_recalls(*series[0].first.size), COMPARED))
        tables.append(replace(table, rows=rows))
    return tables + measured_tables([_PRECISIONS], series)


def recall_differences(claims: Sequence[Comparison]) -> list[Table]:
    """Return differences of all recalls to the baseline, by own matches and by all correct ones, where known."""
    own, oracle = [], []
    for claim in claims:
        for rows, differences in ((own, claim.claim.differences), (oracle, claim.oracle)):
            if differences is not None:
                cells = [_over_images(differences[metric]) for metric in COMPARED]
                rows.append(Row(claim.series.name, cells, f"against {claim.baseline.name}"))

    spans = [*zip(SIDES.values(), (3, 3), strict=True), ("", 1)]
    headings = [heading for _, heading in _RECALL_PLACES.values()]
    caption = "In percentage points, mean over seeds, with the interval over images (paired bootstrap)."
    tables = []
    for suffix, rows in (("", own), (", all correct matches counted", oracle)):
        if rows:
            tables.append(Table(f"Differences to the baseline{suffix}", headings, rows, caption, spans))
    return tables


def measured_tables(measured: Iterable[Measured], series: Sequence[Series]) -> list[Table]:
    """Return the tables of what models wrote to files of their evaluations, without those that none wrote."""
    tables = []
    for each in measured:
        contents = []
        for model in series:
            contents.append((model.name, contents_of(newest_by_seed(model).values(), each.file)))
        table = each.table(contents)
        if table is not None:
            tables.append(table)
    return tables


def cost_table(series: Sequence[Series]) -> Table:
    """Return what training cost, with all that it was made from, and how much of it went to correct matches."""
    rows = []
    for each in series:
        epochs, seconds, shares = [], [], []
        for run in newest_by_seed(each).values():
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
        rows.append(Row(each.name, cells))
    caption = (
        "Means over seeds, each with the models, mined lists and sentences that it was made from. Correct matches: "
        "percent of the gradient of all negatives that went to captions and images that match in truth, where the "
        "dataset knows that."
    )
    return Table("What training cost", ["epochs", "time", "correct matches among negatives, %"], rows, caption)
