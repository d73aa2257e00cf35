"""Tables of results, differences, costs and provenance, as the page and the terminal show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.claims import excludes_zero
from itrpipe.evaluation.protocols import PROTOCOLS
from itrpipe.exporting.places import command_without_places, text_without_places
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.comparisons import COMPARED, Comparison, interval_text, signed
from itrpipe.reporting.departures import listed
from itrpipe.reporting.expected import Published
from itrpipe.storage.artifact import read_manifest

FULL, ORACLE = "full", "oracle"
DASH = "\N{EN DASH}"
COLUMNS = {
    "i2t_r1": "R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "i2t_median_rank": "median rank",
    "t2i_r1": "R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
    "t2i_median_rank": "median rank",
    "rsum": "RSum",
}
"""Metrics of a results table with their headings, in the order of the columns."""
_LISTED = 3
"""Settings of a run that stand below its name; the overview has more."""


@dataclass(frozen=True)
class Cell:
    """One number.

    Attributes:
        heading: of its column, for a narrow page with the direction.
        text: the number.
        interval: below it, or empty.
        marked: best of its column, significant, or with an interval that excludes zero.
    """

    heading: str
    text: str
    interval: str = ""
    marked: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether there is a number."""
        return self.text != DASH


@dataclass(frozen=True)
class Row:
    """One line of a table: a run, or what was published for it."""

    name: str
    cells: list[Cell]
    note: str = ""
    published: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its explanation.

    Attributes:
        title: above it.
        columns: their headings.
        rows: runs or pairs of runs.
        caption: below it.
    """

    title: str
    columns: list[str]
    rows: list[Row]
    caption: str = ""


@dataclass(frozen=True)
class SpannedTable:
    """A table whose columns stand in groups.

    Attributes:
        table: the numbers.
        spans: headings of the groups, each with its number of columns.
    """

    table: Table
    spans: list[tuple[str, int]]


@dataclass(frozen=True)
class Provenance:
    """Where results come from.

    Attributes:
        artifacts: all of them; a removed one has no manifest.
        seconds: total of all artifacts that exist.
        versions: package -> versions that took part, usually one.
        commands: in the order in which they finished, each once.
        messages: artifact path and warning.
    """

    artifacts: list[Artifact]
    seconds: float
    versions: dict[str, list[str]]
    commands: list[str]
    messages: list[tuple[str, str]] = field(default_factory=list)


def result_tables(runs: Sequence[Run], published: Sequence[Published]) -> list[Table]:
    """One table for every protocol that the runs of a test set were evaluated with.

    Args:
        runs: of one test set.
        published: scores of whichever run, shown below the measured ones of the same protocol.
    """
    protocols = dict.fromkeys(name for run in runs for name in run.metrics)
    ordered = sorted(protocols, key=[FULL, ORACLE, *PROTOCOLS].index)
    return [
        _result_table(runs, protocol, [each for each in published if each.protocol == protocol]) for protocol in ordered
    ]


def difference_tables(comparisons: Sequence[Comparison], level: float) -> list[Table]:
    """Differences in recall and RSum, first with the own image as the only match, then with all correct matches.

    Args:
        comparisons: of one test set.
        level: of their intervals, for the caption.
    """
    percent = f"{100 * level:g} %"
    columns = [COLUMNS[name] for name in COMPARED]
    own = Table(
        "Own image or caption right",
        columns,
        [_difference_row(each, each.own) for each in comparisons],
        f"Percentage points, later training minus the first training, with paired {percent} bootstrap intervals. "
        "Bold: the interval excludes zero. Images are resampled, so the intervals speak of the choice of images, "
        "not of the seed of training, and no difference between single runs is called significant.",
    )
    rows = [_difference_row(each, each.oracle) for each in comparisons if each.oracle]
    oracle = Table("All correct matches counted", columns, rows, "The same, with all correct matches counted.")
    return [table for table in (own, oracle) if table.rows]


def provenance(artifacts: Sequence[Artifact]) -> Provenance:
    """Reads costs, versions, commands and messages off the manifests."""
    known = [(each, each.manifest) for each in artifacts if each.manifest is not None]
    versions: dict[str, list[str]] = {}
    for _, manifest in known:
        for package, version in manifest.versions.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    by_time = sorted(known, key=lambda pair: pair[1].finished)
    return Provenance(
        artifacts=list(artifacts),
        seconds=sum(manifest.timings["total"] for _, manifest in known),
        versions=dict(sorted(versions.items())),
        commands=list(dict.fromkeys(command_without_places(manifest.command) for _, manifest in by_time)),
        messages=[(each.path, text_without_places(text)) for each, manifest in known for text in manifest.messages],
    )


def commands_behind(folders: Iterable[Path]) -> list[str]:
    """The command lines that made artifacts and all that they were made from and is still there, without places."""
    found = [(folder, read_manifest(folder)) for folder in folders]
    chains = [Artifact(each.stage, folder.name, each.fingerprint, folder, each).chain() for folder, each in found]
    return provenance([each for chain in chains for each in chain]).commands


def number(metric: str, value: float) -> str:
    """A metric as papers print it: recalls with one digit, ranks whole."""
    return f"{value:.0f}" if metric.endswith("rank") else f"{value:.1f}"


def duration(value: float) -> str:
    """A duration: `0.23 s`, `48.5 s`, `12 min 05 s` or `3 h 20 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def heading(metric: str) -> str:
    """`i→t R@1`: what a number is called where no column head stands above it."""
    direction, short = metric.partition("_")[0], COLUMNS[metric].removesuffix(" rank")
    return f"{direction[0]}→{direction[2]} {short}" if direction in DIRECTIONS else short


def _result_table(runs: Sequence[Run], protocol: str, published: Sequence[Published]) -> Table:
    shown = [run for run in runs if protocol in run.metrics]
    best = _best(run.metrics[protocol] for run in shown) if len(shown) > 1 else {}
    rows = []
    for run in shown:
        values = run.metrics[protocol]
        cells = [_result_cell(metric, values[metric], best) for metric in COLUMNS]
        rows.append(Row(run.name, cells, _note(run)))
        own = [each for each in published if each.run in (run.label, run.evaluation.name)]
        rows += [_published_row(each) for each in own if not each.scores.keys().isdisjoint(COLUMNS)]
    title, caption = _describe(protocol, runs, any(row.published for row in rows))
    if protocol == FULL:
        rows.append(chance_row(shown[0], COLUMNS))
    return Table(title, list(COLUMNS.values()), rows, f"{caption} Bold: best of the column." if best else caption)


def _note(run: Run) -> str:
    """The run's label, and what of its settings is not as declared."""
    return "; ".join(filter(None, [run.label, listed(run.departures, _LISTED)]))


def _describe(protocol: str, runs: Sequence[Run], published: bool) -> tuple[str, str]:
    levels = " or ".join(f"{100 * level:g} %" for level in sorted({run.settings["interval_level"] for run in runs}))
    intervals = f"Below each number its {levels} bootstrap interval over the images."
    quoted = " Published rows are quoted, not measured." if published else ""
    if protocol == FULL:
        return "Own image or caption right", f"Recall in percent, the whole split ranked at once. {intervals}{quoted}"
    if protocol == ORACLE:
        return (
            "All correct matches counted",
            "A caption can be true of several images. Here each of them counts as right, "
            f"so a model is not charged for finding another correct match. {intervals}",
        )
    return f"Protocol {protocol}", f"Recall in percent: {PROTOCOLS[protocol].description}.{quoted}"


def _best(metrics: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """The best value of each column, as it is shown, where not all are equal."""
    values = [{metric: float(number(metric, each[metric]["value"])) for metric in COLUMNS} for each in metrics]
    columns = {metric: {each[metric] for each in values} for metric in COLUMNS}
    return {metric: (min if metric.endswith("rank") else max)(own) for metric, own in columns.items() if len(own) > 1}


def _result_cell(metric: str, value: Mapping[str, float], best: Mapping[str, float]) -> Cell:
    interval = ""
    if "low" in value:
        interval = f"{number(metric, value['low'])}{DASH}{number(metric, value['high'])}"
    shown = number(metric, value["value"])
    return Cell(heading(metric), shown, interval, float(shown) == best.get(metric))


def chance_row(run: Run, metrics: Iterable[str]) -> Row:
    """What a random order may expect of these metrics."""
    images, captions = run.size
    values = random_recalls(images, captions)
    cells = [Cell(heading(name), number(name, values[name]) if name in values else DASH) for name in metrics]
    return Row("chance", cells, f"a random order of {images:,} images and {captions:,} captions", published=True)


def _published_row(published: Published) -> Row:
    scores = published.scores
    cells = [Cell(heading(metric), number(metric, scores[metric]) if metric in scores else DASH) for metric in COLUMNS]
    return Row("published", cells, published.source, published=True)


def _difference_row(comparison: Comparison, differences: Mapping[str, Interval]) -> Row:
    cells = [
        Cell(heading(name), signed(each.value), interval_text(each), excludes_zero(each))
        for name, each in ((name, differences[name]) for name in COMPARED)
    ]
    return Row(comparison.run.name, cells, f"{_note(comparison.run)} against {_note(comparison.baseline)}")
