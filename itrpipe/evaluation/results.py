"""The figures of one evaluation: every protocol with its intervals, as they are written, printed and summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from itrpipe.datasets.truth import PairSet
from itrpipe.evaluation.intervals import fold_intervals, mean_intervals
from itrpipe.evaluation.metrics import (
    CUTOFFS,
    PROTOCOLS,
    RECALLS,
    RSUM,
    SIDES,
    Ranks,
    metrics,
    precision_of_matches,
    protocol_folds,
    random_recalls,
    ranks_of_matches,
    remedy_of_chance,
)
from itrpipe.evaluation.tables import Number, Row, Table, as_lines
from itrpipe.features.embeddings import SplitScores

FULL, ORACLE = "full", "oracle"
Figures = dict[str, dict[str, float]]
"""Metric -> value, low and high; of median ranks the value alone."""


def results(
    split: SplitScores,
    full: Ranks,
    oracle: Ranks | None,
    matches: PairSet | None,
    settings: Any,
    warn: Callable[[str], None],
) -> dict[str, Figures]:
    """Figures by protocol, `oracle` among them where all correct matches are known.

    Args:
        split: scores.
        full: ranks with a caption's own image as its only match.
        oracle, matches: ranks with all correct matches counted, and these, where they are known.
        settings: of the evaluation.
        warn: is told of protocols that need more images.
    """
    images = len(split.matrix)
    found = {FULL: _recalls([(full, split.caption_image)], settings)}
    for name in settings.protocols:
        if (least := PROTOCOLS[name].images) > images:
            warn(f"{name} needs {least:,} images, {settings.split} has {images:,}")
        elif name != FULL:
            found[name] = _recalls(protocol_folds(name, split.matrix, split.caption_image), settings)
    if oracle is not None and matches is not None:
        found[ORACLE] = with_matches(split, oracle, matches, settings)
    return found


def with_matches(split: SplitScores, ranks: Ranks, matches: PairSet, settings: Any) -> Figures:
    """Recalls by ranks of the best of several matches, and mAP@R and R-Precision of all of them, in percent."""
    found = _recalls([(ranks, split.caption_image)], settings)
    pairs, images = (matches.image_rows, matches.caption_rows), len(split.matrix)
    sides = (split.matrix, pairs, np.arange(images)), (split.matrix.T, pairs[::-1], split.caption_image)
    for side, (scores, own, query_image) in zip(SIDES, sides, strict=True):
        precision = zip(("map_at_r", "r_precision"), precision_of_matches(scores, *own), strict=True)
        percent = {f"{side}_{name}": 100.0 * values for name, values in precision}
        measured = mean_intervals(percent, query_image, images, settings.bootstrap_samples, settings.interval_level)
        found |= {name: each._asdict() for name, each in measured.items()}
    return found


def _recalls(folds: Sequence[tuple[Ranks, np.ndarray]], settings: Any) -> Figures:
    measured = [metrics(ranks) for ranks, _ in folds]
    means = {name: {"value": sum(each[name] for each in measured) / len(folds)} for name in measured[0]}
    found = fold_intervals(folds, settings.bootstrap_samples, settings.interval_level)
    return means | {name: each._asdict() for name, each in found.items()}


def oracle_ranks(split: SplitScores, matches: PairSet) -> Ranks:
    """Ranks of the best correct match, with all correct matches of a caption, and of an image, counted."""
    return ranks_of_matches(split.matrix, matches.image_rows, matches.caption_rows)


def results_text(results: Mapping[str, Figures], level: float, size: tuple[int, int]) -> str:
    """Recalls and RSum under every protocol, below them their intervals, and what chance gives, as lines.

    Args:
        results: of an evaluation.
        level: share of resampled test sets that its intervals hold.
        size: images and captions of the split.
    """
    names, chance = [*RECALLS, RSUM], random_recalls(*size)
    rows = [Row(name, [Number.of(values[each]) for each in names]) for name, values in results.items()]
    rows.append(Row("chance", [Number(chance[each]) for each in names]))
    columns = [f"{side[0]}→{side[2]} R@{k}" for side in SIDES for k in CUTOFFS] + ["RSum"]
    told = f"; {ORACLE}: all correct matches counted" if ORACLE in results else ""
    title = f"In percent, with {100 * level:g} % bootstrap intervals over images{told}"
    lines = as_lines(Table(title, columns, rows, head=""))
    if results[FULL][RSUM]["low"] <= chance[RSUM]:
        told = "This model is at chance: the interval of its RSum reaches down to that of random answers"
        lines += ["", f"{told}; {remedy_of_chance(size[0])}."]
    return "\n".join(lines)


def summed_up(results: Mapping[str, Figures]) -> dict[str, Any]:
    """The numbers that tables of artifacts show."""
    full = {name: figure["value"] for name, figure in results[FULL].items()}
    recalls = {f"{side} R@1/5/10": " / ".join(f"{full[f'{side}_r{k}']:.1f}" for k in CUTOFFS) for side in SIDES}
    return recalls | {f"{name} rsum": values[RSUM]["value"] for name, values in results.items()}
