"""Tables of what several seeds tell: mean scores beside their cost, and mean differences with both intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from itrpipe.evaluation.claims import Difference
from itrpipe.reporting.comparisons import COMPARED, interval_text, signed
from itrpipe.reporting.seeds import SeedComparison, SeedScores, Spread
from itrpipe.reporting.tables import COLUMNS, DASH, Cell, Row, Table, duration, heading, number
from itrpipe.reporting.verdicts import RULE

COST = "training"
TRUE_RSUM = "RSum, all correct matches"


def score_table(scores: Sequence[SeedScores]) -> Table:
    """Mean scores with their standard deviations and the cost of training, best RSum first."""
    has_truth = any(each.oracle for each in scores)
    columns = [*(COLUMNS[name] for name in COMPARED), *([TRUE_RSUM] if has_truth else []), COST]
    return Table(
        "Mean scores and cost",
        columns,
        [_score_row(each, has_truth) for each in scores],
        "Mean ± standard deviation over seeds, own image or caption right, sorted by RSum. Training: mean time of one "
        "seed, with the models, mined lists and sentences that it was made from.",
    )


def difference_tables(comparisons: Sequence[SeedComparison], level: float) -> list[Table]:
    """Mean differences, first with the own image as the only match, then with all correct matches.

    Args:
        comparisons: of one test set.
        level: of their intervals, for the headings.
    """
    percent = f"{100 * level:g} %"
    intervals = [f"{percent} over seeds", f"{percent} over images"]
    columns = [*(COLUMNS[name] for name in COMPARED), *intervals]
    own = Table(
        "Own image or caption right",
        columns,
        [_difference_row(each, each.own, intervals) for each in comparisons],
        "Mean over seeds of the differences between two runs with the same seed, in percentage points; the intervals "
        "are those of RSum.",
    )
    rows = [_difference_row(each, each.oracle, intervals) for each in comparisons if each.oracle]
    oracle = Table("All correct matches counted", columns, rows, "The same, with all correct matches counted.")
    return [table for table in (own, oracle) if table.rows]


def meaning(level: float) -> str:
    """What the two intervals ask, and what they do not."""
    percent = f"{100 * level:g} %"
    return (
        f"Two things were left to chance. The {percent} interval over seeds (Student t over the differences of the "
        "single seeds, with one degree of freedom less than there are seeds) tells what other seeds could have given "
        f"on these images. The {percent} interval over images (paired bootstrap; the same resampled images "
        f"for all seeds) tells what other images could have given with these seeds. {RULE}"
    )


def _score_row(scores: SeedScores, has_truth: bool) -> Row:
    cells = [_spread_cell(heading(name), name, scores.own[name]) for name in COMPARED]
    if has_truth:
        oracle = scores.oracle
        cells.append(_spread_cell(TRUE_RSUM, "rsum", oracle["rsum"]) if oracle else Cell(TRUE_RSUM, DASH))
    cells.append(Cell(COST, DASH if scores.seconds is None else duration(scores.seconds)))
    return Row(scores.series.name, cells, _seeds(scores))


def _seeds(scores: SeedScores) -> str:
    if not scores.series.first.has_one_seed:
        return "an ensemble of several seeds, once"
    plural = "seed" if len(scores.seeds) == 1 else "seeds"
    return f"{plural} {', '.join(map(str, scores.seeds))}"


def _spread_cell(title: str, metric: str, spread: Spread) -> Cell:
    deviation = "" if spread.deviation is None else f"± {spread.deviation:.1f}"
    return Cell(title, number(metric, spread.mean), deviation)


def _difference_row(comparison: SeedComparison, differences: Mapping[str, Difference], intervals: Sequence[str]) -> Row:
    rsum = differences["rsum"]
    cells = [
        Cell(heading(name), signed(differences[name].value), marked=name == "rsum" and rsum.significant)
        for name in COMPARED
    ]
    both = (rsum.seeds, rsum.images)
    cells += [Cell(title, interval_text(each)) for title, each in zip(intervals, both, strict=True) if each]
    note = f"against {comparison.reference.method}; seeds {', '.join(map(str, comparison.seeds))}"
    return Row(comparison.series.name, cells, note)
