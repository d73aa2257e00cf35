"""What a second round gains in many settings: which controls are fair, which is the strongest, and along what."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from itrpipe.artifacts.files import BENCHMARKS
from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.claims import Difference
from itrpipe.reporting.plots import looks_by_name
from itrpipe.reporting.results import _tried
from itrpipe.reporting.sections.study.plots import gain_plots
from itrpipe.reporting.sections.study.rules import rule_table
from itrpipe.reporting.sections.study.section import gain_tables, headroom, said_of
from itrpipe.reporting.study import (
    ACCURACY,
    BATCH,
    I2T_MAP,
    IMAGES,
    MEASURES,
    ORACLE,
    RSUM,
    T2I_MAP,
    Study,
    ordered,
    study_of,
)

SEEDS = (0, 1, 2)
MINED = {
    "negatives": ["batch", "mined"],
    "objective": "infonce",
    "weigh": "none",
    "batches": "shuffled",
    "refresh_every": 0,
}


def oracle(rsum: float) -> dict[str, dict[str, float]]:
    return {
        "rsum": {"value": rsum + 40},
        "i2t_map_at_r": {"value": rsum / 10},
        "t2i_map_at_r": {"value": rsum / 5},
    }


def series(
    method: str, rsum: float, batch: int = 128, kind: str = "", told: float | None = None, data: Any = None
) -> Any:
    """Runs with three seeds, as a report has them."""
    settings = {"batch_size": batch, "train_share": data.share, "loss": dict(MINED)}
    model = SimpleNamespace(
        artifact=SimpleNamespace(path=f"train/{method}-{data.name}", manifest=SimpleNamespace(settings=settings)),
        mining=None,
    )
    prepare = SimpleNamespace(name=data.name, manifest=SimpleNamespace(settings=data.settings))
    runs = tuple(
        SimpleNamespace(
            members=(model,),
            seed=seed,
            rerank=0,
            method=method,
            backbone="VSRN",
            prepare=prepare,
            declared=lambda manifest: {"noise": 0.0, "units": 3},
            settings={"features": "scenes"},
            manifest=SimpleNamespace(finished=str(seed)),
            metrics={"full": {"rsum": {"value": rsum + seed}}, "oracle": oracle(rsum + seed)},
            figures=lambda file: {"scenes": {"accuracy": {"value": told}}} if told and file == BENCHMARKS else None,
            is_control=kind == "control",
            is_baseline=kind == "round one",
            is_untrained=False,
        )
        for seed in SEEDS
    )
    return SimpleNamespace(
        first=runs[0], all=runs, name=f"VSRN, {method} {batch}", method=method, known=True, differing={}
    )


def compared(one: Any, other: Any, value: float, half: float = 1.0) -> Any:
    difference = Difference(
        value, Interval(value, value - half, value + half), Interval(value, value - half, value + half), 3, 0.95
    )
    return SimpleNamespace(
        series=one,
        reference=other,
        seeds=list(SEEDS),
        own={"rsum": difference},
        oracle={"rsum": difference},
        is_controlled=other.first.is_control,
    )


def data(name: str, share: float = 1.0, **settings: Any) -> Any:
    return SimpleNamespace(name=name, share=share, settings={"train": 10, "seed": 0, **settings})


def study(**gains: tuple[float, float]) -> Study:
    """Mined negatives against two controls on data of several sizes, given by name with both differences."""
    groups, images = [], {}
    for number, (name, values) in enumerate(gains.items()):
        place = data(name)
        images[name] = 1000 * 2**number
        mined = series("mined", 500.0, told=70.0, data=place)
        short = series("batch alone", 490.0, kind="control", told=68.0, data=place)
        long = series("equal time", 495.0, kind="control", told=69.0, data=place)
        larger = series("batch alone", 499.0, batch=512, kind="control", told=90.0, data=place)
        pairs = [compared(mined, short, values[0]), compared(mined, long, values[1]), compared(mined, larger, -90.0)]
        groups.append(SimpleNamespace(runs=mined.all, series=[mined, short, long, larger], compared=pairs))
    found = study_of(groups, images, {"small": 520.0})
    assert found is not None
    return found


def test_a_gain_is_that_over_the_strongest_control_of_the_same_batch_size() -> None:
    found = study(small=(5.0, 3.0), large=(8.0, 9.0))
    gains = {each.setting.values[IMAGES]: each.gains for each in found.tried}
    assert {size: (each[RSUM].value, each[RSUM].control) for size, each in gains.items()} == {
        1000: (3.0, "equal time"),
        2000: (8.0, "batch alone"),
    }
    assert gains[1000][ORACLE].value == 3.0
    assert gains[1000][ACCURACY].value == pytest.approx(1.0)
    assert [gains[1000][name].value for name in (I2T_MAP, T2I_MAP)] == pytest.approx([0.5, 1.0])
    assert {each.setting.values[BATCH] for each in found.tried} == {128}


def test_a_gain_is_significant_where_all_its_controls_are_beaten_among_all_settings() -> None:
    found = study(small=(5.0, 0.5), large=(8.0, 9.0))
    assert [each.gains[RSUM].significant for each in found.tried] == [False, True]
    assert [_tried(each)["gains"][RSUM]["significant"] for each in found.tried] == [False, True]


def test_round_one_alone_is_no_control_and_one_setting_no_study() -> None:
    place = data("small")
    mined, first = series("mined", 500.0, data=place), series("round one", 480.0, kind="round one", data=place)
    group: Any = SimpleNamespace(runs=mined.all, series=[mined, first], compared=[compared(mined, first, 20.0)])
    assert study_of([group], {"small": 1000}, {}) is None
    assert study_of([group], {}, {}) is None


def test_settings_differ_in_what_the_data_were_prepared_with_and_in_the_share_that_is_used() -> None:
    groups: Any = []
    for place in (data("a"), data("b", noise=0.5), data("c", 0.5, noise=0.5)):
        mined, control = series("mined", 500.0, data=place), series("batch alone", 490.0, kind="control", data=place)
        groups.append(
            SimpleNamespace(runs=mined.all, series=[mined, control], compared=[compared(mined, control, 1.0)])
        )
    found = study_of(groups, dict.fromkeys("abc", 1000), {})
    assert found is not None
    assert found.factors("VSRN") == {IMAGES: [500, 1000], "noise": [0.0, 0.5]}
    assert [found.name_of(each.setting) for each in found.along("VSRN", "noise")] == [
        "1,000 images, batch 128, noise 0.0",
        "1,000 images, batch 128",  # as most settings are
    ]


def test_tables_plots_and_the_sentence_say_the_same() -> None:
    found = study(small=(5.0, -3.0), large=(8.0, 9.0))
    rsum, *_, told = gain_tables(found, "VSRN", 0.95)
    assert [(row.name, row.cells[0].text, row.cells[0].marked) for row in rsum.rows] == [
        ("1,000 images, batch 128", "−3.0", False),
        ("2,000 images, batch 128", "+8.0", True),
        ("mean of all settings", "+2.5", False),
    ]
    assert rsum.rows[-1].cells[0].interval == "−67.4 to +72.4"  # 12.706 * 7.778 / sqrt(2) around 2.5
    assert rsum.rows[0].cells[0].interval == "3 seeds −4.0 to −2.0; images −4.0 to −2.0"
    assert told.rows[0].cells[0].interval == "3 seeds +1.0 to +1.0"
    assert said_of(found, "VSRN", 0.95) == (
        "VSRN: of 2 second rounds in 2 settings, one gain over the strongest control is significant. Mean gain in RSum"
        ", every true match counted as right: mined +2.5 (−67.4 to +72.4 over settings, above zero in 1 of 2 settings)."
    )
    plots = gain_plots(found, "VSRN", looks_by_name(found.methods))
    assert [each.title for each in plots] == [f"{name}, by training images" for name in MEASURES]
    limits = [[cell.text for cell in row.cells] for row in headroom(found, "VSRN").rows]
    assert limits == [["496.0", "520.0", "536.0", "600.0"], ["496.0", "–", "536.0", "600.0"]]


def test_methods_of_one_name_in_one_setting_are_told_apart() -> None:
    groups: Any = []
    for place in (data("a"), data("b", noise=0.5)):
        short, long = (series("mined", 500.0, data=place) for _ in range(2))
        short.differing, long.differing = {"epochs": 8, "decay_every": 4}, {"epochs": 16, "decay_every": 4}
        control = series("batch alone", 490.0, kind="control", data=place)
        pairs = [compared(short, control, 1.0), compared(long, control, 2.0)]
        groups.append(SimpleNamespace(runs=short.all, series=[short, long, control], compared=pairs))
    found = study_of(groups, dict.fromkeys("ab", 1000), {})
    assert found is not None
    assert found.methods == ["mined (epochs 8)", "mined (epochs 16)"]
    assert [cell.text for cell in gain_tables(found, "VSRN", 0.95)[0].rows[0].cells] == ["+1.0", "+2.0"]


def test_values_of_a_factor_that_are_no_numbers_come_last() -> None:
    assert ordered([0.5, None, 2, "x", 0.5]) == [0.5, 2, None, "x"]


def told(batch: float) -> dict[str, Any]:
    """What a round one told of a batch of 128, as `itrpipe.analysis.second_round.diagnose` returns it."""
    facts = {"active": 50.0, "false": 5.0}
    side = {"batches": [{"size": 128, "beaten": batch, **facts}], "hardest": {"beaten": 60.0, **facts}, "top": facts}
    schedule = {"epochs": 9, "schedule": "linear"}
    return {
        "model": {"method": "contrastive-batch", "objective": "contrastive", "backbone": "vsrn", "dataset": "scenes"}
        | {"seed": 0, "images": 1000, "captions": 5000, "batch_size": 128, "truth": True, "schedule": schedule},
        "validation": {"gained": 0.0},
        "fit": {"images": 1000, "validation": 400.0, "gap": 80.0},
        "directions": {"texts_for_images": side, "images_for_texts": side},
    }


def test_rules_are_tried_where_they_were_not_fitted_and_on_what_is_recommended() -> None:
    found = study(small=(5.0, 3.0), middle=(4.0, 2.0), large=(-2.0, -3.0))
    # The harder the hardest of a batch, the less there is to be gained.
    tried = [replace(each, told=told(batch)) for each, batch in zip(found.tried, (5.0, 10.0, 55.0), strict=True)]
    assert rule_table(replace(found, tried=tried[:2])) is None
    table = rule_table(replace(found, tried=tried))
    assert table is not None
    agreed = {row.name: row.cells[0].text for row in table.rows}
    assert agreed["itrpipe advise"] == "2 of 3"
    assert agreed["pairs that only the hardest of all beat, %"] == "2 of 3"  # without the one that lost, always
    for each in tried:
        assert each.runs[0].members[0].artifact.manifest is not None
        each.runs[0].members[0].artifact.manifest.settings["loss"]["weigh"] = "truth"
    assert rule_table(replace(found, tried=tried)) is None
