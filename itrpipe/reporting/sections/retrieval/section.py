"""Queries with what was found for them."""

from __future__ import annotations

from dataclasses import dataclass

from itrpipe.reporting.collect import Run
from itrpipe.reporting.examples import Example, retrieval_examples
from itrpipe.reporting.sections.base import Source

TITLE, ORDER = "Retrieval", 170
READS = ()


@dataclass(frozen=True)
class Retrieval:
    """Retrieval examples.

    Attributes:
        run: whose they are.
        has_baseline: whether the rank in the first training is known.
        examples: by direction; empty when the dataset was removed.
    """

    run: Run
    has_baseline: bool
    examples: dict[str, list[Example]]


def view(source: Source) -> Retrieval:
    """Examples of the shown run."""
    shown, options = source.shown, source.options
    partners = {each.run.label: each.baseline for group in source.groups for each in group.comparisons}
    baseline = partners.get(shown.label)
    gallery = source.gallery(shown, shown.settings["split"])
    found = {} if gallery is None else retrieval_examples(shown, baseline, gallery, options.examples, options.seed)
    return Retrieval(shown, baseline is not None, found)
