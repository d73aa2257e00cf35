"""What several seeds of a method tell together."""

from __future__ import annotations

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Across seeds", 20
READS = ()


def view(source: Source) -> list[Group] | None:
    """Groups in which a method has two seeds."""
    return [group for group in source.groups if group.seeds] or None
