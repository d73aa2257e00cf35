"""Parses by rules: closed word lists, a dictionary and an optional statistical tagger, without any download."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from itrpipe.errors import MissingInputError
from itrpipe.scene_graph.attachment import Attacher
from itrpipe.scene_graph.chunks import Chunker
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import Analysis, Link, SceneGraph, Status, Token, status_of
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.lexicon import lemma_of
from itrpipe.scene_graph.repairs import repair
from itrpipe.scene_graph.tagger import tag_by_lexicon
from itrpipe.scene_graph.tokenise import parsed_part, plain, tokenise

if TYPE_CHECKING:
    from itrpipe.scene_graph.parsing import Item

RULES_VERSION = "1"
"""Changes with every change of rules or word lists that changes a graph."""
CONTENT_TAGS = frozenset({"N", "V", "VBG", "VBN"})


class RulesParser:
    """Graphs of captions by rules.

    Attributes:
        version: of the rules, the tagger and the packages behind them.

    Raises:
        MissingInputError: lemminflect, or HanTa where the tagger is `hanta`, is not installed.
    """

    def __init__(self, tagger: Literal["hanta", "lexicon"] = "hanta") -> None:
        self.version = rules_version(tagger)
        self._hanta = HantaTagger() if tagger == "hanta" else None

    def parse(self, item: Item) -> SceneGraph:
        """The graph of one caption."""
        return extract_graph(item.text, self.analyse(item.text))

    def analyse(self, text: str) -> Analysis:
        """Tokens and links of the part of a caption that is parsed; it may be empty or hold any Unicode.

        Status is `failed` where there are words but none of them is a noun, `partial` where a noun or
        verb is left without a link though there are others, or where the caption goes on.
        """
        places = tokenise(parsed_part(text))
        words = [word for word, _, _ in places]
        lower = [plain(word) for word in words]
        tags = self.tags(words)
        lemmas = [lemma_of(word, tag) for word, tag in zip(lower, tags, strict=True)]
        tokens = tuple(Token(*place, tag, lemma) for place, tag, lemma in zip(places, tags, lemmas, strict=True))
        links = find_links(lower, tags, lemmas)
        return Analysis(tokens, tuple(links), status_of(text, _status(tokens, links)))

    def tags(self, words: list[str]) -> list[str]:
        """Parts of speech, keys of `itrpipe.scene_graph.tagger.TAGS`, of words given as written."""
        lower = [plain(word) for word in words]
        return repair(lower, self._hanta.tag(words) if self._hanta else tag_by_lexicon(lower)[0])


def rules_version(tagger: Literal["hanta", "lexicon"]) -> str:
    """`RulesParser.version`, without importing what the tagger needs.

    Raises:
        MissingInputError: lemminflect, or HanTa where the tagger is `hanta`, is not installed.
    """
    packages = ["lemminflect", "HanTa"] if tagger == "hanta" else ["lemminflect"]
    return f"{RULES_VERSION} {tagger} " + " ".join(f"{name}-{_version(name)}" for name in packages)


def find_links(words: list[str], tags: list[str], lemmas: list[str]) -> list[Link]:
    """Links between the tagged words of a caption, sorted, each once."""
    chunker = Chunker(words, tags)
    chunks = chunker.chunks()
    links = Attacher(words, tags, lemmas, chunks).attach() + chunker.links
    return sorted(set(links), key=lambda link: (link.dependent, link.head, link.kind))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        remedy = f"pip install {package}" + (", or choose --tagger lexicon" if package == "HanTa" else "")
        raise MissingInputError(f"the parser needs the package {package}, which is not installed: {remedy}") from error


def _status(tokens: tuple[Token, ...], links: list[Link]) -> Status:
    words = [i for i, token in enumerate(tokens) if token.tag not in {",", "."}]
    if words and not any(tokens[i].tag == "N" for i in words):
        return "failed"
    linked = {link.head for link in links} | {link.dependent for link in links}
    content = [i for i in words if tokens[i].tag in CONTENT_TAGS]
    return "partial" if len(content) > 1 and not linked.issuperset(content) else "ok"
