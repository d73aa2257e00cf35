"""Settings of the parser of captions. Light: plans bind them without importing what parses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from itrpipe.config import Settings

if TYPE_CHECKING:
    from itrpipe.scene_graph.parsing import Parser


class ParseSettings(Settings):
    """Who makes the graphs, and with what.

    Attributes:
        tagger: `hanta`, or `lexicon`, which needs no HanTa; gives the words of captions their parts of speech and
            lemmas.
        file: graphs that another tool made; empty: the rules make them.
        format: of the file; empty to recognise it.
    """

    tagger: Literal["hanta", "lexicon"]
    file: str
    format: Literal["", "factual", "spice", "tuples"]

    def version(self) -> str:
        """`Parser.version`, without importing what the tagger needs.

        Raises:
            MissingInputError: lemminflect, or HanTa where it is the tagger, is not installed.
        """
        from itrpipe.scene_graph.foreign import foreign_version
        from itrpipe.scene_graph.rules import rules_version

        words = rules_version(self.tagger)
        return foreign_version(words) if self.file else words

    def parser(self) -> Parser:
        """The parser itself."""
        from itrpipe.scene_graph.foreign import ForeignParser
        from itrpipe.scene_graph.rules import RulesParser

        rules = RulesParser(self.tagger)
        return ForeignParser(rules) if self.file else rules
