"""Extractor `butd`: the bottom-up-attention detector of Visual Genome."""

from itrpipe.features.extractors.butd.extractor import build

__all__ = ["build"]
