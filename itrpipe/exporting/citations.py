"""Which papers a model is of, as BibTeX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from itrpipe.papers import Paper


class Citing(Protocol):
    """Settings of a method or of a backbone."""

    def cited(self) -> tuple[Paper, ...]:
        """The papers that it comes from."""
        ...


def papers_of(method: Citing, backbone: Citing) -> list[Paper]:
    """The papers to cite for a model: those of its method, then those of its backbone, each once."""
    return list({paper.key: paper for paper in (*method.cited(), *backbone.cited())}.values())


def bibliography(papers: Iterable[Paper]) -> str:
    """Entries with an empty line between them."""
    return "\n\n".join(paper.bibtex for paper in papers)
