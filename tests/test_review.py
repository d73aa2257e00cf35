"""Judgements: kept through crashes and between people, and what is asked; what a sample of them tells."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe import review
from itrpipe.datasets.decisions import SCHEMA, DecisionFile, Decisions, Judgement, decisions_digest, read_decisions
from itrpipe.datasets.truth import Decided
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.judging.shares import share_of
from itrpipe.mining.lists import CandidateLists, matching
from itrpipe.review import ORDERS, Candidates, Queue, agreement_of, agreements, lines, reviewed

IMAGES, CAPTIONS = np.array(["a", "b", "c"]), np.array([f"{image}{number}" for image in "abc" for number in range(2)])
OWNERS = np.repeat(np.arange(3), 2)


@pytest.fixture
def file(tmp_path: Path) -> DecisionFile:
    return DecisionFile(tmp_path / "mine" / "decisions.parquet")


def judged(reviewer: str, answers: dict[str, str]) -> list[Judgement]:
    """Answers by the caption, each of another image."""
    return [Judgement(reviewer, f"image of {caption}", caption, answer) for caption, answer in answers.items()]


def verdicts(decisions: Decisions) -> dict[str, str]:
    return {caption: verdict for (_, caption), verdict in decisions.verdicts.items()}


# What was decided


def test_without_a_file_nothing_is_decided(file: DecisionFile) -> None:
    assert (len(file.read()), len(file.read().verdicts), agreements(file.read())) == (0, 0, {})
    with pytest.raises(MissingInputError):
        read_decisions(file.path)


def test_the_last_answer_counts_and_undone_takes_it_back(file: DecisionFile) -> None:
    file.add(judged("ada", {"1": "fits", "2": "fits", "3": "unsure"}))
    file.add(judged("ada", {"1": "differs", "2": "undone"}))
    assert list(file.read().answers.get("ada", {}).items()) == [
        (("image of 3", "3"), "unsure"),
        (("image of 1", "1"), "differs"),
    ]
    assert len(file.read()) == 5, "rows are added and never changed"
    assert verdicts(file.read()) == {"3": "unsure", "1": "differs"}
    file.add(judged("bob", {"4": "undone"}))
    assert list(file.read().answers) == ["ada"]


def test_who_is_unsure_contradicts_nobody_and_two_who_are_sure_may(file: DecisionFile) -> None:
    file.add(judged("bob", {"1": "differs", "2": "unsure", "3": "unsure", "4": "fits"}))
    file.add(judged("ada", {"1": "fits", "2": "fits", "3": "unsure", "4": "fits"}))
    assert verdicts(file.read()) == {"1": "disputed", "2": "fits", "3": "unsure", "4": "fits"}
    assert {both: (each.pairs, each.same) for both, each in agreements(file.read()).items()} == {
        ("ada", "bob"): (2, 0.5)
    }


def test_only_what_is_decided_changes_what_is_made_with_it(file: DecisionFile) -> None:
    file.add(judged("ada", {"1": "fits", "2": "differs"}))
    before = decisions_digest(str(file.path))
    file.add(judged("bob", {"1": "fits", "3": "unsure"}))
    assert decisions_digest(str(file.path)) == before
    file.add([Judgement("ada", "image", "4", "fits", source="evaluate/x")])
    assert decisions_digest(str(file.path), training=True) == before
    assert decisions_digest(str(file.path)) != before


def test_files_of_several_people_are_merged_once_in_the_order_of_their_answers(
    file: DecisionFile, tmp_path: Path
) -> None:
    other = DecisionFile(tmp_path / "bob.parquet")
    other.add(judged("bob", {"1": "fits", "2": "fits"}) + judged("ada", {"3": "fits"}))
    file.add(judged("ada", {"1": "fits", "2": "differs", "3": "differs"}))
    assert file.merge([other.read()]) == 3
    assert file.merge([other.read(), file.read()]) == 0
    assert verdicts(file.read()) == {"1": "fits", "2": "disputed", "3": "differs"}, "the later answer"


_ROW = {**dict.fromkeys(SCHEMA.names, ""), "at": 0, "answer": "fits"}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"", "decisions.parquet"),
        (b"no parquet", "decisions.parquet"),
        (None, "decisions.parquet"),
        (pa.table({"answer": ["fits"]}), "answer string"),
        (pa.Table.from_pylist([_ROW | {"answer": "maybe"}], schema=SCHEMA), "'maybe'"),
        (pa.Table.from_pylist([_ROW | {"reviewer": None}], schema=SCHEMA), "reviewer is empty in 1 rows"),
    ],
)
def test_damage_is_said(file: DecisionFile, content: bytes | pa.Table | None, value: str) -> None:
    file.add(judged("ada", {"1": "fits"}))
    if isinstance(content, pa.Table):
        pq.write_table(content, file.path)
    else:
        file.path.write_bytes(file.path.read_bytes()[:-20] if content is None else content)
    with pytest.raises(DataError, match=value):
        file.add(judged("ada", {"2": "fits"}))


def test_two_processes_lose_no_row_and_a_kill_at_most_the_one_being_written(file: DecisionFile) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from itrpipe.datasets.decisions import DecisionFile, Judgement\n"
        "for number in range(10**6):\n"
        "    DecisionFile(Path(sys.argv[1])).add([Judgement(sys.argv[2], 'image', str(number), 'fits')])\n"
        "    print(number + 1, flush=True)\n"
    )
    command, names = [sys.executable, "-c", script, str(file.path)], ("ada", "bob")
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in names]
    for name, writer in zip(names, writers, strict=True):
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(5)]
        writer.kill()
        told += writer.stdout.readlines()
        writer.wait()
        assert len(told) <= len(file.read().answers.get(name, {})), "what was confirmed is there"


# How far it can be relied on


def test_kappa_is_that_of_cohen() -> None:
    """The example of Cohen's paper in two classes: 20 and 15 alike, 5 and 10 not, as textbooks have it."""
    one = np.array([True] * 25 + [False] * 25)
    other = np.array([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15)
    found = agreement_of(one, other)
    error = math.sqrt(0.7 * 0.3 / 50) / 0.5
    expected = (50, 0.7, 0.4, 0.4 - 1.959964 * error, 0.4 + 1.959964 * error)
    assert tuple(found) == pytest.approx(expected, abs=1e-6)
    assert agreement_of(one[:25], one[:25]).kappa is None
    few = agreement_of(np.array([True, True, False]), np.array([True, False, True]))
    assert (few.low, few.high) == (-1.0, pytest.approx(-0.5 + 1.959964 * math.sqrt(2) / 3 / math.sqrt(3) * 9 / 4))


# What is asked


def candidates(probability: np.ndarray | None = None) -> Candidates:
    """All pairs of an image and a caption of another one, with scores that fall."""
    images, captions = np.nonzero(OWNERS[None, :] != np.arange(3)[:, None])
    ranks, scores = np.arange(1, 13), np.linspace(1, 0, 12, dtype=np.float32)
    own = np.linspace(1, -1, 12, dtype=np.float32)
    about = ("mine_negatives/exact.m", "m", "train", Path(), Path(), IMAGES, CAPTIONS, OWNERS)
    return Candidates(*about, images, captions, ranks, scores, own, probability)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_each_pair_once(order: str) -> None:
    probability = np.linspace(0, 0.9, 12).astype(np.float32)
    places = Queue(candidates(probability), order).places
    wanted = np.flatnonzero(probability > 0.5) if order == "guard" else np.arange(12)
    assert sorted(places.tolist()) == wanted.tolist()
    if order == "doubtful":
        assert abs(probability[places[:2]] - 0.5).max() < 0.1
    if order == "harmful":
        assert places.tolist() == list(range(11, -1, -1)), "farthest above the own image first"


@pytest.mark.parametrize(
    ("order", "probability", "value"),
    [
        ("guard", None, "--guard fne"),
        ("doubtful", None, "--guard fne"),
        ("random", np.ones(12), "known: sample, guard, doubtful, harmful"),
        ("guard", np.zeros(12), "none of the 12 candidates"),
    ],
)
def test_orders_that_cannot_be_are_refused(order: str, probability: np.ndarray | None, value: str) -> None:
    with pytest.raises(UsageError, match=value):
        Queue(candidates(probability), order)


def test_what_was_answered_does_not_come_again(file: DecisionFile) -> None:
    queue = Queue(candidates(), "sample")
    first = queue.upcoming({}, 3)
    assert first == queue.places[:3].tolist()
    file.add([queue.judgement(place, "ada", "unsure") for place in first])
    assert queue.upcoming(file.read().answers.get("ada", {}), 3) == queue.places[3:6].tolist()
    assert queue.upcoming(file.read().answers.get("bob", {}), 3) == first
    assert (queue.judged(file.read().answers.get("ada", {})), queue.judged(file.read().answers.get("bob", {}))) == (
        3,
        0,
    )
    row = file.read().rows.to_pylist()[0]
    assert (row["model"], row["source"], row["drawn"]) == ("m", "mine_negatives/exact.m", "sample")
    assert [queue.candidates.place(*queue.candidates.ids(place)) for place in range(12)] == list(range(12))
    assert queue.candidates.place("a", "a0") is None


def test_a_sample_counts_up_to_the_first_gap(file: DecisionFile) -> None:
    queue = Queue(candidates(), "sample")
    answers = enumerate(["fits", "differs", "differs", "unsure"])
    file.add([queue.judgement(int(queue.places[number]), "ada", answer) for number, answer in answers])
    file.add([queue.judgement(int(queue.places[7]), "ada", "fits")])  # not one of the first
    found, lowest, highest = queue.sampled(file.read()), share_of(1, 4, 12), share_of(2, 4, 12)
    assert tuple(found) == (pytest.approx(1 / 3), lowest.low, highest.high, 4)
    *_, said = lines(reviewed(candidates(), "sample", file.read()))
    assert f"{100 * found.low:.1f} to {100 * found.high:.1f}" in said
    file.add([queue.judgement(int(queue.places[0]), "ada", "undone")])
    assert queue.sampled(file.read()).decisions == 0
    file.add([queue.judgement(int(queue.places[0]), "ada", "unsure")])
    assert queue.sampled(file.read()).value == 0


def test_a_pair_of_both_directions_is_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "read_manifest", lambda folder: SimpleNamespace(label="m", inputs=("prepare", "train")))
    monkeypatch.setattr(review, "open_input", lambda folder, manifest, name: Path(name))
    of_images = (np.array([0]), np.array([[5, -1, 3]]), np.array([[0.9, 0.0, 0.5]]), np.array([[0.1, 0.0, 0.2]]))
    of_texts = (np.array([3]), np.array([[2, 0]]), np.array([[0.6, 0.5]]), np.array([[0.3, 0.2]]))
    sides = (of_images, of_texts)
    found = review._each_once(Path("stage/x"), "val", (IMAGES, CAPTIONS, OWNERS), sides, np.arange(6))
    assert [found.ids(place) for place in range(len(found))] == [("a", "b1"), ("c", "b1"), ("a", "c1")]
    assert (found.ranks.tolist(), found.positives.tolist(), found.source) == ([2, 1, 1], [3, 3, 5], "stage/x")
    assert found.scores.tolist() == pytest.approx([0.5, 0.6, 0.9])
    assert found.probability == pytest.approx([0.2, 0.3, 0.1])
    bare = ((*of_images[:3], None), of_texts)
    assert review._each_once(Path("s/x"), "val", (IMAGES, CAPTIONS, OWNERS), bare, np.arange(6)).probability is None


# How mining and training look it up


def test_decided_pairs_are_found_in_lists_and_outlive_their_file(tmp_path: Path) -> None:
    named = {("a", "b1"): "fits", ("c", "a0"): "fits", ("b", "c0"): "differs", ("a", "b0"): "disputed"}
    decided = Decided.of(named | {("z", "b0"): "fits"}, IMAGES, CAPTIONS)
    texts = CandidateLists(np.array([[2, 3], [4, 0], [0, -1]], dtype=np.int32), np.zeros((3, 2), dtype=np.float32))
    fitting = [[False, True], [False, False], [True, False]]
    assert matching(decided.fits.has, "texts_for_images", slice(0, 3), texts).tolist() == fitting
    assert matching(decided.differs.has, "texts_for_images", slice(0, 3), texts).tolist() == [
        [False] * 2,
        [True, False],
        [False] * 2,
    ]
    later = CandidateLists(texts.candidates[1:], texts.scores[1:])
    assert matching(decided.fits.has, "texts_for_images", slice(1, 3), later).tolist() == fitting[1:]
    images = CandidateLists(np.array([[2, 1]] + [[-1, -1]] * 5, dtype=np.int32), np.zeros((6, 2), dtype=np.float32))
    assert matching(decided.fits.has, "images_for_texts", slice(0, 6), images)[0].tolist() == [True, False]
    assert Decided.read(tmp_path, IMAGES, CAPTIONS) is None
    decided.write(tmp_path, IMAGES, CAPTIONS)
    again = Decided.read(tmp_path, IMAGES, CAPTIONS)
    assert again is not None
    for one, other in ((again.fits, decided.fits), (again.differs, decided.differs)):
        assert one.codes.tolist() == other.codes.tolist()
    (tmp_path / "decided.parquet").write_bytes(b"torn")
    with pytest.raises(DataError, match="mine-negatives"):
        Decided.read(tmp_path, IMAGES, CAPTIONS)
