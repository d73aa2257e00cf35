"""The report on whether a second training is worth it: a curve for each way of training, a row for each run, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from itrpipe.reporting.sections.second_round.section import _cells

from itrpipe.evaluation.second_round import EVIDENCE
from tests.analysis.test_second_round import diagnostics


@pytest.fixture(scope="module")
def page(toy: Any, add_second_round: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two seeds of a first training, of which one is to be trained on, beside runs of which nothing was found out."""
    found = toy.copy(tmp_path_factory.mktemp("second-round") / "data")
    names = [add_second_round(found, diagnostics(gained=4.0 * seed, truth=False), seed) for seed in range(2)]
    return found.report((*names, "aoq.vsepp", "triplet.vsepp"), drawn=True).page


@pytest.fixture(scope="module")
def section(page: Any) -> Any:
    (section,) = [each for each in page.all("section") if each.attributes.get("id") == "second-round"]
    return section


NAME = "VSE++, in-batch negatives"


def test_every_run_has_its_figures(section: Any) -> None:
    (body,) = section.all("tbody")
    rows = {row.all("th")[0].text(): [cell.text() for cell in row.all("td")] for row in body.all("tr")}
    assert list(rows) == [NAME, f"{NAME}, seed 1"]
    figures = ["3,000", "128", "10.0 %", "60.0 %", "≈ 5.0 %", "≈ 5.0 %", "≈ 5.0 %"]
    assert rows[NAME] == [*figures, "+0.0", "+80.0", "mine"]
    assert rows[f"{NAME}, seed 1"] == [*figures, "+4.0", "+80.0", "train longer"]


def test_a_model_has_the_colour_that_it_has_elsewhere_on_the_page(page: Any, section: Any) -> None:
    def colours(part: Any) -> set[str]:
        keys = [each for each in part.all("li") if each.all("svg") and each.text().strip() == NAME]
        return {each.attributes["style"] for key in keys for each in (*key.all("path"), *key.all("line"))}

    assert colours(section) == colours(page)
    assert len(colours(page)) == 1


def test_what_knows_its_training_images_by_heart_wants_more_of_them() -> None:
    found = diagnostics()
    found["fit"] |= {"validation": 179.0, "gap": 322.0}
    assert _cells(found)[-1].text == "more images first"


def test_the_advice_stands_above_with_how_sure_it_is(section: Any) -> None:
    (advice,) = [each.text() for each in section.all("p") if each.all("strong")]
    assert advice.startswith(f"{NAME}: Mine: the hardest negative of a batch of 128 beats 10 %")
    assert EVIDENCE in [each.text() for each in section.all("p", "note")]
    assert not section.all("code")
    (drawing,) = section.all("svg")[1:]
    assert "Pairs that the hardest negative beats" in drawing.attributes["aria-label"]


def test_of_a_collapsed_run_there_is_no_advice(toy: Any, add_second_round: Any, recorded: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_second_round(found, diagnostics(), 0)
    file = found.made[name] / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["full"]["rsum"]["low"] = 0.0
    file.write_text(json.dumps(metrics))
    recorded(file)
    page = found.report((name,)).page
    assert "collapsed" in page.all("p", "answer")[0].text()
    assert "second-round" not in [each.attributes.get("id") for each in page.all("section")]
