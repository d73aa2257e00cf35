"""All results in one table, and what they allow to say."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Overview", 10
READS = ()


def view(source: Source) -> Sequence[Group]:
    """Every group has one."""
    return source.groups
