"""Graphs of many sentences are the recorded ones, whoever tags the words.

`sentences.txt` holds the sentences; `golden.json` holds digests of content. After a change of rules that is meant,
raise RULES_VERSION, which makes graphs of the old rules stale, and record the digests again:
`python -m tests.scene_graph.test_golden`.
"""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.scene_graph.foreign import read_foreign
from itrpipe.scene_graph.graph import Item, SceneGraph
from itrpipe.scene_graph.phrases import CaptionPhrases, MaskCandidates
from itrpipe.scene_graph.settings import RULES_VERSION
from tests.scene_graph.shared import TAGGERS, facts_of, parser, write

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
SENTENCES = (HERE / "sentences.txt").read_text("utf-8").splitlines()
BLOCKS, BLOCK = 40, 50


def digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


@cache
def graphs(tagger: str) -> list[SceneGraph]:
    return [parser(tagger).parse(Item(text)) for text in SENTENCES]


def mixtures(block: int) -> list[str]:
    """Runs of words from several sentences: half grammar, with every neighbourhood of words."""
    draw = random.Random(block)
    texts = []
    for _ in range(BLOCK):
        words: list[str] = []
        for _ in range(1 + int(draw.random() * 5)):
            own = SENTENCES[int(draw.random() * len(SENTENCES))].split()
            start = int(draw.random() * len(own))
            words += own[start : start + 1 + int(draw.random() * 6)]
        texts.append(" ".join(words))
    return texts


def content_of(graph: SceneGraph) -> tuple[Any, ...]:
    """All that a graph says, without the names of its classes."""
    parts = (graph.tokens, graph.objects, graph.attributes, graph.relations)
    fields = [[tuple(getattr(each, name) for name in each.__slots__) for each in part] for part in parts]
    return graph.text, graph.status, fields


def sentences(tagger: str) -> dict[str, str]:
    return {graph.text: digest(content_of(graph)) for graph in graphs(tagger)}


def mixed(tagger: str) -> dict[str, str]:
    made = {
        str(block): [content_of(parser(tagger).parse(Item(text))) for text in mixtures(block)]
        for block in range(BLOCKS)
    }
    return {block: digest(each) for block, each in made.items()}


def given_graphs(folder: Path) -> list[SceneGraph]:
    """The graphs of the rules as another parser names them, some elements with words that the caption lacks."""
    tuples: dict[str, list[list[str]]] = {}
    for number, graph in enumerate(graphs("lexicon")):
        name = [each.lemma for each in graph.objects]
        own = [[name[each.object], "is", each.lemma] for each in graph.attributes]
        own += [[name[each.subject], each.lemma, name[each.object]] for each in graph.relations]
        tuples[graph.text] = own + [["a thing"], ["a thing", "number 5"]][: number % 7]
    (folder / "given.json").write_text(json.dumps(tuples), "utf-8")
    items = read_foreign(folder / "given.json", [str(row) for row in range(len(SENTENCES))], SENTENCES)
    return [parser("lexicon").parse(item) for item in items]


def foreign(folder: Path) -> dict[str, str]:
    return {graph.text: digest(content_of(graph)) for graph in given_graphs(folder)}


def arrays(folder: Path) -> dict[str, str]:
    """Words, phrases and labels of captions, read with several limits, against their own and other images."""
    graphs, found = given_graphs(folder)[:400], {}
    owners = [row // 3 for row in range(len(graphs))]
    write(folder, graphs, owners, rows=100)
    rows, images = np.arange(0, len(graphs), 3)[::-1], np.repeat(np.arange(67), 2)[:134]
    masks = MaskCandidates.read(folder).batch(rows)
    for limits in ((64, 32), (6, 3), (70, 2), (1, 32)):
        read = CaptionPhrases.read(folder, *limits)
        batch, held = read.batch(rows), read.positive(rows, images)
        parts = [*batch, *held, read.longer, read.caption_image, masks]
        found[str(limits)] = digest([read.words, *((each.shape, each.tolist()) for each in parts)])
    return found


def recorded() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text("utf-8"))


@pytest.fixture(autouse=True)
def same_dictionary() -> None:
    assert recorded()["rules"] == RULES_VERSION
    packages = recorded()["packages"]
    if packages != {name: version(name) for name in packages}:
        pytest.skip("the digests were recorded with other versions of the tagger or the dictionary")


@pytest.mark.parametrize("tagger", TAGGERS)
@pytest.mark.parametrize("what", [sentences, mixed])
def test_graphs(what: Callable[[str], dict[str, str]], tagger: str) -> None:
    assert what(tagger) == recorded()[f"{what.__name__} {tagger}"]


@pytest.mark.parametrize("what", [foreign, arrays])
def test_given_graphs(what: Callable[[Path], dict[str, str]], tmp_path: Path) -> None:
    assert what(tmp_path) == recorded()[what.__name__]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        content: dict[str, Any] = {
            "rules": RULES_VERSION,
            "packages": {name: version(name) for name in ("lemminflect", "HanTa")},
        }
        content |= {f"{what.__name__} {tagger}": what(tagger) for what in (sentences, mixed) for tagger in TAGGERS}
        content |= {what.__name__: what(Path(place)) for what in (foreign, arrays)}
    GOLDEN.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", "utf-8")


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
