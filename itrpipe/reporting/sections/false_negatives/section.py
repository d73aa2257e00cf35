"""Estimated false negatives: how well a run tells them from the other hard candidates, and what some look like.

Source: FNE (Li et al., ACM MM 2023), Fig. 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.reporting.collect import Run
from itrpipe.reporting.examples import SHOWN, Example, Gallery
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.sections.mined.section import MINED_SPLIT, SEARCHES
from itrpipe.reporting.tables import DASH, Cell, Row, Table
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES

TITLE, ORDER = "False negatives", 100
READS = (FALSE_NEGATIVES, HARD_CANDIDATES)
LIKELY = 0.5
"""Probability above which a candidate is likelier a match than not."""
_COLUMNS = ("drawn true", "hardest true", "area", "likely", "area", "area of similarity")
_CAPTION = (
    "Drawn true: expected percentage of correct matches among the negatives that sampling by probability draws from a "
    "batch and the memory of the run, whether or not it was trained so; hardest true: among the hardest candidates of "
    "these. Area: under the ROC curve of the probability, of correct matches against the other candidates; area of "
    "similarity: of the bare similarity. Likely: percentage of the 20 hardest candidates of the whole training set "
    f"with a probability above a half. {DASH}: the dataset does not know which candidates are correct matches."
)


@dataclass(frozen=True)
class FalseNegatives:
    """What runs estimated.

    Attributes:
        tables: one for each list, with a row for each run.
        shown: the run whose examples are shown; None when the dataset was removed.
        examples: list -> anchors with their hardest candidates.
    """

    tables: list[Table]
    shown: Run | None
    examples: dict[str, list[Example]]


def view(source: Source) -> FalseNegatives | None:
    """Shows every run once, the chosen one first."""
    measured = list({run.label: run for run in source.runs if run.figures(FALSE_NEGATIVES) is not None}.values())
    if not measured:
        return None
    gallery = source.gallery(measured[0], MINED_SPLIT)
    return estimated(measured, gallery, source.options.examples, source.options.seed)


def estimated(runs: Sequence[Run], gallery: Gallery | None, count: int, seed: int) -> FalseNegatives:
    """Collects what evaluations wrote.

    Args:
        runs: that estimated.
        gallery: of the training split of the first of them; None when the dataset was removed.
        count: examples of each list.
        seed: of their choice.
    """
    measured = [(run, run.figures(FALSE_NEGATIVES)) for run in runs]
    titles = {"texts_for_images": "Texts for images", "images_for_texts": "Images for texts"}
    tables = [_table(name, title, measured) for name, title in titles.items()]
    shown = measured[0][0]
    return FalseNegatives(tables, shown if gallery else None, _examples(shown, gallery, count, seed) if gallery else {})


def _table(direction: str, title: str, measured: Sequence[tuple[Run, dict[str, Any]]]) -> Table:
    rows = []
    for run, figures in measured:
        drawn, hardest = figures["drawn"][direction], figures["hardest"][direction]
        values = [
            _percent(drawn["drawn"]),
            _percent(drawn["hardest"]),
            _area(drawn["roc_area"]),
            _percent(hardest["likely_percent"]),
            _area(hardest["roc_area"]),
            _area(hardest["roc_area_of_similarity"]),
        ]
        cells = [Cell(name, value) for name, value in zip(_COLUMNS, values, strict=True)]
        rows.append(Row(run.name, cells))
    return Table(title, list(_COLUMNS), rows, _CAPTION)


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f} %"


def _area(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"


def _examples(run: Run, gallery: Gallery, count: int, seed: int) -> dict[str, list[Example]]:
    """Half of the anchors with a likely false negative among what is shown, half without, where there are enough."""
    found: dict[str, list[Example]] = {}
    listed = groupby(run.rows(HARD_CANDIDATES), key=lambda row: (row["direction"], row["anchor_id"]))
    anchors = [(direction, list(rows)[:SHOWN]) for (direction, _), rows in listed]
    for number, direction in enumerate(SEARCHES):
        own = [rows for name, rows in anchors if name == direction]
        order = np.random.default_rng([seed, 20 + number]).permutation(len(own)).tolist()
        likely = [place for place in order if max(row["probability"] for row in own[place]) > LIKELY]
        others = [place for place in order if place not in set(likely)]
        chosen = likely[: max((count + 1) // 2, count - len(others))]
        chosen += others[: count - len(chosen)]
        found[direction] = [_example(run, direction, own[place], gallery) for place in chosen]
    return found


def _example(run: Run, direction: str, rows: Sequence[dict[str, Any]], gallery: Gallery) -> Example:
    search = SEARCHES[direction]
    sides = (gallery.image_row, gallery.caption_row) if search == "i2t" else (gallery.caption_row, gallery.image_row)
    try:
        anchor = sides[0][rows[0]["anchor_id"]]
        found = [(sides[1][row["candidate_id"]], row) for row in rows]
    except KeyError as missing:
        where = run.evaluation.folder / HARD_CANDIDATES
        raise DataError(f"{where} names {missing}, which the training split does not have; evaluate again") from None
    candidates = [
        gallery.candidate(search, anchor, row, each["similarity"], each["rank"] + 1, each["probability"])
        for row, each in found
    ]
    if search == "i2t":
        return Example(gallery.own_text(anchor), gallery.picture(anchor), candidates)
    return Example(gallery.text(anchor), gallery.picture(int(gallery.split.caption_image[anchor])), candidates)
