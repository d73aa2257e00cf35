"""Which baseline a model is compared with, the difference, what it allows to say, and what models are called."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.intervals import Difference, Interval, paired_intervals
from itrpipe.evaluation.metrics import RSUM, Ranks, metrics
from itrpipe.evaluation.tables import Number
from itrpipe.report import plots
from itrpipe.report.claims import Claim, judged
from itrpipe.report.plots import SERIES, Look, _ends, looks_of
from itrpipe.report.runs import Series, series_of
from tests.report.toy import Toy, add

SEEDS = (0, 1, 2)
METHODS = ("triplet", "triplet-long", "aoq")
RUNS = tuple(f"{method}.vsepp{f'.s{seed}' if seed else ''}" for method in METHODS for seed in SEEDS)
T_OF_TWO_DEGREES = 4.302652729911275
CAPTION_IMAGE = np.arange(60) // 2
CLIP = {"model": {"vision": "clip", "text": "clip"}, "epochs": 3}
MINED = {"negatives": ["batch", "mined"]}


@pytest.fixture(scope="module")
def over_seeds(seeded: Toy) -> Any:
    return seeded.report(RUNS)


def read_ranks(folder: Path, column: str) -> Ranks:
    rows = pq.read_table(folder / "rankings.parquet", columns=["direction", column]).to_pylist()
    return Ranks(*(np.array([row[column] for row in rows if row["direction"] == side]) for side in ("i2t", "t2i")))


def of_seeds(toy: Toy, method: str, column: str) -> list[Ranks]:
    return [read_ranks(toy.made[f"{method}.vsepp{f'.s{seed}' if seed else ''}"], column) for seed in SEEDS]


@pytest.mark.parametrize(("side", "column"), [("own", "rank"), ("oracle", "oracle_rank")])
def test_differences_are_paired_by_seed_and_have_both_intervals(
    seeded: Toy, over_seeds: Any, side: str, column: str
) -> None:
    (claim,) = over_seeds.results["claims"]
    assert (claim["model"], claim["baseline"]) == ("VSE++, AOQ", "VSE++, baseline (same epochs)")
    assert claim["seeds"] == [0, 1, 2]
    assert over_seeds.results["runs"][-1]["name"] == "VSE++, AOQ, seed 2"
    pairs = list(zip(of_seeds(seeded, "triplet-long", column), of_seeds(seeded, "aoq", column), strict=True))
    images = paired_intervals(pairs, CAPTION_IMAGE, 200, 0.95)
    for name, each in claim[side].items():
        single = np.array([metrics(after)[name] - metrics(before)[name] for before, after in pairs])
        half = T_OF_TWO_DEGREES * single.std(ddof=1) / np.sqrt(3)
        assert each["value"] == pytest.approx(single.mean())
        assert (each["seeds"]["low"], each["seeds"]["high"]) == pytest.approx(
            (single.mean() - half, single.mean() + half)
        )
        assert (each["images"]["low"], each["images"]["high"]) == pytest.approx((images[name].low, images[name].high))
    assert claim["result"] == "better"
    assert claim["own"][RSUM]["significant"]


def baselines(report: Any) -> dict[str, str]:
    return {each["model"]: each["baseline"] for each in report.results["claims"]}


def test_the_declared_baseline_comes_before_the_first_training(seeded: Toy) -> None:
    for runs, baseline in ((RUNS, "baseline (same epochs)"), ((*RUNS[:3], *RUNS[6:]), "first training")):
        assert baselines(seeded.report(runs)) == {"VSE++, AOQ": f"VSE++, {baseline}"}


def test_the_baseline_of_as_much_time_is_a_second_column(copy: Toy) -> None:
    timed = add(copy, "triplet", "vsepp", conf="triplet-time", like="triplet.vsepp")
    report = copy.report(("triplet.vsepp", "aoq.vsepp", timed))
    assert [(each["model"], each["baseline"]) for each in report.results["claims"]] == [
        ("VSE++, AOQ", "VSE++, first training"),
        ("VSE++, AOQ", "VSE++, baseline (same time)"),
    ]


ZERO, TUNED, WITH = ("zero-shot", "triplet.vsepp"), ("clip-finetune", "triplet.vsepp"), ("clip-finetune", "aoq.vsepp")


@pytest.mark.parametrize(
    ("models", "baseline"),
    [
        # The published model is what fine-tuning began with.
        ([(*ZERO, {}), (*WITH, {})], "zero-shot"),
        # The same training with in-batch negatives comes before it.
        ([(*ZERO, {}), (*TUNED, {"loss": {}}), (*WITH, {"loss": MINED})], "fine-tuned CLIP"),
        # Of another size, of fewer epochs or with another objective it is none.
        ([(*TUNED, {"model": {**CLIP["model"], "embed_dim": 64}}), (*WITH, {"loss": MINED})], ""),
        ([(*TUNED, {"epochs": 2}), (*WITH, {"loss": MINED})], ""),
        ([(*TUNED, {"loss": {"objective": "sigmoid"}}), (*WITH, {"loss": MINED})], ""),
        # For longer, and by another schedule, it is one.
        ([(*TUNED, {"epochs": 6, "schedule": "linear"}), (*WITH, {"loss": MINED})], "fine-tuned CLIP"),
        # Of two such trainings neither is.
        ([(*TUNED, {"epochs": 6}), (*WITH, {})], ""),
        # With other features or another share of the images it is none.
        ([(*TUNED, {"train_share": 0.5}), (*WITH, {"loss": MINED})], ""),
    ],
)
def test_the_same_training_with_in_batch_negatives_is_the_baseline(copy: Toy, models: Any, baseline: str) -> None:
    """Models by configuration, whose rankings they have, and settings."""
    made = []
    for conf, like, settings in models:
        method = "zero-shot" if conf == "zero-shot" else "contrastive"
        made.append(add(copy, method, "dual-encoder", conf=conf, like=like, trained={**CLIP, **settings}))
    claims = copy.report(tuple(made)).results["claims"]
    claims = [each for each in claims if "mined" in each["model"] or len(models) == 2]
    assert [each["result"] for each in claims] == (["one seed"] if baseline else [])
    assert all(baseline in each["baseline"] for each in claims)


def claim(
    value: float, seeds: tuple[float, float] | None, images: tuple[float, float], *, untrained: bool = False
) -> Claim:
    over_seeds = None if seeds is None else Interval(value, *seeds)
    difference = Difference(value, over_seeds, Interval(value, *images), 1 if seeds is None else 2, 0.95)
    first: Any = SimpleNamespace(backbone="VSRN", roles={"untrained"} if untrained else set())
    one, other = (Series(f"VSRN, {name}", (first,)) for name in ("AOQ", "first training"))
    return Claim(one, other, [0] if seeds is None else [0, 1], {RSUM: difference}, None)


@pytest.mark.parametrize(
    ("seeds", "images", "word"),
    [
        ((2.9, 3.1), (2.9, 3.1), "better"),
        ((1, 5), (2, 4), "no measurable difference"),  # both exclude zero, but not at once and after Holm's correction
        ((-1, 5), (2, 4), "no measurable difference"),
        ((1, 5), (-2, 8), "no measurable difference"),
        (None, (2.9, 3.1), "one seed"),
    ],
)
def test_one_word_needs_both_intervals_and_all_comparisons_of_the_page(seeds: Any, images: Any, word: str) -> None:
    one = claim(3.0, seeds, images)
    others = [claim(0.0, (-1, 1), (-1, 1))] * 3
    (marked, *_), *_ = judged([[one], others])
    assert marked.word == word
    opposite = claim(-3.0, seeds and (-seeds[1], -seeds[0]), (-images[1], -images[0]))
    (marked, *_), *_ = judged([[opposite], others])
    assert marked.word == word.replace("better", "worse")


def test_differences_are_drawn_around_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "svg", lambda figure, *_: figure)
    drawn: Any = plots.intervals("x", "x", ["a"], [Number(2.0, 1, 3, signed=True)], [Look("red", ())], None)
    (axes,) = drawn.svg.axes
    assert (axes.lines[-1].get_xdata(), sum(axes.get_xlim())) == ([0, 0], 0)


def test_of_models_that_were_not_trained_the_images_decide() -> None:
    assert claim(0.5, None, (0.1, 5), untrained=True).word == "better"
    assert claim(3.0, None, (-1, 5), untrained=True).word == "no measurable difference"


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        (claim(3.0, (2.9, 3.1), (2, 4)), ["better than first training by 3.0", "2 seeds +2.9 to +3.1", "+2.0 to +4.0"]),
        (claim(1.4, None, (-4, 6.7)), ["changed RSum by +1.4", "inconclusive with one seed", "−4.0 to +6.7"]),
        (claim(5.0, None, (4, 6)), ["changed RSum by +5.0", "one seed does not show"]),
        (claim(0.5, (-1, 2), (-1, 2)), ["no measurable difference", "+0.5"]),
    ],
)
def test_one_sentence_has_the_difference_and_its_intervals(one: Claim, parts: list[str]) -> None:
    (found,), *_ = judged([[one]])
    assert all(part in found.sentence() for part in parts), found.sentence()


def test_marks_are_corrected_over_all_test_sets_of_a_page() -> None:
    one, none = claim(3.0, (2.5, 3.5), (2.0, 4.0)), claim(0.1, (-5, 5), (-5, 5))
    p_value = one.rsum.p_value
    assert p_value <= 0.05 < 41 * p_value  # as Holm corrects the smallest of 41
    assert judged([[one]])[0][0].rsum.significant
    assert not judged([[one], [none] * 40])[0][0].rsum.significant


def test_two_models_that_do_not_compare_are_refused(seeded: Toy) -> None:
    for first, second, told in (("aoq", "aoq", "nothing but their seed"), ("triplet", "aoq", "share no seed")):
        with pytest.raises(UsageError, match=told):
            seeded.report((f"{first}.vsepp", f"{second}.vsepp.s1"), compare=[seeded.made[f"{first}.vsepp"].name])


def test_a_user_chooses_the_baseline_of_a_page_over_two_models(seeded: Toy) -> None:
    report = seeded.report(("triplet.vsepp", "aoq.vsepp"), compare=[seeded.made["aoq.vsepp"].name])
    (claim,) = report.results["claims"]
    assert (claim["model"], claim["baseline"]) == ("VSE++, first training", "VSE++, AOQ")
    assert claim["own"][RSUM]["value"] < 0


def test_a_removed_model_and_without_the_dataset_any_has_no_baseline(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    shutil.rmtree(copy.made["aoq.s2"])
    (claim,) = copy.report(RUNS).results["claims"]
    assert claim["seeds"] == [0, 1]
    assert claim["own"][RSUM]["seeds"]
    shutil.rmtree(copy.made["prepare"])
    assert copy.report(RUNS, examples=3).results["claims"] == []


# -- What series are called, and how they are drawn


def run(settings: dict[str, Any] | None, seed: int = 0, mining: dict[str, Any] | None = None, **given: Any) -> Any:
    made = [
        each and SimpleNamespace(settings={"adapter": "none", **each, "seed": seed})
        for each in (settings or {"": 0}, mining)
    ]
    member = SimpleNamespace(method_name="aoq", seed=seed, mining=mining and SimpleNamespace(manifest=made[1]))
    member.artifact = SimpleNamespace(manifest=None if settings is None else made[0])
    about = {"method": "AOQ", "backbone": "VSRN", "roles": (), "departures": {}}
    return SimpleNamespace(members=[member], **{**about, **given})


def names(*runs: Any) -> list[str]:
    return [each.name for each in series_of(runs)]


def test_runs_that_differ_in_their_seed_are_one_series() -> None:
    usual = [run({"alpha": 0.3}, seed) for seed in (0, 1)]
    other = [run({"alpha": 0.5}, seed) for seed in (0, 1)]
    found = series_of([usual[0], other[0], usual[1], other[1]])
    assert [each.all for each in found] == [tuple(usual), tuple(other)]
    assert [each.name for each in found] == ["VSRN, AOQ (alpha 0.3)", "VSRN, AOQ (alpha 0.5)"]
    assert names(*usual) == ["VSRN, AOQ"]


def test_a_name_has_no_more_settings_than_tell_it_apart() -> None:
    settings = [{"alpha": 0.5, "epochs": 6, "keep": 5}, {"alpha": 0.5, "epochs": 9}]
    settings = [{"alpha": 0.3, "epochs": 6, "keep": 4}, *settings]
    told = ("alpha 0.3, 2 more settings", "alpha 0.5, epochs 6, 1 more setting", "alpha 0.5, epochs 9")
    assert names(*map(run, settings)) == [f"VSRN, AOQ ({each})" for each in told]
    assert names(run({"epochs": 6}), run({"epochs": 6, "loss": {"a": 1}})) == ["VSRN, AOQ", "VSRN, AOQ (loss.a 1)"]


def test_other_mining_makes_another_series_and_removed_models_stay_alone() -> None:
    assert names(run({"a": 1}, 0, {"num_texts": 60}), run({"a": 1}, 1, {"num_texts": 300})) == [
        "VSRN, AOQ (mining num_texts 60)",
        "VSRN, AOQ (mining num_texts 300)",
    ]
    assert len(names(run(None, 0), run(None, 1))) == 2


def test_a_colour_is_a_method_a_dash_a_backbone_and_the_first_training_grey() -> None:
    runs = [run({"m": n, "b": b}, method=f"M{n}", backbone=b) for b in ("VSRN", "SCAN") for n in range(SERIES + 1)]
    runs += [run({"b": b}, method="first", backbone=b, roles=["first"]) for b in ("VSRN", "SCAN")]
    looks = looks_of(series_of(runs))
    assert len({(each.colour, each.dashes) for each in looks.values()}) == len(runs)
    assert looks["VSRN, first"].colour == looks["SCAN, first"].colour
    assert looks["VSRN, M0"].colour == looks["SCAN, M0"].colour == looks[f"VSRN, M{SERIES}"].colour
    assert looks["VSRN, first"].colour not in {looks[f"VSRN, M{n}"].colour for n in range(SERIES)}


def test_what_is_drawn_ends_with_the_interval_or_one_deviation_to_both_sides() -> None:
    assert _ends(Number(5.0, 3.0, 8.0)) == (3.0, 8.0)
    assert _ends(Number(5.0, deviation=1.5)) == (3.5, 6.5)
