"""Captions to graphs: the parser by rules, the map over the captions of a dataset, written sentences, and one graph
as a tree for the terminal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from rich.text import Text
from rich.tree import Tree

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.engine.work import Part, Work, cut
from itrpipe.errors import UsageError
from itrpipe.progress import Reporter
from itrpipe.scene_graph.attach import Attacher
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.foreign import align
from itrpipe.scene_graph.graph import Analysis, Item, SceneGraph, Token
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.settings import ParseSettings, parser_version
from itrpipe.scene_graph.stored import ROW_GROUP, SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.scene_graph.tag import TaggedWords, repair, tag_by_lexicon
from itrpipe.scene_graph.words import parsed_part, plain, tokenise
from itrpipe.storage.artifact import Manifest
from itrpipe.storage.tables import read_arrow, rows_of, write_arrow

CHUNK = 1024
OPEN_CHUNKS = 64
OBJECT_STYLE = "bold cyan"
ATTRIBUTE_STYLE = "green"
RELATION_STYLE = "magenta"
NOTE_STYLE = "dim"


class RulesParser:
    """Graphs of captions by rules: closed word lists, a dictionary and an optional tagger, without any download.

    Equal items always have equal graphs.

    Args:
        tagger: see `ParseSettings`.

    Raises:
        MissingInputError: lemminflect, or HanTa where the tagger is `hanta`, is not installed.
    """

    def __init__(self, tagger: Literal["hanta", "lexicon"] = "hanta") -> None:
        parser_version(tagger)
        self._hanta = None
        if tagger == "hanta":
            self._hanta = HantaTagger()

    def parse(self, item: Item) -> SceneGraph:
        """Return the graph of one caption; one that is given is aligned with the words."""
        analysis = self.analyse(item.text)
        if item.given:
            return align(item.text, analysis.tokens, json.loads(item.given))
        return extract_graph(item.text, analysis)

    def analyse(self, text: str) -> Analysis:
        """Return tokens and links of the part of a caption that is parsed; it may be empty or hold any Unicode.

        Status is `failed` where there are words but none of them is a noun, `partial` where a noun or
        verb is left without a link though there are others, or where the caption goes on.
        """
        part = parsed_part(text)
        places = tokenise(part)
        words = [word for word, _, _ in places]
        sentence = TaggedWords([plain(word) for word in words])
        if self._hanta:
            self._hanta.tag(sentence, words)
        else:
            tag_by_lexicon(sentence)
        repair(sentence)
        links = Attacher(sentence).attach()
        tags = sentence.tags[: sentence.size]
        tokens = []
        for (word, start, end), tag, lemma in zip(places, tags, sentence.lemmas, strict=True):
            tokens.append(
                Token(
                    word,
                    start,
                    end,
                    tag,
                    lemma,
                )
            )

        content = {number for number, tag in enumerate(tags) if tag in {"N", "V", "VBG", "VBN"}}
        loose = set(content)
        for link in links:
            loose -= {link.head, link.dependent}
        status = "ok"
        if "N" not in tags and not {",", "."}.issuperset(tags):
            status = "failed"
        elif part != text or (loose and len(content) > 1):
            status = "partial"
        return Analysis(tuple(tokens), tuple(links), status)


def parse_captions(settings: ParseSettings, captions: Sequence[str]) -> list[SceneGraph]:
    """Return the scene graphs of captions that belong to no dataset.

    Args:
        settings: of the parser.
        captions: any, as Unicode.

    Raises:
        UsageError: the graphs come out of a file.
        MissingInputError: the tagger is not installed.
    """
    if settings.file:
        raise UsageError("graphs out of a file belong to the captions of a dataset; leave out --from")
    parser = RulesParser(settings.tagger)
    return [parser.parse(Item(caption)) for caption in captions]


class Parsing(Work[RulesParser]):
    """Graphs of captions, in one Arrow file per chunk of `CHUNK`.

    Args:
        items: all different.
        build: makes the parser; it is pickled.
    """

    title = "parsing"
    unit = "captions"
    suffix = ".arrow"
    on_every_core = True
    untold = ("_items",)

    def __init__(self, items: Sequence[Item], build: Callable[[], RulesParser]) -> None:
        self._items = items
        self._build = build

    def parts(self) -> list[Part]:
        """Return chunks of captions."""
        return cut(self._items, CHUNK)

    def open(self) -> RulesParser:
        """Make the parser."""
        return self._build()

    def make(self, worker: RulesParser, part: Part, path: Path) -> None:
        """Parses the captions of a chunk."""
        graphs = []
        for item in part.content:
            try:
                graphs.append(worker.parse(item))
            except Exception as error:
                error.add_note(f"while parsing the caption {item.text!r}")
                raise
        write_arrow(path, graphs_table(graphs))


def parsed_row_groups(
    paths: Sequence[Path],
    captions: pa.Table,
    rows: np.ndarray,
) -> Iterator[pa.Table]:
    """Yields the row groups of a file of scene graphs.

    Args:
        paths: files of all chunks of `Parsing`.
        captions: T rows with caption_id and image_id.
        rows: int64 [T], the item of each caption.
    """

    @lru_cache(maxsize=OPEN_CHUNKS)
    def read_chunk(number: int) -> pa.Table:
        return read_arrow(paths[number]).replace_schema_metadata(None)

    for start in range(0, len(rows), ROW_GROUP):
        items = rows[start : start + ROW_GROUP]
        # The items of one chunk after the other, and these in the order asked for.
        chunks = items // CHUNK
        order = np.argsort(chunks, kind="stable")
        tables = []
        for chunk in np.unique(chunks).tolist():
            rows_of_chunk = items[chunks == chunk] % CHUNK
            tables.append(read_chunk(chunk).take(pa.array(rows_of_chunk)))
        graphs = pa.concat_tables(tables).combine_chunks()
        graphs = graphs.take(pa.array(np.argsort(order)))
        yield with_ids(captions.slice(start, ROW_GROUP).combine_chunks(), graphs)


class SentenceParser:
    """Parses written sentences as the captions of a dataset were parsed, for models that read phrases.

    Args:
        captions, manifest: artifact of `parse`.
        work: folder for what is parsed; an interrupted run goes on with it.
        reporter: shows the progress.

    Raises:
        UsageError: the graphs of the captions came out of a file, or another version of the parser made them.
        MissingInputError: the parser is not installed.
    """

    def __init__(
        self,
        captions: Path,
        manifest: Manifest,
        work: Path,
        reporter: Reporter,
    ) -> None:
        settings = ParseSettings.model_validate(manifest.settings)
        if settings.file:
            raise UsageError(
                f"{captions} holds graphs out of a file, and written sentences are in none; evaluate without "
                "--discriminate and --benchmark, or a model trained on graphs of `itrpipe parse` without --from"
            )
        before = manifest.sources["parser"]
        version = parser_version(settings.tagger)
        if version != before:
            raise UsageError(
                f"{captions} was made by the parser {before}, and this is {version}; train the model again, or "
                "evaluate without --discriminate and --benchmark"
            )
        self._settings = settings
        self._work = work
        self._reporter = reporter

    def __call__(self, sentences: pa.Table) -> Path:
        """Writes the graphs of sentences with caption_id, image_id and text, and returns the folder of the file."""
        texts = sentences["text"].to_pylist()
        distinct = list(dict.fromkeys(texts))
        digest = hashlib.sha256("\n".join(distinct).encode()).hexdigest()
        folder = self._work / digest[:16]
        work = Parsing(list(map(Item, distinct)), partial(RulesParser, self._settings.tagger))
        parts = make_parts(
            work,
            folder / "parts",
            MapExecution(),
            self._reporter,
            self._reporter.say,
        )
        rows = rows_of(sentences["text"], pa.array(distinct, pa.string()))
        write_graphs(folder / SCENE_GRAPHS_FILE, parsed_row_groups(parts.paths, sentences, rows))
        return folder


def graph_tree(graph: SceneGraph) -> Tree:
    """Draw one branch per object, with its attributes and the relations of which it is the subject.

    Lemmas are shown, and beside an element how the caption words it where that differs.
    """

    def line(
        lemma: str,
        tokens: tuple[int, ...],
        style: str,
    ) -> Text:
        # Not Text(lemma, style), whose style all that follows would inherit.
        text = Text().append(lemma, style=style)
        words = " ".join(graph.tokens[token].text for token in tokens)
        if not tokens:
            text.append("  (no words of the caption)", style=NOTE_STYLE)
        elif words.lower() != lemma:
            text.append(f"  “{words}”", style=NOTE_STYLE)
        return text

    tree = Tree(Text(graph.text or "(empty caption)", style="bold"))
    for thing in graph.objects:
        branch = tree.add(line(thing.lemma, thing.tokens, OBJECT_STYLE))
        for attribute in graph.attributes:
            if attribute.object == thing.id:
                text = line(attribute.lemma, attribute.tokens, ATTRIBUTE_STYLE)
                text.append(f"  {attribute.kind}", style=NOTE_STYLE)
                branch.add(text)
        for relation in graph.relations:
            if relation.subject == thing.id:
                text = line(relation.lemma, relation.tokens, RELATION_STYLE)
                text.append(" → ")
                text.append(graph.objects[relation.object].lemma, style=OBJECT_STYLE)
                text.append(f"  {relation.kind}", style=NOTE_STYLE)
                branch.add(text)
    if not graph.objects:
        tree.add(Text("no objects", style=NOTE_STYLE))
    if graph.status != "ok":
        tree.add(Text(f"status: {graph.status}", style="yellow"))
    return tree
