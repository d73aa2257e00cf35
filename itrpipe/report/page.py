"""A report as a page, as text for a terminal, as Markdown and as JSON.

The page is one file that needs no script, no network and no server. The answer, one table and pictures come first; all
else is folded.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from itrpipe.config import leaves
from itrpipe.evaluation.tables import (
    Table,
    as_json,
    as_lines,
    as_markdown,
    with_minus,
    wrapped,
)
from itrpipe.printable import printable_lines
from itrpipe.report.claims import Comparison
from itrpipe.report.contents import ReportPage
from itrpipe.report.names import shown
from itrpipe.report.runs import Run

BEGIN, END = "<!-- itrpipe report {asked} -->", "<!-- end of itrpipe report -->"
"""The lines between which a document gets the tables of a dataset; or of a backbone, named behind it."""


def html(report: ReportPage) -> str:
    """The page. Whatever comes from a dataset is escaped; only the drawings of `plots` are taken as they are."""
    page = page_environment().get_template("page.html.j2").render(report=report)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", page)


def text(report: ReportPage) -> str:
    """Return the answer and the main table of each test set, as text for a terminal, and what is remarkable."""
    lines = wrapped(report.title)
    for group in report.groups:
        lines += ["", *wrapped(group.description), "", *wrapped(group.answer)]
        for note in group.notes:
            lines += wrapped(note)
        lines += as_lines(group.table)
    for section in report.sections:
        for part in section.parts if section.open else ():
            if isinstance(part, Table):
                lines += ["", *as_lines(part)]
    return "\n".join(lines) + "\n"


def markdown(report: ReportPage) -> str:
    """The answer and the main table of each test set, for a README or a paper's repository."""
    parts = []
    for group in report.groups:
        several = f"**{report.title}**: {group.description}." if len(report.groups) > 1 else ""
        parts += [several, as_markdown(group.table), group.answer]
    return "\n\n".join(filter(None, parts)) + "\n"


def inserted(document: str, asked: str, tables: str) -> str | None:
    """A document with the tables between the two lines that ask for them; None where it has no such lines.

    Args:
        document: its text.
        asked: dataset, or dataset and backbone with a space between.
        tables: Markdown.
    """
    begin = BEGIN.format(asked=asked)
    block = re.compile(f"^{re.escape(begin)}$.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)
    found, count = block.subn(lambda _: f"{begin}\n\n{tables.strip()}\n\n{END}", document)
    return found if count else None


def results(report: ReportPage) -> dict[str, Any]:
    """Return all numbers of a report but times, unrounded: `runs`, `claims` against baselines, and tables."""
    runs, claims, tables = [], [], []
    for group in report.groups:
        runs += [_run(run) for each in group.series for run in each.all]
        claims += [_claim(each) for each in (*group.claims, *group.timed)]
    for section in report.sections:
        if not section.timed:
            tables += [as_json(part) for part in section.parts if isinstance(part, Table)]
    return {
        "title": report.title,
        "dataset": report.dataset,
        "interval_level": report.level,
        "answers": [group.answer for group in report.groups],
        "notes": [group.notes for group in report.groups],
        "runs": runs,
        "claims": claims,
        "tables": tables,
        "removed": [artifact.path for artifact in report.removed],
    }


def _run(run: Run) -> dict[str, Any]:
    data, trained = run.prepare.manifest, run.members[0].settings
    setting: dict[str, Any] = {}
    if data is not None and trained:
        setting = {
            "train_share": trained.get("train_share"),
            "batch_size": trained.get("batch_size"),
            "training": data.metrics.get("train"),
            "data": {key: shown(value) for key, value in leaves(data.settings)},
        }
    answers = {Path(file).stem: run.wrote(file) for file in run.manifest.outputs if file.endswith(".json")}
    return {
        "label": run.label,
        "name": run.name,
        "rerank": run.rerank,
        "artifact": run.evaluation.name,
        "shown_as": run.method,
        "baseline": bool(run.roles),
        "setting": setting,
        **{key: run.settings[key] for key in ("method", "backbone", "seed", "features", "split")},
        "not_as_declared": {key: asdict(each) for key, each in run.departures.items()},
        "epochs": [member.epochs for member in run.members],
        "models": [member.artifact.name for member in run.members],
        "trained": dict(leaves(trained)),
        **answers,
    }


def _claim(comparison: Comparison) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for side, differences in (("own", comparison.claim.differences), ("oracle", comparison.oracle)):
        sides[side] = differences and {name: each.as_json() for name, each in differences.items()}
    return {
        "model": comparison.series.name,
        "baseline": comparison.baseline.name,
        "runs": [run.label for run in comparison.series.all],
        "seeds": comparison.seeds,
        "result": comparison.claim.word,
        "significant": comparison.claim.significant,
        **sides,
    }


def page_environment(templates: Path = Path(__file__).parent / "templates") -> Environment:
    """Return the renderer of pages: values are escaped, and characters that would turn the text around written out."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": with_minus, "percent": percent, "kind": lambda part: type(part).__name__}
    numbers = itertools.count(1)
    environment.globals["numbered"] = lambda: f"photo-{next(numbers)}"  # what links to an opened photograph lead to
    return environment


def _printable(value: Any) -> Any:
    """A value as `printable_lines`; what is safe HTML stays safe HTML."""
    return type(value)(printable_lines(value)) if isinstance(value, str) else value


def percent(share: float) -> str:
    """A share of 1 in percent, without digits that an estimate does not have; the ends are only reached exactly."""
    if 0 < share < 0.01:
        return "< 1 %"
    if 0.99 < share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"
