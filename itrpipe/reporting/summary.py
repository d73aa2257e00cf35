"""A report as plain text for the terminal and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.comparisons import RECALLS, Comparison, excludes_zero, interval_text, signed
from itrpipe.reporting.content import AcrossSeeds, Content, Group
from itrpipe.reporting.discrimination import generator_title
from itrpipe.reporting.expected import Published
from itrpipe.reporting.matching import MEASURES, NEGATIVES, MatchingScores
from itrpipe.reporting.mined import TOPS
from itrpipe.reporting.seeds import Difference, SeedComparison, SeedScores, Spread
from itrpipe.reporting.tables import FULL, ORACLE, Table, duration
from itrpipe.reporting.wrong_words import HEADINGS, figure_of

WIDTH = 100
"""Columns of a terminal that no line exceeds."""
_NAME, _NUMBER, _RSUM, _COST, _WORD_NUMBER, _PRECISION = 30, 7, 8, 13, 11, 10
_RULE = "-" * WIDTH


def text(content: Content) -> str:
    """The tables of results and differences with what they allow to say."""
    lines = _wrapped(content.title)
    for group in content.groups:
        lines += ["", *_wrapped(group.description), *_results(group), *_differences(group, content.level)]
        lines += ["", *_wrapped(group.conclusion), *(_across_seeds(group.seeds, content.level) if group.seeds else [])]
        lines += [*_matching(group.matching.scores), *_words(group.runs), *_discrimination(group.runs)]
    return "\n".join(lines) + "\n"


def results(content: Content, published: Sequence[Published]) -> dict[str, Any]:
    """The same numbers, unrounded.

    Args:
        content: of the report.
        published: scores of whichever run.

    Returns:
        `runs` with their metrics by protocol, `differences` of pairs of runs, `seeds` of methods over seeds (one
        entry for each test set that has some), `matching` of methods likewise, `false_negatives` of mined lists.
    """
    comparisons = [each for group in content.groups for each in group.comparisons]
    return {
        "title": content.title,
        "dataset": content.dataset,
        "interval_level": content.level,
        "conclusions": [group.conclusion for group in content.groups],
        "runs": [_run(run, published) for group in content.groups for run in group.runs],
        "differences": [_comparison(each) for each in comparisons],
        "seeds": [_seeds(group) for group in content.groups if group.seeds],
        "matching": [_matching_scores(group) for group in content.groups if group.matching.scores],
        "false_negatives": {
            each.artifact.name: _shares(each.shares) for each in content.mined.minings if each.shares is not None
        },
        "removed": [artifact.path for artifact in content.removed],
    }


def _results(group: Group) -> list[str]:
    levels = {run.settings["interval_level"] for run in group.runs}
    lines = ["", *_heading("run", "/".join(f"{100 * level:g} %" for level in sorted(levels)) + " interval")]
    for run in group.runs:
        lines += _line(run.name, run.metrics[FULL])
    if any(ORACLE in run.metrics for run in group.runs):
        lines += ["", "with every true match counted as right"]
        lines += [line for run in group.runs if ORACLE in run.metrics for line in _line(run.name, run.metrics[ORACLE])]
    return [*lines, *(line for each in group.analyses.precision for line in _precision(each.table))]


def _precision(table: Table) -> list[str]:
    """A table of the report as it is, direction by direction."""
    headings = [cell.heading for cell in table.rows[0].cells]
    lines = ["", f"{table.title.lower()}, in percent"]
    lines += ["run".ljust(_NAME) + "".join(heading.rjust(_PRECISION) for heading in headings), _RULE]
    for row in table.rows:
        lines += _row(row.name, ["".join(cell.text.rjust(_PRECISION) for cell in row.cells)], "", "")
    return lines


def _differences(group: Group, level: float) -> list[str]:
    if not group.comparisons:
        return []
    lines = ["", *_heading("difference to round one", f"{100 * level:g} % interval")]
    for each in group.comparisons:
        lines += _difference_line(each.run.name, each.own)
    oracle = [
        line for each in group.comparisons if each.oracle for line in _difference_line(each.run.name, each.oracle)
    ]
    if oracle:
        lines += ["", "with every true match counted as right", *oracle]
    marked = any("*" in line for line in lines)
    return [*lines, *(["* the interval of the difference excludes zero"] if marked else [])]


def _across_seeds(seeds: AcrossSeeds, level: float) -> list[str]:
    """Mean scores beside their cost, mean differences with both intervals, and what these allow to say."""
    found = seeds.found
    lines = [*_mean_scores(found.scores), *_mean_differences(found.comparisons, level)]
    lines += ["", *_wrapped(seeds.meaning)] if found.comparisons else []
    for sentence in found.missing:
        lines += _wrapped(sentence)
    if found.removed:
        lines += _wrapped(f"Left out, because their models were removed: {'; '.join(found.removed)}.")
    return [*lines, *_wrapped(found.summary)] if found.summary else lines


def _mean_scores(scores: Sequence[SeedScores]) -> list[str]:
    title = "means over seeds, RSum with its standard deviation, training of a later round with that of round one"
    columns = f"{'method':<{_NAME}}{_recall_names() * 2}{'RSum'.rjust(_RSUM - 1)}{'training'.rjust(_COST + 8)}"
    lines = ["", title, columns, _RULE]
    for each in scores:
        deviation = each.own["rsum"].deviation
        spread = "" if deviation is None else f" ± {deviation:.1f}"
        cost = "-" if each.seconds is None else duration(each.seconds)
        numbers = [f"{each.own[recall].mean:.1f} " for recall in RECALLS]
        rsum = f"{each.own['rsum'].mean:.1f}".rjust(_RSUM - 1)
        lines += _row(each.series.name, numbers, f"{rsum}{spread:<8}{cost.rjust(_COST)}", "")
    return lines


def _mean_differences(comparisons: Sequence[SeedComparison], level: float) -> list[str]:
    if not comparisons:
        return []
    lines = ["", f"{'mean difference over seeds':<{_NAME}}{_recall_names() * 2}{'RSum'.rjust(_RSUM - 1)}", _RULE]
    lines += _mean_difference_lines([(each, each.own) for each in comparisons], level)
    oracle = [(each, each.oracle) for each in comparisons if each.oracle]
    if oracle:
        lines += ["", "with every true match counted as right", *_mean_difference_lines(oracle, level)]
    return lines


def _mean_difference_lines(shown: Sequence[tuple[SeedComparison, Mapping[str, Difference]]], level: float) -> list[str]:
    lines, name = [], ""
    for comparison, differences in shown:
        if comparison.series.name != name:
            name = comparison.series.name
            lines += _wrapped(name)
        rsum = differences["rsum"]
        numbers = [f"{signed(differences[recall].value)} " for recall in RECALLS]
        lines += _row(f" against {comparison.reference.method}", numbers, f"{signed(rsum.value)} ", "")
        verdict = f"a real {'gain' if rsum.value > 0 else 'loss'}" if rsum.is_real else "not shown to be real"
        seeds, images = interval_text(rsum.seeds), interval_text(rsum.images)
        lines += _wrapped(f"{100 * level:g} % over seeds {seeds}, over test images {images}: {verdict}", indent="   ")
    return lines


def _matching(scores: Sequence[MatchingScores]) -> list[str]:
    """One line for every run and choice of negatives."""
    lines = []
    columns = "".join(name.rjust(_NUMBER + 1) for name in MEASURES)
    for choice, title in NEGATIVES.items() if scores else ():
        sides = "".join(side.rjust(len(columns)) for side in ("image to text", "text to image"))
        lines += ["", f"matching accuracy in percent, {title.lower()}", " " * _NAME + sides]
        lines += ["run".ljust(_NAME) + columns * 2, _RULE]
        for run, measured in ((run, run.matching) for each in scores for run in each.runs):
            assert measured is not None
            values = [measured[choice][side][name] for side in DIRECTIONS for name in MEASURES]
            numbers = [("-" if value is None else f"{value:.1f}").rjust(_NUMBER + 1) for value in values]
            lines += _row(run.name, numbers, "", "")
    return lines


def _words(runs: Sequence[Run]) -> list[str]:
    """One line for every run that judged words."""
    judged = [(run.name, run.words) for run in runs if run.words is not None]
    if not judged:
        return []
    lines = ["", "words told right and corrected, and sentences ranked below their caption, in percent"]
    lines += ["run".ljust(_NAME) + "".join(map(_wide, HEADINGS.values())), _RULE]
    for name, words in judged:
        figures = [figure_of(words, key) for key in HEADINGS]
        numbers = [_wide("-" if each is None or each[0] is None else f"{each[0]:.1f}") for each in figures]
        lines += _row(name, ["".join(numbers)], "", "")
    return lines


def _discrimination(runs: Sequence[Run]) -> list[str]:
    """One line for every run and generator of sentences."""
    measured = [(run.name, *each) for run in runs for each in (run.discrimination or {}).items()]
    if not measured:
        return []
    lines = ["", "sentences that score below their caption, in percent"]
    lines += ["run".ljust(_NAME) + "sentences of".ljust(_NAME) + "told".rjust(_RSUM) + "  interval", _RULE]
    for name, generator, found in measured:
        percent = found["percent"]
        told = "-" if percent is None else f"{percent['value']:.1f}"
        interval = "" if percent is None else f"{percent['low']:.1f} to {percent['high']:.1f}"
        lines += _row(name, [generator_title(generator).ljust(_NAME)], told, interval)
    return lines


def _wide(text: str) -> str:
    return text.rjust(_WORD_NUMBER)


def _recall_names() -> str:
    return "".join(f"R@{name.rpartition('r')[2]}".rjust(_NUMBER) for name in RECALLS[:3])


def _heading(first: str, interval: str) -> list[str]:
    names = _recall_names()
    above = " " * _NAME + "image to text".rjust(len(names)) + "text to image".rjust(len(names))
    below = first.ljust(_NAME) + names * 2 + "RSum".rjust(_RSUM) + f"  {interval}"
    return [above, below, _RULE]


def _line(name: str, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    numbers = [f"{metrics[recall]['value']:.1f} " for recall in RECALLS]
    rsum = metrics["rsum"]
    return _row(name, numbers, f"{rsum['value']:.1f} ", f"{rsum['low']:.1f} to {rsum['high']:.1f}")


def _difference_line(name: str, differences: Mapping[str, Interval]) -> list[str]:
    numbers = [_marked(differences[recall]) for recall in RECALLS]
    return _row(name, numbers, _marked(differences["rsum"]), interval_text(differences["rsum"]))


def _row(name: str, numbers: Sequence[str], rsum: str, interval: str) -> list[str]:
    """The last character of every number is a blank or a mark, so that digits stand below each other.

    A name that is too long for its column has a line of its own.
    """
    columns = "".join(number.rjust(_NUMBER) for number in numbers)
    values = f"{columns}{rsum.rjust(_RSUM)}  {interval}".rstrip()
    return [f"{name:<{_NAME}}{values}"] if len(name) <= _NAME else [*_wrapped(name), f"{'':<{_NAME}}{values}"]


def _marked(interval: Interval) -> str:
    return signed(interval.value) + ("*" if excludes_zero(interval) else " ")


def _wrapped(sentence: str, *, indent: str = "") -> list[str]:
    return textwrap.wrap(sentence, WIDTH, initial_indent=indent, subsequent_indent=indent) or [""]


def _run(run: Run, published: Sequence[Published]) -> dict[str, Any]:
    keys = ("method", "backbone", "seed", "features", "split")
    return {
        "label": run.label,
        "name": run.name,
        "rerank": run.rerank,
        "artifact": run.evaluation.name,
        **{key: run.settings[key] for key in keys},
        "models": [member.artifact.name for member in run.members],
        "metrics": run.metrics,
        "matching": run.matching,
        "estimated_false_negatives": run.false_negatives,
        "words": run.words,
        "discrimination": run.discrimination,
        "query_length": run.query_length,
        "alignment": run.alignment,
        "eccv_caption": run.eccv_caption,
        "published": [each.model_dump() for each in published if each.run in (run.label, run.evaluation.name)],
    }


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
        "conclusions": found.conclusions,
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
        **{side: None if each is None else _both_intervals(each) for side, each in sides.items()},
    }


def _both_intervals(differences: Mapping[str, Difference]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "value": each.value,
            "over_seeds": {"low": each.seeds.low, "high": each.seeds.high},
            "over_images": {"low": each.images.low, "high": each.images.high},
            "is_real": each.is_real,
        }
        for name, each in differences.items()
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
