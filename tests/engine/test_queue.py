"""What waits for a worker: who gets a part, and what becomes of one whose worker died."""

from __future__ import annotations

from pathlib import Path

from itrpipe.engine.queue import MOST_DEATHS, Queue
from itrpipe.engine.work import Part, cut

Held = tuple[Part, Path]


def waiting(count: int) -> Queue:
    return Queue([(part, Path(part.name)) for part in cut(range(count), 1)])


def taken(queue: Queue) -> list[Held]:
    return [queue.take() for _ in range(len(queue))]


def test_parts_leave_in_their_order_and_one_that_nobody_began_comes_next() -> None:
    queue = waiting(3)
    queue.give_back(*queue.take(), died=False)
    assert [part.name for part, _ in taken(queue)] == ["000000", "000001", "000002"]
    assert queue.failed == []


def test_a_part_whose_worker_died_comes_last_and_is_given_up_after_the_third_time() -> None:
    queue = waiting(3)
    queue.give_back(*queue.take(), died=True)
    *others, last = taken(queue)
    assert [part.name for part, _ in (*others, last)] == ["000001", "000002", "000000"]
    queue.give_back(*last, died=True)
    assert (len(queue), queue.failed) == (1, [])
    queue.give_back(*queue.take(), died=True)
    assert (len(queue), [part.name for part in queue.failed]) == (0, ["000000"])
    assert MOST_DEATHS == 3


def test_a_worker_holds_one_part_more_than_it_makes() -> None:
    queue = waiting(4)
    held: list[Held] = []
    while queue.has_for(held, 2):
        held.append(queue.take())
    assert len(held) == 3
    assert not Queue([]).has_for([], 2)


def test_a_part_that_was_there_when_a_worker_died_is_made_alone() -> None:
    queue = waiting(3)
    suspect = queue.take()
    queue.give_back(*suspect, died=True)
    held = [queue.take()]
    assert queue.has_for(held, 2)
    held.append(queue.take())
    assert not queue.has_for(held, 2)  # the suspect would be the next
    assert queue.has_for([], 2)
    suspect = queue.take()
    queue.give_back(*held[0], died=False)
    assert not queue.has_for([suspect], 2)
