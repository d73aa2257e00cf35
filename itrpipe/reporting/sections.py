"""Sections of the page in their order: a template of the same name in `sections/` for each.

To add one: a row here, and its template, which sees the whole report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from itrpipe.reporting.content import Content, Group


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        name: stem of its template.
        short: what the list of sections at the top calls it.
        applies: whether a report has anything for it.
    """

    name: str
    short: str
    applies: Callable[[Content], object] = lambda _: True

    @property
    def anchor(self) -> str:
        """What links point to."""
        return self.name.replace("_", "-")

    @property
    def template(self) -> str:
        """Path below this folder."""
        return f"sections/{self.name}.html.j2"


def _some(wanted: Callable[[Group], object]) -> Callable[[Content], bool]:
    """Whether one of the test sets has something."""
    return lambda report: any(wanted(group) for group in report.groups)


SECTIONS = (
    Section("overview", "Overview"),
    Section("seeds", "Across seeds", _some(lambda group: group.seeds)),
    Section("results", "Results"),
    Section("differences", "Differences"),
    Section("matching", "Matching accuracy", _some(lambda group: group.matching.tables)),
    Section("alignment", "Alignment and uniformity", _some(lambda group: group.analyses.alignment)),
    Section("query_length", "Length of captions", _some(lambda group: group.analyses.query_length)),
    Section("curves", "Curves"),
    Section("mined", "Mined negatives"),
    Section("false_negatives", "False negatives", lambda report: report.false_negatives),
    Section("words", "Words", lambda report: report.phrases),
    Section("word_maps", "Word maps", lambda report: report.word_maps),
    Section("synthetic", "Synthetic sentences", lambda report: report.synthetic),
    Section("difficulty", "Difficulty", lambda report: report.difficulty),
    Section("wrong_words", "Wrong words", lambda report: report.wrong_words),
    Section("discrimination", "True or not", _some(lambda group: group.discrimination)),
    Section("retrieval", "Retrieval"),
    Section("cost", "Cost"),
    Section("provenance", "Provenance"),
)


def sections_of(report: Content) -> list[Section]:
    """Those that a report has something for."""
    return [section for section in SECTIONS if section.applies(report)]
