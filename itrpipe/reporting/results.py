"""A report's numbers as JSON for programs, unrounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from itrpipe.config import leaves
from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.claims import Difference, excludes_zero
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import Comparison
from itrpipe.reporting.content import Content, Group
from itrpipe.reporting.departures import shown
from itrpipe.reporting.expected import Published
from itrpipe.reporting.sections.mined.section import TOPS
from itrpipe.reporting.seeds import SeedComparison, SeedScores, Spread
from itrpipe.reporting.tables import FULL, ORACLE
from itrpipe.storage.artifact import (
    ALIGNMENT,
    BENCHMARKS,
    DISCRIMINATION,
    ECCV_CAPTION,
    FALSE_NEGATIVES,
    MATCHING,
    QUERY_LENGTH,
    WORDS,
)


def results(content: Content, published: Sequence[Published]) -> dict[str, Any]:
    """All numbers of a report.

    Args:
        content: of the report.
        published: scores of whichever run.

    Returns:
        `runs` with their metrics by protocol, `differences` of pairs of runs, `seeds` of methods over seeds (one
        entry for each test set that has some), `matching` of methods likewise, and `false_negatives` of mined lists.
    """
    comparisons = [each for group in content.groups for each in group.comparisons]
    mined = content.view("mined")
    minings = [] if mined is None else mined.minings
    return {
        "title": content.title,
        "dataset": content.dataset,
        "interval_level": content.level,
        "conclusions": [group.conclusion for group in content.groups],
        "runs": [_run(run, published) for group in content.groups for run in group.runs],
        "differences": [_comparison(each) for each in comparisons],
        "seeds": [_seeds(group) for group in content.groups if group.seeds],
        "matching": [_matching_scores(group) for group in content.groups if group.matching.scores],
        "false_negatives": {each.artifact.name: _shares(each.shares) for each in minings if each.shares is not None},
        "removed": [artifact.path for artifact in content.removed],
    }


def _run(run: Run, published: Sequence[Published]) -> dict[str, Any]:
    keys = ("method", "backbone", "seed", "features", "split")
    return {
        "label": run.label,
        "name": run.name,
        "rerank": run.rerank,
        "artifact": run.evaluation.name,
        "shown_as": run.method,
        "baseline": run.is_about_training,
        "setting": _setting(run),
        **{key: run.settings[key] for key in keys},
        "not_as_declared": {key: asdict(each) for key, each in run.departures.items()},
        "epochs": [member.epochs for member in run.members],
        "models": [member.artifact.name for member in run.members],
        "metrics": run.metrics,
        "matching": run.figures(MATCHING),
        "estimated_false_negatives": run.figures(FALSE_NEGATIVES),
        "words": run.figures(WORDS),
        "discrimination": run.figures(DISCRIMINATION),
        "benchmarks": run.figures(BENCHMARKS),
        "query_length": run.figures(QUERY_LENGTH),
        "alignment": run.figures(ALIGNMENT),
        "eccv_caption": run.figures(ECCV_CAPTION),
        "published": [each.model_dump() for each in published if each.run in (run.label, run.evaluation.name)],
    }


def _setting(run: Run) -> dict[str, Any]:
    """What a run shares with those that it is fair to compare it with; empty where a part was removed."""
    data, trained = run.prepare.manifest, run.members[0].artifact.manifest
    if data is None or trained is None:
        return {}
    of_data = {key: shown(value) for key, value in leaves(data.settings)}
    of_training = {key: trained.settings.get(key) for key in ("train_share", "batch_size")}
    return {"training": data.metrics.get("train"), **of_training, "data": of_data}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "run": comparison.run.label,
        "baseline": comparison.baseline.label,
        FULL: _intervals(comparison.own),
        ORACLE: None if comparison.oracle is None else _intervals(comparison.oracle),
    }


def _seeds(group: Group) -> dict[str, Any]:
    assert group.seeds is not None
    found = group.seeds.found
    return {
        "test_set": group.description,
        "scores": [_seed_scores(each) for each in found.scores],
        "differences": [_seed_comparison(each) for each in found.comparisons],
        "conclusions": group.seeds.conclusions,
        "missing": found.missing,
        "removed": found.removed,
    }


def _seed_scores(scores: SeedScores) -> dict[str, Any]:
    sides = {FULL: scores.own, ORACLE: scores.oracle}
    return {
        "name": scores.series.name,
        "runs": [run.label for run in scores.series.all],
        "seeds": scores.seeds,
        **{side: None if each is None else {k: asdict(v) for k, v in each.items()} for side, each in sides.items()},
        "training_seconds": scores.seconds,
    }


def _matching_scores(group: Group) -> dict[str, Any]:
    return {
        "test_set": group.description,
        "scores": [
            {
                "name": each.series.name,
                "runs": [run.label for run in each.runs],
                "seeds": [run.seed for run in each.runs],
                **{choice: _spreads(sides) for choice, sides in each.values.items()},
            }
            for each in group.matching.scores
        ],
    }


def _spreads(sides: Mapping[str, Mapping[str, Spread | None]]) -> dict[str, dict[str, Any]]:
    return {
        side: {name: None if each is None else asdict(each) for name, each in values.items()}
        for side, values in sides.items()
    }


def _seed_comparison(comparison: SeedComparison) -> dict[str, Any]:
    sides = {FULL: comparison.own, ORACLE: comparison.oracle}
    return {
        "method": comparison.series.name,
        "reference": comparison.reference.name,
        "seeds": comparison.seeds,
        **{side: None if each is None else _both_intervals(each, side == FULL) for side, each in sides.items()},
    }


def _both_intervals(differences: Mapping[str, Difference], judged: bool) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "value": each.value,
            "over_seeds": None if each.seeds is None else {"low": each.seeds.low, "high": each.seeds.high},
            "over_images": {"low": each.images.low, "high": each.images.high},
            "p_value": each.p_value,
            **({"significant": each.significant} if judged and name == "rsum" else {}),
        }
        for name, each in differences.items()
    }


def _intervals(differences: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": each.value, "low": each.low, "high": each.high, "excludes_zero": excludes_zero(each)}
        for name, each in differences.items()
    }


def _shares(shares: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Percent of correct matches among the hardest candidates."""
    return {
        name: {f"top_{top}": percent for top, percent in zip(TOPS, percents, strict=True)}
        for name, percents in shares.items()
    }
