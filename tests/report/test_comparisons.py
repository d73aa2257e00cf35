"""Which baseline a model is compared with, the difference, what it allows to say, and what models are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import UsageError
from itrpipe.evaluation.compare import Claim
from itrpipe.evaluation.intervals import Difference, Interval, paired_differences
from itrpipe.evaluation.metrics import RSUM, Ranks, metrics
from itrpipe.evaluation.results import FULL
from itrpipe.report.chain import ChainArtifact
from itrpipe.report.comparisons import Comparison, mark_significant
from itrpipe.report.headline import differing_settings
from itrpipe.report.plots import MAX_COLOURS, _rsum_interval, line_styles
from itrpipe.report.runs import TrainedModel
from itrpipe.report.series import Series, series_of
from itrpipe.storage.artifact import read_manifest
from tests.report.toy import MINE, Toy, add, change, rewrite

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
    expected = paired_differences(pairs, CAPTION_IMAGE, 200, 0.95)
    for name, each in claim[side].items():
        single = np.array([metrics(after)[name] - metrics(before)[name] for before, after in pairs])
        half = T_OF_TWO_DEGREES * single.std(ddof=1) / np.sqrt(3)
        assert each["value"] == pytest.approx(single.mean())
        assert (each["seeds"]["low"], each["seeds"]["high"]) == pytest.approx(
            (single.mean() - half, single.mean() + half)
        )
        assert (each["images"]["low"], each["images"]["high"]) == pytest.approx(expected[name].images[1:])
    assert claim["result"] == "better"
    assert claim["significant"]


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
    assert [each["result"] for each in claims] == (["one seed is too few"] if baseline else [])
    assert all(baseline in each["baseline"] for each in claims)


def claim(
    value: float,
    seeds: tuple[float, float] | None,
    images: tuple[float, float],
    *,
    untrained: bool = False,
    at_chance: bool = False,
) -> Comparison:
    over_seeds = None if seeds is None else Interval(value, *seeds)
    difference = Difference(value, over_seeds, Interval(value, *images), 1 if seeds is None else 3, 0.95)
    found = Claim("VSRN, AOQ", "first training", {RSUM: difference}, at_chance, not untrained)
    none: Any = None
    return Comparison(none, none, [], found, None)


@pytest.mark.parametrize(
    ("seeds", "images", "word"),
    [
        ((2.9, 3.1), (2.9, 3.1), "better"),
        ((1, 5), (2, 4), "no measurable difference"),  # both exclude zero, but not at once and after Holm's correction
        ((-1, 5), (2, 4), "no measurable difference"),
        ((1, 5), (-2, 8), "no measurable difference"),
        (None, (2.9, 3.1), "one seed is too few"),
    ],
)
def test_one_word_needs_both_intervals_and_all_comparisons_of_the_page(seeds: Any, images: Any, word: str) -> None:
    one = claim(3.0, seeds, images)
    others = [claim(0.0, (-1, 1), (-1, 1))] * 3
    (marked, *_), *_ = mark_significant([[one], others])
    assert marked.claim.word == word
    opposite = claim(-3.0, seeds and (-seeds[1], -seeds[0]), (-images[1], -images[0]))
    (marked, *_), *_ = mark_significant([[opposite], others])
    assert marked.claim.word == word.replace("better", "worse")


def test_of_models_that_were_not_trained_the_images_decide() -> None:
    better, unclear = claim(0.5, None, (0.1, 5), untrained=True), claim(3.0, None, (-1, 5), untrained=True)
    found = [each.claim for each in mark_significant([[better, unclear]])[0]]
    assert [each.word for each in found] == ["better", "no measurable difference"]
    assert [each.significant for each in found] == [True, False]


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        (claim(3.0, (2.9, 3.1), (2, 4)), ["better than first training by 3.0", "3 seeds +2.9 to +3.1", "+2.0 to +4.0"]),
        (claim(1.4, None, (-4, 6.7)), ["AOQ against first training: one seed is too few, RSum +1.4", "−4.0 to +6.7"]),
        (claim(5.0, None, (4, 6)), ["AOQ against first training: one seed is too few, RSum +5.0"]),
        (claim(0.5, (-1, 2), (-1, 2)), ["AOQ against first training: no measurable difference, RSum +0.5"]),
        (claim(0.5, (-1, 2), (-1, 2), at_chance=True), ["AOQ against first training: both at chance, RSum +0.5"]),
    ],
)
def test_one_sentence_has_the_difference_and_its_intervals(one: Comparison, parts: list[str]) -> None:
    (found,), *_ = mark_significant([[one]])
    assert all(part in str(found.claim) for part in parts), str(found.claim)


def test_marks_are_corrected_over_all_test_sets_of_a_page() -> None:
    one, none = claim(3.0, (2.5, 3.5), (2.0, 4.0)), claim(0.1, (-5, 5), (-5, 5))
    p_value = one.rsum.p_value
    assert p_value <= 0.05 < 41 * p_value  # as Holm corrects the smallest of 41
    assert mark_significant([[one]])[0][0].claim.significant
    assert not mark_significant([[one], [none] * 40])[0][0].claim.significant


TRIPLET, AOQ = {"method": "triplet", "margin": 0.2}, {"method": "aoq", "margin": 0.2}


@pytest.mark.parametrize(
    ("baseline", "model", "differences"),
    [
        ((TRIPLET,), (AOQ, MINE), ["method (triplet, aoq)"]),
        ((TRIPLET | {"loss": {"a": 1}},), (AOQ | {"loss": {"b": 1}}, MINE), ["method (triplet, aoq)"]),
        ((AOQ,), (AOQ | {"depth": 3}, MINE), ["depth (none, 3)"]),
        ((AOQ, MINE), (AOQ, MINE | {"num_texts": 60}), ["mining num_texts (12, 60)"]),
        ((AOQ | {"sentences": "a"},), (AOQ | {"sentences": "b"}, MINE), []),
        ((AOQ | {"loss": {"judged": "keep"}},), (AOQ | {"loss": {"judged": "weigh"}}, MINE), []),
    ],
)
def test_all_in_which_two_trainings_differ_but_their_negatives_is_named(
    baseline: Any, model: Any, differences: list[str]
) -> None:
    sides = [
        Series(name, (SimpleNamespace(members=[trained(settings, 0, *mining)]),))  # type: ignore[arg-type]
        for name, (settings, *mining) in (("before", baseline), ("after", model))
    ]
    assert differing_settings(Comparison(sides[0], sides[1], [0], Claim("", "", {}), None)) == differences


def test_mined_negatives_are_credited_where_nothing_else_differs(copy: Toy, done: Any) -> None:
    assert "They also differ in method (triplet, aoq)." in done.results["answers"][0]
    change(copy.made["triplet"], "triplet", settings={"method": "aoq"})
    assert copy.report().results["answers"][0].startswith("Training with mined negatives against first training: one")


def test_judges_that_marked_nothing_are_named_so(copy: Toy) -> None:
    judged = shutil.copytree(copy.made["mining"], copy.made["mining"].with_name("exact.triplet.vsepp-0"))
    statistics = json.loads((judged / "statistics.json").read_text())
    nothing = {"marked": 0, "by_rank": {}}
    statistics["judged"] = {"texts_for_images": nothing, "images_for_texts": nothing, "judges": [], "knows": False}
    rewrite(judged / "statistics.json", json.dumps(statistics).encode())
    search = copy.made["mining"]
    record = {"stage": "mine_negatives", "digest": "", "files": {}, "made": {}}
    searched = record | {"name": search.name, "fingerprint": read_manifest(search).fingerprint}
    change(judged, "exact", settings={"judges": ["graphs"]}, inputs={"mine_negatives": searched})
    name = add(copy, "aoq", "vsepp", trained={"loss": {"judged": "drop", "judges": ["graphs"]}})
    trained = read_manifest(copy.made[name]).inputs["train"].name
    mining = record | {"name": judged.name, "fingerprint": read_manifest(judged).fingerprint}
    change(copy.root / "toy" / "train" / trained, "aoq", inputs={"mine_negatives": mining})
    report = copy.report(("triplet.vsepp", "aoq.vsepp", name))
    assert "VSE++, AOQ (marked nothing)" in baselines(report)
    (mined,) = [each for each in report.results["tables"] if each["title"] == "What was mined"]
    assert len(mined["rows"]) == 2, "judged lists alone, and not those that were judged"


def test_models_trained_elsewhere_have_their_names_and_several_seeds(copy: Toy) -> None:
    made, named = [], []
    for name, like in (("a@1", "triplet"), ("a@2", "triplet"), ("b@1", "aoq"), ("b@2", "aoq")):
        of_folder = {"model": {"vision": name, "text": "clip"}}
        made.append(add(copy, "zero-shot", "dual-encoder", like=f"{like}.vsepp", conf="zero-shot", trained=of_folder))
        named.append((read_manifest(copy.made[made[-1]]).inputs["train"].name, name))
    report = copy.report(tuple(made), names=sorted(named), compare=made[:2])
    (claim,) = report.results["claims"]
    assert (claim["model"], claim["baseline"]) == ("dual encoder, b", "dual encoder, a")
    assert (claim["seeds"], claim["result"]) == ([1, 2], "two seeds are too few")


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
    assert claim["own"][RSUM]["seeds"] is None, "of two seeds no interval"
    shutil.rmtree(copy.made["prepare"])
    assert copy.report(RUNS, examples=3).results["claims"] == []


# -- What series are called, and how they are drawn


def trained(settings: dict[str, Any] | None, seed: int = 0, mining: Any = None, name: str = "") -> TrainedModel:
    """A model by its settings, and those of the lists that it was trained with."""
    usual = {"adapter": "none", "method": "aoq", "seed": seed}
    manifests: list[Any] = [each and SimpleNamespace(settings={**usual, **each}) for each in (settings, mining)]
    model, lists = (ChainArtifact("", "", "", Path(), manifest) for manifest in manifests)
    vars(model)["inputs"] = {"mine_negatives": lists} if mining else {}
    return TrainedModel("aoq", "vsrn", seed, model, lambda _: {}, name)


def run(settings: dict[str, Any] | None, seed: int = 0, mining: dict[str, Any] | None = None, **given: Any) -> Any:
    about = {"method": "AOQ", "backbone": "VSRN", "roles": (), "departures": {}}
    return SimpleNamespace(members=[trained(settings, seed, mining)], **{**about, **given})


def names(*runs: Any) -> list[str]:
    return [each.name for each in series_of(runs)]


def test_runs_that_differ_in_their_seed_are_one_series() -> None:
    usual = [run({"alpha": 0.3}, seed) for seed in (0, 1)]
    other = [run({"alpha": 0.5}, seed) for seed in (0, 1)]
    found = series_of([usual[0], other[0], usual[1], other[1]])
    assert [each.runs for each in found] == [tuple(usual), tuple(other)]
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
    runs = [run({"m": n, "b": b}, method=f"M{n}", backbone=b) for b in ("VSRN", "SCAN") for n in range(MAX_COLOURS + 1)]
    runs += [run({"b": b}, method="first", backbone=b, roles=["first training"]) for b in ("VSRN", "SCAN")]
    styles = line_styles(series_of(runs))
    assert len({(each.colour, each.dashes) for each in styles.values()}) == len(runs)
    assert styles["VSRN, first"].colour == styles["SCAN, first"].colour
    assert styles["VSRN, M0"].colour == styles["SCAN, M0"].colour == styles[f"VSRN, M{MAX_COLOURS}"].colour
    assert styles["VSRN, first"].colour not in {styles[f"VSRN, M{n}"].colour for n in range(MAX_COLOURS)}


def test_models_of_one_seed_and_of_several_are_drawn_with_intervals_over_images() -> None:
    runs: list[Any] = []
    for seed, low, high in ((0, 3.0, 8.0), (1, 5.0, 12.0)):
        found = {FULL: {RSUM: {"value": 6.0, "low": low, "high": high}}}
        runs.append(SimpleNamespace(seed=seed, metrics=found, manifest=SimpleNamespace(finished="")))
    assert _rsum_interval(Series("one seed", (runs[0],))) == (3.0, 8.0)
    assert _rsum_interval(Series("two seeds", tuple(runs))) == (4.0, 10.0)
