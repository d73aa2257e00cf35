"""The leaky protocol: by hand for three images, what it does to a model that can know nothing, and mean vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.analysis.canary import TrainedModel
from itrpipe.analysis.leaky_protocol import FIGURES, NOTE, leaky_figures, leaky_scores
from itrpipe.analysis.mean_vectors import mean_vectors
from itrpipe.errors import UsageError
from itrpipe.evaluation.chance import chance_of_recalls
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.ascl.fusion import HeadedAttention
from itrpipe.models.ascl.network import AsclEncoder, build, open_encoders
from itrpipe.models.base import ImageBatch, TextBatch, rows_of
from itrpipe.training.encode import score_split

CPU = torch.device("cpu")
D, REGIONS, WORDS, VOCABULARY = 32, 3, 5, 200
SMALL = {"text": "random", "embed_dim": D, "heads": 4, "text_width": 32, "text_heads": 2, "text_layers": 1}


@dataclass(frozen=True)
class Named:
    """The name of a split."""

    name: str = "test"


class Noise:
    """Images and captions that have nothing to do with each other.

    Args:
        images: N.
        captions: of each image, one after the other.
        seed: of both.
        shuffled: whether the captions stand in another order.
    """

    split = Named()

    def __init__(self, images: int, captions: int, seed: int, *, shuffled: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.num_images, self.num_captions = images, images * captions
        self.caption_image = np.repeat(np.arange(images), captions)
        if shuffled:
            self.caption_image = rng.permutation(self.caption_image)
        self._regions = torch.from_numpy(rng.standard_normal((images, REGIONS, D), dtype=np.float32))
        self._global = torch.from_numpy(rng.standard_normal((images, D), dtype=np.float32))
        self.count = torch.from_numpy(rng.integers(2, REGIONS + 1, images))
        self._tokens = torch.from_numpy(rng.integers(4, VOCABULARY, (self.num_captions, WORDS)))
        self.lengths = torch.from_numpy(rng.integers(2, WORDS + 1, self.num_captions))

    def images(self, rows: np.ndarray) -> ImageBatch:
        return ImageBatch(self._regions[rows], self.count[rows], self._global[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        return TextBatch(self._tokens[rows], self.lengths[rows])


def model_of(**changed: Any) -> AsclEncoder:
    torch.manual_seed(0)
    settings = Ascl(**{**SMALL, **changed})
    return build(settings, D, VOCABULARY, open_encoders(settings, D)).eval()


def opened(model: AsclEncoder, data: Noise) -> TrainedModel:
    return TrainedModel(model, data, CPU, "fp32")  # pyright: ignore[reportArgumentType]


def honest_scores(model: AsclEncoder, data: Noise) -> np.ndarray:
    return score_split(model, data, CPU, 64, data.num_images, np.arange(data.num_captions))


def trained_on_noise() -> AsclEncoder:
    """A model whose fusion learned to give both vectors of a pair one mark, from pairs that have nothing in common."""
    model = model_of()
    assert model.fusion is not None
    optimizer = torch.optim.Adam(model.fusion.parameters(), 5e-3)
    for step in range(250):
        data = Noise(64, 1, 1 + step)
        with torch.no_grad():
            sides = model.encode_images(data.images(np.arange(64))), model.encode_texts(data.texts(np.arange(64)))
        images, texts = model.pair_vectors(*sides)
        scores = images @ texts.T / 0.1
        loss = F.cross_entropy(scores, torch.arange(64)) + F.cross_entropy(scores.T, torch.arange(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def mean_found(attention: HeadedAttention, queries: Tensor, context: Tensor) -> Tensor:
    """Mean [D] of what queries [Q, D] find in [S, D], one by one and head by head."""
    found = []
    for query in queries @ attention.query:
        parts = []
        for asked, keys in zip(query.chunk(4), (context @ attention.key).chunk(4, dim=1), strict=True):
            parts.append((attention.scale * (keys @ asked)).softmax(dim=0) @ keys)
        found.append(torch.cat(parts) @ attention.output)
    return torch.stack(found).mean(dim=0)


@pytest.mark.parametrize("block", [2, 64])
def test_three_images_by_hand(block: int) -> None:
    data, model = Noise(3, 2, 3, shuffled=True), model_of()
    assert model.fusion is not None
    own = data.caption_image
    images = model.encode_images(data.images(np.arange(3)))
    texts = model.encode_texts(data.texts(np.arange(6)))

    def vectors(image: int, caption: int) -> tuple[Tensor, Tensor]:
        fusion = model.fusion
        assert fusion is not None
        assert images.whole is not None
        regions, words = images.regions[image, : data.count[image]], texts.words[caption, : data.lengths[caption]]
        text = fusion.global_text(mean_found(fusion.to_words, regions, words))
        seen, whole = fusion.global_regions(mean_found(fusion.to_regions, words, regions)), images.whole[image]
        gate = fusion.gate(torch.cat([whole, seen])).sigmoid()
        return F.normalize(gate * whole + (1 - gate) * seen, dim=0), F.normalize(text, dim=0)

    def local(image: int, caption: int) -> float:
        one, other = rows_of(images, torch.tensor([image])), rows_of(texts, torch.tensor([caption]))
        score = float(model.score_pairs(one, other))
        return (score - 0.2 * float(torch.dot(*vectors(image, caption)))) / 0.8  # S with u1 = 0.8

    first = [own.tolist().index(image) for image in range(3)]
    with torch.no_grad():
        expected = [[float(vectors(i, first[i])[0] @ vectors(own[j], j)[1]) for j in range(6)] for i in range(3)]
        fused = [[0.8 * local(i, j) + 0.2 * expected[i][j] for j in range(6)] for i in range(3)]
    found = leaky_scores(model, data, own, CPU, block)
    np.testing.assert_allclose(found.by_vectors, expected, atol=1e-5)
    np.testing.assert_allclose(found.fused, fused, atol=1e-5)
    assert model.fusion.u1 == 0.8
    honest = honest_scores(model, data)
    agrees = np.isclose(found.fused, honest, atol=1e-5)
    assert agrees[np.arange(3), first].all()  # pairs that are fused in both protocols
    assert not agrees[:, [j for j in range(6) if j not in first]].any()


def test_a_model_trained_on_noise_seems_to_find_captions_that_say_nothing_of_their_images() -> None:
    data, model = Noise(100, 5, 0), trained_on_noise()
    honest = metrics(ranks(honest_scores(model, data), data.caption_image))
    found = leaky_figures(opened(model, data), honest, 64)
    assert (found["note"], found["split"], found["images"], found["captions"]) == (NOTE, "test", 100, 500)
    leaky, fused = found["leaky_vectors"], found["leaky_fused"]
    assert isinstance(leaky, dict)
    assert isinstance(fused, dict)
    assert tuple(leaky) == tuple(fused) == FIGURES
    assert leaky["i2t_r1"] > 40  # chance is 1
    assert leaky["i2t_r1"] > leaky["t2i_r1"] > 20
    assert leaky["i2t_r1"] > fused["i2t_r1"] > 10
    assert found["honest"] == {name: honest[name] for name in FIGURES}
    chances = chance_of_recalls(honest_scores(model, data), data.caption_image)
    assert all(each.holds for each in chances.values())


def test_weights_that_learned_nothing_leak_nothing() -> None:
    data, model = Noise(100, 5, 0), model_of()
    for scores in vars(leaky_scores(model, data, data.caption_image, CPU, 64)).values():
        assert all(each.holds for each in chance_of_recalls(scores, data.caption_image).values())


def test_a_model_without_fusion_is_refused() -> None:
    with pytest.raises(UsageError, match="this model fuses none"):
        leaky_figures(opened(model_of(fusion="none"), Noise(3, 2, 0)), {}, 64)


@pytest.mark.parametrize("block", [3, 64])
def test_mean_vectors_are_those_of_single_images_and_captions(block: int) -> None:
    data, model = Noise(4, 2, 0), model_of()
    images, texts = mean_vectors(opened(model, data), block)
    assert (images.shape, texts.shape, images.dtype) == ((4, D), (8, D), np.float32)
    with torch.no_grad():
        image = model.encode_images(data.images(np.array([2]))).regions[0, : int(data.count[2])].mean(dim=0)
        text = model.encode_texts(data.texts(np.array([5]))).words[0, : int(data.lengths[5])].mean(dim=0)
    np.testing.assert_allclose(images[2], F.normalize(image, dim=0), atol=1e-6)
    np.testing.assert_allclose(texts[5], F.normalize(text, dim=0), atol=1e-6)
