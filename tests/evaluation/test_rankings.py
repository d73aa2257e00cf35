"""Stored rankings against a full sort, with ties in the order of the ids, and as they are read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.evaluation import rankings as stored
from itrpipe.evaluation.metrics import cross_retrieval, ranks
from itrpipe.evaluation.rankings import (
    rankings,
    read_rankings,
    write_cross_retrieval,
    write_rankings,
)
from itrpipe.features.embeddings import SplitScores


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 30), st.sampled_from([1, 3, 1000]), st.integers(1, 9))
@pytest.mark.parametrize("at_once", [1 << 22, 50])
def test_equal_scores_come_in_the_order_of_the_ids(
    at_once: int, seed: int, images: int, texts: int, levels: int, k: int
) -> None:
    random, k = np.random.default_rng(seed), min(k, images, texts)
    scores = random.integers(0, levels, (images, texts)).astype(np.float32)
    image_ids = [f"image-{n}" for n in random.permutation(images)]
    caption_ids = [f"caption-{n}" for n in random.permutation(texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_BLOCK_VALUES", at_once)
        found = rankings(scores, k, image_ids, caption_ids)
    for (indices, values), matrix, ids in zip(found, (scores, scores.T), (caption_ids, image_ids), strict=True):
        for query, row in enumerate(matrix):
            expected = sorted(range(len(row)), key=lambda column, row=row, ids=ids: (-row[column], ids[column]))[:k]
            assert indices[query].tolist() == expected
            assert values[query].tolist() == row[expected].tolist()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    random, owners = np.random.default_rng(0), np.arange(12) // 3
    ids = np.array(list("dbca")), np.array([f"c{n}" for n in range(12)])
    split = SplitScores(random.random((4, 12), dtype=np.float32), *ids, owners)
    path, full = tmp_path / "rankings.parquet", ranks(split.matrix, owners)
    write_rankings(path, split, full, None, depth=9)
    rows = pq.read_table(path).to_pylist()
    assert [row["rank"] for row in rows] == [*full.images_to_texts.tolist(), *full.texts_to_images.tolist()]
    assert {row["oracle_rank"] for row in rows} == {None}
    write_rankings(path, split, full, full, depth=9)
    assert [row["oracle_rank"] for row in pq.read_table(path).to_pylist()] == [row["rank"] for row in rows]
    for (queries, candidates, scores), matrix in zip(
        read_rankings(path, *ids), (split.matrix, split.matrix.T), strict=True
    ):
        assert queries.tolist() == list(range(len(matrix)))
        np.testing.assert_array_equal(candidates, np.argsort(-matrix, axis=1)[:, :4])
        np.testing.assert_array_equal(scores, np.take_along_axis(matrix, candidates, axis=1))
    with pytest.raises(DataError, match="rankings"):
        read_rankings(path, ids[0][:3], ids[1])
    write_cross_retrieval(path, split)
    expected = cross_retrieval(split.matrix, owners)
    assert pq.read_table(path).to_pydict() == {
        "caption_id": ids[1].tolist(),
        "image_id": ids[0][owners].tolist(),
        **{name: values.tolist() for name, values in expected.items()},
    }
