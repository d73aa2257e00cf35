"""Every run against its first training."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Differences", 40
READS = ()


def view(source: Source) -> Sequence[Group] | None:
    """Groups that have them, or say why there are none."""
    return [group for group in source.groups if group.conclusion] or None
