"""Sentences told from true ones in the report: generators against runs, over seeds, where some were measured."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from itrpipe.reporting.asked import MOST_COLUMNS
from itrpipe.reporting.sections.discrimination.section import discrimination_tables, generator_title
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH

Figures = Mapping[str, tuple[float | None, int]]


def measured(figures: Figures) -> dict[str, Any]:
    """Percent and number of sentences by generator, as an evaluation writes them."""
    return {
        name: {
            "percent": None if percent is None else {"value": percent, "low": percent - 2, "high": percent + 1.5},
            "gap": None if percent is None else {"value": -0.5, "low": -0.75, "high": -0.25},
            "sentences": sentences,
            "captions": min(sentences, 60),
        }
        for name, (percent, sentences) in figures.items()
    }


@pytest.fixture(scope="module")
def report(toy: Any, add_discrimination: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three seeds of one method, one run of another with fewer generators, and one that measured nothing."""
    found = toy.copy(tmp_path_factory.mktemp("discrimination") / "data")
    names = [
        add_discrimination(found, "tags-dc", measured({"phrases": (90.0 + seed, 1200), "vse-c": (80.0, 900)}), seed)
        for seed in range(3)
    ]
    names.append(
        add_discrimination(found, "tags-discriminate", measured({"vse-c": (70.04, 900), "phrases.tags.s1": (None, 0)}))
    )
    return found.report((*names, "triplet.vsepp"))


def section_of(page: Any) -> Any:
    (found,) = [each for each in page.all("section") if each.attributes.get("id") == "discrimination"]
    return found


def test_rows_are_generators_and_columns_methods(report: Any) -> None:
    (figure,) = section_of(report.page).all("figure")
    heads = [each.text() for each in figure.all("thead")[0].all("th") if each.text()]
    assert heads == ["generator", "UNITER, TAGS-DC", "UNITER, TAGS-D"]
    rows = {row.all("th")[0].text(): row.all("td") for row in figure.all("tbody")[0].all("tr")}
    assert list(rows) == ["TAGS", "TAGS, written by TAGS, seed 1", "VSE-C"]
    assert [cell.text() for cell in rows["TAGS"]] == ["91.0", DASH]
    assert [cell.text() for cell in rows["VSE-C"]] == ["80.0", "70.0"]
    assert [cell.text() for cell in rows["TAGS, written by TAGS, seed 1"]] == [DASH, DASH]
    below = [[each.text("i") for each in cell.all("span", "interval")] for cell in rows["VSE-C"]]
    assert below == [["± 0.0"], [f"68.0{DASH}71.5"]]
    assert ["marked" in cell.attributes.get("class", "") for cell in rows["VSE-C"]] == [True, False]


def test_how_many_sentences_there_are_and_whether_they_are_the_same(report: Any) -> None:
    rows = section_of(report.page).all("tbody")[0].all("tr")
    notes = [row.all("span", "label")[0].text("i") for row in rows]
    assert notes == ["1,200 sentences", "0 sentences", "900 sentences, not the same for all runs"]


def test_the_section_is_linked_and_its_numbers_are_in_the_other_files(report: Any) -> None:
    assert [each.text() for each in report.page.all("a") if each.attributes["href"] == "#discrimination"] == [
        "True or not"
    ]
    runs = {run["label"]: run["discrimination"] for run in report.results["runs"]}
    assert runs["tags-discriminate.uniter"]["vse-c"]["percent"]["value"] == 70.04
    assert runs["triplet.vsepp"] is None
    lines = (report.folder / "summary.txt").read_text().splitlines()
    own = lines[lines.index("UNITER, TAGS-DC, seed 2") + 1 :]
    assert next(each for each in own if each.startswith(" VSE-C ")).split() == ["VSE-C", "80.0", "78.0–81.5"]
    assert any("written by TAGS, seed 1" in each and each.endswith("-") for each in lines)
    assert max(map(len, lines)) <= 80


def test_runs_that_were_not_asked_have_no_such_section(done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "discrimination"]
    assert not [each for each in done.page.all("a") if each.attributes["href"] == "#discrimination"]


def test_many_methods_make_several_tables() -> None:
    def series(number: int) -> Any:
        inputs = {"sentences_vse-c": SimpleNamespace(fingerprint="same")}
        manifest = SimpleNamespace(finished="2026-03-01", inputs=inputs)
        run = SimpleNamespace(
            seed=0,
            figures=lambda file: measured({"vse-c": (50.0 + number, 10)}),
            manifest=manifest,
            settings={"interval_level": 0.9},
        )
        return Series(f"method {number}", (run,), True)  # pyright: ignore[reportArgumentType]

    first, second = discrimination_tables([series(number) for number in range(MOST_COLUMNS + 1)])
    assert [len(each.table.columns) for each in (first, second)] == [MOST_COLUMNS, 1]
    assert second.spans == [("", 1)]
    (row,) = second.table.rows
    assert row.note == "10 sentences"
    assert not row.cells[0].marked
    assert "its 90 % bootstrap interval" in second.table.caption
    assert [cell.marked for cell in first.table.rows[0].cells] == [False] * (MOST_COLUMNS - 1) + [True]
    assert discrimination_tables([]) == []


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("phrases", "TAGS"),
        ("phrases.s1", "TAGS, seed 1"),
        ("words", "TAGS, words masked"),
        ("phrases.tags-dc.s2", "TAGS, written by TAGS-DC, seed 2"),
        ("vse-c", "VSE-C"),
    ],
)
def test_generators_are_called_as_papers_call_them(name: str, title: str) -> None:
    assert generator_title(name) == title
