"""Alignment and uniformity against distances of all pairs, one by one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from itrpipe.analysis.questions import alignment
from itrpipe.analysis.questions.alignment import alignment_and_uniformity


@pytest.mark.parametrize("values", [1 << 22, 40])
def test_figures_are_those_of_all_pairs(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_BLOCK_VALUES", values)
    random = np.random.default_rng(0)
    owner = random.permutation(np.concatenate([np.arange(9), random.integers(0, 9, 20)]))
    images, texts = random.standard_normal((9, 6)), random.standard_normal((29, 6)) * 3
    found = alignment_and_uniformity(images, texts, owner)
    v, w = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (images, texts))
    firsts = [int(np.flatnonzero(owner == image)[0]) for image in range(9)]
    expected: dict[str, Any] = {
        "image_text": [np.linalg.norm(v[image] - w[row]) for row, image in enumerate(owner)],
        "text_text": [np.linalg.norm(w[a] - w[b]) for a, b in combinations(range(29), 2) if owner[a] == owner[b]],
        "images": [np.linalg.norm(v[a] - v[b]) for a, b in combinations(range(9), 2)],
        "texts": [np.linalg.norm(w[a] - w[b]) for a, b in combinations(firsts, 2)],
    }
    assert found.keys() == expected.keys()
    for name, distances in expected.items():
        assert found[name]["pairs"] == len(distances)
        assert found[name]["mean"] == pytest.approx(np.mean(distances))
        assert found[name]["variance"] == pytest.approx(np.var(distances))


def test_where_there_are_no_pairs_there_is_no_mean() -> None:
    found = alignment_and_uniformity(*np.ones((2, 3, 4)), np.arange(3))["text_text"]
    assert found == {"pairs": 0, "mean": None, "variance": None}
