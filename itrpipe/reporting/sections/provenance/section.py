"""Commands, warnings, fingerprints and versions."""

from __future__ import annotations

from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import Provenance

TITLE, ORDER = "Provenance", 190
READS = ()


def view(source: Source) -> Provenance:
    """Shows everything that the runs were made from."""
    return source.provenance
