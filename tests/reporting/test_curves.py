"""What the curves draw, and which names and looks their lines have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from itrpipe.reporting.collect import Run, collect, models
from itrpipe.reporting.plots import SERIES, legend, looks_of
from itrpipe.reporting.sections.curves import section as curves
from itrpipe.reporting.series import series_of
from itrpipe.reporting.titles import backbone_title

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.evaluation.metrics import random_recall, random_recalls
from itrpipe.storage import artifact as artifacts

RUNS = tuple(f"{method}.vsepp{end}" for method in ("triplet", "aoq") for end in ("", ".s1", ".s2"))


def runs_of(toy: Any, names: tuple[str, ...] = RUNS) -> list[Run]:
    found = collect(
        [(toy.made[name], artifacts.read_manifest(toy.made[name])) for name in names], "triplet", lambda _: None, {}
    )
    return [run for group in found.values() for run in group]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of every figure that is drawn from now on."""
    found: list[Any] = []
    draw = curves.svg
    monkeypatch.setattr(curves, "svg", lambda figure, *args: (found.append(figure.axes[0]), draw(figure, *args))[1])
    return found


def lines(axes: Any) -> list[tuple[float, list[float]]]:
    """Width and heights of every line of more than one point."""
    each = [(line.get_linewidth(), line.get_ydata().tolist()) for line in axes.lines]
    return [(width, heights) for width, heights in each if len(heights) > 1]


def test_validation_recalls_have_a_panel_for_each_direction(seeded: Any, drawn: list[Any]) -> None:
    series = series_of(models(runs_of(seeded)))
    assert [each.title for each in curves.training_plots(series, "x", None)] == [
        "Loss per pair",
        "RSum on the validation split",
        "R@1 on the validation split, image to text",
        "R@1 on the validation split, text to image",
    ]
    for axes, start in ((drawn[2], 10.0), (drawn[3], 8.0)):
        round_one, aoq = lines(axes)[:4], lines(axes)[4:]
        for four in (round_one, aoq):
            assert [heights for _, heights in four[:3]] == [[start + seed + k for k in range(3)] for seed in range(3)]
            assert four[3][1] == [start + 1 + k for k in range(3)]
            assert all(width < four[3][0] for width, _ in four[:3])


def test_one_run_is_one_thick_line_with_its_best_epoch(seeded: Any, drawn: list[Any]) -> None:
    curves.training_plots(series_of(models(runs_of(seeded, ("aoq.vsepp",)))), "x", None)
    (line,) = lines(drawn[1])
    assert line[1] == [100.0, 101.0, 102.0]
    assert [each.get_ydata().tolist() for each in drawn[1].lines][1:] == [[102.0]]


def test_validation_is_drawn_beside_chance_at_whole_epochs(seeded: Any, drawn: list[Any]) -> None:
    runs = runs_of(seeded)
    split = PreparedDataset.open(runs[0].prepare.folder).split("val")
    curves.training_plots(series_of(models(runs)), "x", split)
    chance = random_recalls(len(split.image_ids), len(split.caption_ids))
    for axes, name in zip(drawn[1:], ("rsum", "i2t_r1", "t2i_r1"), strict=True):
        assert [chance[name]] * 2 in [list(line.get_ydata()) for line in axes.lines]
        assert all(tick == int(tick) for tick in axes.get_xticks())
    assert "chance" not in drawn[0].get_xlabel(), "a loss has none"


def test_every_text_of_a_drawing_takes_its_colour_from_the_page(seeded: Any) -> None:
    runs = runs_of(seeded)
    split = PreparedDataset.open(runs[0].prepare.folder).split("val")
    for plot in curves.training_plots(series_of(models(runs)), "x", split):
        texts = re.findall(r"<text[^>]*>", plot.svg)
        assert texts
        assert all("fill: var(--" in each for each in texts), plot.title


def test_recalls_are_drawn_beside_chance(seeded: Any, drawn: list[Any]) -> None:
    runs = runs_of(seeded)
    curves.recall_plots(series_of(runs), "x")
    images, captions = (len(runs[0].rankings[side].ids) for side in ("i2t", "t2i"))
    for axes, side in zip(drawn, ("i2t", "t2i"), strict=True):
        expected = [random_recall(side, images, captions, k) for k in range(1, curves.MAX_K + 1)]
        np.testing.assert_allclose(axes.lines[-1].get_ydata(), expected)


def test_histories_without_validation_recalls_have_no_such_panel(seeded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"epoch": 1, "loss": 1.0, "val_rsum": 2.0, "best": True}]
    trained = models(runs_of(seeded, ("aoq.vsepp",)))
    monkeypatch.setattr(type(trained[0]), "history", rows)
    assert len(curves.training_plots(series_of(trained), "x", None)) == 2


def test_cross_ranks_are_drawn_as_shares_of_the_pairs(seeded: Any, drawn: list[Any]) -> None:
    (plot,) = curves.cross_rank_plots(series_of(runs_of(seeded)), "x")
    assert plot.title == "VSE++"
    bounds = [(1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 200), (201, 10**9)]
    shares = []
    for name in RUNS:
        ranks = pq.read_table(seeded.made[name] / "cross_retrieval.parquet")["cross_rank"].to_pylist()
        shares.append([100 * sum(low <= rank <= high for rank in ranks) / len(ranks) for low, high in bounds])
    expected = [*shares[:3], np.mean(shares[:3], axis=0), *shares[3:], np.mean(shares[3:], axis=0)]
    np.testing.assert_allclose([heights for _, heights in lines(drawn[0])], np.repeat(expected, 2, axis=1))
    np.testing.assert_allclose(drawn[0].lines[0].get_xdata()[:4], [-0.5, 0.5, 0.5, 1.5])
    labels = [each.get_text() for each in drawn[0].get_xticklabels()]
    assert labels == ["1", "2", "3–5", "6–10", "11–20", "21–50", "51–100", "101–200", "> 200"]


def without_cross_ranks(folder: Path) -> None:
    """Makes an evaluation one of before these ranks were written."""
    (folder / "cross_retrieval.parquet").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["outputs"]["cross_retrieval.parquet"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))


def test_evaluations_without_cross_ranks_are_left_out_and_named(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    without_cross_ranks(copy.made["triplet.vsepp"])
    done = copy.report()
    (section,) = [each for each in done.page.all("section") if each.attributes["id"] == "curves"]
    assert "No cross-retrieval ranks of VSE++, first training:" in section.all("p", "missing")[0].text("")
    assert "VSE++: cross-retrieval ranks" in [each.attributes.get("aria-label") for each in section.all("svg")]
    without_cross_ranks(copy.made["aoq.vsepp"])
    done = copy.report(title="again")
    assert "VSE++: cross-retrieval ranks" not in [each.attributes.get("aria-label") for each in done.page.all("svg")]


def test_the_caption_explains_the_rank(done: Any) -> None:
    captions = [each.text("") for each in done.page.all("figcaption")]
    (only,) = [each for each in captions if "Cross-retrieval" in each]
    assert "max(5 · rᵢ − 4, rₜ)" in only
    assert not done.page.all("p", "missing")


def series(backbone: str, method: str) -> Any:
    first = SimpleNamespace(backbone=backbone, is_baseline=method == "first training")
    return SimpleNamespace(name=f"{backbone}, {method}", method=method, first=first)


@pytest.mark.parametrize("backbones", [["VSRN"], ["VSRN", "BFAN"]])
@pytest.mark.parametrize("methods", [1, 3, 4, 6, 9, 11])
def test_every_series_has_a_look_of_its_own(backbones: list[str], methods: int) -> None:
    all_series = [
        series(backbone, method) for backbone in backbones for method in ["first training", *map(str, range(methods))]
    ]
    looks = looks_of(all_series)
    assert len(set(looks.values())) == len(all_series)
    assert [key.name for key in legend(all_series)] == [each.name for each in all_series]
    for each in all_series if methods <= SERIES else ():  # one colour for a method, one dash for a backbone
        same = [other for other in all_series if other.method == each.method]
        assert {looks[other.name].colour for other in same} == {looks[each.name].colour}
        same = [other for other in all_series if other.first.backbone == each.first.backbone]
        assert {looks[other.name].dashes for other in same} == {looks[each.name].dashes}


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("vsepp", "VSE++"),
        ("vsrn", "VSRN"),
        ("scan-i2t", "SCAN i2t"),
        ("scan-t2i-avg", "SCAN t2i avg"),
        ("bfan-prob", "BFAN prob"),
        ("vsepp-order", "VSE++ order"),
    ],
)
def test_backbones_are_titled_with_their_variants(name: str, title: str) -> None:
    assert backbone_title(name) == title
