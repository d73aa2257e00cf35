"""Draws of a model trained with FNE and how many are correct matches, against counting by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.analysis.questions import false_negatives
from itrpipe.analysis.questions.false_negatives import TrainingSet, analyse, drawn_matches
from itrpipe.datasets.truth import write_truth
from itrpipe.evaluation.tables import Number
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.learning.false_negatives import estimate_gaussians
from itrpipe.methods.fne.declaration import Fne
from tests.analysis.families import IMAGES, MATCH, OWNERS, assert_recorded, families

SETTINGS = Fne(
    memory_size=20, min_count=0, prior=0.3, mask_same_image=True, posterior_scale=4.0, window=False, monotone=True
)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return families()


@pytest.fixture
def gaussians(data: TrainingSet) -> Any:
    found = data.embeddings
    vectors = found.images, found.texts, found.caption_image
    return estimate_gaussians(*vectors, batch_size=16, mask_same_image=True, source="hardest", ties="none", floor=True)


@pytest.mark.parametrize("known", [True, False])
def test_matches_are_those_of_the_images_that_were_trained_on(
    data: TrainingSet, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, kept = data.embeddings, np.arange(0, IMAGES, 2)
    own = np.flatnonzero(OWNERS % 2 == 0)
    part = SplitEmbeddings(
        found.images[kept], found.image_ids[kept], found.texts[own], found.caption_ids[own], OWNERS[own] // 2,
        INNER_PRODUCT,
    )  # fmt: skip
    if known:
        images = found.image_ids.tolist()
        write_truth(tmp_path, {f"c{row}": [each for each in images if MATCH[int(each[1:]), row]] for row in own})
    monkeypatch.setattr(false_negatives, "read_embeddings", lambda path, split: part)
    seen = TrainingSet.open(tmp_path, tmp_path).is_match(np.arange(len(own)), np.arange(len(kept))[:, None])
    np.testing.assert_array_equal(seen, MATCH[kept][:, own] if known else None)


@pytest.mark.parametrize("known", [True, False])
def test_draws_and_hardest_candidates_are_those_that_were_recorded(data: TrainingSet, known: bool) -> None:
    """What was recorded was equal to counting many draws, and to a sort of all scores."""
    figures, table = analyse(data if known else TrainingSet(data.embeddings, None), SETTINGS, 16)
    rows = table.to_pylist()
    some = {name: [row[name] for row in rows[::37]] for name in rows[0]}
    assert_recorded(f"false negatives{'' if known else ', truth unknown'}", {"figures": figures, "rows": some}, 1e-4)
    for shown, digits in zip(false_negatives.SHOWN, ([1, 1, 3, 1, 3, 3] if known else [1],) * 2, strict=False):
        cells = shown.cells(figures).values()
        assert [cell.digits for cell in cells if isinstance(cell, Number)] == digits


def test_anchors_that_nothing_can_be_drawn_for_do_not_count(data: TrainingSet, gaussians: Any) -> None:
    """Without the fallback an anchor whose candidates all lie below the window draws nothing."""
    narrow = SETTINGS.model_copy(update={"window": True, "margin": 0.0, "fallback": False})
    for each in drawn_matches(data, narrow, gaussians, 16).values():
        assert 50 < each["drawn"] <= 100
