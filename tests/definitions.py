"""Datasets that tests know without having prepared them, and settings as they are declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from itrpipe.config import load_declaration, resolve
from itrpipe.datasets.definition import DatasetDefinition, redefine
from itrpipe.synthesis.generators import MAKERS


def save_definition(root: Path, dataset: str, definition: DatasetDefinition) -> None:
    """Lets a dataset be just this."""
    redefine(root, dataset, lambda _: definition)


def sentence_settings(conf: str, **changed: Any) -> Any:
    """The settings of a writer of sentences."""
    resolved = resolve(load_declaration("synthesize"), conf)
    resolved.merge(changed, "test")
    return MAKERS[resolved.values["maker"]].model_validate(resolved.values)
