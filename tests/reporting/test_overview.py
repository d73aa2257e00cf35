"""The table of all results, and the sentence that says what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SEEDS = tuple(f"{method}.vsepp{end}" for method in ("triplet", "aoq") for end in ("", ".s1", ".s2"))


def rsum_of(toy: Any, run: str) -> dict[str, float]:
    return json.loads((toy.made[run] / "metrics.json").read_text())["full"]["rsum"]


def cells_of(report: Any) -> dict[str, list[Any]]:
    (figure,) = report.page.all("figure", "overview-marked")
    return {row.all("th")[0].text(): row.all("td") for row in figure.all("tbody")[0].all("tr")}


def test_a_method_is_a_row_and_a_backbone_a_column(toy: Any, done: Any) -> None:
    shown = cells_of(done)
    assert list(shown) == ["round one", "AOQ"]
    before, after = rsum_of(toy, "triplet.vsepp"), rsum_of(toy, "aoq.vsepp")
    (first,), (second,) = shown.values()
    assert first.attributes["data-heading"] == "VSE++"
    assert first.text() == f"{before['value']:.1f}"
    assert first.all("span", "interval")[0].text() == f"{before['low']:.1f}–{before['high']:.1f}"
    assert second.text() == f"{after['value']:.1f}"
    difference = after["value"] - before["value"]
    assert second.all("span", "interval")[0].text() == f"+{difference:.1f} to round one"
    assert second.all("span", "verdict")[0].text("") == "significant"
    assert not first.all("span", "verdict")


def test_the_answer_stands_first(toy: Any, done: Any) -> None:
    (written,) = done.results["differences"]
    rsum = written["full"]["rsum"]
    (answer,) = done.page.all("p", "answer")
    assert answer.text() == (
        f"VSE++, AOQ is better than round one by {rsum['value']:.1f} points of RSum "
        f"(95 % interval over test images +{rsum['low']:.1f} to +{rsum['high']:.1f})."
    )


def test_several_seeds_are_a_mean_and_both_intervals_decide(seeded: Any) -> None:
    report = seeded.report(SEEDS)
    (cell,) = cells_of(report)["AOQ"]
    values = [rsum_of(seeded, run)["value"] for run in SEEDS]
    assert cell.text() == f"{np.mean(values[3:]):.1f} ± {np.std(values[3:], ddof=1):.1f}"
    (seeds,) = report.results["seeds"]
    rsum = seeds["differences"][0]["full"]["rsum"]
    assert cell.all("span", "interval")[0].text() == f"+{rsum['value']:.1f} to round one"
    assert bool(cell.all("span", "verdict")) == rsum["is_real"]
    ends = [rsum[name][end] for name in ("over_seeds", "over_images") for end in ("low", "high")]
    said = "(95 % interval over seeds {:+.1f} to {:+.1f}, over test images {:+.1f} to {:+.1f}).".format(*ends)
    assert report.page.all("p", "answer")[0].text().endswith(said.replace("-", "\N{MINUS SIGN}"))


def test_without_round_one_the_answer_names_the_best(toy: Any, tmp_path: Path) -> None:
    report = toy.copy(tmp_path / "data").report(("aoq.vsepp",))
    value = rsum_of(toy, "aoq.vsepp")["value"]
    assert report.page.all("p", "answer")[0].text() == f"VSE++, AOQ reaches the highest RSum, {value:.1f} of 600."
    assert not cells_of(report)["AOQ"][0].all("span", "verdict")


def test_published_scores_have_rows_of_their_own(toy: Any, tmp_path: Path) -> None:
    published = [{"run": "aoq.vsepp", "rsum": 486.3, "where": "AOQ Table 2"}]
    shown = cells_of(toy.copy(tmp_path / "data").report(published=published))
    assert list(shown) == ["round one", "AOQ", "published"]
    (cell,) = shown["published"]
    assert (cell.text(), cell.all("span", "interval")[0].text()) == ("486.3", "AOQ Table 2")


@pytest.mark.parametrize(("sign", "word"), [(1, "better"), (-1, "worse")])
def test_a_real_difference_has_a_direction(toy: Any, tmp_path: Path, sign: int, word: str) -> None:
    names = ("triplet.vsepp", "aoq.vsepp")[::sign]
    copy = toy.copy(tmp_path / "data")
    if sign < 0:
        swap(*(copy.made[name] for name in names))
    assert f" is {word} than round one by " in copy.report().page.all("p", "answer")[0].text()


def swap(one: Path, other: Path) -> None:
    """Gives two evaluations each other's results."""
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (one, other)]
    for name in manifests[0]["outputs"]:
        contents = [(folder / name).read_bytes() for folder in (one, other)]
        (one / name).write_bytes(contents[1])
        (other / name).write_bytes(contents[0])
    for folder, own, theirs in ((one, *manifests), (other, *manifests[::-1])):
        (folder / "manifest.json").write_text(json.dumps({**own, "outputs": theirs["outputs"], "checksum": ""}))
