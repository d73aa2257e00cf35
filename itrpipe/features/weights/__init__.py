"""Weights that come with the package, and where they lie."""

from __future__ import annotations

from pathlib import Path

SCENES_DETECTOR = Path(__file__).with_name("scenes_detector.safetensors")
"""Detector of `itrpipe.features.extractors.scenes`; its metadata say how it was trained and how good it is."""
