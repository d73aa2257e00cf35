"""How hard synthetic sentences are over training: what is drawn of histories, and the section of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from itrpipe.reporting.sections.difficulty import section as difficulty

QUARTILES = ("lower_quartile", "median", "upper_quartile")
FIRST, SECOND = [(-0.3, -0.1, 0.1), (-0.5, -0.3, -0.1)], [(-0.2, 0.1, 0.3), (-0.4, -0.2, 0.0)]
STATIC = [(-0.9, -0.6, -0.5)]


def epochs(gaps: list[tuple[float, float, float] | None], steps: int = 40) -> list[dict[str, Any]]:
    names = [f"mean_gap_{name}" for name in QUARTILES]
    return [{"steps": steps, **dict(zip(names, each or (None,) * 3, strict=True))} for each in gaps]


@pytest.fixture(scope="module")
def trained(toy: Any, add_history: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, tuple[str, ...]]:
    """Two seeds with a dynamic generator, a run of one epoch with a static one, and one that writes no sentences."""
    found = toy.copy(tmp_path_factory.mktemp("difficulty") / "data")
    names = [add_history(found, "tags", "dynamic", epochs(gaps), seed) for seed, gaps in enumerate((FIRST, SECOND))]
    return found, (*names, add_history(found, "tags-static", "static", epochs(STATIC, 30)), "triplet.vsepp")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of the drawings of the section that are made from now on."""
    found: list[Any] = []
    draw = difficulty.svg
    monkeypatch.setattr(
        difficulty, "svg", lambda figure, *given: (found.append(figure.axes[0]), draw(figure, *given))[1]
    )
    return found


def lines(axes: Any) -> list[tuple[list[float], list[float]]]:
    """Positions and heights of every line but that at zero and the points."""
    each = [line for line in axes.lines if line.get_marker() == "None"]
    assert list(each[0].get_ydata()) == [0, 0]
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in each[1:]]


def test_a_run_is_its_median_within_its_quartiles_by_step(trained: Any, drawn: list[Any]) -> None:
    found, names = trained
    found.report(names, drawn=True, title="drawn")
    (axes,) = drawn
    first, second, mean, static = lines(axes)
    assert first == ([20.0, 60.0], [-0.1, -0.3])
    assert second == ([20.0, 60.0], [0.1, -0.2])
    assert mean[0] == [20.0, 60.0]
    assert mean[1] == pytest.approx([0.0, -0.25])
    assert static == ([0.0, 30.0], [-0.6, -0.6])  # a single epoch reaches across its steps
    bands = [each.get_paths()[0].vertices for each in axes.collections]
    corners = [sorted({tuple(np.round(corner, 6).tolist()) for corner in band}) for band in bands]
    assert corners[0] == [(20.0, -0.25), (20.0, 0.2), (60.0, -0.45), (60.0, -0.05)]
    assert corners[1] == [(0.0, -0.9), (0.0, -0.5), (30.0, -0.9), (30.0, -0.5)]
    points = [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert points == [[20.0, 60.0], [15.0]]


def test_an_epoch_without_sentences_leaves_a_gap(toy: Any, add_history: Any, drawn: list[Any], tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_history(found, "tags", "dynamic", epochs([FIRST[0], None, FIRST[1]]))
    found.report((name, "triplet.vsepp"))
    ((steps, medians),) = lines(drawn[0])
    assert steps == [20.0, 60.0, 100.0]
    np.testing.assert_equal(medians, [-0.1, np.nan, -0.3])


def test_the_section_names_generators_and_where_the_numbers_are(trained: Any) -> None:
    found, names = trained
    page = found.report(names).page
    (section,) = [each for each in page.all("section") if each.attributes["id"] == "difficulty"]
    assert [each.text() for each in section.all("ul", "legend")[0].all("li")] == [
        "UNITER, TAGS: dynamic generator",
        "UNITER, TAGS, static: static generator",
    ]
    folders = [each.name for each in sorted((found.root / "toy" / "train").glob("tags*"))]
    paths = [each.text() for each in section.all("code")[2:]]
    assert sorted(paths) == [f"train/{name}" for name in folders]
    assert len(section.all("svg")) == 3  # two keys and the drawing
    assert [each.text() for each in page.all("a") if each.attributes["href"] == "#difficulty"] == ["Difficulty"]


def test_reports_without_such_runs_have_no_such_section(done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "difficulty"]
    assert not [each for each in done.page.all("a") if each.attributes["href"] == "#difficulty"]
