"""The formats by name, and what is known of each before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """What is known of a format.

    Attributes:
        whole: a row tells of both directions, so that none can be chosen.
        paths: it names files of images instead of holding them.
        scores: it can leave scores out, and adds them on request.
        single: it is one file.
    """

    whole: bool = False
    paths: bool = True
    scores: bool = False
    single: bool = False


FORMATS = {
    "sentence-transformers": Format(scores=True),
    "negclip": Format(whole=True, single=True),
    "jsonl": Format(),
    "tevatron": Format(),
    "webdataset": Format(whole=True, paths=False),
}
