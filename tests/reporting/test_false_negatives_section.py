"""Estimated false negatives in the report: figures of each run, and candidates with their probabilities."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from itrpipe.reporting.page import percent

from itrpipe.errors import DataError

LISTS = ("texts_for_images", "images_for_texts")
CHANCES = (0.97, 0.5, 0.004, 0.0)


def figures(first: float, area: float | None) -> dict[str, Any]:
    """Numbers that differ everywhere; without an area the truth is not known."""
    known = area is not None
    drawn = {"drawn": first if known else None, "hardest": first + 20 if known else None, "anchors": 60}
    drawn |= {"roc_area": area + 0.05 if area is not None else None}
    hardest = {"candidates": 40, "likely_percent": first + 1, "true_percent": 3.0 if known else None}
    hardest |= {"roc_area": area, "roc_area_of_similarity": area - 0.1 if area is not None else None}
    return {
        "drawn": {LISTS[0]: drawn, LISTS[1]: {**drawn, "anchors": 61}},
        "hardest": {LISTS[0]: hardest, LISTS[1]: {**hardest, "likely_percent": first + 2}},
    }


def rows(anchors: list[str], candidates: list[str], direction: str, scale: float) -> list[dict[str, Any]]:
    return [
        {"direction": direction, "anchor_id": anchor, "rank": rank, "candidate_id": candidate}
        | {"similarity": 0.9 - 0.1 * rank, "probability": scale * chance, "true_match": None}
        for anchor in anchors
        for rank, (candidate, chance) in enumerate(zip(candidates, CHANCES, strict=True))
    ]


def listed(toy: Any) -> list[dict[str, Any]]:
    """Two images and two captions; the first of each has a likely false negative."""
    images, captions = (
        pq.read_table(toy.made["mining"] / f"{name}.parquet")["anchor_id"].to_pylist()
        for name in ("texts_for_images", "images_for_texts")
    )
    found = []
    for direction, anchors, candidates in ((LISTS[0], images, captions), (LISTS[1], captions, images)):
        found += rows(anchors[:1], candidates[-4:], direction, 1.0) + rows(
            anchors[1:2], candidates[-4:], direction, 0.1
        )
    return found


@pytest.fixture(scope="module")
def report(toy: Any, add_estimates: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = toy.copy(tmp_path_factory.mktemp("estimates") / "data")
    name = add_estimates(found, figures(4.0, 0.93), listed(found))
    return found.report((name, "aoq.vsepp", "triplet.vsepp"), examples=2)


@pytest.fixture(scope="module")
def section(report: Any) -> Any:
    (found,) = [each for each in report.page.all("section") if each.attributes["id"] == "false-negatives"]
    return found


def test_every_run_that_estimated_has_a_row_of_figures(section: Any) -> None:
    tables = section.all("figure", "numbers")
    assert [each.all("caption")[0].text() for each in tables] == ["Texts for images", "Images for texts"]
    expected = [["4.0 %", "24.0 %", "0.980", "5.0 %", "0.930", "0.830"]] * 2
    expected[1] = [*expected[0][:3], "6.0 %", *expected[0][4:]]
    for table, values in zip(tables, expected, strict=True):
        (row,) = table.all("tbody")[0].all("tr")
        assert row.all("th")[0].text() == "VSE++, FNE"
        assert [cell.text() for cell in row.all("td")] == values


def test_candidates_come_with_their_probabilities(toy: Any, section: Any) -> None:
    examples = section.all("article")
    assert len(examples) == 4
    shown = [[each.text() for each in example.all("span", "chance")] for example in examples]
    likely, unlikely = (
        ["97 % true by FNE", "50 % true by FNE", "< 1 % true by FNE", "0 % true by FNE"],
        ["10 % true by FNE", "5 % true by FNE"],
    )
    assert shown[0] == shown[2] == likely
    assert shown[1][:2] == shown[3][:2] == unlikely
    assert examples[0].all("img")[0].attributes["alt"] == listed(toy)[0]["anchor_id"]


def test_programs_get_the_figures_of_the_run(report: Any) -> None:
    runs = {each["label"]: each for each in report.results["runs"]}
    assert runs["fne.vsepp"]["estimated_false_negatives"] == figures(4.0, 0.93)
    assert runs["aoq.vsepp"]["estimated_false_negatives"] is None


def test_where_the_truth_is_not_known_there_are_dashes(toy: Any, add_estimates: Any, tmp_path: Any) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_estimates(found, figures(4.0, None), listed(found))
    page = found.report((name, "triplet.vsepp")).page
    (section,) = [each for each in page.all("section") if each.attributes["id"] == "false-negatives"]
    cells = [cell.text() for body in section.all("tbody") for cell in body.all("td")]
    assert cells == ["–", "–", "–", "5.0 %", "–", "–", "–", "–", "–", "6.0 %", "–", "–"]


def test_an_anchor_of_another_dataset_is_refused(toy: Any, add_estimates: Any, tmp_path: Any) -> None:
    found = toy.copy(tmp_path / "data")
    foreign = rows(["elsewhere"], listed(found)[0]["candidate_id"].split() * 4, LISTS[0], 1.0)
    name = add_estimates(found, figures(4.0, 0.9), foreign)
    with pytest.raises(DataError, match="names 'elsewhere', which the training split does not have"):
        found.report((name, "triplet.vsepp"))


def test_runs_that_estimated_nothing_have_no_such_section(done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "false-negatives"]
    assert not [each for each in done.page.all("a") if each.attributes["href"] == "#false-negatives"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (1.0, "100 %"), (1e-6, "< 1 %"), (0.9999, "> 99 %"), (0.5, "50 %"), (0.01, "1 %")]
)
def test_percentages_reach_their_ends_only_exactly(share: float, text: str) -> None:
    assert percent(share) == text
