"""How often runs tell pairs from their negatives."""

from __future__ import annotations

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Matching accuracy", 50
READS = ()


def view(source: Source) -> list[Group] | None:
    """Groups in which a run measured it."""
    return [group for group in source.groups if group.matching.tables] or None
