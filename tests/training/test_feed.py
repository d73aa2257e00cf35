"""Batches reach the device as they were made, before the step that reads them begins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itrpipe.methods.base import Batch
from itrpipe.testing import ToyPairs
from itrpipe.training.feed import Feed
from itrpipe.training.prefetch import Prefetcher


def batch_of(rows: np.ndarray) -> Batch:
    data = ToyPairs()
    return Batch({"positive": (data.images(data.caption_image[rows]), data.texts(rows))}, torch.from_numpy(rows))


def test_a_batch_stays_as_it_was_made() -> None:
    made, feed = batch_of(np.arange(4)), Feed(torch.device("cpu"))
    placed = feed.place(lambda: made)
    taken = feed.take(placed)
    assert torch.equal(taken.images, made.images)
    assert torch.equal(taken.pairs["positive"][0].regions, made.pairs["positive"][0].regions)
    feed.done(placed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_run_beside_kernels_and_are_never_read_early() -> None:
    device = torch.device("cuda")
    feed, slow = Feed(device), torch.randn(2048, 2048, device=device)
    wide = [torch.full((4 << 20,), float(step)) for step in range(24)]
    sums = torch.zeros(len(wide), device=device)

    def make(step: int) -> object:
        batch = batch_of(np.arange(4))
        batch.statistics["step"] = step
        batch.images = wide[step]
        return feed.place(lambda: batch)

    torch.cuda.set_sync_debug_mode("error")
    try:
        for placed in Prefetcher(make, range(len(wide)), depth=3):
            batch = feed.take(placed)  # pyright: ignore
            for _ in range(5):
                slow = (slow @ slow).tanh()
            sums[batch.statistics["step"]] = batch.images.mean()
            feed.done(placed)  # pyright: ignore
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sums.tolist() == list(range(len(wide)))
