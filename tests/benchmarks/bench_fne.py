"""Cost of FNE's machinery beside the encoders of the paper, ViT-B/16 at 384 pixels and BERT-base, 32 pairs a step.

The machinery runs at full size: the momentum update of 196 million weights, the statistics, the weights of 32 x 8,224
candidates in both directions, the draws, the loss with its gradient, and the queues. The encoders are counted: their
floating-point operations, forward and backward and without the momentum forward pass, at the highest rate that this
machine reaches with one of their matrix products, which no whole step reaches.

Run with `make bench`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from itrpipe.methods.base import Pairs
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding

PAIRS, WIDTH, HIDDEN, LAYERS, MEMORY = 32, 768, 3072, 12, 8192
PATCHES, WORDS = 577, 20


def flops_of_encoder(tokens: int) -> float:
    """Forward pass of one sequence: the linear layers, and the two products of attention."""
    return LAYERS * (tokens * 2 * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 4 * tokens * tokens * WIDTH)


STEP_FLOPS = 3 * PAIRS * (flops_of_encoder(PATCHES) + flops_of_encoder(WORDS))
"""Forward, and a backward pass of twice that. 10.9 TFLOP."""


class Sized(DualEncoder):
    """As many weights as the two encoders, in tensors of their shapes, and embeddings that cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        layer = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN), (3 * WIDTH,), (HIDDEN,)]
        layer += [(WIDTH,)] * 6
        shapes = 2 * LAYERS * layer + [(30_522, WIDTH), (512, WIDTH), (PATCHES, WIDTH), (WIDTH, WIDTH)]
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in shapes])
        self.image, self.text = (nn.Parameter(nn.functional.normalize(torch.randn(PAIRS, WIDTH))) for _ in range(2))

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        return ImageEncoding(self.image)

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        return TextEncoding(self.text)


class Rows:
    """A training set of row numbers."""

    caption_image = np.repeat(np.arange(2_000), 5)

    def pairs(self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None) -> Pairs:
        tokens = torch.from_numpy(captions)[:, None]
        regions = torch.from_numpy(images).float()[:, None, None]
        return ImageBatch(regions), TextBatch(tokens, torch.ones_like(tokens[:, 0]))


def seconds_of(function: Callable[[], object], rounds: int) -> float:
    """Median over some rounds, after one to warm up."""
    function()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def machine_rate() -> float:
    """Floating-point operations per second of the first product of a feed-forward layer."""
    rows, weight = torch.randn(4 * PATCHES, WIDTH), torch.randn(WIDTH, HIDDEN)
    return 2 * rows.numel() * HIDDEN / seconds_of(lambda: rows @ weight, 5)


def machinery(memory: int, rounds: int) -> tuple[float, int]:
    """Seconds of a step without the encoders, with a memory of this size, and the number of weights."""
    torch.manual_seed(0)
    model = Sized()
    method = fne.build(Fne(memory_size=memory, warm_epochs=0, min_count=0), Rows(), {})
    state = method.attach(model)
    features = nn.functional.normalize(torch.randn(memory, WIDTH))
    state.queues.write(features, features.flip(0), torch.arange(memory) % 2_000)
    rng = np.random.default_rng(0)

    def step() -> None:
        batch = method.collate(rng.integers(10_000, size=PAIRS), rng)
        method.losses(model, batch, 0)["fne"].backward()

    return seconds_of(step, rounds), sum(weights.numel() for weights in model.parameters())


def test_the_machinery_is_a_small_part_of_a_step():
    rate = machine_rate()
    encoders = STEP_FLOPS / rate
    with_memory, weights = machinery(MEMORY, 9)
    without, _ = machinery(0, 9)
    share, memory_share = with_memory / (with_memory + encoders), (with_memory - without) / (without + encoders)
    print(
        f"\n  FNE, {weights / 1e6:.0f} M weights, {PAIRS} pairs, memory {MEMORY:,}: machinery {with_memory:.3f} s of "
        f"a step of {encoders:.0f} s ({STEP_FLOPS / 1e12:.1f} TFLOP at {rate / 1e9:.0f} GFLOP/s): {share:.2%}; the "
        f"memory {with_memory - without:.3f} s: {memory_share:.2%}"
    )
    assert share < 0.05
    assert memory_share < 0.02
