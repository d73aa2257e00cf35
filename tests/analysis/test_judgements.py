"""Judges beside people who were asked in public."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from itrpipe.analysis.questions.judgements import SHOWN, TOGETHER, compare_judges
from itrpipe.datasets.judgements import read_judgements
from itrpipe.errors import UsageError
from itrpipe.evaluation.kendall import kendall
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import open_judge
from tests.datasets.judgements import write_judgements


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
