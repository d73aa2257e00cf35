"""Every run against its round one."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Differences", 40
READS = ()


def view(source: Source) -> Sequence[Group]:
    """Every group has them, or says that there are none."""
    return source.groups
