"""What a search found as an HTML page: one file that needs no script, no network and no server."""

from __future__ import annotations

from collections.abc import Mapping

from itrpipe.report.page import page_environment
from itrpipe.report.pictures import Picture
from itrpipe.retrieval.answers import Answers

TEMPLATE = "search.html.j2"
CAPTIONS_SHOWN = 2
"""Captions shown with an image."""


def render(found: Answers, pictures: Mapping[str, Picture], query: Picture | None) -> str:
    """The page. Whatever comes from the dataset or the user is escaped.

    Args:
        found: what the search found.
        pictures: of all images that it names, by id.
        query: of the image that was searched with; None where a caption was.
    """
    return (
        page_environment()
        .get_template(TEMPLATE)
        .render(found=found, title=found.title, pictures=pictures, query=query, shown=CAPTIONS_SHOWN)
    )
