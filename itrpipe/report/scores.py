"""Tables of scores: of all models at a glance, under every protocol, and what training cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from itrpipe.evaluation.compare import AT_CHANCE, COMPARED
from itrpipe.evaluation.intervals import Difference
from itrpipe.evaluation.metrics import PROTOCOLS, RSUM, random_recalls
from itrpipe.evaluation.tables import Cell, Cells, Measured, Number, Row, Table, duration, mean
from itrpipe.report.claims import Claim, is_at_chance, rsum_of, score_of
from itrpipe.report.names import listed
from itrpipe.report.published import Published
from itrpipe.report.runs import DIRECTIONS, FULL, ORACLE, Run, Series, by_seed
from itrpipe.storage.artifact import METRICS

_GLANCE = {"RSum": RSUM, "R@1 image → text": "i2t_r1", "R@1 text → image": "t2i_r1"}
_AGAINST, _SEEDS, _TIME, _WORD = "against baseline", "over seeds", "same time", "result"
_SHARES = ("mean_text_match_share", "mean_image_match_share")
_LISTED = 3
"""Settings of a model that stand below its name."""


def glance(
    series: Sequence[Series], claims: Sequence[Claim], timed: Sequence[Claim], published: Sequence[Published]
) -> Table:
    """All models on a test set, best RSum first, with their difference to the baseline and what it allows to say.

    Args:
        series: of all runs on it.
        claims: against the baseline of as many updates, judged.
        timed: against the baseline of as much time.
        published: scores of whichever runs.
    """
    against = {each.series.name: each for each in claims}
    of_time = {each.series.name: each.rsum for each in timed}
    columns = [*_GLANCE]
    columns += [_AGAINST] if claims else []
    columns += [_SEEDS] if any(len(each.seeds) > 1 for each in claims) else []
    columns += [*([_TIME] if timed else []), *([_WORD] if claims else [])]
    baselines = {each.baseline.name for each in claims}
    rows = []
    for each in sorted(series, key=rsum_of, reverse=True):
        claim = against.get(each.name)
        cells: dict[str, Cell] = {title: score_of(each, metric) for title, metric in _GLANCE.items()}
        if claim is not None:
            cells |= {_AGAINST: over_images(claim.rsum), _SEEDS: _over_seeds(claim.rsum), _WORD: claim.word}
        elif each.name in baselines:
            cells[_WORD] = "baseline"
        if each.name in of_time:
            cells[_TIME] = over_images(of_time[each.name])
        is_told = claim is not None and claim.word == AT_CHANCE
        if not is_told and all(map(is_at_chance, each.all)):
            cells[_WORD] = "learned little"
        against_ = f", against {claim.baseline.method}" if claim and len(baselines) > 1 else ""
        rows.append(Row(f"{each.name}{against_}", [cells.get(column) for column in columns], _note(each)))
        rows += [_quoted(one, columns, _GLANCE) for one in _published(each, published, FULL) if RSUM in one.scores]
    rows.append(_chance(series[0].first, columns, _GLANCE))
    level = f"{100 * series[0].first.settings['interval_level']:g} %"
    parts = [f"RSum is the sum of six recalls, 600 at best. Below a number its {level} interval over images, or its "]
    parts[0] += "standard deviation over seeds."
    if claims:
        which = "the baseline that its row names" if len(baselines) > 1 else "the row that is marked as baseline"
        parts.append(f"A difference is to {which}.")
    return Table("", columns, rows, " ".join(parts))


def over_images(difference: Difference) -> Number:
    """A difference with its interval over images."""
    images = difference.images
    return Number(difference.value, images.low, images.high, signed=True, marked=difference.significant)


def _over_seeds(difference: Difference) -> str | None:
    seeds = difference.seeds
    return None if seeds is None else Number(seeds.value, seeds.low, seeds.high, signed=True).spread


def _note(series: Series) -> str:
    """The label of its runs, and what of their settings is not as declared."""
    seeds = f"{len(by_seed(series))} seeds" if len(by_seed(series)) > 1 else ""
    return "; ".join(filter(None, [series.first.label, seeds, listed(series.first.departures, _LISTED)]))


def _published(series: Series, published: Sequence[Published], protocol: str) -> list[Published]:
    names = {name for run in series.all for name in (run.label, run.evaluation.name)}
    return [each for each in published if each.run in names and each.protocol == protocol]


def _quoted(published: Published, columns: Sequence[str], metrics: Mapping[str, str]) -> Row:
    scores = [published.scores.get(metrics.get(column, "")) for column in columns]
    return Row("published", [Number.of(each) for each in scores], published.source, quoted=True)


def _chance(run: Run, columns: Sequence[str], metrics: Mapping[str, str]) -> Row:
    images, captions = run.size
    values = random_recalls(images, captions)
    cells = [Number.of(values.get(metrics.get(column, ""))) for column in columns]
    return Row("chance", cells, quoted=True)


# -- Every protocol

_PLACES = {
    name: ("", "RSum") if name == RSUM else (DIRECTIONS[name[:3]], f"R@{name.rpartition('r')[2]}") for name in COMPARED
}
_TITLES = {FULL: "Own image or caption right", ORACLE: "All correct matches counted"}
_MEANINGS = {
    FULL: "Recall in percent, the whole split ranked at once.",
    ORACLE: "A caption can be true of several images. Here each of them counts as right.",
}
_PRECISIONS = {"map_at_r": "mAP@R", "r_precision": "R-P"}


def _recalls(protocol: str, found: Mapping[str, Any]) -> Cells:
    own = found.get(protocol)
    return {} if own is None else {place: Number.of(own[name]) for name, place in _PLACES.items()}


def _gathered(found: Mapping[str, Any]) -> Cells:
    own = found.get(ORACLE, {})
    return {
        (title, heading): Number.of(own[f"{side}_{name}"])
        for side, title in DIRECTIONS.items()
        for name, heading in _PRECISIONS.items()
        if f"{side}_{name}" in own
    }


_GATHERED = Measured(
    "All correct matches gathered",
    METRICS,
    _gathered,
    "Of the R correct matches of a query, R-P (R-Precision) is the share among its first R candidates; mAP@R also "
    "counts in which of these places they are. In percent, mean over queries. Recall looks at the best match alone.",
)


def score_tables(series: Sequence[Series], published: Sequence[Published]) -> list[Table]:
    """One table for every protocol that the runs were evaluated with, and one for all correct matches gathered."""
    protocols = dict.fromkeys(name for each in series for run in each.all for name in run.metrics)
    found = []
    for protocol in sorted(protocols, key=[FULL, ORACLE, *PROTOCOLS].index):
        title = _TITLES.get(protocol, f"Protocol {protocol}")
        meaning = _MEANINGS.get(protocol) or f"Recall in percent: {PROTOCOLS[protocol].description}."
        table = measured_table(Measured(title, METRICS, partial(_recalls, protocol), meaning), series)
        assert table is not None
        quoted = [one for each in series for one in _published(each, published, protocol)]
        places = [*_PLACES]
        rows = [replace(_quoted(each, places, {name: name for name in places}), name=each.name) for each in quoted]
        rows += [_chance(series[0].first, places, {name: name for name in places})] if protocol == FULL else []
        found.append(replace(table, rows=[*table.rows, *rows]))
    return [*found, *filter(None, [measured_table(_GATHERED, series)])]


def recall_differences(claims: Sequence[Claim], *, oracle: bool = False) -> Table | None:
    """Differences of all recalls to the baseline; None where none were measured."""
    rows = []
    for each in claims:
        differences = each.oracle if oracle else each.own
        if differences is not None:
            cells = [over_images(differences[metric]) for metric in COMPARED]
            rows.append(Row(each.series.name, cells, f"against {each.baseline.name}"))
    if not rows:
        return None
    places = [*_PLACES.values()]
    spans = [(title, 3) for title in DIRECTIONS.values()] + [("", 1)]
    title = "Differences to the baseline, all correct matches counted" if oracle else "Differences to the baseline"
    caption = "In percentage points, mean over seeds, with the interval over images (paired bootstrap)."
    return Table(title, [heading for _, heading in places], rows, caption, spans)


def measured_table(measured: Measured, series: Sequence[Series]) -> Table | None:
    """What models wrote to a file of their evaluations; None where none did."""
    found = [(each.name, [run.wrote(measured.file) for run in by_seed(each).values()]) for each in series]
    return measured.table([(name, [one for one in own if one is not None]) for name, own in found])


def cost_table(series: Sequence[Series]) -> Table:
    """What training cost, with all that it was made from, and how much of it went to correct matches."""
    rows = []
    for each in series:
        runs = [*by_seed(each).values()]
        seconds = mean([Number.of(run.seconds) for run in runs])
        matches = mean([Number.of(_match_share(run)) for run in runs])
        epochs = Number.of(each.first.members[0].epochs, digits=0)
        rows.append(Row(each.name, [epochs, None if seconds is None else duration(seconds.value), matches]))
    caption = (
        "Mean of one seed, with the models, mined lists and sentences that it was made from. Correct matches: percent "
        "of the gradient of all negatives that went to captions and images that match in truth, where the dataset "
        "knows that."
    )
    return Table("What training cost", ["epochs", "time", "correct matches among negatives, %"], rows, caption)


def _match_share(run: Run) -> float | None:
    rows = run.members[0].history
    values = [row[name] for row in rows for name in _SHARES if row.get(name) is not None]
    return 100 * float(np.mean(values)) if values else None
