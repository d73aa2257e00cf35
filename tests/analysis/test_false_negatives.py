"""Estimated false negatives of a model trained with FNE, against figures that were recorded."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.analysis.questions import false_negatives
from itrpipe.analysis.questions.false_negatives import analyse
from itrpipe.datasets.truth import PairSet
from itrpipe.methods.fne.declaration import Fne
from tests.analysis.families import IMAGES, MATCH, assert_recorded, families

SETTINGS = Fne(
    memory_size=20, min_count=0, prior=0.3, mask_same_image=True, posterior_scale=4.0, window=False, monotone=True
)


@pytest.mark.parametrize("known", [True, False])
def test_hardest_candidates_are_those_that_were_recorded(known: bool) -> None:
    """What was recorded was equal to a sort of all scores."""
    matches = PairSet.of(*np.nonzero(MATCH.T), IMAGES) if known else None
    figures = analyse(families(), matches, SETTINGS, 16)
    assert_recorded(f"false negatives{'' if known else ', truth unknown'}", {"figures": figures}, 1e-4)
    cells = false_negatives.SHOWN[0].cells(figures).values()
    assert [cell is not None for cell in cells] == 2 * [True, known]
