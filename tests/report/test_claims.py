"""Which baseline a model is compared with, the difference, and what it allows to say."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.intervals import Difference, Interval, paired_intervals
from itrpipe.evaluation.metrics import RSUM, Ranks, metrics
from itrpipe.report.claims import Claim, judged
from itrpipe.report.series import Series
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


@pytest.mark.parametrize(
    ("left_out", "baseline"), [((), "VSE++, baseline (same epochs)"), (("triplet-long",), "VSE++, first training")]
)
def test_the_declared_baseline_comes_before_the_first_training(
    seeded: Toy, left_out: tuple[str, ...], baseline: str
) -> None:
    runs = tuple(run for run in RUNS if not run.startswith(tuple(f"{each}." for each in left_out)))
    assert baselines(seeded.report(runs)) == {"VSE++, AOQ": baseline}


def test_the_baseline_of_as_much_time_is_a_second_column(copy: Toy) -> None:
    timed = add(copy, "triplet", "vsepp", conf="triplet-time", like="triplet.vsepp")
    report = copy.report(("triplet.vsepp", "aoq.vsepp", timed))
    assert [(each["model"], each["baseline"]) for each in report.results["claims"]] == [
        ("VSE++, AOQ", "VSE++, first training"),
        ("VSE++, AOQ", "VSE++, baseline (same time)"),
    ]


@pytest.fixture
def tuned(copy: Toy) -> Any:
    """Adds dual encoders, each by its configuration, whose rankings it has and its settings; gives the claims."""

    def told(*models: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
        made = []
        for conf, like, settings in models:
            method = "zero-shot" if conf == "zero-shot" else "contrastive"
            seed = settings.get("seed", 0)
            made.append(
                add(copy, method, "dual-encoder", conf=conf, like=like, seed=seed, trained={**CLIP, **settings})
            )
        return copy.report(tuple(made)).results["claims"]

    return told


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
        # With other features or another share of the images it is none.
        ([(*TUNED, {"train_share": 0.5}), (*WITH, {"loss": MINED})], ""),
    ],
)
def test_the_same_training_with_in_batch_negatives_is_the_baseline(tuned: Any, models: Any, baseline: str) -> None:
    last = [each for each in tuned(*models) if "mined" in each["model"] or len(models) == 2]
    if not baseline:
        assert last == []
        return
    (claim,) = last
    assert baseline in claim["baseline"]
    assert claim["result"] == "one seed"


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


def test_of_models_that_were_not_trained_the_images_decide() -> None:
    assert claim(3.0, None, (1, 5), untrained=True).word == "better"
    assert claim(3.0, None, (-1, 5), untrained=True).word == "no measurable difference"


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        (claim(3.0, (2.9, 3.1), (2, 4)), ["better than first training by 3.0", "2 seeds +2.9 to +3.1", "+2.0 to +4.0"]),
        (claim(1.4, None, (-4, 6.7)), ["changed RSum by +1.4", "too little to tell with one seed", "−4.0 to +6.7"]),
        (claim(5.0, None, (4, 6)), ["changed RSum by +5.0", "one seed does not tell"]),
        (claim(0.5, (-1, 2), (-1, 2)), ["no measurable difference", "+0.5"]),
    ],
)
def test_one_sentence_has_the_difference_and_its_intervals(one: Claim, parts: list[str]) -> None:
    (found,), *_ = judged([[one]])
    assert all(part in found.sentence() for part in parts), found.sentence()


def test_of_models_that_do_not_differ_few_are_called_better_or_worse() -> None:
    """Pages of five comparisons over three seeds, with as much deviation by seed as by image."""
    generator, wrong, pages = np.random.default_rng(0), 0, 400
    for _ in range(pages):
        claims = []
        for _ in range(5):
            by_image = generator.normal(0, 6)
            single = by_image + generator.normal(0, 7 * np.sqrt(2), 3)
            half = T_OF_TWO_DEGREES * single.std(ddof=1) / np.sqrt(3)
            value = float(single.mean())
            claims.append(claim(value, (value - half, value + half), (value - 1.96 * 6, value + 1.96 * 6)))
        (found,) = judged([claims])
        wrong += any(each.word in ("better", "worse") for each in found)
    assert wrong / pages <= 0.05


def test_marks_are_corrected_over_all_test_sets_of_a_page() -> None:
    one, none = claim(3.0, (2.5, 3.5), (2.0, 4.0)), claim(0.1, (-5, 5), (-5, 5))
    p_value = one.rsum.p_value
    assert p_value <= 0.05 < 41 * p_value  # as Holm corrects the smallest of 41
    assert judged([[one]])[0][0].rsum.significant
    assert not judged([[one], [none] * 40])[0][0].rsum.significant


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [("aoq.vsepp", "aoq.vsepp.s1", "nothing but their seed"), ("triplet.vsepp", "aoq.vsepp.s1", "share no seed")],
)
def test_two_models_that_do_not_compare_are_refused(seeded: Toy, first: str, second: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        seeded.report((first, second), compare=[seeded.made[first].name])


def test_a_user_chooses_the_baseline_of_a_page_over_two_models(seeded: Toy) -> None:
    report = seeded.report(("triplet.vsepp", "aoq.vsepp"), compare=[seeded.made["aoq.vsepp"].name])
    (claim,) = report.results["claims"]
    assert (claim["model"], claim["baseline"]) == ("VSE++, first training", "VSE++, AOQ")
    assert claim["own"][RSUM]["value"] < 0


def test_without_the_dataset_nothing_is_compared(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    shutil.rmtree(copy.made["prepare"])
    assert copy.report(RUNS).results["claims"] == []


def test_a_removed_model_has_no_baseline(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    shutil.rmtree(copy.made["aoq.s2"])
    (claim,) = copy.report(RUNS).results["claims"]
    assert claim["seeds"] == [0, 1]


def test_a_difference_without_a_mark_stays_what_it_was() -> None:
    one = claim(3.0, None, (1, 5))
    assert judged([[one]])[0][0].own == {RSUM: replace(one.rsum, significant=False)}
