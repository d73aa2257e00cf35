"""The report of small runs: its numbers are those of the artifacts, its page is safe, self-contained and honest."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.examples import choose
from itrpipe.reporting.tables import COLUMNS, _best, provenance
from PIL import Image

from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.errors import UsageError
from itrpipe.evaluation.bootstrap import paired_intervals
from itrpipe.evaluation.metrics import random_recalls
from itrpipe.evaluation.metrics import Ranks
from itrpipe.plan.planning import Planner
from itrpipe.stages.base import Need
from itrpipe.storage import artifact as artifacts

LISTS = ("texts_for_images", "images_for_texts")
METRICS = [f"{side}_{name}" for side in ("i2t", "t2i") for name in ("r1", "r5", "r10", "median_rank")] + ["rsum"]


def rows_of(figure: Any) -> dict[str, list[str]]:
    (body,) = figure.all("tbody")
    return {row.all("th")[0].text(): [cell.text() for cell in row.all("td")] for row in body.all("tr")}


def read_ranks(folder: Path, column: str) -> Ranks:
    rows = pq.read_table(folder / "rankings.parquet", columns=["direction", column]).to_pylist()
    return Ranks(*(np.array([row[column] for row in rows if row["direction"] == side]) for side in ("i2t", "t2i")))


@pytest.mark.parametrize(("place", "protocol"), [(0, "full"), (1, "oracle")])
def test_the_results_are_those_of_the_metrics_files(toy: Any, done: Any, place: int, protocol: str) -> None:
    shown = rows_of(done.page.all("figure", "best-marked")[place])
    for name, run in (("VSE++, first training", "triplet.vsepp"), ("VSE++, AOQ", "aoq.vsepp")):
        values = json.loads((toy.made[run] / "metrics.json").read_text())[protocol]
        expected = [f"{values[each]['value']:.{0 if each.endswith('rank') else 1}f}" for each in METRICS]
        assert shown[name] == expected
    assert "VSE++, AOQ" in (done.folder / "summary.txt").read_text()


def test_the_best_of_each_column_is_marked(toy: Any, done: Any) -> None:
    metrics = [
        json.loads((toy.made[run] / "metrics.json").read_text())["full"] for run in ("triplet.vsepp", "aoq.vsepp")
    ]
    rows = done.page.all("figure", "best-marked")[0].all("tbody")[0].all("tr")
    for column, metric in enumerate(METRICS):
        values = [each[metric]["value"] for each in metrics]
        best = min(values) if metric.endswith("rank") else max(values)
        marks = ["marked" in row.all("td")[column].attributes.get("class", "") for row in rows]
        assert marks == [*(value == best != max(values) + min(values) - best for value in values), False], (
            "the last row is chance"
        )


def test_the_cost_is_that_of_all_artifacts_together() -> None:
    """Of those that are still there; a removed one has no manifest."""
    same = {"versions": {}, "command": "itrpipe train", "messages": []}
    manifests = [SimpleNamespace(timings={"total": each}, finished=str(each), **same) for each in (2.0, 3.5)]
    read: list[Any] = [*manifests, None]
    made = [Artifact("train", f"run {number}", "", Path(), each) for number, each in enumerate(read)]
    found = provenance(made)
    assert (found.seconds, found.commands, found.artifacts) == (5.5, ["itrpipe train"], made)


@pytest.mark.parametrize(("place", "key", "column"), [(0, "full", "rank"), (1, "oracle", "oracle_rank")])
def test_differences_are_paired_intervals(toy: Any, done: Any, place: int, key: str, column: str) -> None:
    before, after = (read_ranks(toy.made[run], column) for run in ("triplet.vsepp", "aoq.vsepp"))
    expected = paired_intervals(before, after, np.arange(60) // 2, 200, 0.95)
    (written,) = done.results["differences"]
    assert (written["run"], written["baseline"]) == ("aoq.vsepp", "triplet.vsepp")
    for name, value in written[key].items():
        assert (value["value"], value["low"], value["high"]) == pytest.approx(
            (expected[name].value, expected[name].low, expected[name].high)
        )
        assert value["excludes_zero"] == (value["low"] > 0 or value["high"] < 0)
    (shown,) = rows_of(done.page.all("figure", "interval-marked")[place]).values()
    assert shown[-1] == f"+{expected['rsum'].value:.1f}"
    text = " ".join((done.folder / "summary.txt").read_text().split())
    assert "The interval excludes zero: these two models differ, and other seeds of the methods may not." in text
    assert "significant" not in text
    assert not done.page.all("span", "verdict")  # of single runs nothing is significant


def test_no_difference_between_equal_runs_is_called_significant(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    for name in artifacts.read_manifest(copy.made["triplet.vsepp"]).outputs:
        shutil.copy(copy.made["triplet.vsepp"] / name, copy.made["aoq.vsepp"] / name)
    manifest = json.loads((copy.made["aoq.vsepp"] / "manifest.json").read_text())
    manifest["outputs"] = json.loads((copy.made["triplet.vsepp"] / "manifest.json").read_text())["outputs"]
    (copy.made["aoq.vsepp"] / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    found = copy.report()
    assert "does not tell the two models apart" in found.page.all("p", "finding")[0].text()
    assert not found.page.all("span", "verdict")
    assert "*" not in (found.folder / "summary.txt").read_text().partition("* the interval")[0]


def test_the_page_asks_for_nothing_from_outside(done: Any) -> None:
    content = (done.folder / "index.html").read_text()
    assert not any(done.page.all(tag) for tag in ("script", "link", "iframe", "object", "base"))
    assert "@import" not in content
    assert "http:" not in content
    assert "https:" not in content
    assert content.count("url(") == content.count("url(#")

    def check(element: Any) -> None:
        for key, value in element.attributes.items():
            assert not key.startswith("on")
            if key in ("src", "href", "xlink:href", "srcset"):
                assert value.startswith(("data:image/jpeg;base64,", "#"))
        for child in element.children:
            if not isinstance(child, str):
                check(child)

    check(done.page)


def test_anchors_are_unique_and_lead_somewhere(done: Any) -> None:
    content = (done.folder / "index.html").read_text()
    identifiers = [piece.partition('"')[0] for piece in content.split(' id="')[1:]]
    assert len(set(identifiers)) == len(identifiers)
    wanted = [each.attributes["href"][1:] for tag in ("a", "use") for each in done.page.all(tag)]
    wanted += [piece.partition(")")[0] for piece in content.split("url(#")[1:]]
    assert len(wanted) > 7
    assert set(wanted) <= set(identifiers)


def test_every_thumbnail_is_a_small_picture(done: Any) -> None:
    images = done.page.all("img")
    assert len(images) > 20
    for each in images:
        picture = Image.open(io.BytesIO(base64.b64decode(each.attributes["src"].partition(",")[2], validate=True)))
        picture.load()
        assert picture.size == (int(each.attributes["width"]), int(each.attributes["height"]))
        assert max(picture.size) <= 176


def test_hostile_captions_are_shown_as_text(toy: Any, done: Any) -> None:
    content = (done.folder / "index.html").read_text()
    assert "&lt;script&gt;alert(" in content
    assert "<script" not in content
    assert toy.hostile in done.page.text(without="svg")


def test_false_negatives_are_counted_and_marked(toy: Any, done: Any) -> None:
    truth = dict(zip(*pq.read_table(toy.made["prepare"] / TRUTH_FILE).to_pydict().values(), strict=True))
    lists = {name: pq.read_table(toy.made["mining"] / f"{name}.parquet").to_pydict() for name in LISTS}
    captions, images = lists["images_for_texts"]["anchor_id"], lists["texts_for_images"]["anchor_id"]
    expected = {}
    for name, ids in (("texts_for_images", captions), ("images_for_texts", images)):
        hits = [
            [anchor in truth[ids[row]] if name == "texts_for_images" else ids[row] in truth[anchor] for row in rows]
            for anchor, rows in zip(lists[name]["anchor_id"], lists[name]["candidate_rows"], strict=True)
        ]
        expected[name] = {f"top_{k}": 100 * float(np.mean([row[:k] for row in hits])) for k in (1, 10)}
    written = done.results["false_negatives"]
    assert list(written) == [toy.made["mining"].name]
    for name, shares in expected.items():
        assert written[toy.made["mining"].name][name] == pytest.approx(shares)
    assert expected["images_for_texts"]["top_10"] > 0
    _, *shown = done.page.all("table", "shares")[0].all("tbody")[0].all("tr")
    assert [row.all("td")[2].text() for row in shown] == [f"{expected[name]['top_10']:.1f} %" for name in LISTS]
    assert any("also true" in each.text("") for each in done.page.all("li", "true"))


def test_right_answers_of_the_examples_belong_to_their_queries(toy: Any, done: Any) -> None:
    section = next(each for each in done.page.all("section") if each.attributes["id"] == "retrieval")
    beside = section.all("article", "beside")
    assert len(beside) == 4
    for article in beside:
        name = article.all("img")[0].attributes["alt"]
        row = int(name.rpartition("-")[2])
        for each in article.all("li"):
            own = each.all("span", "text")[0].text() in (f"{toy.hostile} {row}", f"a plain caption of {name}")
            assert own == ("own" in each.attributes["class"].split()) == ("✓" in each.text(""))


def test_costs_are_those_of_the_manifests(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    path = copy.made["aoq"] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "metrics": {"peak_gib": 1.5}, "checksum": ""}))
    found = copy.report()
    assert found.manifest.metrics["peak_gib"] > 0
    (table,) = found.page.all("table", "cost")
    rows = {row.all("code")[0].text(): [cell.text() for cell in row.all("td")[2:]] for row in table.all("tr")[1:]}
    assert rows[copy.made["aoq"].name] == ["1.25 s", "1.50 GiB"]
    assert rows[copy.made["triplet"].name] == ["1.25 s", "–"]


def test_a_removed_artifact_is_named_and_nothing_is_made_up(toy: Any, done: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    shutil.rmtree(copy.made["mining"])
    found = copy.report()
    missing = " ".join(each.text("") for each in found.page.all("p", "missing"))
    assert f"mine_negatives/{copy.made['mining'].name} was removed" in missing
    assert not found.page.all("table", "quantiles")
    written = found.results
    assert written["removed"] == [f"mine_negatives/{copy.made['mining'].name}"]
    assert written["false_negatives"] == {}
    assert written["differences"] == done.results["differences"]


def test_without_dataset_and_models_only_the_metrics_remain(toy: Any, done: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    for name in ("prepare", "aoq", "triplet"):
        shutil.rmtree(copy.made[name])
    found = copy.report()
    assert rows_of(found.page.all("figure", "best-marked")[0]) == rows_of(done.page.all("figure", "best-marked")[0])
    assert "the dataset was removed" in found.page.all("p", "finding")[0].text()
    assert not found.page.all("img")
    assert found.results["differences"] == []


def test_missing_photographs_become_placeholders_and_a_warning(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    for file in (copy.made["prepare"] / "images").iterdir():
        file.write_bytes(b"")
    manifest = json.loads((copy.made["prepare"] / "manifest.json").read_text())
    manifest["outputs"] = {name: each for name, each in manifest["outputs"].items() if not name.startswith("images/")}
    (copy.made["prepare"] / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    found = copy.report()
    assert not found.page.all("img")
    assert "test-0" in found.page.all("span", "placeholder")[-1].text("")
    assert len(found.manifest.messages) == 1
    assert "photographs cannot be read and are shown as placeholders" in found.manifest.messages[0]


def test_a_source_that_is_gone_becomes_a_warning(toy_from_files: Any, tmp_path: Path) -> None:
    found = toy_from_files.report()
    assert found.page.all("span", "placeholder")
    assert len(found.manifest.messages) == 1
    assert "the page shows no photographs" in found.manifest.messages[0]
    assert str(tmp_path / "gone") in found.manifest.messages[0]


def test_equal_artifacts_give_equal_bytes(toy: Any, done: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data").report(("triplet.vsepp", "aoq.vsepp"), drawn=True)
    for name in ("index.html", "summary.txt", "results.json"):
        assert (found.folder / name).read_bytes() == (done.folder / name).read_bytes()


def test_published_scores_stand_below_the_measured_ones(toy: Any, tmp_path: Path) -> None:
    aoq = {"run": "aoq.vsepp", "rsum": 486.3, "where": "AOQ Table 2", "note": "of two models"}
    others = [{"run": "ssamt.vsrn", "rsum": 500.0, "where": "x"}, {**aoq, "protocol": "coco-1k"}]
    published = [aoq, *others]
    found = toy.copy(tmp_path / "data").report(published=published, title="A <b>title</b>")
    row, chance = found.page.all("figure", "best-marked")[0].all("tr", "published")
    assert chance.all("td")[-1].text() == f"{random_recalls(30, 60)['rsum']:.1f}"
    assert [cell.text() for cell in row.all("td")] == ["–"] * 8 + ["486.3"]
    assert row.all("span", "label")[0].text("") == "AOQ Table 2; of two models"
    assert "ssamt.vsrn" in found.manifest.messages[0]
    expected = json.loads((found.folder / "expected.json").read_text())
    rsum = json.loads((toy.made["aoq.vsepp"] / "metrics.json").read_text())["full"]["rsum"]["value"]
    assert [each["verdict"] for each in expected["runs"]] == ["FAIL", "missing", "missing"]
    headline = {"metric": "rsum", "expected": 486.3, "measured": rsum, "verdict": "FAIL"}
    assert expected["runs"][0]["headline"] == headline
    assert found.page.all("h1")[0].text() == "A <b>title</b>"


@pytest.mark.parametrize("scores", [{"r@1": 3.0}, {"rsum": "high"}, {"where": 2.0}, {"protocol": "x"}, {}])
def test_unknown_published_scores_are_refused(tmp_path: Path, scores: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="published"):
        Planner(tmp_path, "toy").plan(Need("report", "page", {"published": [{"where": "x", **scores}]}), inputs={})


def test_one_run_alone_is_compared_with_nothing(toy: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data").report(("aoq.vsepp",))
    assert "No difference is measured" in found.page.all("p", "finding")[0].text()
    assert not found.page.all("td", "marked")
    assert found.results["differences"] == []


def test_the_summary_fits_a_terminal(toy: Any, done: Any) -> None:
    lines = (done.folder / "summary.txt").read_text().splitlines()
    assert max(map(len, lines)) <= 80
    for run, name in (("triplet.vsepp", "VSE++, first training"), ("aoq.vsepp", "VSE++, AOQ")):
        metrics = json.loads((toy.made[run] / "metrics.json").read_text())
        shown = [each for each in lines if each.startswith(f"{name}  ")]
        for protocol, line in zip(("full", "oracle"), shown[:2], strict=True):
            rsum = metrics[protocol]["rsum"]
            assert line.endswith(f"{rsum['value']:.1f}  {rsum['low']:.1f}–{rsum['high']:.1f}")


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 12), st.integers(0, 5))
def test_examples_are_half_right_where_possible(right: list[bool], count: int, seed: int) -> None:
    flags = np.array(right, dtype=bool)
    chosen = choose(flags, count, np.random.default_rng(seed))
    assert len(set(chosen)) == len(chosen) == min(count, len(flags))
    shown = [bool(flags[row]) for row in chosen]
    assert shown == sorted(shown, reverse=True)
    assert sum(shown) >= min(int(flags.sum()), (count + 1) // 2)
    assert len(shown) - sum(shown) >= min(int((~flags).sum()), count // 2)


def test_the_smallest_rank_and_the_largest_recall_are_the_best() -> None:
    first = {name: {"value": 1.0} for name in COLUMNS}
    second = {name: {"value": 2.0} for name in COLUMNS}
    found = _best([first, second])
    assert {value for name, value in found.items() if name.endswith("rank")} == {1.0}
    assert {value for name, value in found.items() if not name.endswith("rank")} == {2.0}
