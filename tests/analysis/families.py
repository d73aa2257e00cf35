"""Images of families that look alike, and captions that are true of a whole family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings

IMAGES = 36
FAMILY = np.repeat(np.arange(12), 3)
OWNERS = np.sort(np.r_[np.arange(IMAGES), np.arange(IMAGES), np.arange(0, IMAGES, 3)])
"""Two captions of every image, and three of every third one."""
MATCH = FAMILY[:, None] == FAMILY[OWNERS]
"""[N, T]."""


def families() -> SplitEmbeddings:
    """Their embeddings, of images `i0`, `i1` … with captions `c0`, `c1` …"""
    rng = np.random.default_rng(0)
    images = (2 * rng.standard_normal((12, 24)))[FAMILY] + 0.8 * rng.standard_normal((IMAGES, 24))
    texts = images[OWNERS] + 2.4 * rng.standard_normal((len(OWNERS), 24))
    sides = {}
    for name, vectors in (("i", images), ("c", texts)):
        unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        sides[name] = unit, np.array([f"{name}{row}" for row in range(len(unit))])
    return SplitEmbeddings(*sides["i"], *sides["c"], OWNERS, INNER_PRODUCT)


def numbers(value: Any, path: str = "") -> dict[str, Any]:
    """Path -> number, or what else is there, of nested figures."""
    if not isinstance(value, dict | list):
        return {path: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: each for key, part in pairs for name, each in numbers(part, f"{path}/{key}").items()}


def assert_recorded(case: str, found: Any, tolerance: float) -> None:
    """Figures are those that a loop over all pairs gave."""
    expected = numbers(json.loads(Path(__file__).with_name("golden.json").read_text())[case])
    assert numbers(found) == pytest.approx(expected, abs=tolerance)
