"""Scores of chosen pairs from kept encodings, against the models' own matrices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.mining import pair_scorer
from itrpipe.mining.pair_scorer import KeptVectors, PairScorer
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.bfan import network as bfan
from itrpipe.models.bfan.declaration import Bfan
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsrn import network as vsrn
from itrpipe.models.vsrn.declaration import Vsrn

N, T, R, D_IN, D, WORDS = 700, 900, 5, 6, 8, 30
MODELS = {
    "scan": lambda: scan.build(Scan(embed_dim=D, word_dim=4), D_IN, WORDS),
    "bfan": lambda: bfan.build(Bfan(embed_dim=D, word_dim=4), D_IN, WORDS),
    "vsepp": lambda: vsepp.build(Vsepp(embed_dim=D, word_dim=4), D_IN, WORDS),
    "vsepp-order": lambda: vsepp.build(Vsepp(embed_dim=D, word_dim=4, measure="order"), D_IN, WORDS),
    "vsrn": lambda: vsrn.build(Vsrn(embed_dim=D, word_dim=4, captioner=False), D_IN, WORDS),
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


@pytest.mark.parametrize("same_counts", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_pairs_score_as_in_the_matrix_of_all(name: str, same_counts: bool) -> None:
    if name == "vsrn" and not same_counts:
        pytest.skip("VSRN takes images of one number of regions")
    torch.manual_seed(0)
    model, data = MODELS[name]().eval(), Drawn(same_counts)
    scorer = PairScorer(model, data, D, torch.device("cpu"), 1 << 16)  # type: ignore[arg-type]
    done: list[int] = []
    scorer.encode(done.append)
    assert sum(done) == scorer.num_items == N + T
    generator = np.random.default_rng(1)
    images, captions = generator.integers(0, N, 2_000), generator.integers(0, T, 2_000)
    images[:3], captions[:3] = [0, N - 1, N - 1], [T - 1, 0, T - 1]  # the last ones have nothing behind them
    with torch.inference_mode():
        matrix = model.score_matrix(model.encode_images(data.images(np.arange(N))), encoded(model, data))
    np.testing.assert_allclose(scorer(images, captions), matrix.numpy()[images, captions], atol=1e-5)


def encoded(model: Any, data: Drawn) -> Any:
    return model.encode_texts(data.texts(np.arange(T)))


def test_a_batch_takes_no_more_pairs_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, sizes = MODELS["scan"]().eval(), Drawn(True), []
    scorer = PairScorer(model, data, D, torch.device("cpu"), 100_000)  # type: ignore[arg-type]
    scorer.encode(lambda rows: None)
    real = model.score_pairs

    def spy(images: Any, texts: Any) -> torch.Tensor:
        sizes.append((len(images.regions), texts.words.shape[1]))
        return real(images, texts)

    monkeypatch.setattr(model, "score_pairs", spy)
    scorer(np.arange(600), np.arange(600))
    assert len(sizes) > 3
    assert all(4 * pairs * (R + words) * D <= 100_000 for pairs, words in sizes)
    widths = [words for _, words in sizes]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 8
    assert widths[-1] < 8


def test_vectors_are_kept_without_padding_and_come_back() -> None:
    counts = np.array([2, 1, 3])
    kept = KeptVectors(counts, 2, torch.device("cpu"))
    padded = torch.arange(18.0).view(3, 3, 2)
    kept.put(0, padded[:2])
    kept.put(2, padded[2:])
    assert kept.vectors.shape == (6, 2)
    taken, found = kept.take(torch.tensor([2, 0]))
    assert found is not None
    assert found.tolist() == [3, 2]
    assert torch.equal(taken[0], padded[2])
    assert torch.equal(taken[1, :2], padded[0, :2])


def test_a_machine_without_room_for_the_encodings_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_scorer, "os", SimpleNamespace(sysconf=lambda name: 100))
    with pytest.raises(UsageError, match="mine without --rescore-with"):
        PairScorer(MODELS["scan"]().eval(), Drawn(True), D, torch.device("cpu"), 1 << 16)  # type: ignore[arg-type]


def test_a_model_of_another_kind_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = SimpleNamespace(model=torch.nn.Identity(), config={"backbone": "other"})
    monkeypatch.setattr(pair_scorer, "load_model", lambda folder: strange)
    with pytest.raises(UsageError, match="other encodes neither vectors nor regions and words"):
        pair_scorer.load_scoring_model(tmp_path)
