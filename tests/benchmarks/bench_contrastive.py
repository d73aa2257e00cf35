"""Cost of mined candidates and of batches of neighbours, beside a plain step of InfoNCE, on VSE++ and a dual encoder.

A step makes a batch, computes the loss and its gradient. The limit of a step with n mined captions a pair is what their
encoding has to cost: 1 + n times the share of a plain step that encoding captions takes, forward and backward.

Run with `make bench`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from measure import paired

from itrpipe.methods.base import Pairs
from itrpipe.methods.contrastive import method as contrastive
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp

IMAGES, PER_IMAGE, PAIRS, LISTED = 2_000, 5, 128, 60
REGIONS, WIDTH, WORDS, VOCABULARY = 12, 256, 14, 1_000
MINED = 4
FLICKR_IMAGES = 29_000
REGION_MODEL = DualEncoder(images="regions", embed_dim=256, vision="random", text="random")
MODELS: dict[str, Callable[[], Any]] = {
    "VSE++": lambda: vsepp.build(Vsepp(embed_dim=256, word_dim=128), WIDTH, VOCABULARY),
    "dual encoder": lambda: dual_encoder.build(
        REGION_MODEL, WIDTH, VOCABULARY, dual_encoder.open_encoders(REGION_MODEL)
    ),
}


class Rows:
    """A training set of the size of `scenes` with features and words of noise."""

    caption_image = np.repeat(np.arange(IMAGES), PER_IMAGE)

    def __init__(self) -> None:
        self._regions = torch.randn(IMAGES, REGIONS, WIDTH).half()
        self._tokens = torch.randint(4, VOCABULARY, (IMAGES * PER_IMAGE, WORDS))

    def texts(self, rows: np.ndarray) -> TextBatch:
        return TextBatch(self._tokens[torch.from_numpy(rows)], torch.full((len(rows),), WORDS))

    def pairs(self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None) -> Pairs:
        return ImageBatch(self._regions[torch.from_numpy(images)]), self.texts(captions)


def lists(images: int = IMAGES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    texts = PER_IMAGE * images
    return {
        "texts_for_images": rng.integers(texts, size=(images, LISTED)),
        "images_for_texts": rng.integers(images, size=(texts, LISTED)),
    }


def stepping(model: Any, data: Rows, **options: Any) -> Callable[[], None]:
    method = contrastive.build(Contrastive(top_texts=LISTED, top_images=LISTED, **options), data, lists())
    method.attach(model)
    rng = np.random.default_rng(0)

    def step() -> None:
        batch = method.collate(rng.choice(IMAGES * PER_IMAGE, PAIRS, replace=False), rng)
        torch.stack(list(method.losses(model, batch, 9).values())).sum().backward()

    return step


@pytest.mark.parametrize("name", MODELS)
def test_mined_captions_cost_their_encoding(name: str) -> None:
    torch.manual_seed(0)
    model, data = MODELS[name](), Rows()
    texts = data.texts(np.arange(PAIRS))

    def encode() -> None:
        model.encode_texts(texts).embedding.sum().backward()

    plain = stepping(model, data)
    mined = stepping(model, data, negatives=["mined"], mined_texts=MINED, mined_images=0)
    encoding, step = paired(encode, plain, 15)
    ours, again = paired(mined, plain, 15)
    limit = 1 + MINED * encoding / step
    print(
        f"\n  {name}, {PAIRS} pairs and {MINED} mined captions each: {ours / again:.2f} x a plain step of "
        f"{1000 * again:.0f} ms, of which captions are {encoding / step:.0%}; limit {limit:.2f} x"
    )
    assert ours / again <= 1.05 * limit


@pytest.mark.parametrize("images", [IMAGES, FLICKR_IMAGES])
def test_neighbours_cost_next_to_nothing(images: int) -> None:
    torch.manual_seed(0)
    model, data = MODELS["VSE++"](), Rows()
    _, step = paired(lambda: None, stepping(model, data), 9)
    data.caption_image = np.repeat(np.arange(images), PER_IMAGE)
    found = lists(images)
    method = contrastive.build(Contrastive(batches="neighbours", top_texts=LISTED, top_images=LISTED), data, found)
    method.order(0, 0)
    start = time.perf_counter()
    order = method.order(0, 1)
    seconds = time.perf_counter() - start
    assert order is not None
    epoch = step * len(order) / PAIRS
    print(f"\n  an order of {len(order):,} captions: {seconds:.2f} s beside an epoch of {epoch:.0f} s, VSE++ of scenes")
    assert seconds / epoch < 0.02
