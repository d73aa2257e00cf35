"""Which sentences a model tells from true ones: generators of negative sentences against evaluated runs.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Table 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from itrpipe.declared import conf_title
from itrpipe.reporting.asked import Asked, Figures, asked_tables, counted
from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import SpannedTable
from itrpipe.reporting.titles import method_title
from itrpipe.storage.artifact import DISCRIMINATION

TITLE, ORDER = "True or not", 160
READS = (DISCRIMINATION,)
_INPUT = "sentences_"


def view(source: Source) -> list[tuple[Group, list[SpannedTable]]] | None:
    """Groups with a run that was asked."""
    found = [(group, discrimination_tables(group.series)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def discrimination_tables(series: Sequence[Series[Run]]) -> list[SpannedTable]:
    """A row for every generator and a column for every method, in several tables where there are many.

    Args:
        series: of all runs on one test set.
    """
    return asked_tables(_ASKED, series)


def generator_title(name: str) -> str:
    """For people: `phrases.tags.s1` is what its configuration is shown as, who wrote it, and the seed."""
    conf, *rest = name.split(".")
    details = [
        f"seed {part[1:]}" if re.fullmatch("s[0-9]+", part) else f"written by {method_title(part, '')}" for part in rest
    ]
    return ", ".join([conf_title("synthesize", conf) or conf, *details])


def _figures(run: Run) -> Figures:
    return {name: found["percent"] for name, found in (run.figures(DISCRIMINATION) or {}).items()}


def _note(generator: str, runs: Sequence[Run]) -> str:
    """How many sentences there are, and whether the runs were measured with the same ones."""
    found = [(run.figures(DISCRIMINATION) or {})[generator] for run in runs]
    counts = [each["sentences"] for each in found if each["percent"] is not None] or [0]
    read = {run.manifest.inputs[f"{_INPUT}{generator}"].fingerprint for run in runs}
    return counted(min(counts), max(counts), "sentences", alike=len(read) == 1)


_ASKED = Asked(
    "Sentences told from their captions",
    "Negative sentences that were made of captions of the split; in percent, how many score below their caption "
    "with its image. Ties count as wrong; 50 % is chance.",
    _figures,
    generator_title,
    _note,
)
