"""Graphs of the rules against graphs that people drew, with the floors that the rules promise."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from itrpipe.scene_graph.graph import Item
from tests.scene_graph.shared import TAGGERS, facts_of, parser

GOLD: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("gold.toml").read_text("utf-8"))
FLOORS = {"objects": 0.93, "attributes": 0.85, "relations": 0.80}
"""Least F1, micro-averaged over captions."""


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("tagger", TAGGERS)
def test_scores_keep_above_the_floors(tagger: str, name: str) -> None:
    assert len(GOLD[name]) >= 30
    right, all_of_both = Counter(), Counter()
    for caption in GOLD[name]:
        for part, found in zip(FLOORS, facts_of(parser(tagger).parse(Item(caption["text"]))), strict=True):
            wanted = {each if part == "objects" else tuple(each) for each in caption[part]}
            right[part] += len(found & wanted)
            all_of_both[part] += len(found) + len(wanted)
    for part, floor in FLOORS.items():
        assert 2 * right[part] / all_of_both[part] >= floor, part
