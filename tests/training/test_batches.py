"""The order of an epoch, and batches that are made and copied ahead of their step."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.methods.base import Batch
from itrpipe.testing import ToyPairs
from itrpipe.training.data import Feed, epoch_batches

CPU = torch.device("cpu")


@given(count=st.integers(2, 500), size=st.integers(2, 64), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_visits_every_caption_once_and_never_leaves_one_alone(count, size, seed, epoch):
    batches = epoch_batches(count, size, seed, epoch)
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.arange(count))
    assert all(2 <= len(batch) <= size + 1 for batch in batches)
    assert all(len(batch) == size for batch in batches[:-1])


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=300), budget=st.integers(80, 400), epoch=st.integers(0, 3)
)
def test_batches_by_tokens_stay_within_their_budget(sizes, budget, epoch):
    sizes = np.array(sizes)
    batches = epoch_batches(len(sizes), budget, 0, epoch, sizes)
    order = np.concatenate(batches)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(sizes)))
    np.testing.assert_array_equal(order, np.concatenate(epoch_batches(len(sizes), 8, 0, epoch)))
    assert all(len(batch) >= 2 for batch in batches)
    *full, last = batches
    assert all(sizes[batch].sum() <= budget for batch in full)
    assert sizes[last].sum() <= budget + sizes.max()  # a single caption left over joins the last
    following = [np.append(batch, after[0]) for batch, after in zip(batches, [*full[1:], last], strict=False)]
    assert all(sizes[batch].sum() > budget for batch in following[:-1])


def test_a_pair_larger_than_the_budget_still_makes_a_batch_of_two():
    batches = epoch_batches(5, 10, 0, 0, np.full(5, 9))
    assert [len(batch) for batch in batches] == [2, 3]


def test_epochs_seeds_and_steps_have_draws_of_their_own() -> None:
    orders = [np.concatenate(epoch_batches(200, 16, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    steps = [np.random.default_rng([1, 1, step]).permutation(200) for step in range(3)]
    assert len({order.tobytes() for order in (*orders, *steps)}) == 7


def batch_of(number: int) -> Batch:
    data, rows = ToyPairs(), np.arange(4)
    made = Batch({"positive": (data.images(data.caption_image[rows]), data.texts(rows))}, torch.from_numpy(rows))
    made.statistics["number"] = number
    return made


def test_batches_come_in_order_as_they_were_made_and_are_made_ahead() -> None:
    ahead, found = threading.Event(), []

    def make(number: int) -> Batch:
        if number == 1:
            ahead.set()
        time.sleep(0.01)
        return batch_of(number)

    feed = Feed(make, range(8), 3, CPU)
    for batch in feed:
        found.append(batch.statistics["number"])
        assert torch.equal(batch.pairs["positive"][0].regions, batch_of(0).pairs["positive"][0].regions)
        assert ahead.wait(100)  # the second one begins although nobody asks for it
    assert found == list(range(8))
    assert 0.005 < feed.waited_seconds < 100


def test_an_error_in_the_thread_reaches_the_consumer_after_the_good_batches() -> None:
    def make(number: int) -> Batch:
        if number == 3:
            raise ValueError("batch 3 is bad")
        return batch_of(number)

    batches = iter(Feed(make, range(10), 2, CPU))
    assert [next(batches).statistics["number"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="batch 3 is bad"):
        next(batches)


def test_the_thread_of_a_consumer_that_leaves_early_has_ended_by_then() -> None:
    workers: list[Any] = []

    def make(number: int) -> Batch:
        workers.append(threading.current_thread())
        return batch_of(number)

    for _ in Feed(make, range(10_000), 2, CPU):
        break
    assert not workers[0].is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_run_beside_kernels_and_are_never_read_early() -> None:
    device = torch.device("cuda")
    slow, wide = torch.randn(2048, 2048, device=device), [torch.full((4 << 20,), float(step)) for step in range(24)]
    sums = torch.zeros(len(wide), device=device)

    def make(step: int) -> Batch:
        batch = batch_of(step)
        batch.images = wide[step]
        return batch

    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in Feed(make, range(len(wide)), 3, device):
            for _ in range(5):
                slow = (slow @ slow).tanh()
            sums[batch.statistics["number"]] = batch.images.mean()  # pyright: ignore
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sums.tolist() == list(range(len(wide)))
