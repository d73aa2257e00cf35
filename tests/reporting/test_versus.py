"""One model against another: differences, queries that changed, settings, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from itrpipe.reporting.versus import _settings
from itrpipe.reporting.versus_page import _listed

from itrpipe.commands.report import report_of_two
from itrpipe.datasets.definition import ModelDefinition, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.storage import artifact as artifacts
from tests.definitions import save_definition

TWO = ("triplet.vsepp", "aoq.vsepp")
NAMED = {"triplet.vsepp": "triplet", "triplet.vsepp.s1": "triplet.s1"}
"""Evaluations that an ensemble is the mean of -> their trainings, by the keys of the toy."""


def against(toy: Any, first: tuple[str, ...], second: tuple[str, ...], **given: Any) -> Any:
    """The page that sets the second against the first."""
    return toy.report((*first, *second), drawn=True, compare=tuple(toy.made[name].name for name in first), **given)


@pytest.fixture(scope="module")
def page(toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return against(toy.copy(tmp_path_factory.mktemp("two") / "data"), TWO[:1], TWO[1:])


def ranks_of(toy: Any, name: str, side: str) -> np.ndarray:
    import pyarrow.parquet as pq

    rows = pq.read_table(toy.made[name] / "rankings.parquet").to_pylist()
    return np.array([row["rank"] for row in rows if row["direction"] == side])


def test_the_difference_is_that_of_the_scores(toy: Any, page: Any) -> None:
    before, after = (json.loads((toy.made[name] / "metrics.json").read_text())["full"] for name in TWO)
    own = json.loads((page.folder / "results.json").read_text())["own"]
    for name, each in own.items():
        assert each["value"] == pytest.approx(after[name]["value"] - before[name]["value"])
        assert each["images"]["low"] <= each["value"] <= each["images"]["high"]
    (answer,) = page.page.all("p", "answer")
    assert f"AOQ differs from first training by +{own['rsum']['value']:.1f} points of RSum" in answer.text()
    assert answer.text() in " ".join((page.folder / "summary.txt").read_text().split())


def test_chance_stands_below_both(page: Any) -> None:
    (table,) = [each for each in page.page.all("figure") if each.text("").startswith("Own image or caption right")]
    last = table.all("tbody")[0].all("tr")[-1]
    assert last.all("th")[0].text().startswith("chance")
    # Ten of 30 images; of 60 captions one of two among ten: 1 - (50 x 49) / (60 x 59).
    assert [last.all("td")[number].text() for number in (2, 5)] == ["30.8", "33.3"]


def test_queries_that_one_alone_answers_are_counted(toy: Any, page: Any) -> None:
    (figure,) = [each for each in page.page.all("figure") if "What changed" in each.text("")]
    for row, side in zip(figure.all("tbody")[0].all("tr"), ("i2t", "t2i"), strict=True):
        old, new = (ranks_of(toy, name, side) == 0 for name in TWO)
        expected = [old & new, ~old & new, old & ~new, ~old & ~new]
        assert [cell.text() for cell in row.all("td")] == [f"{100 * each.mean():.1f}" for each in expected]


def test_the_queries_that_moved_furthest_are_shown_with_both_answers(toy: Any, page: Any) -> None:
    (section,) = [each for each in page.page.all("section") if each.attributes["id"] == "queries"]
    assert "Image → text, moved up" in [each.text() for each in section.all("h3")]
    first = section.all("article")[0]
    shown = [int(each.all("strong")[0].text()) for each in first.all("p", "place-line")]
    ranks = [ranks_of(toy, name, "i2t") + 1 for name in TWO]
    furthest = int(np.argmax(np.log(ranks[0] / ranks[1])))
    assert shown == [each[furthest] for each in ranks]
    assert len(first.all("ol", "captions")) == 2


def test_settings_that_differ_are_listed(page: Any) -> None:
    (section,) = [each for each in page.page.all("section") if each.attributes["id"] == "settings"]
    rows = {row.all("code")[0].text(): [cell.text() for cell in row.all("td")] for row in section.all("tr")[1:]}
    assert rows["method"] == ["triplet", "aoq"]
    assert "backbone" not in rows
    assert "settings that differ (first; second): method (triplet; aoq)\n" in (page.folder / "summary.txt").read_text()


def test_the_terminal_names_first_how_long_both_learned_and_counts_what_it_leaves_to_the_page() -> None:
    settings = [*((f"loss.{letter}", "1", "2") for letter in "abcdefg"), ("epochs", "30", "60")]
    told = _listed(settings)
    assert told.startswith("epochs (30; 60), loss.a (1; 2), ")
    assert told.endswith(", loss.e (1; 2); and 2 more on the page")


def test_what_was_not_trained_has_no_settings_of_training() -> None:
    settings = {"backbone": "dual-encoder", "epochs": 30, "model": {"vision": "clip"}}

    def run(untrained: bool) -> Any:
        member = SimpleNamespace(
            artifact=SimpleNamespace(manifest=SimpleNamespace(settings=settings)), is_untrained=untrained
        )
        return SimpleNamespace(members=[member])

    assert _settings(run(True), run(False)) == [("epochs", "-", "30")]


def test_several_seeds_allow_a_claim(seeded: Any, tmp_path: Path) -> None:
    ends = ("", ".s1", ".s2")
    names = [tuple(f"{method}.vsepp{end}" for end in ends) for method in ("triplet", "aoq")]
    found = against(seeded.copy(tmp_path / "data"), *names)
    (answer,) = found.page.all("p", "answer")
    assert "VSE++, AOQ is better than first training by " in answer.text()
    assert json.loads((found.folder / "results.json").read_text())["seeds"] == [0, 1, 2]


def test_what_is_no_pair_is_refused(seeded: Any, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    with pytest.raises(UsageError, match="share no seed; evaluate both with one"):
        against(copy, ("triplet.vsepp",), ("aoq.vsepp.s1",))
    with pytest.raises(UsageError, match="differ in nothing but their seed"):
        against(copy, ("triplet.vsepp",), ("triplet.vsepp.s1",))
    with pytest.raises(UsageError, match="one name stands for 2 models; name one of the folders"):
        against(copy, ("triplet.vsepp",), ("aoq.vsepp", "triplet-long.vsepp"))


def test_the_name_of_a_model_is_none_of_a_mean_of_several(
    seeded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = seeded.copy(tmp_path / "data")
    trained = {label: copy.made[key].name for label, key in NAMED.items()}
    first = ModelDefinition(method="triplet", trained=trained)
    definition = load_definition(copy.root, "toy")
    save_definition(copy.root, "toy", definition.model_copy(update={"models": {"first": first}}))
    report_of_two(copy.root, "toy", [], ("first", "aoq.vsepp"), dry_run=True)
    planned = capsys.readouterr().out
    assert all(copy.made[name].name in planned for name in (*NAMED, "aoq.vsepp"))
    ensemble = "triplet.vsepp+vsepp.s1"
    assert copy.made[ensemble].name not in planned
    report_of_two(copy.root, "toy", [], (ensemble, "aoq.vsepp"), dry_run=True)
    assert copy.made[ensemble].name in capsys.readouterr().out


def test_models_are_named_as_elsewhere(seeded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = seeded.copy(tmp_path / "data")
    report_of_two(copy.root, "toy", [], ("triplet.vsepp", "aoq.vsepp"), dry_run=True)
    planned = capsys.readouterr().out
    assert all(copy.made[name].name in planned for name in ("triplet.vsepp.s2", "aoq.vsepp.s2"))
    assert "triplet-long" not in planned
    folder = artifacts.read_manifest(copy.made["aoq.vsepp.s1"]).label
    report_of_two(copy.root, "toy", [], ("triplet.vsepp.s1", folder), dry_run=True)
    assert copy.made["aoq.vsepp"].name not in capsys.readouterr().out
    with pytest.raises(MissingInputError, match=r"'aok\.vsepp' is not evaluated on 'toy'; did you mean 'aoq\.vsepp'"):
        report_of_two(copy.root, "toy", [], ("triplet.vsepp", "aok.vsepp"))
