"""Judges beside people who were asked in public."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from itrpipe.analysis.questions.judgements import (
    MODEL,
    SHOWN,
    TOGETHER,
    compare_judges,
    figures_by_rank,
    wrong_answer_ranks,
)
from itrpipe.datasets.judgements import read_judgements
from itrpipe.errors import UsageError
from itrpipe.evaluation.kendall import kendall
from itrpipe.features.embeddings import SplitScores
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import open_judge
from tests.datasets.judgements import TEXTS, write_judgements


def test_judges_are_compared_with_people_by_their_scores(tmp_path: Path) -> None:
    folder = write_judgements(tmp_path / "own", published=True)
    found = compare_judges(str(folder), ["captions:tfidf", "graphs"], "cpu")
    assert [*found] == ["captions:tfidf", "graphs", TOGETHER]
    judgements = read_judgements(str(folder))
    material = Material(judgements.captions, judgements.owners, len(judgements.files))
    judge = open_judge(judge_name("captions:tfidf"), material, "cpu")
    experts, crowd = judgements.answers.values()
    ratings = np.repeat(judge(experts.images, experts.captions), 3), experts.values.ravel()
    assert found["captions:tfidf"]["experts"]["tau"] == pytest.approx(100 * kendall(*ratings).c)
    shares = judge(crowd.images, crowd.captions), crowd.values.ravel()
    assert found["captions:tfidf"]["crowd"]["tau"] == pytest.approx(100 * kendall(*shares).b)
    assert found["captions:tfidf"]["experts"]["auc"]["value"] == 100, "it tells dogs from cars"

    table = SHOWN[0].table([("first", [found | {MODEL: found["graphs"]}]), ("second", [found])])
    assert table is not None
    assert table.columns == ["first", "second"]
    cells = {row.name: row.cells for row in table.rows}
    assert cells["captions:tfidf, experts: auc"][0] == cells["captions:tfidf, experts: auc"][1]
    assert cells["model, crowd: tau"][1] is None


def test_judges_that_look_need_photographs(tmp_path: Path) -> None:
    folder = write_judgements(tmp_path / "own")
    with pytest.raises(UsageError, match=r"dual:nobody/model looks at photographs; put those .*Flicker8k_Dataset"):
        compare_judges(str(folder), ["dual:nobody/model"], "cpu")
    with pytest.raises(UsageError, match="judge 'captoins' is none of"):
        compare_judges(str(folder), ["captoins"], "cpu")


def test_wrong_answers_are_counted_by_their_rank(tmp_path: Path) -> None:
    """The split has dog, puppy and car; the bus of some answers, and what was said of it, are elsewhere."""
    judgements = read_judgements(str(write_judgements(tmp_path / "own")))
    texts = [text for image in ("dog.jpg", "puppy.jpg", "car.jpg") for text in TEXTS[image]]
    scores = np.array([[9, 8, 7, 3, 5, 1], [2, 1, 9, 8, 4, 3], [5, 1, 2, 4, 9, 8]], np.float32)
    ids = np.array(["dog", "puppy", "car"])
    split = SplitScores(scores, ids, np.arange(6).astype(str), np.repeat(np.arange(3), 2))
    ranks = wrong_answer_ranks(judgements, split, [f" {text.upper()}" for text in texts])
    # Dog with puppy#0, puppy with car#1, a bus, car with dog#0; dog with puppy#1, a bus, car with puppy#1, a bus.
    assert ranks.tolist() == [1, 2, 0, 1, 3, 0, 2, 0]
    found = figures_by_rank(judgements, ranks, np.arange(8.0), (100, 0.95))
    pairs = [(rank, kind, figures["pairs"]) for rank, kinds in found.items() for kind, figures in kinds.items()]
    assert pairs == [("ranks 1 to 1", "experts", 2), ("ranks 2 to 5", "experts", 1), ("ranks 2 to 5", "crowd", 2)]
    first = found["ranks 1 to 1"]["experts"]
    assert first["right"]["value"] == 50, "the puppy's caption fits the dog, and the dog's no car"
    assert first["auc"]["value"] == 0, "the judge prefers the car"
    assert found["ranks 2 to 5"]["experts"]["auc"] is None, "all are wrong"
    table = SHOWN[0].table([("model", [found])])
    assert table is not None
    assert table.rows[0].name == "ranks 1 to 1, experts: pairs"
