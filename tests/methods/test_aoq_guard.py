"""AOQ with lists that say how likely each candidate is a false negative."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from itrpipe.errors import UsageError
from itrpipe.methods.aoq import method as aoq
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.negatives.lists import FILES, PROBABILITY_OF
from tests.methods.toys import KnownPairs

ROWS = KnownPairs()


def lists() -> dict[str, np.ndarray]:
    """The first of each list is a match for certain."""
    found = ROWS.lists()
    for direction in FILES:
        probability = np.zeros(found[direction].shape, np.float16)
        probability[:, 0] = 1
        found[PROBABILITY_OF + direction] = probability
    return found


def drawn_first(**settings: object) -> float:
    """Share of the anchors whose drawn text is the first of its list."""
    method = aoq.build(Aoq(top_texts=4, top_images=3, redraw=False, **settings), ROWS, lists())  # type: ignore[arg-type]
    first = hits = 0
    for seed in range(40):
        batch = method.collate(np.arange(12), np.random.default_rng(seed))
        texts = batch.pairs["offline"][1].tokens[:, 0].numpy()
        hits += int((texts == lists()["texts_for_images"][ROWS.caption_image, 0]).sum())
        first += len(texts)
    return hits / first


def test_false_negatives_are_kept_weighed_or_dropped():
    assert drawn_first() == pytest.approx(0.25, abs=0.06)
    assert drawn_first(false_negatives="weigh") < 0.02
    assert drawn_first(false_negatives="drop", drop_above=0.9) == 0
    assert drawn_first(false_negatives="drop", drop_above=1.0) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("choice", ["weigh", "drop"])
def test_lists_without_probabilities_are_refused(choice):
    without = {direction: each for direction, each in lists().items() if direction in FILES}
    aoq.build(Aoq(top_texts=4, top_images=3), ROWS, without)
    with pytest.raises(UsageError, match="mine them with `itrpipe mine-negatives --guard fne`"):
        aoq.build(Aoq(top_texts=4, top_images=3, false_negatives=choice), ROWS, without)


def test_coupled_ranks_cannot_be_weighed():
    with pytest.raises(ValidationError, match="coupled ranks are drawn alike"):
        Aoq(coupled=True, false_negatives="weigh")
    assert Aoq(coupled=True, false_negatives="drop").drop_above == 0.5
