"""A report as plain text for the terminal and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import RECALLS, Comparison, excludes_zero, interval_text, signed
from itrpipe.reporting.content import Content, Group
from itrpipe.reporting.mined import TOPS
from itrpipe.reporting.tables import FULL, ORACLE

WIDTH = 100
"""Columns of a terminal that no line exceeds."""
_NAME, _NUMBER, _RSUM, _INTERVAL = 30, 7, 8, 20


def text(content: Content) -> str:
    """The tables of results and differences with what they allow to say."""
    lines = _wrapped(content.title)
    for group in content.groups:
        lines += ["", *_wrapped(group.description), *_results(group), *_differences(group, content.level)]
        lines += ["", *_wrapped(group.conclusion)]
    return "\n".join(lines) + "\n"


def results(content: Content, published: Mapping[str, Mapping[str, float | str]]) -> dict[str, Any]:
    """The same numbers, unrounded.

    Args:
        content: of the report.
        published: run label -> published metrics.

    Returns:
        `runs` with their metrics by protocol, `differences` of pairs of runs, `false_negatives` of mined lists.
    """
    comparisons = [each for group in content.groups for each in group.comparisons]
    return {
        "title": content.title,
        "dataset": content.dataset,
        "interval_level": content.level,
        "conclusions": [group.conclusion for group in content.groups],
        "runs": [_run(run, published) for group in content.groups for run in group.runs],
        "differences": [_comparison(each) for each in comparisons],
        "false_negatives": {
            each.artifact.name: _shares(each.shares) for each in content.mined.minings if each.shares is not None
        },
        "removed": [artifact.path for artifact in content.removed],
    }


def _results(group: Group) -> list[str]:
    levels = {run.settings["interval_level"] for run in group.runs}
    lines = ["", *_heading("run", "/".join(f"{100 * level:g} %" for level in sorted(levels)) + " interval")]
    for run in group.runs:
        lines.append(_line(run.name, run.metrics[FULL]))
    if any(ORACLE in run.metrics for run in group.runs):
        lines += ["", "with every true match counted as right"]
        lines += [_line(run.name, run.metrics[ORACLE]) for run in group.runs if ORACLE in run.metrics]
    return lines


def _differences(group: Group, level: float) -> list[str]:
    if not group.comparisons:
        return []
    lines = ["", *_heading("difference to round one", f"{100 * level:g} % interval")]
    lines += [_difference_line(each.run.name, each.own) for each in group.comparisons]
    oracle = [_difference_line(each.run.name, each.oracle) for each in group.comparisons if each.oracle]
    if oracle:
        lines += ["", "with every true match counted as right", *oracle]
    marked = any("*" in line for line in lines)
    return [*lines, *(["* the interval of the difference excludes zero"] if marked else [])]


def _heading(first: str, interval: str) -> list[str]:
    names = "".join(f"R@{name.rpartition('r')[2]}".rjust(_NUMBER) for name in RECALLS[:3])
    above = " " * _NAME + "image to text".rjust(len(names)) + "text to image".rjust(len(names))
    below = first.ljust(_NAME) + names * 2 + "RSum".rjust(_RSUM) + f"  {interval}"
    return [above, below, "-" * (_NAME + 2 * len(names) + _RSUM + _INTERVAL)]


def _line(name: str, metrics: Mapping[str, Mapping[str, float]]) -> str:
    numbers = [f"{metrics[recall]['value']:.1f} " for recall in RECALLS]
    rsum = metrics["rsum"]
    return _row(name, numbers, f"{rsum['value']:.1f} ", f"{rsum['low']:.1f} to {rsum['high']:.1f}")


def _difference_line(name: str, differences: Mapping[str, Interval]) -> str:
    numbers = [_marked(differences[recall]) for recall in RECALLS]
    return _row(name, numbers, _marked(differences["rsum"]), interval_text(differences["rsum"]))


def _row(name: str, numbers: Sequence[str], rsum: str, interval: str) -> str:
    """The last character of every number is a blank or a mark, so that digits stand below each other."""
    shown = name if len(name) < _NAME else f"{name[: _NAME - 2]}…"
    columns = "".join(number.rjust(_NUMBER) for number in numbers)
    return f"{shown:<{_NAME}}{columns}{rsum.rjust(_RSUM)}  {interval}"


def _marked(interval: Interval) -> str:
    return signed(interval.value) + ("*" if excludes_zero(interval) else " ")


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH) or [""]


def _run(run: Run, published: Mapping[str, Mapping[str, float | str]]) -> dict[str, Any]:
    keys = ("method", "backbone", "seed", "features", "split")
    return {
        "label": run.label,
        "name": run.name,
        "artifact": run.evaluation.name,
        **{key: run.settings[key] for key in keys},
        "metrics": run.metrics,
        "published": dict(published.get(run.label, {})),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "run": comparison.run.label,
        "baseline": comparison.baseline.label,
        FULL: _intervals(comparison.own),
        ORACLE: None if comparison.oracle is None else _intervals(comparison.oracle),
    }


def _intervals(differences: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": each.value, "low": each.low, "high": each.high, "excludes_zero": excludes_zero(each)}
        for name, each in differences.items()
    }


def _shares(shares: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Percent of true matches among the hardest candidates."""
    return {
        name: {f"top_{top}": percent for top, percent in zip(TOPS, percents, strict=True)}
        for name, percents in shares.items()
    }
