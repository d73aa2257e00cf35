"""Annotations together with what the reader decided on the user's behalf."""

from __future__ import annotations

from dataclasses import dataclass

from itrpipe.datasets.records import Annotations


@dataclass(frozen=True)
class NotedAnnotations(Annotations):
    """A dataset plus the decisions that its files did not settle.

    Attributes:
        notes: one line per decision that the user has to see (restval images moved to train, images
            split by hash, images without captions dropped), in the order they were taken.
    """

    notes: tuple[str, ...] = ()
