"""Methods over seeds: means, both intervals, costs, what is compared with what, and what is said about it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from itrpipe.reporting.comparisons import RECALLS, of_recalls
from itrpipe.reporting.seeds import SeedComparison, by_seed, judged
from itrpipe.reporting.series import series_of
from itrpipe.reporting.verdicts import conclusion_of, summary

from itrpipe.evaluation.bootstrap import Interval, paired_intervals, paired_mean_intervals
from itrpipe.evaluation.claims import Difference, holm, seed_interval
from itrpipe.evaluation.metrics import metrics
from itrpipe.evaluation.metrics import Ranks

SEEDS = (0, 1, 2)
METHODS = ("triplet", "triplet-long", "aoq")
RUNS = tuple(f"{method}.vsepp{f'.s{seed}' if seed else ''}" for method in METHODS for seed in SEEDS)
T_OF_TWO_DEGREES = 4.302652729911275
CAPTION_IMAGE = np.arange(60) // 2

LONGER = "baseline (same epochs)"


@pytest.fixture(scope="module")
def over_seeds(seeded: Any) -> Any:
    return seeded.report((*RUNS, "aoq.vsepp+vsepp.s1", "triplet.vsepp+vsepp.s1"), drawn=True)


@pytest.fixture(scope="module")
def found(over_seeds: Any) -> Any:
    (seeds,) = over_seeds.results["seeds"]
    return seeds


def read_ranks(folder: Path, column: str = "rank") -> Ranks:
    rows = pq.read_table(folder / "rankings.parquet", columns=["direction", column]).to_pylist()
    return Ranks(*(np.array([row[column] for row in rows if row["direction"] == side]) for side in ("i2t", "t2i")))


def of_seeds(toy: Any, method: str, column: str = "rank") -> list[Ranks]:
    return [read_ranks(toy.made[f"{method}.vsepp{f'.s{seed}' if seed else ''}"], column) for seed in SEEDS]


def comparison(found: Any, reference: str) -> Any:
    (only,) = [each for each in found["differences"] if each["reference"] == reference]
    return only


def section(report: Any, name: str) -> Any:
    (only,) = [each for each in report.page.all("section") if each.attributes["id"] == name]
    return only


@pytest.mark.parametrize(("reference", "method"), [("first training", "triplet"), (LONGER, "triplet-long")])
@pytest.mark.parametrize(("side", "column"), [("full", "rank"), ("oracle", "oracle_rank")])
def test_differences_are_paired_by_seed_and_have_both_intervals(
    seeded: Any, found: Any, reference: str, method: str, side: str, column: str
) -> None:
    written = comparison(found, f"VSE++, {reference}")
    assert (written["method"], written["seeds"]) == ("VSE++, AOQ", [0, 1, 2])
    pairs = list(zip(of_seeds(seeded, method, column), of_seeds(seeded, "aoq", column), strict=True))
    images = paired_mean_intervals(pairs, CAPTION_IMAGE, 200, 0.95)
    for name, each in written[side].items():
        single = np.array([metrics(after)[name] - metrics(before)[name] for before, after in pairs])
        half = T_OF_TWO_DEGREES * single.std(ddof=1) / np.sqrt(3)
        assert each["value"] == pytest.approx(single.mean())
        seeds = (single.mean() - half, single.mean() + half)
        assert (each["over_seeds"]["low"], each["over_seeds"]["high"]) == pytest.approx(seeds)
        drawn = (images[name].low, images[name].high)
        assert (each["over_images"]["low"], each["over_images"]["high"]) == pytest.approx(drawn)
        difference = Difference(single.mean(), Interval(single.mean(), *seeds), images[name], 3, 0.95)
        assert each["p_value"] == pytest.approx(difference.p_value)
    rsum = written[side]["rsum"]
    if side == "oracle":
        assert "significant" not in rsum
        return
    shown = [one["full"]["rsum"]["p_value"] for one in found["differences"]]
    corrected = dict(zip(shown, holm(shown), strict=True))[rsum["p_value"]]
    both = all(ends["low"] > 0 or ends["high"] < 0 for ends in (rsum["over_seeds"], rsum["over_images"]))
    assert rsum["significant"] == (both and corrected <= 0.05)


def test_controls_are_compared_with_nothing_and_a_missing_one_is_named(over_seeds: Any, found: Any) -> None:
    assert {each["method"] for each in found["differences"]} == {"VSE++, AOQ"}
    assert [each["reference"] for each in found["differences"]] == ["VSE++, first training", f"VSE++, {LONGER}"]
    assert len(found["missing"]) == 1
    assert "VSE++, AOQ is not compared with baseline (same time) (triplet-time)" in found["missing"][0]
    assert found["missing"][0] in section(over_seeds, "seeds").all("ul", "missing")[0].text("")


def test_scores_are_means_and_standard_deviations_sorted_by_rsum_beside_their_cost(seeded: Any, found: Any) -> None:
    means = [each["full"]["rsum"]["mean"] for each in found["scores"]]
    assert means == sorted(means, reverse=True)
    scores = {each["name"]: each for each in found["scores"]}
    costs = {"VSE++, first training": 10.0, f"VSE++, {LONGER}": 20.0, "VSE++, AOQ": 10.0 + 1.25 + 30.0}
    for (name, cost), method in zip(costs.items(), METHODS, strict=True):
        rsum = [metrics(each)["rsum"] for each in of_seeds(seeded, method)]
        assert scores[name]["training_seconds"] == cost
        assert scores[name]["full"]["rsum"]["mean"] == pytest.approx(np.mean(rsum))
        assert scores[name]["full"]["rsum"]["deviation"] == pytest.approx(np.std(rsum, ddof=1))
    ensemble = scores["VSE++ + VSE++ seed 1, AOQ"]
    assert ensemble["full"]["rsum"]["deviation"] is None
    assert ensemble["training_seconds"] == 2 * 41.25


def test_page_and_terminal_show_the_same_numbers(over_seeds: Any, found: Any) -> None:
    tables = section(over_seeds, "seeds").all("figure", "numbers")
    assert len(tables) == 3
    text = (over_seeds.folder / "summary.txt").read_text()
    assert max(map(len, text.splitlines())) <= 80
    for row, scores in zip(tables[0].all("tbody")[0].all("tr"), found["scores"], strict=True):
        rsum = scores["full"]["rsum"]
        assert row.all("th")[0].text() == scores["name"]
        assert row.all("td")[6].text() == f"{rsum['mean']:.1f}"
        assert row.all("td")[7].text() == f"{scores['oracle']['rsum']['mean']:.1f}"
        if rsum["deviation"] is not None:
            assert row.all("td")[6].text("") == f"{rsum['mean']:.1f}± {rsum['deviation']:.1f}"
            assert f"{rsum['mean']:.1f} ± {rsum['deviation']:.1f}" in text
    for row, each in zip(tables[1].all("tbody")[0].all("tr"), found["differences"], strict=True):
        over = each["full"]["rsum"]["over_seeds"]
        marks = ["marked" in cell.attributes.get("class", "") for cell in row.all("td")]
        assert marks == [False] * 6 + [each["full"]["rsum"]["significant"], False, False]
        assert row.all("td")[7].text() == f"{over['low']:+.1f} to {over['high']:+.1f}".replace("-", "−")
        assert row.all("td")[7].attributes["data-heading"] == "95 % over seeds"
        assert f"over seeds {row.all('td')[7].text()}, over images {row.all('td')[8].text()}" in text
        assert f"against {each['reference'].removeprefix('VSE++, ')};" in row.all("th")[0].text("")


def test_sentences_are_on_the_page_and_verdicts_in_the_summary(over_seeds: Any, found: Any) -> None:
    assert len(found["conclusions"]) == 2
    listed = section(over_seeds, "seeds").all("ul", "verdicts")[0].text("")
    text = (over_seeds.folder / "summary.txt").read_text()
    for sentence, each in zip(found["conclusions"], found["differences"], strict=True):
        reference = each["reference"].removeprefix("VSE++, ")
        assert sentence.startswith(f"VSE++, AOQ against {reference}, 3 seeds: RSum +")
        assert ("a significant gain" in sentence.partition("; with")[0]) == each["full"]["rsum"]["significant"]
        assert sentence in listed
        own, oracle = text.split(f"\n vs. {reference} ")[1:]
        verdict = "a significant gain" if each["full"]["rsum"]["significant"] else "not significant"
        assert own.splitlines()[2] == f"   {verdict}"
        assert "significant" not in oracle.splitlines()[2]
    assert "Across seeds, of 2 mean differences" in over_seeds.page.all("p", "finding")[1].text()
    assert "Across seeds, of 2 mean differences" in text


def test_a_large_difference_is_significant(found: Any) -> None:
    assert all(each["full"]["rsum"]["significant"] for each in found["differences"])


def test_the_page_stays_small(over_seeds: Any) -> None:
    assert (over_seeds.folder / "index.html").stat().st_size < 1_000_000


def test_an_ensemble_is_named_and_compared_with_that_of_round_one(over_seeds: Any) -> None:
    pairs = {each["run"]: each["baseline"] for each in over_seeds.results["differences"]}
    assert pairs["aoq.vsepp+vsepp.s1"] == "triplet.vsepp+vsepp.s1"
    assert pairs["aoq.vsepp"] == "triplet.vsepp"
    assert pairs["triplet-long.vsepp.s2"] == "triplet.vsepp.s2"
    runs = {each["label"]: each for each in over_seeds.results["runs"]}
    assert runs["aoq.vsepp+vsepp.s1"]["name"] == "VSE++ + VSE++ seed 1, AOQ"
    assert [name.partition("-")[0] for name in runs["aoq.vsepp+vsepp.s1"]["models"]] == ["aoq.vsepp", "aoq.vsepp.s1"]
    cost = section(over_seeds, "cost").text("")
    for label in ("train/aoq.vsepp.s1", "mine_negatives/exact.triplet.vsepp.s1"):
        assert label.partition("/")[2] in cost


def test_an_ensemble_alone_still_has_all_its_models_behind_it(seeded: Any) -> None:
    done = seeded.report(("aoq.vsepp+vsepp.s1",))
    assert "triplet.vsepp.s1" in section(done, "cost").text("")
    assert done.results["differences"] == []
    assert len(done.results["false_negatives"]) == 2
    keys = [each.text() for each in section(done, "curves").all("ul", "legend")[0].all("li")]
    assert keys == ["VSE++, AOQ"]  # both members are trained models of one series


def test_one_seed_makes_no_section(done: Any) -> None:
    assert done.results["seeds"] == []
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "seeds"]
    assert "seeds" not in [each.attributes["href"][1:] for each in done.page.all("a")]


def test_runs_of_removed_models_are_left_out_and_named(seeded: Any, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    shutil.rmtree(copy.made["aoq.s2"])
    done = copy.report(RUNS)
    (found,) = done.results["seeds"]
    assert found["removed"] == ["VSE++, AOQ, seed 2"]
    assert {tuple(each["seeds"]) for each in found["differences"]} == {(0, 1)}
    assert "VSE++, AOQ, seed 2" in section(done, "seeds").all("p", "missing")[0].text()


def test_the_cost_is_unknown_when_the_lists_were_removed(seeded: Any, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    for end in ("", ".s1", ".s2"):
        shutil.rmtree(copy.made[f"mining{end}"])
    (found,) = copy.report(RUNS).results["seeds"]
    costs = {each["name"]: each["training_seconds"] for each in found["scores"]}
    assert costs == {"VSE++, AOQ": None, "VSE++, first training": 10.0, f"VSE++, {LONGER}": 20.0}
    assert len(found["differences"]) == 2


def test_without_the_dataset_scores_remain_and_nothing_is_compared(seeded: Any, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    shutil.rmtree(copy.made["prepare"])
    (found,) = copy.report(RUNS).results["seeds"]
    assert len(found["scores"]) == 3
    assert found["differences"] == found["missing"] == []


def model(settings: dict[str, Any], seed: int = 0, mining: dict[str, Any] | None = None) -> Any:
    mined = None if mining is None else SimpleNamespace(manifest=SimpleNamespace(settings={**mining, "seed": seed}))
    manifest = SimpleNamespace(settings={**settings, "seed": seed})
    member = SimpleNamespace(
        method_name="aoq", seed=seed, artifact=SimpleNamespace(manifest=manifest), mining=mined, backbone="VSRN"
    )
    member.members, member.method, member.departures, member.named = (member,), "AOQ", {}, ""
    return member


def test_other_settings_make_another_series_with_their_name() -> None:
    usual = [model({"loss": {"alpha": 0.3}, "epochs": 6}, seed) for seed in (0, 1)]
    other = [model({"loss": {"alpha": 0.5}, "epochs": 6}, seed) for seed in (0, 1)]
    found = series_of([usual[0], other[0], usual[1], other[1]])
    assert [each.all for each in found] == [tuple(usual), tuple(other)]
    assert [each.name for each in found] == ["VSRN, AOQ (loss.alpha 0.3)", "VSRN, AOQ (loss.alpha 0.5)"]
    assert [each.name for each in series_of(usual)] == ["VSRN, AOQ"]


def test_a_name_has_no_more_settings_than_tell_the_series_apart() -> None:
    settings = [{"alpha": 0.3, "epochs": 6, "keep": 4}, {"alpha": 0.5, "epochs": 6, "keep": 5}]
    settings.append({"alpha": 0.5, "epochs": 9, "keep": 6})
    found = series_of([model(each) for each in settings])
    assert [each.name for each in found] == [
        "VSRN, AOQ (alpha 0.3, 2 more settings)",
        "VSRN, AOQ (alpha 0.5, epochs 6, 1 more setting)",
        "VSRN, AOQ (alpha 0.5, epochs 9, 1 more setting)",
    ]
    assert [each.differing for each in found] == settings


def test_other_mining_makes_another_series() -> None:
    found = series_of([model({}, 0, {"num_texts": 60}), model({}, 1, {"num_texts": 300})])
    assert [each.name for each in found] == ["VSRN, AOQ (mining num_texts 60)", "VSRN, AOQ (mining num_texts 300)"]


@pytest.mark.parametrize(
    ("seeds", "images", "verdict"),
    [
        ((2.9, 3.1), (2.9, 3.1), "a significant gain"),
        (
            (1, 5),
            (2, 4),
            "both intervals exclude zero, but not with both at once and after Holm's correction: not significant",
        ),
        ((-1, 5), (2, 4), "only the interval over images excludes zero, that over seeds does not"),
        ((1, 5), (-2, 8), "only the interval over seeds excludes zero, that over images does not"),
        ((-1, 7), (-2, 8), "both intervals include zero: not significant"),
    ],
)
def test_both_intervals_must_exclude_zero(seeds: Any, images: Any, verdict: str) -> None:
    for sign, word in ((1, "gain"), (-1, "loss")):
        ends = [sorted(sign * end for end in each) for each in (seeds, images)]
        difference = Difference(sign * 3.0, *(Interval(sign * 3.0, *each) for each in ends), 2, 0.95)
        names = [SimpleNamespace(name=f"VSRN, {name}", method=name) for name in ("AOQ", "first training")]
        compared = SeedComparison(*names, [0, 1], {"rsum": difference}, None)  # type: ignore[arg-type]
        others = [replace(compared, own={"rsum": replace(difference, value=0.0)})] * 3
        (marked, *_), *_ = judged([[compared], others])
        assert verdict.replace("gain", word) in conclusion_of(marked)
        assert ("not significant" in summary([marked])) == ("not" in verdict)


def test_equal_differences_of_all_seeds_leave_an_interval_of_no_width() -> None:
    assert seed_interval([2.0, 2.0, 2.0], 0.95) == Interval(2.0, 2.0, 2.0)
    wide = seed_interval([1.0, 3.0], 0.95)
    assert (wide.low, wide.high) == pytest.approx((2 - 12.7062047, 2 + 12.7062047))


def random_ranks(generator: np.random.Generator) -> Ranks:
    return Ranks(generator.integers(0, 30, 30), generator.integers(0, 30, 60))


def test_one_pair_gives_the_paired_interval_and_all_pairs_see_the_same_images() -> None:
    generator = np.random.default_rng(0)
    first, second = random_ranks(generator), random_ranks(generator)
    single = paired_mean_intervals([(first, second)], CAPTION_IMAGE, 100)
    assert single == paired_intervals(first, second, CAPTION_IMAGE, 100)
    assert single["rsum"].low < single["rsum"].high
    # What one pair gains the other loses on every single resampled test set.
    for each in paired_mean_intervals([(first, second), (second, first)], CAPTION_IMAGE, 100).values():
        assert (each.value, each.low, each.high) == (0.0, 0.0, 0.0)


def test_the_mean_of_several_seeds_is_narrower_than_one_of_them() -> None:
    generator = np.random.default_rng(1)
    pairs = [(random_ranks(generator), random_ranks(generator)) for _ in range(8)]
    widths = [
        found["rsum"].high - found["rsum"].low
        for found in (paired_intervals(*pair, CAPTION_IMAGE, 300) for pair in pairs)
    ]
    mean = paired_mean_intervals(pairs, CAPTION_IMAGE, 300)["rsum"]
    assert mean.high - mean.low < min(widths)
    expected = np.mean([metrics(after)["rsum"] - metrics(before)["rsum"] for before, after in pairs])
    assert mean.value == pytest.approx(expected)


def test_the_numbers_survive_json(over_seeds: Any) -> None:
    text = (over_seeds.folder / "results.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["seeds"][0]["test_set"].startswith("test split of toy")


def test_of_two_evaluations_of_one_seed_the_newest_counts() -> None:
    def evaluated(seed: int, finished: str) -> Any:
        return SimpleNamespace(seed=seed, manifest=SimpleNamespace(finished=finished))

    old, new, other = evaluated(1, "2026-01-01"), evaluated(1, "2026-02-01"), evaluated(0, "2025-01-01")
    for order in ((old, new, other), (new, old, other)):
        found: Any = by_seed(SimpleNamespace(all=order))  # pyright: ignore
        assert list(found) == [0, 1]
        assert found[1] is new


def test_recalls_above_and_below_zero_are_counted_apart() -> None:
    def interval(low: float, high: float) -> Interval:
        return Interval((low + high) / 2, low, high)

    own = {name: interval(-1, 1) for name in RECALLS} | {"i2t_r1": interval(1, 2), "i2t_r5": interval(2, 3)}
    own["t2i_r10"] = interval(-3, -2)
    said = of_recalls([SimpleNamespace(own=own)], 0.95)  # pyright: ignore
    assert "Of the 6 differences in recall, the interval lies above zero in 2 and below zero in 1" in said
    assert said.endswith("0.3 would by chance.")
