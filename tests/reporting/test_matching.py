"""The tables of matching accuracy, and how re-ranked evaluations stand beside the others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from itrpipe.reporting.comparisons import conclusion
from itrpipe.reporting.seeds import _comparable
from itrpipe.reporting.titles import model_title

COLUMNS = [(side, name) for side in ("i2t", "t2i") for name in ("global", "local", "phrase")]
FULL, WITHOUT_L3, WITHOUT_BOTH = "SSAMT", "SSAMT without L3", "SSAMT without L2, L3"


@pytest.fixture(scope="module")
def models(toy: Any, phrases: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three seeds of SSAMT, the first also re-ranked, and two ablations."""
    found = toy.copy(tmp_path_factory.mktemp("matching") / "data")
    for seed, first in enumerate((90.0, 93.0, 91.5)):
        phrases.add(found, "ssamt", seed, matching=phrases.matching_of(first))
        phrases.add(found, "ssamt", seed, 64, matching=phrases.matching_of(first))
    phrases.add(found, "ssamt-global", matching=phrases.matching_of(80.0, phrase=None))
    phrases.add(found, "ssamt-local", matching=phrases.matching_of(95.0))
    return found


@pytest.fixture(scope="module")
def report(models: Any) -> Any:
    return models.report(tuple(name for name in models.made if ".ssamt" in name and not name.startswith("train")))


@pytest.fixture(scope="module")
def tables(report: Any) -> list[Any]:
    (section,) = [each for each in report.page.all("section") if each.attributes["id"] == "matching"]
    return section.all("figure", "numbers")


def rows_of(table: Any) -> dict[str, list[Any]]:
    return {row.all("th")[0].text(): row.all("td") for row in table.all("tbody")[0].all("tr")}


def test_every_row_is_the_mean_over_the_seeds_of_a_method(models: Any, tables: list[Any]) -> None:
    names = [f"ssamt.ssamt{end}" for end in ("", ".s1", ".s2")]
    files = [json.loads((models.made[name] / "matching.json").read_text()) for name in names]
    assert [each.all("caption")[0].text() for each in tables] == ["Random negatives", "Hardest negatives"]
    for table, choice in zip(tables, ("uniform", "hardest"), strict=True):
        rows = rows_of(table)
        assert list(rows) == [FULL, WITHOUT_L3, WITHOUT_BOTH]  # as declared, and re-ranking is no model of its own
        for cell, (side, name) in zip(rows[FULL], COLUMNS, strict=True):
            values = [each[choice][side][name] for each in files]
            assert cell.text() == f"{np.mean(values):.1f}"
            assert cell.all("span")[0].text("") == f"± {np.std(values, ddof=1):.1f}"
            assert cell.attributes["data-heading"] == f"{side[0]}→{side[2]} {name}"
        assert not any(cell.all("span") for cell in rows[WITHOUT_L3])
        assert table.all("th")[3].text() == "global"


def test_the_best_is_marked_and_what_was_not_measured_is_a_dash(tables: list[Any]) -> None:
    for table in tables:
        for name, cells in rows_of(table).items():
            kinds = [cell.attributes.get("class", "") for cell in cells]
            measured = "marked" if name == WITHOUT_L3 else ""
            assert kinds == ["unmeasured" if cell.text() == "–" else measured for cell in cells]
    assert [cell.text() for cell in rows_of(tables[0])[WITHOUT_BOTH]] == ["80.0", "79.0", "–", "77.0", "76.0", "75.0"]
    captions = [table.all("figcaption")[0].text() for table in tables]
    assert "Chance is 50 % for global and local." in captions[0]
    assert "–: there are no such pairs." in captions[0]
    assert "–:" not in captions[1]
    assert all("Of 60 pairs in each direction; 55 of these" in each for each in captions)


def test_programs_and_the_terminal_get_the_same_numbers(models: Any, report: Any) -> None:
    (found,) = report.results["matching"]
    assert [each["name"] for each in found["scores"]] == [FULL, WITHOUT_L3, WITHOUT_BOTH]
    first = found["scores"][0]
    assert (first["seeds"], first["runs"]) == ([0, 1, 2], ["ssamt.ssamt", "ssamt.ssamt.s1", "ssamt.ssamt.s2"])
    assert first["uniform"]["i2t"]["global"] == pytest.approx({"mean": 91.5, "deviation": 1.5})
    assert found["scores"][2]["uniform"]["i2t"]["phrase"] is None
    runs = {each["label"]: each for each in report.results["runs"]}
    assert runs["ssamt.ssamt.s1"]["matching"] == json.loads(
        (models.made["ssamt.ssamt.s1"] / "matching.json").read_text()
    )
    text = (report.folder / "summary.txt").read_text()
    assert max(map(len, text.splitlines())) <= 80
    blocks = text.partition("matching accuracy in percent, random negatives")[2].split("hardest negatives")
    for block, first_number in zip(blocks, (93.0, 83.0), strict=True):
        lines = [line for line in block.splitlines() if line.startswith("SSAMT, seed 1")]
        expected = [f"{first_number - k:.1f}" for k in range(6)]
        assert [line.split()[3:] for line in lines] == [expected]
    assert "79.0       -    77.0" in blocks[0]


def test_runs_without_such_numbers_have_no_such_section(toy: Any, done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] in ("matching", "words")]
    assert not [each for each in done.page.all("a") if each.attributes["href"] in ("#matching", "#words")]
    assert done.results["matching"] == []
    assert [each["matching"] for each in done.results["runs"]] == [None, None]
    assert "matching" not in (done.folder / "summary.txt").read_text()


def test_re_ranked_runs_say_so_and_are_series_of_their_own(report: Any) -> None:
    (seeds,) = report.results["seeds"]
    series = {each["name"]: each["runs"] for each in seeds["scores"]}
    assert series["SSAMT, re-ranked 64"] == [f"ssamt.ssamt{end}.rerank64" for end in ("", ".s1", ".s2")]
    assert series["SSAMT"] == [f"ssamt.ssamt{end}" for end in ("", ".s1", ".s2")]
    runs = {each["label"]: each for each in report.results["runs"]}
    assert runs["ssamt.ssamt.s1.rerank64"]["name"] == "SSAMT, re-ranked 64, seed 1"
    assert [runs[f"ssamt.ssamt.s1{end}"]["rerank"] for end in ("", ".rerank64")] == [0, 64]
    rows = [row.all("th")[0].text() for row in report.page.all("figure", "best-marked")[0].all("tbody")[0].all("tr")]
    assert rows[:6] == [f"SSAMT{way}{end}" for way in ("", ", re-ranked 64") for end in ("", ", seed 1", ", seed 2")]


def test_methods_without_a_first_round_are_not_said_to_lack_one(report: Any) -> None:
    (seeds,) = report.results["seeds"]
    assert {each.partition(" is not compared with ")[2] for each in seeds["missing"]} == {
        f"SSAMT, no phrases (ssamt-words): no evaluation of it{how} shares two seeds."
        for how in ("", ", re-ranked alike,")
    }
    assert not report.page.all("p", "finding"), "nothing is said of a difference to the first training"


def test_a_removed_model_may_have_been_a_second_round() -> None:
    gone = SimpleNamespace(mining=None, artifact=SimpleNamespace(manifest=None))
    run: Any = SimpleNamespace(is_baseline=False, is_about_training=False, members=(gone,))
    split: Any = object()
    assert "mined its negatives" in conclusion([], [run], split, 0.95)


@pytest.mark.parametrize(("rerank", "expected"), [(64, True), (0, False), (20, False)])
def test_series_compare_only_with_series_re_ranked_alike(rerank: int, expected: bool) -> None:
    def series(rerank: int, method: str) -> Any:
        member = SimpleNamespace(
            backbone_name="vsrn", encoders=(), method_name=method, artifact=SimpleNamespace(manifest=None)
        )
        runs = [
            SimpleNamespace(
                seed=seed,
                rerank=rerank,
                members=(member,),
                is_baseline=method == "triplet",
                is_control=False,
                is_untrained=False,
                is_plain=False,
                settings={"features": "toy"},
                manifest=SimpleNamespace(finished=str(seed)),
            )
            for seed in (0, 1)
        ]
        return SimpleNamespace(first=runs[0], all=tuple(runs))

    assert _comparable(series(64, "aoq"), series(rerank, "triplet"), "triplet") is expected


@pytest.mark.parametrize(
    ("backbone", "method", "name"),
    [
        ("SSAMT", "SSAMT", "SSAMT"),
        ("SSAMT", "SSAMT, intra", "SSAMT, intra"),
        ("SSAMT", "SSAMT without L3", "SSAMT without L3"),
        ("SSAMT", "AOQ", "SSAMT, AOQ"),
        ("AO", "AOQ", "AO, AOQ"),
    ],
)
def test_a_method_that_bears_the_name_of_its_backbone_is_named_once(backbone: str, method: str, name: str) -> None:
    assert model_title(backbone, method) == name
