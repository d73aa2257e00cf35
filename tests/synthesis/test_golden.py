"""Sentences that earlier versions made, rule by rule and with a model that is a table, and what was found of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.scene_graph.build import RulesParser
from itrpipe.scenes import generate
from itrpipe.synthesis.checks import facts, synthesis_statistics, table_rows, true_negatives
from itrpipe.synthesis.masked import ModelSettings
from itrpipe.synthesis.swaps import RULES, NounVocabulary, RuleMaker, TaggedCaption
from tests.synthesis.test_masked import maker, rows_of, run, split_of

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text())
PHOTOGRAPHS = (
    "Two young guys with shaggy hair look at their hands while hanging out in the yard.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Several people, three dogs and 2 cats wait in front of an old house.",
    "An elephant sprays water over its back near one tree and twenty birds.",
    "The boy and his mother sit at a table with glasses of juice, next to a lamp.",
    "a child in a pink dress is climbing up a set of stairs into a wooden cabin .",
    "Eighty geese fly from the lake across from a barn; people watch.",
)


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def scene_rules(rules: Collection[str]) -> RuleMaker:
    """Rules on the captions of drawn scenes and of some photographs."""
    parser, dataset = RulesParser("lexicon"), generate(30, 0, 0, seed=3)
    texts = [caption.text for own in dataset.captions for caption in own] + list(PHOTOGRAPHS)
    images = np.concatenate([np.repeat(np.arange(30), 5), 30 + np.arange(len(PHOTOGRAPHS))])
    tagged = [TaggedCaption(text, parser.analyse(text).tokens) for text in texts]
    ids = [scene.image_id for scene in dataset.scenes] + [f"photograph {row}" for row in range(len(PHOTOGRAPHS))]
    split = split_of(texts, [ids[row] for row in images])
    return RuleMaker(split, tagged, NounVocabulary(tagged, 1), rules, keep=6, seed=5)


@pytest.mark.parametrize("rule", RULES)
def test_rules_write_what_they_wrote(rule: str) -> None:
    by_rules = scene_rules((rule,))
    made = [by_rules.make(range(first, first + 40), block) for block, first in enumerate((0, 40, 117))]
    found = [
        [
            [each.text, each.caption_id, [[edit.position, edit.old, edit.new] for edit in each.edits]]
            for each in sentences
        ]
        for sentences, _ in made
    ]
    assert [digest(found), [drawn for _, drawn in made]] == GOLDEN["rules"][rule]


def test_figures_are_what_they_were(tmp_path: Path) -> None:
    by_rules, dataset = scene_rules(RULES), generate(30, 0, 0, seed=3)
    by_rules.make = lambda rows, block, make=by_rules.make: make(range(rows.start * 30, rows.stop * 30), block)
    file = run(by_rules, tmp_path)
    statistics = synthesis_statistics(file, 150)
    statistics["true_negatives"] = true_negatives(file, {scene.image_id: scene for scene in dataset.scenes})
    assert statistics == GOLDEN["statistics"]
    assert [facts(statistics), [list(row) for row in table_rows(statistics)]] == GOLDEN["told"]


@pytest.mark.parametrize("with_phrases", [True, False])
def test_a_model_writes_what_it_wrote(tmp_path: Path, with_phrases: bool) -> None:
    settings = ModelSettings(copies=6, draws=7, keep=4, write_rejected=True, seed=2)
    rows = rows_of(run(maker(settings, with_phrases=with_phrases), tmp_path))
    numbers = ("score", "positive_score", "log_probability", "caption_log_probability")
    sums = [sum(row.pop(name) or 0.0 for row in rows) for name in numbers]
    golden = GOLDEN["model"][str(with_phrases)]
    assert [digest(rows), len(rows)] == golden["sentences"]
    assert sums == pytest.approx(golden["sums"], rel=1e-4)
