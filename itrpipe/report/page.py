"""A report as a page, as text for a terminal, as Markdown and as JSON.

The page is one file that needs no script, no network and no server. The headline, one table and pictures come first;
all else is folded.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from itrpipe.config import leaves
from itrpipe.evaluation.tables import Table, as_json, as_lines, as_markdown, with_minus, wrapped
from itrpipe.printable import printable_lines
from itrpipe.report.comparisons import Comparison
from itrpipe.report.contents import ReportPage, Section
from itrpipe.report.names import value_text
from itrpipe.report.runs import EvaluatedRun

BEGIN, END = "<!-- itrpipe report {asked} -->", "<!-- end of itrpipe report -->"
"""The lines between which a document gets the tables of a dataset; or of a backbone, named behind it."""


def html(report: ReportPage) -> str:
    """Return the page. Whatever comes from a dataset is escaped; only the drawings of `plots` are taken as they are."""
    page = page_environment().get_template("page.html.j2").render(report=report)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", page)


def text(report: ReportPage) -> str:
    """Return the headline and the main table of each test set, as text for a terminal, and what is remarkable."""
    lines = wrapped(report.title)
    for test_set in report.test_sets:
        lines += ["", *wrapped(test_set.description), "", *wrapped(test_set.headline)]
        for note in test_set.notes:
            lines += wrapped(note)
        lines += as_lines(test_set.table)
    for section in report.sections:
        if section.open:
            for table in _tables(section):
                lines += ["", *as_lines(table)]
    return "\n".join(lines) + "\n"


def markdown(report: ReportPage) -> str:
    """Return the headline and the main table of each test set, for a README or a paper's repository."""
    paragraphs = []
    for test_set in report.test_sets:
        if len(report.test_sets) > 1:
            paragraphs.append(f"**{report.title}**: {test_set.description}.")
        paragraphs += [as_markdown(test_set.table), test_set.headline]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def insert_tables(
    document: str,
    asked: str,
    tables: str,
) -> str | None:
    """Return a document with the tables between the two lines that ask for them; None where it has no such lines.

    Args:
        document: its text.
        asked: dataset, or dataset and backbone with a space between.
        tables: Markdown.
    """
    begin = BEGIN.format(asked=asked)
    block = re.compile(f"^{re.escape(begin)}$.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)
    changed, count = block.subn(lambda _: f"{begin}\n\n{tables.strip()}\n\n{END}", document)
    return changed if count else None


def results(report: ReportPage) -> dict[str, Any]:
    """Return all numbers of a report but times, unrounded: `runs`, `claims` against baselines, and tables."""
    headlines, notes = [], []
    runs, comparisons, tables = [], [], []
    for test_set in report.test_sets:
        headlines.append(test_set.headline)
        notes.append(test_set.notes)
        compared = test_set.compared
        for series in compared.series:
            runs += map(_run_facts, series.runs)
        comparisons += compared.comparisons + compared.time_comparisons + compared.decision_comparisons
    for section in report.sections:
        if not section.timed:
            tables += map(as_json, _tables(section))
    return {
        "title": report.title,
        "dataset": report.dataset,
        "interval_level": report.level,
        "answers": headlines,
        "notes": notes,
        "runs": runs,
        "claims": list(map(_comparison_facts, comparisons)),
        "tables": tables,
        "removed": [artifact.path for artifact in report.removed],
    }


def _tables(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def _run_facts(run: EvaluatedRun) -> dict[str, Any]:
    data = run.prepare.manifest
    trained = run.model.settings
    setting: dict[str, Any] = {}
    if data is not None and trained:
        setting = {
            "train_share": trained.get("train_share"),
            "batch_size": trained.get("batch_size"),
            "training": data.metrics.get("train"),
            "data": {},
        }
        for key, value in leaves(data.settings):
            setting["data"][key] = value_text(value)
    not_as_declared = {}
    for key, departure in run.departures.items():
        not_as_declared[key] = asdict(departure)
    epochs, models = [], []
    for model in run.members:
        epochs.append(model.epochs)
        models.append(model.artifact.name)
    facts: dict[str, Any] = {
        "label": run.label,
        "name": run.name,
        "rerank": run.rerank,
        "artifact": run.evaluation.name,
        "shown_as": run.method,
        "baseline": bool(run.roles),
        "setting": setting,
    }
    for key in ("method", "backbone", "seed", "features", "split"):
        facts[key] = run.settings[key]
    facts |= {
        "not_as_declared": not_as_declared,
        "epochs": epochs,
        "models": models,
        "trained": dict(leaves(trained)),
    }
    for file in run.manifest.outputs:
        if file.endswith(".json"):
            facts[Path(file).stem] = run.wrote(file)
    return facts


def _comparison_facts(comparison: Comparison) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": comparison.series.name,
        "baseline": comparison.baseline.name,
        "runs": [run.label for run in comparison.series.runs],
        "seeds": comparison.seeds,
        "result": comparison.claim.word,
        "significant": comparison.claim.significant,
    }
    for side, differences in (("own", comparison.claim.differences), ("oracle", comparison.oracle)):
        facts[side] = differences
        if differences is not None:
            facts[side] = {name: difference.as_json() for name, difference in differences.items()}
    return facts


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
    environment.filters |= {
        "score": with_minus,
        "percent": percent,
        "kind": lambda part: type(part).__name__,
    }
    numbers = itertools.count(1)
    environment.globals["numbered"] = lambda: f"photo-{next(numbers)}"  # what links to an opened photograph lead to
    return environment


def _printable(value: Any) -> Any:
    """Return a value as `printable_lines`; what is safe HTML stays safe HTML."""
    return type(value)(printable_lines(value)) if isinstance(value, str) else value


def percent(share: float) -> str:
    """Return a share of 1 in percent, without digits that an estimate does not have; only 0 and 1 reach the ends."""
    if 0 < share < 0.01:
        return "< 1 %"
    if 0.99 < share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"
