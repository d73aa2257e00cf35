"""Every measured score, published ones below it."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Results", 30
READS = ()


def view(source: Source) -> Sequence[Group]:
    """Every group has them."""
    return source.groups
