"""Probabilities of candidates estimated from embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itrpipe.losses.fne import Gaussians, SimilarityStatistics
from itrpipe.negatives.false_negatives import estimate_gaussians, probabilities

IMAGES, PER_IMAGE, WIDTH = 60, 3, 16
CAPTION_IMAGE = np.repeat(np.arange(IMAGES), PER_IMAGE)


def embeddings(noise: float = 0.4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, WIDTH))
    texts = images[CAPTION_IMAGE] + noise * rng.standard_normal((len(CAPTION_IMAGE), WIDTH))
    images, texts = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (images, texts))
    return images.astype(np.float32), texts.astype(np.float32), CAPTION_IMAGE


def test_one_batch_of_everything_gives_its_plain_mean_and_variance():
    images, texts, caption_image = embeddings(noise=0.01)
    found = estimate_gaussians(images, texts, caption_image, batch_size=1000)
    own = (images[caption_image] * texts).sum(axis=1)
    scores = images[caption_image] @ texts.T
    scores[caption_image[:, None] == caption_image[None]] = -np.inf
    assert found.count.tolist() == [180, 360]
    assert found.mean[0].item() == pytest.approx(own.mean(), abs=1e-5)
    assert found.variance[0].item() == pytest.approx(own.var(ddof=1), rel=1e-3)
    hardest = np.concatenate([scores.max(axis=1), scores.max(axis=0)])
    assert found.mean[1].item() == pytest.approx(hardest.mean(), abs=1e-5)
    assert found.variance[1].item() == pytest.approx(hardest.var(ddof=1), rel=1e-3)


def test_smaller_batches_have_easier_mismatches_and_every_caption_is_seen_once():
    images, texts, caption_image = embeddings(noise=1.5)
    small, large = (estimate_gaussians(images, texts, caption_image, batch_size=size) for size in (4, 60))
    assert small.mean[1] < large.mean[1] < large.mean[0]
    assert large.count[0] < small.count[0] <= 180
    again = estimate_gaussians(images, texts, caption_image, batch_size=4)
    assert torch.equal(again.mean, small.mean)


def test_own_captions_compete_only_when_they_are_not_masked():
    images, texts, caption_image = embeddings()
    masked = estimate_gaussians(images, texts, caption_image, batch_size=180)
    plain = estimate_gaussians(images, texts, caption_image, batch_size=180, mask_same_image=False, ties="first")
    assert plain.count[0] < masked.count[0]


def test_probabilities_rise_with_the_score_and_are_zero_behind_the_end_of_a_list():
    gaussians = Gaussians(torch.tensor([0.7, 0.4]), torch.tensor([0.004, 0.02]), torch.tensor([100.0, 200.0]))
    scores = np.linspace(1, -1, 50, dtype=np.float32).reshape(5, 10)
    found = probabilities(scores, gaussians, 0.01)
    assert found.shape == (5, 10)
    assert (np.diff(found.reshape(-1)) <= 0).all()  # though the wider Gaussian is that of mismatches
    scores[2, 4:] = -np.inf
    assert (probabilities(scores, gaussians, 0.01)[2, 4:] == 0).all()
    unusable = SimilarityStatistics().gaussians()
    assert (probabilities(scores, unusable, 0.01) == 0).all()
