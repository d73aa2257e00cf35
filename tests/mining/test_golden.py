"""Mined lists of fixed embeddings, held as sha256 of rows and scores; whole numbers, so that every machine agrees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import itrpipe
from itrpipe.mining.lists import MinedLists
from tests.mining.mine import FIELDS, mine, search, write_file
from tests.mining.test_rescoring import finished

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
EXACT: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["exact"]


def fixed(levels: int, owners: str = "some") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings [200, 16] and [900, 16] of whole numbers, whose products are exact; a tenth of the captions is
    nobody's."""
    generator = np.random.default_rng(58)
    images, texts = (generator.integers(-levels, levels + 1, (count, 16)) for count in (200, 900))
    own = generator.integers(0, 200, 900)
    texts[:] = (texts + images[own]) // 2
    own[generator.random(900) < 0.1] = -1
    if owners == "a bad sample":  # the first tile and the first images are the best of all
        texts[:200], images[:40] = abs(texts[:200]) + levels, abs(images[:40]) + levels
    return images.astype(np.float32), texts.astype(np.float32), own


def _rescored() -> MinedLists:
    with TemporaryDirectory() as folder:
        return finished(Path(folder))[0]


def summed(lists: MinedLists) -> list[str]:
    """The first digits of the sums of all four arrays."""
    arrays = [np.ascontiguousarray(getattr(lists, name)) for name in FIELDS]
    return [hashlib.sha256(f"{each.dtype}{each.shape}".encode() + each.tobytes()).hexdigest()[:16] for each in arrays]


CASES: dict[str, Callable[[], MinedLists]] = {
    f"{name}, {kind}": partial(lambda data, options: mine(*data(), 40, 12, **options), partial(fixed, *data), options)
    for name, options in EXACT.items()
    for kind, data in {"few ties": (300,), "many ties": (1,), "bad sample": (300, "a bad sample")}.items()
}
TEXTS = [f"a picture of {row % 37}" for row in range(900)]
LIMITS: dict[str, dict[str, Any]] = {
    "ranks": {"range_min": 3, "range_max": 30},
    "scores": {"min_score": 1.5e5, "max_score": 1.9e5},
    "absolute margin": {"absolute_margin": 1e5},
    "relative margin": {"relative_margin": 0.2},
    "duplicates": {"captions": TEXTS},
    "all": {"captions": TEXTS, "range_min": 1, "relative_margin": 0.1, "max_score": 1e6},
}
CASES |= {
    f"limit by {name}": partial(lambda limits: itrpipe.mine(*fixed(300), num_texts=40, num_images=12, **limits), limits)
    for name, limits in LIMITS.items()
}
EXACT_LIMITS: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["limits that are met"]
"""Scores that whole numbers reach, and so do many margins."""
CASES |= {
    f"{name} that is met": partial(
        lambda limits: itrpipe.mine(*fixed(1), num_texts=40, num_images=12, **limits), limits
    )
    for name, limits in EXACT_LIMITS.items()
}
CASES["rescored"] = _rescored


@pytest.mark.parametrize("case", CASES)
def test_lists_are_as_recorded(case):
    assert summed(CASES[case]()) == GOLDEN[case]


def test_a_flat_index_finds_the_recorded_lists_where_nothing_ties(tmp_path):
    pytest.importorskip("faiss")
    found = search(*fixed(300), 40, 12, block=170)
    assert summed(found) == GOLDEN["one tile, few ties"]
    write_file(tmp_path / "mined.arrays", found)
    assert hashlib.sha256((tmp_path / "mined.arrays").read_bytes()).hexdigest()[:16] == GOLDEN["file"]


if __name__ == "__main__":  # records the sums of lists anew
    GOLDEN |= {name: summed(case()) for name, case in CASES.items()}
    Path(__file__).with_name("golden.json").write_text(json.dumps(GOLDEN, indent=1) + "\n", encoding="utf-8")
