"""Graphs, phrases and mask candidates of many sentences are the recorded ones, whoever tags the words.

`sentences.txt` holds the sentences; `golden.json` holds digests of content. After a change of rules that is meant,
raise RULES_VERSION, which makes graphs of the old rules stale, and record the digests again:
`python -m tests.scene_graph.test_golden`.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.scene_graph.foreign import read_foreign
from itrpipe.scene_graph.graph import Item, SceneGraph, phrases_of
from itrpipe.scene_graph.phrases import CaptionPhrases, MaskCandidates
from itrpipe.scene_graph.settings import RULES_VERSION
from itrpipe.scene_graph.stored import SceneGraphFile
from tests.scene_graph.shared import TAGGERS, parser, write

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


def given(folder: Path) -> list[SceneGraph]:
    """The graphs of the rules as another parser names them, some elements with words that the caption lacks."""
    tuples: dict[str, list[list[str]]] = {}
    for number, graph in enumerate(graphs("lexicon")):
        name = [each.lemma for each in graph.objects]
        own = [[name[each.object], "is", each.lemma] for each in graph.attributes]
        own += [[name[each.subject], each.lemma, name[each.object]] for each in graph.relations]
        tuples[graph.text] = own + [["a thing"], ["a thing", "number 5"]][: number % 7]
    (folder / "given.json").write_text(json.dumps(tuples), "utf-8")
    items = read_foreign(folder / "given.json", "", [str(row) for row in range(len(SENTENCES))], SENTENCES)
    own = parser("lexicon")
    return [own.parse(item) for item in items]


def foreign(folder: Path) -> dict[str, str]:
    """Graphs out of a file; the layouts of files are in test_foreign."""
    return {graph.text: digest(content_of(graph)) for graph in given(folder)}


def arrays(folder: Path) -> dict[str, str]:
    """What models and methods read of stored graphs."""
    made = [each for pair in zip(graphs("hanta"), given(folder), strict=True) for each in pair]
    write(folder, made, [row // 5 for row in range(len(made))], rows=128)
    assert list(SceneGraphFile(folder).graphs()) == made
    found = {}
    for words, phrases in ((64, 32), (9, 4), (70, 3)):
        read = CaptionPhrases.read(folder, words, phrases)
        captions = np.arange(len(read))
        for start in range(0, len(read), 100):
            rows = captions[start : start + 100]
            batch = read.batch(rows)
            named = np.array([*read.words, ""])[batch.words].tolist()
            found[f"{words} batch {start}"] = digest(
                (named, batch.kinds.tolist(), batch.phrase_words.tolist(), read.longer[rows].tolist())
            )
            images = (rows * 7) % len(read.image_ids)
            holds = [[each.tolist() for each in read.positive(rows, at)] for at in (rows // 5, images)]
            found[f"{words} holds {start}"] = digest(holds)
    found["phrases"] = digest([[(e.kind, e.tokens, e.label) for e in phrases_of(each, 6, 12)] for each in made])
    candidates = MaskCandidates.read(folder)
    rows = np.arange(len(candidates))[::-3]
    starts = np.arange(0, 90, 3)[None, :].repeat(len(rows), axis=0)
    found["candidates"] = digest(candidates.batch(rows).tolist())
    found["words"] = digest(candidates.words_at(rows, starts, starts + 3).tolist())
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
def test_given_graphs_and_arrays(what: Callable[[Path], dict[str, str]], tmp_path: Path) -> None:
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
