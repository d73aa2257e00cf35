"""Which pairs are judged: each once, in an order that is told, and what those judged so far say of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from itrpipe.commands.review import lines, reviewed
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import CandidateLists
from itrpipe.review import ORDERS, Candidates, Decided, DecisionFile, Queue, Verdicts, _each_once

IMAGES, CAPTIONS = np.array(["a", "b", "c"]), np.array([f"{image}{number}" for image in "abc" for number in range(2)])
OWNERS = np.repeat(np.arange(3), 2)


def candidates(probability: np.ndarray | None = None) -> Candidates:
    """All pairs of an image and a caption of another one, with scores that fall."""
    images, captions = np.nonzero(OWNERS[None, :] != np.arange(3)[:, None])
    count = len(images)
    return Candidates(
        source="mine_negatives/exact.m",
        model="m",
        split="train",
        prepared=Path(),
        trained=Path(),
        image_ids=IMAGES,
        caption_ids=CAPTIONS,
        owners=OWNERS,
        images=images,
        captions=captions,
        ranks=np.arange(1, count + 1),
        scores=np.linspace(1, 0, count, dtype=np.float32),
        positives=np.linspace(1, -1, count, dtype=np.float32),
        probability=probability,
    )


GUARDED = candidates(np.linspace(0, 0.9, 12).astype(np.float32))


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_each_pair_once(order: str) -> None:
    places = Queue(GUARDED, order).places
    wanted = np.flatnonzero(GUARDED.probability > 0.5) if order == "guard" else np.arange(12)  # pyright: ignore
    assert sorted(places.tolist()) == wanted.tolist()


def test_doubtful_is_next_to_one_half_and_harmful_far_above_the_own_image() -> None:
    assert GUARDED.probability is not None
    first = GUARDED.probability[Queue(GUARDED, "doubtful").places[:2]]
    assert abs(first - 0.5).max() < 0.1
    assert Queue(GUARDED, "harmful").places[0] == 11


@pytest.mark.parametrize("order", ["guard", "doubtful"])
def test_without_probabilities_two_orders_are_refused(order: str) -> None:
    with pytest.raises(UsageError, match="--guard fne"):
        Queue(candidates(), order)


def test_an_order_of_no_name_is_refused() -> None:
    with pytest.raises(UsageError, match="known: sample, guard, doubtful, harmful"):
        Queue(GUARDED, "random")


def test_a_guard_that_suspects_nobody_is_said() -> None:
    with pytest.raises(UsageError, match="takes none of the 12 candidates"):
        Queue(candidates(np.zeros(12, dtype=np.float32)), "guard")


def test_what_was_answered_does_not_come_again(tmp_path: Path) -> None:
    queue, file = Queue(candidates(), "sample"), DecisionFile(tmp_path / "decisions.parquet")
    first = queue.upcoming({}, 3)
    file.add([queue.judgement(place, "ada", "unsure") for place in first])
    assert queue.upcoming(file.read().of("ada"), 3) == queue.places[3:6].tolist()
    assert queue.upcoming(file.read().of("bob"), 3) == first
    row = file.read().rows.to_pylist()[0]
    assert (row["model"], row["source"], row["drawn"]) == ("m", "mine_negatives/exact.m", "sample")


def test_a_sample_counts_up_to_the_first_gap(tmp_path: Path) -> None:
    queue, file = Queue(candidates(), "sample"), DecisionFile(tmp_path / "decisions.parquet")
    answers = dict(enumerate(["fits", "differs", "differs", "unsure"]))
    file.add([queue.judgement(int(queue.places[number]), "ada", answer) for number, answer in answers.items()])
    file.add([queue.judgement(int(queue.places[7]), "ada", "fits")])  # not one of the first
    found = queue.sampled(file.read())
    assert (found.judged, found.value) == (4, pytest.approx(1 / 3))
    assert found.low < 1 / 4
    assert found.high > 2 / 4
    file.add([queue.judgement(int(queue.places[0]), "ada", "undone")])
    assert queue.sampled(file.read()).judged == 0


def test_a_sample_of_which_nobody_was_sure_is_told(tmp_path: Path) -> None:
    queue, file = Queue(candidates(), "sample"), DecisionFile(tmp_path / "decisions.parquet")
    file.add([queue.judgement(int(queue.places[0]), "ada", "unsure")])
    assert "1 judged" in list(lines(reviewed(candidates(), "sample", file.read())))[-1]


def test_a_pair_of_both_directions_is_one_candidate() -> None:
    pair = [np.array([0]), np.array([3]), np.array([4]), np.array([0.5]), np.array([0.0])]
    better = [np.array([0]), np.array([3]), np.array([2]), np.array([0.5]), np.array([0.0])]
    facts = {"source": "", "model": "", "split": "train", "prepared": Path(), "trained": Path(), "owners": OWNERS}
    found = _each_once([pair, better], np.zeros(6), guarded=False, image_ids=IMAGES, caption_ids=CAPTIONS, **facts)
    assert (len(found), found.ranks.tolist(), found.ids(0)) == (1, [2], ("a", "b1"))


def test_decided_pairs_are_found_in_lists_and_outlive_their_file(tmp_path: Path) -> None:
    names = (
        ("a", "b1", "fits"),
        ("c", "a0", "fits"),
        ("b", "c0", "differs"),
        ("a", "b0", "disputed"),
        ("z", "b0", "fits"),
    )
    verdicts = Verdicts(*(np.array(column) for column in zip(*names, strict=True)))
    decided = Decided.of(verdicts, IMAGES, CAPTIONS)
    texts = CandidateLists(np.array([[2, 3], [4, 0], [0, -1]], dtype=np.int32), np.zeros((3, 2), dtype=np.float32))
    assert decided.fit("texts_for_images", slice(0, 3), texts).tolist() == [
        [False, True],
        [False, False],
        [True, False],
    ]
    assert decided.differ("texts_for_images", slice(0, 3), texts).tolist() == [[False] * 2, [True, False], [False] * 2]
    later = CandidateLists(texts.candidates[1:], texts.scores[1:])
    assert decided.fit("texts_for_images", slice(1, 3), later).tolist() == [[False, False], [True, False]]
    images = CandidateLists(np.array([[2, 1]] + [[-1, -1]] * 5, dtype=np.int32), np.zeros((6, 2), dtype=np.float32))
    assert decided.fit("images_for_texts", slice(0, 6), images)[0].tolist() == [True, False]
    decided.write(tmp_path, IMAGES, CAPTIONS)
    again = Decided.read(tmp_path, IMAGES, CAPTIONS)
    assert again is not None
    assert (again.fits.codes.tolist(), again.differs.codes.tolist()) == (
        decided.fits.codes.tolist(),
        decided.differs.codes.tolist(),
    )
    (tmp_path / "decided.parquet").write_bytes(b"torn")
    with pytest.raises(DataError, match="mine-negatives"):
        Decided.read(tmp_path, IMAGES, CAPTIONS)
