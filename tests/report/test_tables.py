"""Numbers and tables, and how a terminal, Markdown and JSON show them."""

from __future__ import annotations

from typing import Any

import pytest

from itrpipe.evaluation.tables import (
    DASH,
    MINUS,
    WIDTH,
    Measured,
    Number,
    Row,
    Table,
    as_json,
    as_lines,
    as_markdown,
    duration,
    mean,
    whole_text,
    with_best,
)

ROWS = [Row("one", [Number(50.04, 49, 51), None], "note"), Row("two", [Number(50.06), "better"])]
TABLE = Table("Title", ["R@1", "word"], ROWS, "caption", [("Image → text", 1), ("", 1)])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(1234.56), "1,234.6"),
        (Number(-0.04), "0.0"),
        (Number(-2, digits=0, unit=" %"), f"{MINUS}2 %"),
        (Number(1.44, -4, 6.66, signed=True), f"+1.4 ({MINUS}4.0 to +6.7)"),
        (Number(-0.01, signed=True), "0.0"),
        (Number(50, 49, 51), f"50.0 (49.0{DASH}51.0)"),
        (Number(50, deviation=0.55), "50.0 ± 0.6"),
        (Number.of({"value": 3.0, "low": 2.0, "high": 4.0}, digits=0), f"3 (2{DASH}4)"),
        (Number.of(None), DASH),
    ],
)
def test_a_number_has_its_digits_sign_and_uncertainty(number: Number | None, text: str) -> None:
    assert whole_text(number) == text


def test_the_mean_of_seeds_has_their_deviation_and_one_seed_keeps_its_interval() -> None:
    assert mean([Number(1.0, 0, 2)]) == Number(1.0, 0, 2)
    found = mean([Number(1.0, 0, 2, digits=3), Number(3.0, 0, 4, digits=3)])
    assert found == Number(2.0, deviation=2**0.5, digits=3)
    assert mean([Number(1.0), None]) is None
    assert mean([]) is None


def test_the_best_of_a_column_is_marked_where_not_all_look_equal() -> None:
    def marks(values: list[float]) -> list[bool]:
        found = with_best(Table("", ["R@1"], [Row("", [Number(each)]) for each in values])).rows
        return [row.cells[0].marked for row in found]  # type: ignore[union-attr]

    assert marks([1, 3, 3]) == [False, True, True]
    assert marks([1.01, 1.04]) == [False, False]


def test_what_seeds_wrote_is_averaged_and_what_one_lacks_is_left_out() -> None:
    measured = Measured(
        "", "file.json", lambda found: {("side", key): Number.of(each) for key, each in found.items()}, ""
    )
    told = [("model", [{"a": 1.0, "b": 2.0}, {"a": 3.0}]), ("silent", [])]
    table = measured.table(told)
    assert table is not None
    assert (list(table.columns), list(table.spans)) == (["a", "b"], [("side", 2)])
    (row,) = table.rows
    assert row.cells == [Number(2.0, deviation=2**0.5), None]
    assert measured.table([("silent", [])]) is None


def test_models_are_columns_where_a_table_is_turned() -> None:
    measured = Measured(
        "", "", lambda found: {("Suite", key): Number(each) for key, each in found.items()}, "", turned=True
    )
    table = measured.table([("one", [{"x": 1.0}]), ("two", [{"x": 2.0, "y": 3.0}])])
    assert table is not None
    assert list(table.columns) == ["one", "two"]
    assert [(row.name, row.cells) for row in table.rows] == [
        ("Suite x", [Number(1.0), Number(2.0)]),
        ("Suite y", [None, Number(3.0)]),
    ]


def test_markdown_holds_every_number_and_escapes_bars() -> None:
    rows = [Row("a|b", [Number(1.0, 0, 2), None], "why")]
    lines = as_markdown(Table("", ["R@1", "word"], rows)).splitlines()
    assert lines == [
        "| model | R@1 | word |",
        "| --- | ---: | ---: |",
        rf"| a\|b (why) | 1.0 (0.0{DASH}2.0) | {DASH} |",
    ]


def test_json_is_unrounded_by_full_headings() -> None:
    found = as_json(TABLE)
    assert found["rows"][0]["cells"] == {"Image → text R@1": {"value": 50.04, "low": 49, "high": 51}, "word": None}
    assert found["rows"][1]["cells"]["word"] == "better"


@pytest.mark.parametrize("columns", [1, 5, 7, 20])
@pytest.mark.parametrize("name", ["full", "a name of a model that is far longer than its column"])
def test_lines_fit_a_terminal_and_numbers_stand_below_each_other(columns: int, name: str) -> None:
    rows = [Row(each, [Number(50.0 + place, 49, 100) for place in range(columns)]) for each in (name, "short")]
    lines = as_lines(Table("Title", [f"R@{place}" for place in range(columns)], rows))
    assert max(map(len, lines)) <= WIDTH
    ends: dict[int, set[int]] = {}
    for line in lines:
        for number in range(columns):
            if (place := line.find(f" {50 + number}.0")) >= 0:
                ends.setdefault(number, set()).add(place)
    assert len(ends) == columns
    assert all(len(each) == 1 for each in ends.values())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.234, "0.23 s"), (48.5, "48.5 s"), (725, "12 min 05 s"), (12_000, "3 h 20 min")]
)
def test_durations_are_told_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_no_two_headings_of_a_table_are_alike() -> None:
    groups: list[Any] = [("i2t", 2), ("t2i", 2)]
    assert Table("", ["R@1", "R@5"] * 2, [], spans=groups).full_columns == ["i2t R@1", "i2t R@5", "t2i R@1", "t2i R@5"]
