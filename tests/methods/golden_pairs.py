"""Ten steps of every method on every backbone that it trains are those that were recorded. Run with `make golden`.

They need minutes, so that the suite takes one backbone for each method (`test_golden.py`). They show that a change of
structure changes no weight. `python -m tests.methods.golden_pairs` records them anew.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from itrpipe.models.declaration import backbone_family, backbone_names
from tests.methods.test_golden import CASES, GOLDEN, measured
from tests.test_estimator_checks import CONFS, trains

FAMILIES = sorted({backbone_family(backbone) for backbone in backbone_names()})
PAIRS = [f"{conf} on {backbone}" for conf in CONFS for backbone in FAMILIES if trains(conf, backbone)]
PAIRS += [pair for pair in (f"{conf} on {backbone}" for conf, backbone in CASES.items()) if pair not in PAIRS]


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("pair", PAIRS)
def test_ten_steps_are_those_that_were_recorded(pair: str, recorded: dict[str, Any]) -> None:
    found = measured(*pair.split(" on "))
    assert found.keys() == recorded[pair].keys()
    for name, values in found.items():
        assert values == pytest.approx(recorded[pair][name], rel=1e-4, abs=1e-5), name


def test_every_pair_is_recorded(recorded: dict[str, Any]) -> None:
    assert sorted(recorded) == sorted(PAIRS)


if __name__ == "__main__":
    lines = []
    for pair in PAIRS:
        steps = measured(*pair.split(" on "))
        rounded = {name: [float(f"{value:.7g}") for value in values] for name, values in steps.items()}
        lines.append(f"{json.dumps(pair)}: {json.dumps(rounded)}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
