"""What series of runs are called, and how they are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from itrpipe.report.names import Departure, backbone_title, listed, shown
from itrpipe.report.plots import SERIES, looks_of
from itrpipe.report.series import series_of

MANY = {f"key{number}": Departure(number, None) for number in range(5)}


def run(settings: dict[str, Any] | None, seed: int = 0, mining: dict[str, Any] | None = None, **given: Any) -> Any:
    mined = None if mining is None else SimpleNamespace(manifest=SimpleNamespace(settings={**mining, "seed": seed}))
    manifest = None if settings is None else SimpleNamespace(settings={**settings, "seed": seed})
    member = SimpleNamespace(method_name="aoq", seed=seed, artifact=SimpleNamespace(manifest=manifest), mining=mined)
    member.named = given.get("named", "")
    about = {"method": given.get("method", "AOQ"), "backbone": given.get("backbone", "VSRN")}
    first = {"roles": frozenset(given.get("roles", ()))}
    return SimpleNamespace(members=[member], departures=given.get("departures", {}), **about, **first)


def names(*runs: Any) -> list[str]:
    return [each.name for each in series_of(runs)]


def test_runs_that_differ_in_their_seed_are_one_series() -> None:
    usual = [run({"alpha": 0.3}, seed) for seed in (0, 1)]
    other = [run({"alpha": 0.5}, seed) for seed in (0, 1)]
    found = series_of([usual[0], other[0], usual[1], other[1]])
    assert [each.all for each in found] == [tuple(usual), tuple(other)]
    assert [each.name for each in found] == ["VSRN, AOQ (alpha 0.3)", "VSRN, AOQ (alpha 0.5)"]
    assert names(*usual) == ["VSRN, AOQ"]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # No more settings than tell the series apart.
        (
            [
                {"alpha": 0.3, "epochs": 6, "keep": 4},
                {"alpha": 0.5, "epochs": 6, "keep": 5},
                {"alpha": 0.5, "epochs": 9},
            ],
            ["(alpha 0.3, 2 more settings)", "(alpha 0.5, epochs 6, 1 more setting)", "(alpha 0.5, epochs 9)"],
        ),
        ([{"epochs": 6}, {"epochs": 6, "loss": {"a": 1}}], ["", "(loss.a 1)"]),
    ],
)
def test_a_name_has_the_settings_that_tell_it_apart(runs: list[dict[str, Any]], expected: list[str]) -> None:
    assert [name.removeprefix("VSRN, AOQ").strip() for name in names(*map(run, runs))] == expected


def test_other_mining_makes_another_series_and_removed_models_stay_alone() -> None:
    assert names(run({}, 0, {"num_texts": 60}), run({}, 1, {"num_texts": 300})) == [
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


def test_long_lists_are_cut_and_values_are_plain() -> None:
    assert listed(MANY, 2) == "key0 0 instead of none, key1 1 instead of none, 3 more"
    assert listed(MANY, 5).endswith("key4 4 instead of none")
    given = ([10, 20], [], None, "", "/far/away/bert.pt", "a/b", 0.3)
    assert [shown(each) for each in given] == ["10 20", "none", "none", "empty", "bert.pt", "a/b", "0.3"]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("scan-i2t-avg", "SCAN i2t avg"),
        ("dual-encoder", "dual encoder"),
        ("given-mine", "mine"),
        ("new-net", "NEW net"),
    ],
)
def test_backbones_have_their_titles(name: str, title: str) -> None:
    assert backbone_title(name) == title
