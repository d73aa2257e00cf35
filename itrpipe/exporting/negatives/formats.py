"""The formats by name, and how each is read."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itrpipe.exporting.negatives.base import Format


@dataclass(frozen=True)
class Description:
    """What is known of a format before anything is opened.

    Attributes:
        module: below this package.
        name: of its class there.
        whole: a row tells of both directions, so that none can be chosen.
        paths: it names files of images instead of holding them.
        scores: it can leave scores out, and adds them on request.
        single: it is one file.
    """

    module: str
    name: str
    whole: bool = False
    paths: bool = True
    scores: bool = False
    single: bool = False

    def load(self) -> type[Format]:
        """The class that writes it."""
        return getattr(importlib.import_module(f"itrpipe.exporting.negatives.{self.module}"), self.name)


FORMATS = {
    "sentence-transformers": Description("sentence_transformers", "SentenceTransformers", scores=True),
    "negclip": Description("negclip", "Negclip", whole=True, single=True),
    "jsonl": Description("jsonl", "Jsonl"),
    "tevatron": Description("tevatron", "Tevatron"),
    "webdataset": Description("webdataset", "Webdataset", whole=True, paths=False),
}
