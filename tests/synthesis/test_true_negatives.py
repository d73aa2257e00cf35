"""How many sentences are true of their image, against scenes that are known exactly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.scenes import Scene, generate
from itrpipe.scenes.layout import PlacedObject
from itrpipe.synthesis.edits import Edit
from itrpipe.synthesis.sentences import Sentence, SentenceFile, join_parts, write_part
from itrpipe.synthesis.statistics import facts, synthesis_statistics
from itrpipe.synthesis.true_negatives import VERDICTS, SceneJudge, read_scenes, true_negatives

BOX = (0.1, 0.1, 0.2, 0.2)
DOG, TABLE = (
    PlacedObject(*look, BOX, 0.2) for look in (("dog", "brown", "plain", "large"), ("table", "red", "plain", "medium"))
)
SCENE = Scene("i0", "train", 0, "base", "park", 0.5, (DOG, TABLE), ((0, "under", 1),), 0)
SENTENCES = {
    "a puppy is under a table": "true",
    "one dog and a red desk": "true",
    "a kitty is under a table": "untrue",
    "seventy dogs and a table": "untrue",
    "a dog is parked under a table": "undecided",
    "a cat is parked under a table": "untrue",
    "a dog under under table": "unreadable",
}


def written(folder: Path, rows: list[tuple[str, int, str]]) -> SentenceFile:
    """A file of sentences: text, number of edits, what became of it."""
    sentences = [
        Sentence(
            "c0",
            "i0",
            text,
            [Edit(at, "x", "y") for at in range(places)],
            None,
            None,
            None,
            None,
            reason == "kept",
            reason,
        )
        for text, places, reason in rows
    ]
    write_part(folder / "part.parquet", sentences, {"kept": len(rows)})
    join_parts([folder / "part.parquet"], folder)
    return SentenceFile(folder)


@pytest.mark.parametrize(("text", "verdict"), SENTENCES.items())
def test_verdicts(text: str, verdict: str) -> None:
    assert SceneJudge({"i0": SCENE}).verdict(text, "i0") == verdict
    assert set(SENTENCES.values()) == set(VERDICTS)


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        (("a kitty is under a table", "a puppy is under a table"), "true"),
        (("a puppy is under a table", "a kitty is under a table"), "true"),
        (("a dog is parked under a table", "a puppy is under a table"), "true"),
        (("a kitty is under a table", "a dog is parked under a table"), "undecided"),
        (("a kitty is under a table", "a cat is parked under a table"), "untrue"),
    ],
)
def test_what_can_mean_several_things_is_true_where_one_of_them_is(texts: tuple[str, str], verdict: str) -> None:
    judge = SceneJudge({"i0": SCENE})
    readings = tuple(reading for text in texts for reading in judge._reader.readings(text))
    assert len(readings) == 2
    judge._reader.readings = lambda text: readings  # pyright: ignore
    assert judge.verdict("", "i0") == verdict


def test_figures_count_verdicts_by_places_and_by_what_became_of_them(tmp_path: Path) -> None:
    rows = [(text, 1 + number % 2, "kept") for number, text in enumerate(SENTENCES)]
    rows += [("a dog", 1, "false negative"), ("a cat", 1, "false negative")]
    done: list[int] = []
    found = true_negatives(written(tmp_path, rows), {"i0": SCENE}, done.append)
    assert sum(done) == 9
    assert [found[verdict] for verdict in VERDICTS] == [3, 2, 1, 1]
    assert found["sentences"] == 7
    assert found["percent_of_decided"] == 60.0
    assert found["percent"] == pytest.approx(100 * 5 / 7, abs=0.01)
    places = found["by_places_changed"]
    assert {key: figures["sentences"] for key, figures in places.items()} == {"1": 4, "2": 3}
    assert all(found[verdict] == places["1"][verdict] + places["2"][verdict] for verdict in VERDICTS)
    assert found["rejected"]["false negative"]["true"] == found["rejected"]["false negative"]["untrue"] == 1
    assert json.loads(json.dumps(found)) == found


def test_the_figures_are_told(tmp_path: Path) -> None:
    file = written(tmp_path, [("a dog", 1, "kept"), ("a cat", 1, "kept"), ("a dog", 1, "identical")])
    statistics = synthesis_statistics(file, 1)
    before = facts(statistics)
    after = facts(statistics | {"true_negatives": true_negatives(file, {"i0": SCENE})})
    assert after[: len(before)] == before
    assert after[len(before)].startswith("50.0% true negatives of the 2 sentences that can be judged: 1 describe")
    assert after[-1] == "of 1 rejected (identical) 1 describe their image"


def test_without_sentences_there_is_nothing_to_tell(tmp_path: Path) -> None:
    file = written(tmp_path, [])
    found = true_negatives(file, {"i0": SCENE})
    assert found["sentences"] == 0
    assert found["percent"] is found["percent_of_decided"] is None
    statistics = synthesis_statistics(file, 1)
    assert facts(statistics | {"true_negatives": found}) == facts(statistics)


def test_a_sentence_of_another_dataset_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, [("a dog", 1, "kept")])
    with pytest.raises(DataError, match="no scene of the dataset is image 'i0'"):
        true_negatives(file, {"i1": SCENE})


def test_scenes_are_read_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scenes.jsonl"
    lines = [json.dumps({"scene": asdict(scene), "captions": []}) for scene in (SCENE, SCENE)]
    path.write_text("\n".join(lines) + "\n")
    assert read_scenes(path) == {"i0": SCENE}
    path.write_text(lines[0] + "\n" + lines[1][:-9])
    with pytest.raises(DataError, match=r"scenes\.jsonl: line 2 is damaged .*itrpipe prepare` again"):
        read_scenes(path)


def test_captions_with_a_colour_exchanged_are_mostly_untrue_and_the_captions_true() -> None:
    dataset = generate(train=60, val=0, test=0, seed=3)
    judge = SceneJudge({scene.image_id: scene for scene in dataset.scenes})
    pairs = [
        (caption.text, scene.image_id)
        for scene, five in zip(dataset.scenes, dataset.captions, strict=True)
        for caption in five
    ]
    assert {judge.verdict(*pair) for pair in pairs} == {"true"}
    exchanged = [(text.replace(" red ", " purple "), image) for text, image in pairs if " red " in text]
    verdicts = [judge.verdict(*pair) for pair in exchanged]
    assert "unreadable" not in verdicts
    assert np.mean([verdict == "untrue" for verdict in verdicts]) > 0.9
