"""Backend `linkgrammar`: full parses by the rules of link grammar, an opinion that shares nothing with `rules`."""

from __future__ import annotations

from itrpipe.scene_graph.graph import Analysis, Link, Status, Token
from itrpipe.scene_graph.lexicon import lemma_of
from itrpipe.scene_graph.linkage_links import Words, links_of, words_of
from itrpipe.scene_graph.linkgrammar_library import (
    Linkage,
    LinkGrammar,
    dictionary_digest,
    library_version,
    open_library,
)
from itrpipe.scene_graph.rules import rules_version
from itrpipe.scene_graph.tokenise import tokenise
from itrpipe.scene_graph.words import ANIMATE, COLOURS, NUMERALS, PREPOSITIONS

LINKGRAMMAR_VERSION = "1"
"""Changes with every change of the choice among linkages or of the mapping."""
EXIST = " can exist"
"""Makes a legal sentence of a noun phrase; it follows the caption, so that no place in it moves."""
COMPARED = 12
MOST_WORDS = 60
"""A longer text is no caption, and parsing it may take for ever."""
NULL_COST, LENGTH_COST = 4.0, 0.05


def linkgrammar_version() -> str:
    """`LinkGrammarBackend.version`, without loading a dictionary.

    Raises:
        MissingInputError: the library, its dictionary or lemminflect is not installed.
    """
    library = open_library()
    parts = (library_version(library), f"dictionary-{dictionary_digest(library)}", rules_version("lexicon"))
    return f"linkgrammar/{LINKGRAMMAR_VERSION} {' '.join(parts)}"


class LinkGrammarBackend:
    """Tokens and links of captions by link grammar.

    Raises:
        MissingInputError: the library, its dictionary or lemminflect is not installed.
    """

    name = "linkgrammar"

    def __init__(self) -> None:
        self.version = linkgrammar_version()
        self._grammar = LinkGrammar()

    def analyse(self, text: str) -> Analysis:
        """Tokens and links of a caption, which may be empty or hold any Unicode.

        Status is `failed` where it cannot be parsed at all, `partial` where words had to be left out.
        """
        places = tokenise(text)
        linkage = self._best(text) if any(word[0].isalnum() for word, _, _ in places[:MOST_WORDS]) else None
        if linkage is None:
            tokens = tuple(Token(*place, "X", lemma_of(place[0].lower(), "N")) for place in places)
            return Analysis(tokens, (), "failed" if tokens else "ok")
        words = words_of(linkage)
        numbers = _numbers(text, places, linkage)
        tags = {token: words.tags[word] for word, token in sorted(numbers.items(), reverse=True)}
        tokens = tuple(
            Token(*place, tag, lemma_of(place[0].lower(), tag))
            for place, tag in zip(places, (tags.get(number, "X") for number in range(len(places))), strict=True)
        )
        links = [
            Link(link.kind, numbers[link.head], numbers[link.dependent])
            for link in links_of(linkage, words)
            if link.head in numbers and link.dependent in numbers and numbers[link.head] != numbers[link.dependent]
        ]
        status: Status = "partial" if linkage.unused or len(places) > MOST_WORDS else "ok"
        return Analysis(tokens, tuple(dict.fromkeys(links)), status)

    def _best(self, text: str) -> Linkage | None:
        """The cheapest reading of a caption as it stands, or with a verb that makes it a sentence."""
        shortened = _shortened(text)
        found = self._grammar.linkages((shortened + " .").encode(), COMPARED)
        if not found or not any(_is_sentence(linkage) for linkage in found[:1]) or _penalty(found[0]) > 0:
            found += self._grammar.linkages((shortened + EXIST + " .").encode(), COMPARED)
        return min(found, key=_cost, default=None)


def _shortened(text: str) -> str:
    """The caption without its final stop, at most `MOST_WORDS` long, and with a first word in lower case."""
    places = tokenise(text)[:MOST_WORDS]
    text = text[: places[-1][2]] if places else text
    text = text.rstrip().rstrip(".!?").rstrip()
    start = len(text) - len(text.lstrip())
    first = text[start : start + 1]
    # Other letters may have a lower case of another length, which would move all that follows.
    return text[:start] + first.lower() + text[start + 1 :] if first.isascii() else text


def _numbers(text: str, places: list[tuple[str, int, int]], linkage: Linkage) -> dict[int, int]:
    """Word of a linkage -> token of the caption that begins where it does or holds its first letter."""
    token_at: dict[int, int] = {}
    length = len(_shortened(text).encode())
    for number, (_, start, end) in enumerate(places):
        first = len(text[:start].encode())
        for byte in range(first, first + len(text[start:end].encode())):
            token_at[byte] = number
    # What follows is not of the caption: the verb that was added, or the final stop.
    own = [word for word in range(1, len(linkage.words) - 1) if linkage.starts[word] < length]
    return {word: token_at[linkage.starts[word]] for word in own if linkage.starts[word] in token_at}


def _is_sentence(linkage: Linkage) -> bool:
    """Whether there is a subject with a finite verb, and the reading is no command."""
    labels = [link.label for link in linkage.links]
    return any(label[0] == "S" and label[:2] not in ("SJ",) for label in labels) and not _is_command(labels)


def _is_command(labels: list[str]) -> bool:
    return any(label.startswith(("Wi", "Wg")) for label in labels)


def _cost(linkage: Linkage) -> float:
    length = LENGTH_COST * linkage.link_cost / max(len(linkage.words), 1)
    return linkage.disjunct_cost + length + NULL_COST * linkage.unused + _penalty(linkage)


def _penalty(linkage: Linkage) -> float:
    """What readings cost that grammar allows and captions never mean."""
    words = words_of(linkage)
    modifiers = {link.left for link in linkage.links if link.label.startswith(("AN", "A"))}
    total = 4.0 if _is_command([link.label for link in linkage.links]) else 0.0
    return total + sum(_word_penalty(words, word, word in modifiers) for word in range(1, len(linkage.words) - 1))


def _word_penalty(words: Words, word: int, is_modifier: bool) -> float:
    text, tag = words.texts[word], words.tags[word]
    if tag == "N" and text.endswith("ing"):
        return 1.0 if is_modifier else 2.5
    if tag == "N" and text in NUMERALS:
        return 2.5
    if tag == "V" and (text in COLOURS or text in ANIMATE):
        return 3.0
    return 3.0 if tag in ("N", "V") and text in PREPOSITIONS else 0.0
