"""Numbers and tables, and how a terminal, Markdown and JSON show them."""

from __future__ import annotations

import pytest

from itrpipe.evaluation.results import summed_up
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
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(1234.56), "1,234.6"),
        (Number(-0.04), "0.0"),
        (Number(-2, digits=0, unit=" %"), f"{MINUS}2 %"),
        (Number(1.44, -4, 6.66, signed=True), f"+1.4 ({MINUS}4.0 to +6.7)"),
        (Number(-0.01, signed=True), "0.0"),
        (Number(50, deviation=0.55), "50.0 ± 0.6"),
        (Number.of({"value": 3.0, "low": 2.0, "high": 4.0}, digits=0), f"3 (2{DASH}4)"),
        (Number.of(None), DASH),
    ],
)
def test_a_number_has_its_digits_sign_and_uncertainty(number: Number | None, text: str) -> None:
    assert whole_text(number) == text


def test_a_number_that_is_kept_for_tables_is_rounded_only_where_it_is_shown() -> None:
    recalls = {f"{side}_r{k}": {"value": 350.4545 / 6} for side in ("i2t", "t2i") for k in (1, 5, 10)}
    kept = summed_up({"full": {**recalls, "rsum": {"value": 350.4545}}})["full rsum"]
    assert f"{kept:.4g}" == Number(350.4545).text == "350.5"


def test_the_mean_of_seeds_has_their_deviation_and_one_seed_keeps_its_interval() -> None:
    assert mean([Number(1.0, 0, 2)]) == Number(1.0, 0, 2)
    found = mean([Number(1.0, 0, 2, digits=3), Number(3.0, 0, 4, digits=3)])
    assert found == Number(2.0, deviation=2**0.5, digits=3)
    assert mean([Number(1.0), None]) is mean([]) is None


@pytest.mark.parametrize("turned", [False, True])
def test_what_seeds_wrote_is_averaged_and_what_one_lacks_is_left_out(turned: bool) -> None:
    def cells(found: dict[str, float]) -> dict[tuple[str, str], Number | None]:
        return {("side", key): Number.of(each) for key, each in found.items()}

    measured = Measured("", "file.json", cells, "", turned=turned)
    table = measured.table([("model", [{"a": 1.0, "b": 2.0}, {"a": 3.0}]), ("silent", [])])
    assert table is not None
    rows = {row.name: list(row.cells) for row in table.rows}
    average = Number(2.0, deviation=2**0.5)
    assert rows == ({"side a": [average], "side b": [None]} if turned else {"model": [average, None]})
    assert (list(table.columns), list(table.spans)) == ((["model"], []) if turned else (["a", "b"], [("side", 2)]))
    assert measured.table([("silent", [])]) is None


def test_a_column_that_is_no_models_stands_before_those_of_the_models() -> None:
    def cells(found: dict[str, float]) -> dict[tuple[str, str], Number | None]:
        return {("", key): Number(each) for key, each in found.items()}

    beside = "chance", lambda found: dict.fromkeys(cells(found), Number(50))
    table = Measured("", "file.json", cells, "", turned=True, beside=beside).table(
        [("x", [{"a": 1}]), ("y", [{"b": 2}])]
    )
    assert table is not None
    assert list(table.columns) == ["chance", "x", "y"]
    assert [row.cells[0] for row in table.rows] == [Number(50), Number(50)]


def test_markdown_and_json_hold_every_number_unrounded_or_escaped() -> None:
    rows = [Row("a|b", [Number(50.04, 49, 51), None], "why"), Row("two", [Number(50.06), "better"])]
    table = Table("Title", ["R@1", "word"], rows, "caption", [("Image → text", 1), ("", 1)])
    assert as_markdown(table).splitlines() == [
        "| model | Image → text R@1 | word |",
        "| --- | ---: | ---: |",
        rf"| a\|b (why) | 50.0 (49.0{DASH}51.0) | {DASH} |",
        "| two | 50.1 | better |",
    ]
    cells = [row["cells"] for row in as_json(table)["rows"]]
    assert cells[0] == {"Image → text R@1": {"value": 50.04, "low": 49, "high": 51}, "word": None}
    assert cells[1]["word"] == "better"


@pytest.mark.parametrize("columns", [1, 5, 7, 20])
@pytest.mark.parametrize("name", ["full", "a name of a model that is far longer than its column"])
def test_lines_fit_a_terminal_and_numbers_stand_below_each_other(columns: int, name: str) -> None:
    rows = [Row(each, [Number(50.0 + place, 49, 100) for place in range(columns)]) for each in (name, "short")]
    lines = as_lines(Table("Title", [f"R@{place}" for place in range(columns)], rows))
    assert max(map(len, lines)) <= WIDTH
    assert columns == 5 or "100.0 49.0" not in "".join(lines)
    for number in range(columns):
        assert len({place for line in lines if (place := line.find(f" {50 + number}.0")) >= 0}) == 1


def test_durations_are_told_for_people() -> None:
    assert [duration(each) for each in (0.234, 48.5, 725, 12_000)] == ["0.23 s", "48.5 s", "12 min 05 s", "3 h 20 min"]
