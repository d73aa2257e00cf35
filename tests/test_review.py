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
from itrpipe.datasets.decisions import SCHEMA, Decision, DecisionFile, Decisions, decisions_digest, read_decisions
from itrpipe.datasets.truth import Decided, PairSet
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.judging.shares import LEAST, Share, lots_of, share_right
from itrpipe.mining.lists import CandidateLists, matching
from itrpipe.review import (
    ORDERS,
    Queue,
    ReviewCandidates,
    agreement_of,
    agreements,
    findings,
    lines,
    reviewed,
    strata_by_judges,
)

IMAGES, CAPTIONS = np.array(["a", "b", "c"]), np.array([f"{image}{number}" for image in "abc" for number in range(2)])
OWNERS = np.repeat(np.arange(3), 2)


@pytest.fixture
def file(tmp_path: Path) -> DecisionFile:
    return DecisionFile(tmp_path / "mine" / "decisions.parquet")


def judged(reviewer: str, answers: dict[str, str]) -> list[Decision]:
    """Answers by the caption, each of another image."""
    return [Decision(reviewer, f"image of {caption}", caption, answer) for caption, answer in answers.items()]


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
    file.add(judged("bob", {"1": "fits"}))
    assert decisions_digest(str(file.path)) == before
    file.add([Decision("ada", "image", "4", "fits", source="evaluate/x")])
    assert decisions_digest(str(file.path), training=True) == before
    of_evaluation = decisions_digest(str(file.path))
    assert of_evaluation != before
    file.add([Decision("ada", "image", "5", "fits", source="mine_negatives/x")])
    assert decisions_digest(str(file.path)) == of_evaluation
    assert decisions_digest(str(file.path), training=True) != before
    file.add(judged("bob", {"3": "unsure"}))  # a pair that was drawn
    assert decisions_digest(str(file.path)) != of_evaluation


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


def test_a_table_of_text_holds_decisions(file: DecisionFile, tmp_path: Path) -> None:
    table = tmp_path / "bob.csv"
    table.write_text("image_id,caption_id,answer,reviewer\na,b0,Yes,\na,b1,0,ada\na,b1,fits,ada\na,b2,unsure,\n")
    found = read_decisions(table)
    answers = {"ada": {("a", "b1"): "fits"}, "bob": {("a", "b0"): "fits", ("a", "b2"): "unsure"}}
    assert found.answers == answers, "the last answer, and the file's name where no reviewer is named"
    assert decisions_digest(str(table), training=True) == found.digest()
    assert (file.merge([found]), file.merge([read_decisions(table)])) == (4, 0)
    assert file.read().answers == answers
    table.write_text("image_id,caption_id,answer\na,b0,yes\na,b1,maybe\n")
    with pytest.raises(DataError, match=r"line 3 answer is 'maybe', expected one of fits, yes"):
        read_decisions(table)


def test_two_processes_lose_no_row_and_a_kill_at_most_the_one_being_written(file: DecisionFile) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from itrpipe.datasets.decisions import DecisionFile, Decision\n"
        "for number in range(10**6):\n"
        "    DecisionFile(Path(sys.argv[1])).add([Decision(sys.argv[2], 'image', str(number), 'fits')])\n"
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


def candidates(probability: np.ndarray | None = None) -> ReviewCandidates:
    """All pairs of an image and a caption of another one, with scores that fall."""
    captions, images = np.nonzero(OWNERS[:, None] != np.arange(3)[None, :])
    return made(IMAGES, CAPTIONS, OWNERS, captions, images, np.linspace(1, -1, len(images)), probability)


def many(probability: np.ndarray | None) -> ReviewCandidates:
    """A thousand pairs of 20 images with 50 captions of another one."""
    captions, images = map(np.ravel, np.indices((50, 20)))
    ids = np.array([f"i{row}" for row in range(20)]), np.array([f"c{row}" for row in range(50)])
    return made(*ids, np.full(50, 20), captions, images, np.zeros(1000), probability)


def made(
    image_ids: np.ndarray,
    caption_ids: np.ndarray,
    owners: np.ndarray,
    captions: np.ndarray,
    images: np.ndarray,
    positives: np.ndarray,
    probability: np.ndarray | None,
) -> ReviewCandidates:
    """The candidates with what one judge says, or nobody."""
    log_odds = None
    if probability is not None:
        log_odds = np.log(probability / (1 - probability)).clip(-9, 9)[:, None]
    return ReviewCandidates(
        image_ids=image_ids,
        caption_ids=caption_ids,
        pairs=PairSet.of(captions, images, len(image_ids)),
        log_odds=log_odds,
        source="mine_negatives/exact.m",
        model="m",
        split="train",
        prepared=Path(),
        trained=Path(),
        owners=owners,
        ranks=np.arange(len(images)) + 1,
        scores=np.linspace(1, 0, len(images), dtype=np.float32),
        positives=positives,
        probability=probability,
    )


PROBABILITY = np.random.default_rng(5).random(1000).astype(np.float32)


def answer_first(candidates: ReviewCandidates, file: DecisionFile, order: str, count: int) -> np.ndarray:
    """Answer the first pairs of an order: what a judge of 0.6 and more takes for right fits. Return their places."""
    queue = Queue(candidates, order)
    places = queue.places[:count]
    file.add([queue.judgement(place, "ada", "fits" if PROBABILITY[place] > 0.6 else "differs") for place in places])
    return places


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_each_pair_once(order: str) -> None:
    probability = np.linspace(0.01, 0.9, 12).astype(np.float32)
    places = Queue(candidates(probability), order).places
    assert sorted(places.tolist()) == list(range(12))
    if order == "doubtful":
        assert abs(probability[places[:2]] - 0.5).max() < 0.1
    if order == "harmful":
        assert places.tolist() == list(range(11, -1, -1)), "farthest above the own image first"


def test_a_calibration_asks_for_as_many_pairs_of_each_stratum_at_random() -> None:
    judged = many(PROBABILITY)
    queue = Queue(judged)
    assert queue.order == "calibration"
    assert Queue(many(None)).order == "sample"
    strata = strata_by_judges(judged.pairs, judged.log_odds)[queue.places]
    names = np.unique(strata)
    for count in (len(names), 10 * len(names)):
        assert (np.unique(strata[:count], return_counts=True)[1] == count // len(names)).all()
    for name in names:
        assert (np.diff(lots_of(judged.pairs)[queue.places[strata == name]].astype(float)) > 0).all()


@pytest.mark.parametrize(
    ("order", "value"),
    [
        ("calibration", "--judge captions"),
        ("doubtful", "--judge captions"),
        ("random", "known: calibration, sample, doubtful, harmful"),
    ],
)
def test_orders_that_cannot_be_are_refused(order: str, value: str) -> None:
    with pytest.raises(UsageError, match=value):
        Queue(candidates(), order)


def test_what_was_answered_does_not_come_again(file: DecisionFile) -> None:
    queue = Queue(candidates(), "sample")
    first = queue.upcoming({}, 3)
    assert first == queue.places[:3].tolist()
    file.add([queue.judgement(place, "ada", "unsure") for place in first])
    assert queue.upcoming(file.read().answers.get("ada", {}), 3) == queue.places[3:6].tolist()
    assert queue.upcoming(file.read().answers.get("bob", {}), 3) == first
    row = file.read().rows.to_pylist()[0]
    assert (row["model"], row["source"], row["drawn"]) == ("m", "mine_negatives/exact.m", "sample")
    pairs = [queue.candidates.ids(place) for place in range(12)]
    assert queue.candidates.places([*pairs, ("a", "a0"), ("z", "a0"), ("a", "z")]).tolist() == [*range(12), -1, -1, -1]


def test_a_sample_counts_up_to_the_first_gap(file: DecisionFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "unknown_pairs", lambda decisions, prepared: 0)
    queue = Queue(candidates(), "sample")
    answers = enumerate(["fits", "differs", "differs", "unsure"])
    file.add([queue.judgement(int(queue.places[number]), "ada", answer) for number, answer in answers])
    file.add([queue.judgement(int(queue.places[7]), "ada", "fits")])  # not one of the first
    found = Share(**findings(candidates(), file.read())["share"])
    alone, strata = np.full(12, 1 / 3), np.zeros(12, int)
    lowest = share_right(alone, np.arange(4), np.arange(4) < 1, strata)
    highest = share_right(alone, np.arange(4), np.arange(4) < 2, strata)
    assert tuple(found) == (pytest.approx(1 / 3), pytest.approx(lowest.low), pytest.approx(highest.high), 4)
    *_, said = lines(reviewed(candidates(), "", file.read()))
    assert f"{100 * found.low:.1f} to {100 * found.high:.1f}" in said
    file.add([queue.judgement(int(queue.places[0]), "ada", "undone")])
    assert findings(candidates(), file.read())["share"]["decisions"] == 0
    file.add([queue.judgement(int(queue.places[0]), "ada", "unsure")])
    assert findings(candidates(), file.read())["share"]["value"] == pytest.approx(0)


def test_decisions_count_for_lists_of_other_judges_of_the_same_search(file: DecisionFile) -> None:
    """A pair's lot is its own, so that the answered ones with the smallest lots of a new stratum are random there."""
    places = answer_first(many(PROBABILITY), file, "calibration", 200)
    other = many(np.roll(PROBABILITY, 7))
    share = Share(**findings(other, file.read())["share"])
    answered, expected = set(places.tolist()), 0
    strata = strata_by_judges(other.pairs, other.log_odds)
    for stratum in np.unique(strata):
        own = np.flatnonzero(strata == stratum)
        for place in own[np.argsort(lots_of(other.pairs)[own])].tolist():
            if place not in answered:
                break
            expected += 1
    assert share.decisions == expected > 20
    assert share.low <= (PROBABILITY > 0.6).mean() <= share.high
    assert findings(many(None), file.read())["share"]["decisions"] > 20


def test_the_judge_is_calibrated_once_there_are_enough_decisions(file: DecisionFile) -> None:
    judged = many(PROBABILITY)
    answer_first(judged, file, "calibration", LEAST - 1)
    assert findings(judged, file.read())["judge"] is None
    places = answer_first(judged, file, "calibration", 2 * LEAST)
    told = findings(judged, file.read())
    judge = told["judge"]
    assert (judge["auc"]["value"], judge["knows"]) == (1, True)
    assert judge["likely"] == round(judge["recall"] * (PROBABILITY[places] > 0.6).sum())
    assert told["share"]["low"] <= (PROBABILITY > 0.6).mean() <= told["share"]["high"]


def test_a_pair_of_both_directions_is_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "read_manifest", lambda folder: SimpleNamespace(label="m", inputs=("prepare", "train")))
    monkeypatch.setattr(review, "open_input", lambda folder, manifest, name: Path(name))
    of_images = (np.array([0]), np.array([[5, -1, 3]]), np.array([[0.9, 0.0, 0.5]]))
    of_texts = (np.array([3]), np.array([[2, 0]]), np.array([[0.6, 0.5]]))
    sides = (of_images, of_texts)
    found = review._each_once(Path("stage/x"), "val", (IMAGES, CAPTIONS, OWNERS), sides, np.arange(6))
    assert [found.ids(place) for place in range(len(found))] == [("a", "b1"), ("c", "b1"), ("a", "c1")]
    assert (found.ranks.tolist(), found.positives.tolist(), found.source) == ([2, 1, 1], [3, 3, 5], "stage/x")
    assert found.scores.tolist() == pytest.approx([0.5, 0.6, 0.9])


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
