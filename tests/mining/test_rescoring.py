"""A second model's order of mined lists against a loop, and its pairs against whole matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, MinedLists
from itrpipe.mining.rescoring import Rescoring, SecondModel
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.bfan import network as bfan
from itrpipe.models.bfan.declaration import Bfan
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.training import second_model as module
from itrpipe.training.second_model import PairScorer
from tests.maps import made
from tests.mining.mine import assert_same, joined, write_file

# Whole numbers, so that many pairs tie.
TRUE_SCORES = np.random.default_rng(0).integers(0, 4, (12, 30)).astype(np.float32)
CAPTION_IMAGE = np.random.default_rng(2).permutation(np.arange(30) % 12)
NOBODYS = np.where(np.arange(30) % 7 == 3, -1, CAPTION_IMAGE)


def mined() -> MinedLists:
    generator = np.random.default_rng(1)
    texts = np.argsort(generator.random((12, 30)), axis=1)[:, :8].astype(np.int32)
    images = np.argsort(generator.random((30, 12)), axis=1)[:, :5].astype(np.int32)
    texts[3, 2:], images[7, :] = NO_ROW, NO_ROW
    return MinedLists(texts, np.zeros(texts.shape, np.float32), images, np.zeros(images.shape, np.float32))


def look_up(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
    assert min(images.min(initial=0), captions.min(initial=0)) >= 0
    return TRUE_SCORES[images, captions]


def opened(score_pairs: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return score_pairs


def finished(
    folder: Path, score: Callable = look_up, owners: np.ndarray = CAPTION_IMAGE, **more: Any
) -> tuple[MinedLists, np.ndarray]:
    """The lists in another order, and the scores of the positives."""
    folder.mkdir(exist_ok=True)
    write_file(folder / "mined.arrays", mined())
    opening, shapes = partial(opened, score), {"texts_for_images": (12, 8, 30), "images_for_texts": (30, 5, 12)}
    second = SecondModel("another", opening, (6, 5))
    work = Rescoring(second, folder / "mined.arrays", shapes, owners, **{"block_pairs": 10, **more})
    paths = made(work, folder / "parts").paths
    return joined(work, paths), work.positives(paths)


@pytest.mark.parametrize("block_pairs", [1, 7, 1_000])
def test_no_pair_is_scored_in_vain_and_captions_of_nobody_have_no_positive(tmp_path, block_pairs):
    scored, owned = [], NOBODYS >= 0
    found, positives = finished(
        tmp_path, lambda *pairs: scored.append(len(pairs[0])) or look_up(*pairs), NOBODYS, block_pairs=block_pairs
    )
    assert sum(scored) == 11 * 6 + 2 + 29 * 5 + int(owned.sum())
    assert_same(found, finished(tmp_path / "recorded")[0])
    assert np.isnan(positives[~owned]).all()
    np.testing.assert_array_equal(positives[owned], TRUE_SCORES[NOBODYS[owned], np.flatnonzero(owned)])


@pytest.mark.parametrize("broken", [lambda i, c: np.full(len(i), np.nan), lambda i, c: np.zeros((len(i), 1))])
def test_scores_that_are_none_are_refused(tmp_path, broken):
    with pytest.raises(DataError, match="check the model"):
        finished(tmp_path, score=broken)


# Pairs

N, T, R, D_IN, D, WORDS = 300, 400, 5, 6, 8, 30
CPU = torch.device("cpu")
MODELS = {
    "scan": lambda: scan.build(Scan(embed_dim=D, word_dim=4), D_IN, WORDS),
    "bfan": lambda: bfan.build(Bfan(embed_dim=D, word_dim=4), D_IN, WORDS),
    "vsepp": lambda: vsepp.build(Vsepp(embed_dim=D, word_dim=4, measure="order"), D_IN, WORDS),
}


class Drawn:
    """What a scorer reads of a split, with random features and captions."""

    num_images, num_captions = N, T

    def __init__(self, same_counts: bool) -> None:
        generator = np.random.default_rng(0)
        # A single region attends to all words alike, and rounding decides BFAN's focal mask.
        self.region_counts = np.full(N, R) if same_counts else generator.integers(2, R + 1, N)
        self._regions = torch.from_numpy(generator.standard_normal((N, R, D_IN)).astype(np.float32))
        self._regions[torch.arange(R) >= torch.from_numpy(self.region_counts)[:, None]] = 0
        self._lengths = torch.from_numpy(generator.integers(2, 9, T))
        self._tokens = torch.from_numpy(generator.integers(4, WORDS, (T, 8)))
        self._tokens[torch.arange(8) >= self._lengths[:, None]] = 0
        self._same = same_counts

    def images(self, rows: np.ndarray) -> ImageBatch:
        return ImageBatch(self._regions[rows], None if self._same else torch.from_numpy(self.region_counts[rows]))

    def texts(self, rows: np.ndarray) -> TextBatch:
        lengths = self._lengths[rows]
        return TextBatch(self._tokens[rows, : int(lengths.max())], lengths)


def scorer(model: Any, data: Any, memory: int) -> PairScorer:
    return PairScorer(model, data, D, CPU, memory)


@pytest.mark.parametrize("same_counts", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_pairs_score_as_in_the_matrix_of_all(name: str, same_counts: bool) -> None:
    torch.manual_seed(0)
    model, data, generator = MODELS[name]().eval(), Drawn(same_counts), np.random.default_rng(1)
    images, captions = generator.integers(0, N, 2_000), generator.integers(0, T, 2_000)
    images[:3], captions[:3] = [0, N - 1, N - 1], [T - 1, 0, T - 1]  # the last ones have nothing behind them
    with torch.inference_mode():
        sides = model.encode_images(data.images(np.arange(N))), model.encode_texts(data.texts(np.arange(T)))
        matrix = model.score_matrix(*sides)
    found = scorer(model, data, 1 << 16)(images, captions)
    np.testing.assert_allclose(found, matrix.numpy()[images, captions], atol=1e-5)


def test_a_batch_takes_no_more_pairs_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = MODELS["scan"]().eval(), []
    scores, real = scorer(model, Drawn(True), 50_000), model.score_pairs

    def spy(images: Any, texts: Any) -> torch.Tensor:
        sizes.append((len(images.regions), texts.words.shape[1]))
        return real(images, texts)

    monkeypatch.setattr(model, "score_pairs", spy)
    scores(np.arange(N), np.arange(N))
    assert len(sizes) > 3
    assert all(4 * pairs * (R + words) * D <= 50_000 for pairs, words in sizes)
    widths = [words for _, words in sizes]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] == 8


def test_a_machine_without_room_and_a_model_of_another_kind_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "os", SimpleNamespace(sysconf=lambda name: 100))
    with pytest.raises(UsageError, match="mine without --rescore-with"):
        scorer(MODELS["scan"]().eval(), Drawn(True), 1 << 16)
    strange = SimpleNamespace(model=torch.nn.Identity(), config={"backbone": "other"})
    monkeypatch.setattr(module, "load_model", lambda folder: strange)
    with pytest.raises(UsageError, match="other encodes neither vectors nor regions and words"):
        module.load_scoring_model(tmp_path)
