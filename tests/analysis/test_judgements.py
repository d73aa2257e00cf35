"""Judges beside people who were asked in public."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from itrpipe.analysis.questions.judgements import (
    SHOWN,
    TOGETHER,
    compare_judges,
    judges_agreement,
    wrong_answer_ranks,
)
from itrpipe.datasets.judgements import read_judgements
from itrpipe.engine.work import Runner
from itrpipe.errors import UsageError
from itrpipe.evaluation.kendall import kendall
from itrpipe.features.embeddings import SplitScores
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import open_judge
from tests.datasets.judgements import TEXTS, write_judgements

SECOND = "2\N{EN DASH}5"


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

    table = SHOWN[0].table([("first", [found | {"": found["graphs"]}]), ("second", [found])])
    assert table is not None
    names = [row.name for row in table.rows]
    assert names[:4] == ["captions:tfidf", "graphs", TOGETHER, "first"], "judges once, whichever model"
    assert all(name.endswith("published") for name in names[4:])


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
    made = Runner(tmp_path, None, warnings.warn).made
    found = judges_agreement(judgements, ["captions:tfidf"], made, "cpu", ranks, (100, 0.95))
    experts, crowd = (figures["ranks"] for figures in found["captions:tfidf"].values())
    assert {rank: figures["pairs"] for rank, figures in experts.items()} == {"1": 2, SECOND: 1}
    assert experts["1"]["right"]["value"] == 50, "the puppy's caption fits the dog, and the dog's no car"
    assert experts["1"]["auc"]["value"] == 100, "the judge tells these apart"
    assert experts[SECOND]["auc"] is None, "all are wrong"
    assert crowd[SECOND]["pairs"] == 2
    table = SHOWN[1].table([("model", [found])])
    assert table is not None
    assert [row.name for row in table.rows][:3] == [
        "experts rank 1, pairs",
        "experts rank 1, right",
        "experts rank 1, AUC of captions:tfidf",
    ]
