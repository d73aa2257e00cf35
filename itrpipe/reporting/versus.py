"""Two models against each other: what one finds more of, for which queries, and in which settings they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.config import leaves
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.bootstrap import Interval
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import DIRECTIONS, Run, collect
from itrpipe.reporting.comparisons import COMPARED, check_rankings, interval_text, signed
from itrpipe.reporting.departures import Declared, shown
from itrpipe.reporting.examples import Example, Gallery, example_of
from itrpipe.reporting.groups import Options, describe_test_set
from itrpipe.reporting.library import Library
from itrpipe.reporting.plots import Plot, differences
from itrpipe.reporting.seeds import SeedComparison, by_seed, compared, judged, pairs_by_seed
from itrpipe.reporting.series import Series, series_of
from itrpipe.reporting.tables import COLUMNS, FULL, ORACLE, Cell, Row, SpannedTable, Table, chance_row, heading
from itrpipe.reporting.verdicts import versus
from itrpipe.storage.artifact import Manifest
from itrpipe.training.settings import READ_UNTRAINED

_SPANS = [("Image → text", 3), ("Text → image", 3), ("", 1)]


@dataclass(frozen=True)
class Both:
    """A query as both models answer it; `after` knows the rank that `before` gives to the right answer."""

    before: Example
    after: Example


@dataclass(frozen=True)
class Versus:
    """What a page over two models says.

    Attributes:
        title, dataset, test_set, level: its heading, and the level of its intervals.
        comparison: the second against the first.
        answer: whether the second is better.
        evidence: differences of all recalls.
        tables: the scores of both with their difference, own image right, then all correct matches.
        turned: how many queries are answered right at the first place by one of them alone.
        examples: direction -> `better` and `worse` -> queries whose right answer moved furthest up, or down.
        settings: key, and the values of both, where these differ.
    """

    title: str
    dataset: str
    test_set: str
    level: float
    comparison: SeedComparison
    answer: str
    evidence: Plot
    tables: list[SpannedTable]
    turned: Table
    examples: dict[str, dict[str, list[Both]]]
    settings: list[tuple[str, str, str]]

    @property
    def before(self) -> Series[Run]:
        """The first model, of every seed."""
        return self.comparison.reference

    @property
    def after(self) -> Series[Run]:
        """The second one."""
        return self.comparison.series


def compare_two(
    evaluations: Iterable[tuple[Path, Manifest]],
    first: Collection[str],
    baseline_method: str,
    options: Options,
    declared: Declared,
    names: Mapping[str, str],
    find_root: Callable[[Artifact], Path | None],
) -> Versus:
    """Compares two models on the images that both were evaluated on.

    Args:
        evaluations: folders of the evaluations of both, of one seed or several, with their manifests.
        first: names of the folders of the first model.
        baseline_method: the method of the first training.
        options: of the report.
        declared: settings of an artifact's configuration by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.

    Raises:
        UsageError: they were not evaluated on the same images, share no seed, or are no two models.
        DataError: an artifact is damaged, or the dataset was removed.
    """
    found = collect(evaluations, baseline_method, declared, names)
    if len(found) > 1:
        sets = "; ".join(describe_test_set(runs[0]) for runs in found.values())
        raise UsageError(f"--compare: the models were evaluated on different images ({sets}); evaluate both on one")
    ((test_set, runs),) = found.items()
    before, after = _two(series_of(runs), first)
    if not (pairs := pairs_by_seed(before, after)):
        raise UsageError(f"--compare: {before.name} and {after.name} share no seed; evaluate both with one")
    prepare = runs[0].prepare
    if prepare.manifest is None:
        raise DataError(f"{prepare.path} was removed, and with it which captions belong to which image")
    library = Library(prepare, find_root(prepare))
    check_rankings(runs, library.split(test_set.split))
    caption_image = library.split(test_set.split).caption_image
    comparison = compared(after, before, caption_image, options.bootstrap_samples, options.interval_level)
    ((comparison,),) = judged([[comparison]])
    shown = next(iter(pairs.values()))
    return Versus(
        options.title or f"{after.name} against {before.name}",
        runs[0].manifest.dataset,
        describe_test_set(runs[0]),
        options.interval_level,
        comparison,
        versus(comparison),
        _evidence(comparison),
        _tables(comparison, options.interval_level),
        _turned([*pairs.values()], _short(before, "first model"), _short(after, "second model")),
        _examples(*shown, library.gallery(test_set.split), options.examples),
        _settings(*shown),
    )


def _two(series: Sequence[Series[Run]], first: Collection[str]) -> tuple[Series[Run], Series[Run]]:
    """The first model and the second, each of whichever seeds.

    Raises:
        UsageError: a name stands for models of several settings, or both for one.
    """
    sides = [
        [each for each in series if any((run.evaluation.name in first) is side for run in each.all)]
        for side in (True, False)
    ]
    for side in sides:
        if len(side) > 1:
            folders = ", ".join(run.evaluation.name for each in side for run in each.all)
            raise UsageError(f"--compare: one name stands for {len(side)} models; name one of the folders {folders}")
    (before,), (after,) = sides
    if before is after:
        raise UsageError(f"--compare: both are {before.name}, which differ in nothing but their seed")
    return before, after


def _evidence(comparison: SeedComparison) -> Plot:
    """Differences of every recall and, on a scale of its own in the caption, of their sum."""
    rows = [Interval(each.value, each.images.low, each.images.high) for each in comparison.own.values()]
    names = [heading(name) for name in comparison.own]
    return differences("versus", "Difference in percentage points", names[:-1], rows[:-1])


def _tables(comparison: SeedComparison, level: float) -> list[SpannedTable]:
    columns = [COLUMNS[name] for name in COMPARED]
    tables = []
    captions = {
        FULL: f"Mean over seeds; of the difference the {100 * level:g} % interval over images. Bold: it excludes zero.",
        ORACLE: "The same, with all correct matches counted.",
    }
    for protocol, found in ((FULL, comparison.own), (ORACLE, comparison.oracle)):
        if found is None:
            continue
        rows = [
            Row(
                each.name,
                [Cell(heading(name), f"{_mean(each, comparison.seeds, protocol, name):.1f}") for name in found],
            )
            for each in (comparison.reference, comparison.series)
        ]
        cells = []
        for name, difference in found.items():
            excludes = difference.images.low > 0 or difference.images.high < 0
            cells.append(Cell(heading(name), signed(difference.value), interval_text(difference.images), excludes))
        title = "Own image or caption right" if protocol == FULL else "All correct matches counted"
        rows.append(Row("difference", cells))
        chance = [chance_row(comparison.series.first, COMPARED)] if protocol == FULL else []
        tables.append(SpannedTable(Table(title, columns, [*rows, *chance], captions[protocol]), list(_SPANS)))
    return tables


def _mean(series: Series[Run], seeds: Sequence[int], protocol: str, metric: str) -> float:
    """Over the seeds that were compared; of what was not trained there is one."""
    runs = [run for seed, run in by_seed(series).items() if seed in seeds or run.is_untrained]
    return float(np.mean([run.metrics[protocol][metric]["value"] for run in runs]))


def _short(series: Series[Run], usual: str) -> str:
    """What the user calls a model, or which of the two it is."""
    return series.first.members[0].named or usual


def _turned(pairs: Sequence[tuple[Run, Run]], first: str, second: str) -> Table:
    """Percent of the queries of each direction, mean over seeds."""
    rows, columns = [], ["both", f"{second} alone", f"{first} alone", "neither"]
    for direction, title in DIRECTIONS.items():
        shares = []
        for before, after in pairs:
            old, new = (run.rankings[direction].rank == 0 for run in (before, after))
            shares.append([(old & new).mean(), (~old & new).mean(), (old & ~new).mean(), (~old & ~new).mean()])
        means = 100 * np.mean(shares, axis=0)
        rows.append(Row(title, [Cell(name, f"{value:.1f}") for name, value in zip(columns, means, strict=True)]))
    caption = "Percent of the queries whose right answer stands first with which of the two models."
    return Table("What changed", columns, rows, caption)


def _examples(before: Run, after: Run, gallery: Gallery, count: int) -> dict[str, dict[str, list[Both]]]:
    """Queries of each direction by how far their right answer moved, as a ratio of ranks."""
    found: dict[str, dict[str, list[Both]]] = {}
    for direction in DIRECTIONS:
        ranks = [run.rankings[direction].rank + 1.0 for run in (before, after)]
        moved = np.log(ranks[0] / ranks[1])
        order = np.argsort(-moved, kind="stable")
        half = (count + 1) // 2
        chosen = {
            "better": [int(query) for query in order[:half] if moved[query] > 0],
            "worse": [int(query) for query in order[::-1][:half] if moved[query] < 0],
        }
        found[direction] = {
            kind: [
                Both(
                    example_of(before, None, gallery, direction, query),
                    example_of(after, before, gallery, direction, query),
                )
                for query in queries
            ]
            for kind, queries in chosen.items()
        }
    return found


def _settings(before: Run, after: Run) -> list[tuple[str, str, str]]:
    """Settings of training that differ, by dotted key; `-` where one model has no such setting."""
    old, new = (_trained(run) for run in (before, after))
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key, ...) != new.get(key, ...)]
    first, second = ([shown(side[key]) if key in side else "-" for key in keys] for side in (old, new))
    return list(zip(keys, first, second, strict=True))


def _trained(run: Run) -> dict[str, Any]:
    """What its models were trained with, by dotted key; of one that was not trained what it is."""
    found: dict[str, Any] = {}
    for number, member in enumerate(run.members, 1):
        manifest = member.artifact.manifest
        settings = {} if manifest is None else manifest.settings
        if member.is_untrained:
            settings = {key: value for key, value in settings.items() if key in READ_UNTRAINED}
        prefix = f"model {number} " if number > 1 else ""
        found |= {f"{prefix}{key}": value for key, value in leaves(settings)}
    return found
