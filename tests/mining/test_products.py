"""Selection of the products that reach a threshold, against a plain comparison; norms of what is multiplied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.mining import products
from itrpipe.mining.products import measured_norms, reaching
from tests.mining.mine import held

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


# Norms


def vectors() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal((rows, 6)).astype(np.float32) for rows in (9, 30))  # type: ignore


@pytest.mark.parametrize("at_once", [1, 4, 1_000])
def test_norms_are_those_of_every_vector_and_of_what_rounding_takes(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(products, "rows_at_once", lambda values: at_once)
    monkeypatch.setattr(products, "_NORM_ROWS", at_once)
    images, texts = vectors()
    found = measured_norms(*held(images, texts), tmp_path / "norms.arrays")
    for side, values in ((found.images, images), (found.texts, texts)):
        lost = values - torch.from_numpy(values).bfloat16().float().numpy()
        expected = np.stack([np.linalg.norm(values, axis=1), np.linalg.norm(lost, axis=1)], axis=1)
        np.testing.assert_allclose(side.read(0, len(values)), expected, rtol=1e-5)
        np.testing.assert_allclose(side.of(np.array([2, 3, 7])), expected[[2, 3, 7]], rtol=1e-5)
        assert side.largest == pytest.approx(expected[:, 0].max(), rel=1e-6)


def test_norms_are_measured_once_and_damage_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "norms.arrays"
    measured_norms(*held(*vectors()), path)
    monkeypatch.setattr(products, "_measure", lambda *more: pytest.fail("measured again"))
    measured_norms(*held(*vectors()), path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="does not match its own checksum"):
        measured_norms(*held(*vectors()), path)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("side", "name"), [(0, "1 of 9 image"), (1, "1 of 30 caption")])
def test_vectors_that_are_none_are_refused_and_nothing_is_kept(tmp_path, side, name, broken):
    both = vectors()
    both[side][4, 2:4] = broken
    with pytest.raises(DataError, match=f"{name} embeddings hold NaN or infinity"):
        measured_norms(*held(*both), tmp_path / "norms.arrays")
    assert list(tmp_path.iterdir()) == []


def test_vectors_whose_products_leave_the_range_are_refused(tmp_path):
    images, texts = vectors()
    with pytest.raises(DataError, match="normalise the embeddings"):
        measured_norms(*held(images * np.float32(1e20), texts * np.float32(1e20)), tmp_path / "norms.arrays")
