"""Settings of the parser of captions. Light: plans bind them without importing what parses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from itrpipe.config import Settings
from itrpipe.errors import DataError

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

    @classmethod
    def recorded(cls, values: Any) -> ParseSettings:
        """The settings that an artifact or the folder of a model records.

        Raises:
            DataError: there are none, or they are of another version.
        """
        try:
            return cls.model_validate(values)
        except ValidationError:
            raise DataError(
                "the parser that found the phrases is not recorded, or is one of another version of itrpipe; train or "
                "export the model again"
            ) from None

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
