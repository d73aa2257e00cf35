"""Graphs of the rules against graphs that people drew, with the floors that the rules promise."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.settings import RULES_VERSION
from tests.scene_graph.scoring import Facts, facts_of, score_facts

GOLD: dict[str, list[dict[str, Any]]] = tomllib.loads((Path(__file__).parent / "gold.toml").read_text("utf-8"))
FLOORS = {"objects": 0.93, "attributes": 0.85, "relations": 0.80}

GRAPHS = {
    ("1", "lexicon", "0.2.3"): "828bf12fe14937b8",
    ("1", "hanta", "0.2.3 1.2.1"): "c5814addd766577f",
}
"""Digest of all graphs, by version of the rules, tagger, and versions of its packages."""


def drawn(caption: dict[str, Any]) -> Facts:
    return (
        frozenset(caption["objects"]),
        frozenset((noun, said) for noun, said in caption["attributes"]),
        frozenset((subject, predicate, thing) for subject, predicate, thing in caption["relations"]),
    )


def pairs(parser: RulesParser, captions: list[dict[str, Any]]) -> Iterator[tuple[Facts, Facts]]:
    for caption in captions:
        yield facts_of(extract_graph(caption["text"], parser.analyse(caption["text"]))), drawn(caption)


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("tagger", ["hanta", "lexicon"])
def test_scores_keep_above_the_floors(tagger: str, name: str) -> None:
    parser = RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")
    assert len(GOLD[name]) >= 30
    scores = score_facts(pairs(parser, GOLD[name]))
    for part, floor in FLOORS.items():
        assert scores[part].f1 >= floor, part


@pytest.mark.parametrize(("tagger", "packages"), [("lexicon", ["lemminflect"]), ("hanta", ["lemminflect", "HanTa"])])
def test_a_change_of_rules_changes_their_version(tagger: str, packages: list[str]) -> None:
    key = (RULES_VERSION, tagger, " ".join(version(package) for package in packages))
    if key not in GRAPHS and any(known[0] == RULES_VERSION for known in GRAPHS):
        pytest.skip(f"no digest for {key}")
    parser = RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")
    texts = [caption["text"] for name in GOLD for caption in GOLD[name]]
    graphs = repr([extract_graph(text, parser.analyse(text)) for text in texts])
    assert hashlib.sha256(graphs.encode()).hexdigest()[:16] == GRAPHS[key], "raise RULES_VERSION and note the digest"
