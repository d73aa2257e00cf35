"""What every evaluation must be true to: scores come from images and captions, whatever order these have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.testing.backbones import above_chance
from itrpipe.training.data import PhraseSplitData, open_split
from itrpipe.training.saved import load_model
from tests.chains import MODELS, ChainModel
from tests.trained_model import TrainedModel


@pytest.mark.parametrize("label", MODELS)
def test_neither_the_order_of_images_nor_that_of_captions_matters(
    label: str, model_of: Callable[[str], ChainModel]
) -> None:
    model = model_of(label)
    written, saved, folders = model.scores(), load_model(model.trained), model.inputs()
    split, random = PreparedDataset.open(folders["prepare"]).split("test"), np.random.default_rng(0)
    images, captions = random.permutation(len(split.images)), random.permutation(len(split.captions))
    other = Split("test", split.images.take(images), split.captions.take(captions))
    features = FeatureFile.open(folders["extract"] / FEATURES)
    if saved.settings.reads_phrases:
        phrases = CaptionPhrases.read(folders["parse"], saved.config["model"]["max_words"])
        data = PhraseSplitData(other, features, saved.vocabulary, phrases, saved.config["model"]["phrases"])
    else:
        data = open_split(other, features, saved.tokens, saved.settings, saved.frame)
    again = TrainedModel(saved.model, data, torch.device("cpu"), saved.score_precision).scores(data, 7)
    assert written.shape == (4, 20)
    scale, tolerance = np.abs(written).max(), 1e-5 if saved.score_precision == "fp32" else 1e-2
    np.testing.assert_allclose(again / scale, written[images][:, captions] / scale, atol=tolerance)


def test_scores_that_know_their_pairs_are_told_from_noise() -> None:
    random, own = np.random.default_rng(0), np.repeat(np.arange(30), 5)
    scores = random.standard_normal((30, 150))
    assert not above_chance(scores, own)
    assert not above_chance(np.zeros((30, 150)), own)  # ties are below chance, however images are dealt
    scores[own, np.arange(150)] += 1
    assert set(above_chance(scores, own)) >= {"i2t_r1", "t2i_r1"}
