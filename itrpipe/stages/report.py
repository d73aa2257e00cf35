"""`itrpipe report`: one self-contained HTML page over evaluated runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.stages.base import Need, no_sources

SCHEMA_VERSION = 1
PAGE, SUMMARY, RESULTS = "index.html", "summary.txt", "results.json"
sources = no_sources


class ReportSettings(Settings):
    """What the page shows.

    Attributes:
        title: of the page; empty for the dataset's name.
        examples: how many retrieval examples and mined negatives.
        seed: of their choice.
        bootstrap_samples, interval_level: of paired differences between runs.
        published: run label -> published metrics, shown beside the measured ones.
    """

    title: str
    examples: int = Field(ge=0)
    seed: int = Field(ge=0)
    bootstrap_samples: int = Field(ge=100)
    interval_level: float = Field(gt=0, lt=1)
    published: dict[str, dict[str, float | str]]


class Execution(Settings):
    """A report has no settings that leave the result alone."""


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `ReportSettings`."""
    return ReportSettings


def label(conf: str, settings: ReportSettings) -> str:
    """The configuration's name."""
    return conf


def needs(settings: ReportSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Nothing by itself: the evaluations are named by whoever asks for the report."""
    return {}
