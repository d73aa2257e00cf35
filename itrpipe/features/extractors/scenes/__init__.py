"""Extractor `scenes`: the region detector of the embedded dataset, its training, and where its weights lie."""

from itrpipe.features.extractors.scenes.extractor import build

__all__ = ["build"]
