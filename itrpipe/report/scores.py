"""Tables of scores: of all models at a glance, under every protocol, and what training cost."""

from __future__ import annotations

import itertools
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
from itrpipe.report.claims import Comparison, is_at_chance, rsum_of, score_of
from itrpipe.report.names import listed
from itrpipe.report.published import Published
from itrpipe.report.runs import Series, by_seed, contents_of
from itrpipe.storage.artifact import METRICS

_GLANCE = {"RSum": RSUM, "R@1 image → text": "i2t_r1", "R@1 text → image": "t2i_r1"}
_AGAINST, _SEEDS, _TIME, _WORD = "against baseline", "over seeds", "same time", "result"
_SHARES = ("mean_text_match_share", "mean_image_match_share")
_LISTED = 3
"""Settings of a model that stand below its name."""
_GLOSSARY = {
    "in-batch": "In-batch negatives are the other captions and images of a batch.",
    "InfoNCE": "InfoNCE is the loss of CLIP, the cross-entropy of the own caption among all of a batch.",
    "mined": "Mined negatives are the hardest that a first model found in the whole training set.",
    "judge": "A judge says how likely each of them is right after all, and so counts less or is left out.",
}
"""Word in the name of a model -> a sentence that explains it."""


def glance(
    series: Sequence[Series], claims: Sequence[Comparison], timed: Sequence[Comparison], published: Sequence[Published]
) -> Table:
    """Return all models on a test set, best RSum first, with their difference to the baseline and the verdict.

    Args:
        series: of all runs on it.
        claims: against the baseline of as many updates, judged.
        timed: against the baseline of as much time.
        published: scores of whichever runs.
    """
    against = {each.series.name: each for each in claims}
    of_time = {each.series.name: _against(each) for each in timed}
    columns = [*_GLANCE]
    if claims:
        columns.append(_AGAINST)
    if any(each.rsum.seeds for each in claims):
        columns.append(_SEEDS)
    if timed:
        columns.append(_TIME)
    if claims:
        columns.append(_WORD)

    metrics = [_GLANCE.get(column, "") for column in columns]
    baselines = {each.baseline.name for each in claims}
    rows = []
    for each in sorted(series, key=rsum_of, reverse=True):
        name, seeds, claim = each.name, by_seed(each), against.get(each.name)
        cells: dict[str, Cell] = {title: score_of(each, metric) for title, metric in _GLANCE.items()}
        cells[_TIME] = of_time.get(name)
        word = "baseline" if name in baselines else None
        if claim is not None:
            word, over_seeds = claim.claim.word, claim.rsum.seeds
            cells[_AGAINST] = _against(claim)
            if over_seeds is not None:
                cells[_SEEDS] = Number(*over_seeds, signed=True).spread
            if len(baselines) > 1:
                name += f", against {claim.baseline.method}"
        if word != AT_CHANCE and all(map(is_at_chance, each.all)):
            word = "learned little"
        cells[_WORD] = word
        notes = [each.first.label]
        if len(seeds) > 1:
            notes.append(f"{len(seeds)} seeds")
        if each.first.departures:
            notes.append(listed(each.first.departures, _LISTED))
        rows.append(Row(name, [cells.get(column) for column in columns], "; ".join(notes)))
        for one in _published(each, published, FULL):
            if RSUM in one.scores:
                rows.append(_quoted("published", one.scores, metrics, one.source))
    rows.append(_quoted("chance", random_recalls(*series[0].first.size), metrics))
    level = f"{100 * series[0].first.settings['interval_level']:g} %"
    caption = (
        f"RSum is the sum of six recalls, 600 at best. Below a number its {level} interval over images, or its "
        "standard deviation over seeds."
    )
    if claims:
        which = "the baseline that its row names" if len(baselines) > 1 else "the row that is marked as baseline"
        caption += f" A difference is to {which}."
    if any(each.claim.word in TOO_FEW.values() for each in claims):
        caption += " A verdict takes three seeds of both: --seeds 5 of itrpipe run, or --seed 1, --seed 2 of evaluate."
    names = " ".join(each.name for each in series)
    for word, sentence in _GLOSSARY.items():
        if word in names:
            caption += f" {sentence}"
    return Table("", columns, rows, caption)


def over_images(difference: Difference) -> Number:
    """Return a difference with its interval over images."""
    return Number(*difference.images, signed=True)


def _against(comparison: Comparison) -> Number:
    """Return the difference in RSum, with the number of its seeds where the rows of both models are of others, too."""
    count = len(comparison.seeds)
    unit = ""
    if count < max(len(by_seed(comparison.series)), len(by_seed(comparison.baseline))):
        unit = f" over {quantity(count, 'seed')}"
    return replace(over_images(comparison.rsum), unit=unit, marked=comparison.claim.significant)


def _published(series: Series, published: Sequence[Published], protocol: str) -> list[Published]:
    names = set(itertools.chain.from_iterable(run.names for run in series.all))
    return [each for each in published if each.run in names and each.protocol == protocol]


def _quoted(name: str, values: Mapping[str, float], metrics: Iterable[str], source: str = "") -> Row:
    """Return a row of numbers that were not measured here; metrics without a number have an empty cell."""
    return Row(name, [Number.of(values.get(metric)) for metric in metrics], source, quoted=True)


# -- Every protocol

_PLACES = {}
for _side, _title in SIDES.items():
    _PLACES |= {f"{_side}_r{_rank}": (_title, f"R@{_rank}") for _rank in (1, 5, 10)}
_PLACES[RSUM] = ("", "RSum")
_TITLES = {FULL: "Own image or caption right", ORACLE: "All correct matches counted"}
_MEANINGS = {
    FULL: "Recall in percent, the whole split ranked at once.",
    ORACLE: "A caption can be true of several images. Here each of them counts as right.",
}
_PRECISIONS = {}
for _side, _title in SIDES.items():
    _PRECISIONS |= {f"{_side}_map_at_r": (_title, "mAP@R"), f"{_side}_r_precision": (_title, "R-P")}


def _cells(protocol: str, places: Mapping[str, tuple[str, str]], found: Mapping[str, Any]) -> Cells:
    """Return the metrics that have a place in a table, as a protocol gives them."""
    if protocol not in found:
        return {}
    return {place: Number.of(found[protocol][name]) for name, place in places.items()}


_GATHERED = Measured(
    "All correct matches gathered",
    METRICS,
    partial(_cells, ORACLE, _PRECISIONS),
    "Of the R correct matches of a query, R-P (R-Precision) is the share among its first R candidates; mAP@R also "
    "counts in which of these places they are. In percent, mean over queries. Recall looks at the best match alone.",
)


def score_tables(series: Sequence[Series], published: Sequence[Published]) -> list[Table]:
    """Return one table for every protocol that the runs were evaluated with, and one for all correct matches."""
    protocols = dict.fromkeys(name for each in series for run in each.all for name in run.metrics)
    found = []
    for protocol in sorted(protocols, key=[FULL, ORACLE, *PROTOCOLS].index):
        title = _TITLES.get(protocol, f"Protocol {protocol}")
        meaning = _MEANINGS.get(protocol) or f"Recall in percent: {PROTOCOLS[protocol].description}."
        (table,) = measured_tables([Measured(title, METRICS, partial(_cells, protocol, _PLACES), meaning)], series)
        rows = [*table.rows]
        for each in series:
            for one in _published(each, published, protocol):
                rows.append(_quoted(one.name, one.scores, COMPARED, one.source))
        if protocol == FULL:
            rows.append(_quoted("chance", random_recalls(*series[0].first.size), COMPARED))
        found.append(replace(table, rows=rows))
    return [*found, *measured_tables([_GATHERED], series)]


def recall_differences(claims: Sequence[Comparison]) -> list[Table]:
    """Return differences of all recalls to the baseline, by own matches and by all correct ones, where known."""
    spans = [(title, 3) for title in SIDES.values()] + [("", 1)]
    headings = [heading for _, heading in _PLACES.values()]
    caption = "In percentage points, mean over seeds, with the interval over images (paired bootstrap)."
    found = []
    for counted, is_oracle in (("", False), (", all correct matches counted", True)):
        rows = []
        for each in claims:
            differences = each.oracle if is_oracle else each.claim.differences
            if differences is not None:
                cells = [over_images(differences[metric]) for metric in COMPARED]
                rows.append(Row(each.series.name, cells, f"against {each.baseline.name}"))
        if rows:
            found.append(Table(f"Differences to the baseline{counted}", headings, rows, caption, spans))
    return found


def measured_tables(measured: Iterable[Measured], series: Sequence[Series]) -> list[Table]:
    """Return the tables of what models wrote to files of their evaluations, without those that none wrote."""
    found = []
    for each in measured:
        contents = [(model.name, contents_of(by_seed(model).values(), each.file)) for model in series]
        table = each.table(contents)
        if table is not None:
            found.append(table)
    return found


def cost_table(series: Sequence[Series]) -> Table:
    """Return what training cost, with all that it was made from, and how much of it went to correct matches."""
    rows = []
    for each in series:
        epochs, seconds, shares = [], [], []
        for run in by_seed(each).values():
            epochs.append(Number.of(run.members[0].epochs, digits=0))
            seconds.append(Number.of(run.seconds))
            history = run.members[0].history
            values = [row[name] for row in history for name in _SHARES if row.get(name) is not None]
            shares.append(Number(100 * float(np.mean(values))) if values else None)
        total = mean(seconds)
        time = None if total is None else duration(total.value)
        rows.append(Row(each.name, [mean(epochs), time, mean(shares)]))
    caption = (
        "Means over seeds, each with the models, mined lists and sentences that it was made from. Correct matches: "
        "percent of the gradient of all negatives that went to captions and images that match in truth, where the "
        "dataset knows that."
    )
    return Table("What training cost", ["epochs", "time", "correct matches among negatives, %"], rows, caption)
