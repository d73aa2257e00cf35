"""Selection of the products that reach a threshold, against a plain comparison."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.mining.products import reaching

NUMBERS = [float("-inf"), -2.0, -0.5, -0.0, 0.0, 0.5, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(data=st.data())
def test_either_threshold_admits_a_score_and_own_pairs_never_enter(dtype, data):
    def draw(count: int) -> torch.Tensor:
        return torch.tensor(data.draw(st.lists(st.sampled_from(NUMBERS), min_size=count, max_size=count)))

    scores, rows, columns = draw(12).reshape(3, 4).to(dtype), draw(3), draw(4)
    expected = (scores.float() >= rows[:, None]) | (scores.float() >= columns)
    expected &= scores.float() > float("-inf")
    row, column = reaching(scores, rows, columns)
    assert torch.stack([row, column], dim=1).tolist() == expected.nonzero().tolist()


def test_a_threshold_is_rounded_as_the_scores_were():
    sums = torch.tensor([[0.3001, 0.2999, 0.2]])
    row, column = reaching(sums.bfloat16(), torch.tensor([0.3]), torch.tensor([float("inf")] * 3))
    assert (row.tolist(), column.tolist()) == ([0, 0], [0, 1])  # 0.2999 rounds to the same 8 bits as 0.3
