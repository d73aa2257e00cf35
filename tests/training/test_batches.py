"""Order of an epoch, schedules and the prefetching thread."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.training.data import epoch_batches
from itrpipe.training.prefetch import Prefetcher
from itrpipe.training.schedule import decay_after, step_decay, warmup_and_linear_decay


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


@pytest.mark.parametrize(
    ("update", "rate"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (15, 0.5), (19, 0.1), (20, 0.0), (25, 0.0)]
)
def test_linear_decay_after_a_warm_up(update, rate):
    assert warmup_and_linear_decay(1.0, update, warmup=10, total=20) == pytest.approx(rate)


def test_epochs_and_seeds_have_their_own_order():
    orders = [np.concatenate(epoch_batches(200, 16, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len({order.tobytes() for order in orders}) == 4


@pytest.mark.parametrize(("epoch", "rate"), [(0, 2e-4), (9, 2e-4), (10, 2e-5), (19, 2e-5), (20, 2e-6)])
def test_step_decay_follows_the_published_schedule(epoch, rate):
    assert step_decay(2e-4, epoch, every=10, factor=0.1) == pytest.approx(rate)


def test_prefetching_keeps_order_and_works_ahead():
    ahead = threading.Event()

    def make(item: int) -> int:
        if item == 1:
            ahead.set()
        return item * 10

    results = []
    for result in Prefetcher(make, range(20), depth=3):
        results.append(result)
        assert ahead.wait(100)  # the second one begins although nobody asks for it
    assert results == [item * 10 for item in range(20)]


def test_an_error_in_the_thread_reaches_the_consumer_after_the_good_items():
    def make(item: int) -> int:
        if item == 3:
            raise ValueError("item 3 is bad")
        return item

    results = iter(Prefetcher(make, range(10), depth=2))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3 is bad"):
        next(results)


def test_the_thread_of_a_consumer_that_leaves_early_has_ended_by_then():
    for result in Prefetcher(lambda item: time.sleep(0.1) or threading.current_thread(), range(10_000), depth=2):
        worker = result
        break
    assert not worker.is_alive()


def test_waiting_is_measured():
    prefetcher = Prefetcher(lambda item: time.sleep(0.02), range(5), depth=1)
    list(prefetcher)
    assert prefetcher.waited_seconds >= 0.05


@pytest.mark.parametrize(("epoch", "rate"), [(0, 2e-5), (4, 2e-5), (5, 2e-6), (14, 2e-6), (15, 2e-7), (24, 2e-7)])
def test_decay_after_chosen_epochs_follows_the_code_of_fne(epoch: int, rate: float) -> None:
    assert decay_after(2e-5, epoch, ends=[5, 15], factor=0.1) == pytest.approx(rate)
