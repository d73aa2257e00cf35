"""What every artifact cost."""

from __future__ import annotations

from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import Provenance

TITLE, ORDER = "Cost", 180
READS = ()


def view(source: Source) -> Provenance:
    """Shows what everything cost that the runs were made from."""
    return source.provenance
