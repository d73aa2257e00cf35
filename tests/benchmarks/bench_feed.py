"""Pixels for a fast GPU: how long training would wait for them.

Run with `make bench`. The GPU is simulated: a consumer that takes a batch and is busy for as long as an H200 would be.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FeatureFile, FeatureSpec, write_features
from itrpipe.methods.base import TokenLimits
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.captions import Reading, WordIds
from itrpipe.training.data import PixelSplitData, TokenTexts, feed
from itrpipe.training.distributed import ALONE

RATE = 0.4 * 989e12 / (3 * 14.8e9)
"""Pairs a second: CLIP ViT-B/32 takes 14.8 GFLOP a pair, and three times that in training; an H200 at 40 % of bf16."""
GPU = torch.device("meta")
"""Copies to it cost nothing, as those that a GPU fetches itself."""
SIDE, IMAGES, BATCH, STEPS = 256, 4_096, 256, 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PixelSplitData:
    """Images of 256 pixels with five captions each, 0.8 GB."""
    path, names = tmp_path_factory.mktemp("feed") / "features.h5", [str(row) for row in range(IMAGES)]
    draws = np.random.default_rng(0)
    pieces = (
        (np.arange(start, start + 512), {"pixels": draws.integers(0, 256, (512, SIDE, SIDE, 3), dtype=np.uint8)})
        for start in range(0, IMAGES, 512)
    )
    write_features(path, names, FeatureSpec(0, 0, pixels=(SIDE, SIDE)), "pixels", pieces)
    words = pa.array([["a", "dog", "on", "the", "road"]] * 5 * IMAGES, pa.list_(pa.string()))
    columns = {"caption_id": [str(row) for row in range(5 * IMAGES)], "image_id": np.repeat(names, 5).tolist()}
    captions = pa.table({**columns, "text": ["a dog on the road"] * 5 * IMAGES, "tokens": words})
    split = Split("train", pa.table({"image_id": names}), captions)
    vocabulary = Vocabulary(("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "on", "the", "road"))
    tokens = WordIds(vocabulary, Reading(cleaned=True, max_words=30))
    return PixelSplitData(split, FeatureFile.open(path), TokenTexts.of(split, tokens), (SIDE, SIDE), "none")


def test_a_gpu_does_not_wait_for_pixels(data: PixelSplitData, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read and not changed: that the GPU does. Half of a step the consumer keeps Python busy."""
    method, rng = triplet.build(Triplet(), data, TokenLimits(1, 1, 32)), np.random.default_rng(0)
    data.train_on(ALONE, GPU)
    batches = [rng.permutation(data.num_captions)[:BATCH] for _ in range(STEPS)]
    ready = feed(lambda rows: method.collate(rows, rng), batches, 4, GPU)
    waited = 0.0
    start = last = time.perf_counter()
    for _ in ready:
        waited += time.perf_counter() - last
        _keep_busy()
        last = time.perf_counter()
    seconds = time.perf_counter() - start
    share = waited / seconds
    with capsys.disabled():
        print(f"\n{RATE:,.0f} pairs/s asked for, {STEPS * BATCH / seconds:,.0f} given; waited {share:.1%} of the time")
    assert share < 0.05


def _keep_busy() -> None:
    half, start = BATCH / RATE / 2, time.perf_counter()
    while time.perf_counter() - start < half:
        pass
    time.sleep(half)
