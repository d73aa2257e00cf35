"""Settings of the backends that parse captions. Light: plans bind settings without importing any of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.errors import UsageError

if TYPE_CHECKING:
    from itrpipe.scene_graph.graph import Backend
    from itrpipe.scene_graph.parsing import Parser

Tagger = Literal["hanta", "lexicon"]


class BackendSettings(Settings):
    """Which backend parses, and with what; every configuration binds to a class of these."""

    @property
    def variant(self) -> str:
        """What the label says beside the configuration's name."""
        return ""

    @abstractmethod
    def version(self) -> str:
        """`Parser.version`, without importing what the backend needs.

        Raises:
            MissingInputError: something that it needs is not installed.
        """

    @abstractmethod
    def parser(self) -> Parser:
        """The parser itself."""


class RulesSettings(BackendSettings):
    """The backend written for captions.

    Attributes:
        tagger: `hanta`, or `lexicon`, which needs no HanTa.
    """

    backend: Literal["rules"]
    tagger: Tagger

    @property
    def variant(self) -> str:
        """The tagger."""
        return self.tagger

    def version(self) -> str:
        """Versions of the rules, the tagger and the lemmatiser."""
        from itrpipe.scene_graph.rules import rules_version

        return rules_version(self.tagger)

    def parser(self) -> Parser:
        """The parser itself."""
        from itrpipe.scene_graph.rules import RulesBackend

        return _extracting(RulesBackend(self.tagger))


class SpacySettings(BackendSettings):
    """A dependency parser of spaCy.

    Attributes:
        model: name of an installed package.
    """

    backend: Literal["spacy"]
    model: str = Field(min_length=1)

    @property
    def variant(self) -> str:
        """The model."""
        return self.model

    def version(self) -> str:
        """Versions of spaCy, of the model and of how its links are read."""
        from itrpipe.scene_graph.spacy_backend import spacy_version

        return spacy_version(self.model)

    def parser(self) -> Parser:
        """The parser itself."""
        from itrpipe.scene_graph.spacy_backend import SpacyBackend

        return _extracting(SpacyBackend(self.model))


class ForeignSettings(BackendSettings):
    """Graphs that another tool made.

    Attributes:
        file: holds them.
        format: of the file; empty to recognise it.
        tagger: gives the words of a caption their lemmas.
    """

    backend: Literal["foreign"]
    file: str
    format: Literal["", "factual", "spice", "tuples"]
    tagger: Tagger

    @property
    def variant(self) -> str:
        """The tagger."""
        return self.tagger

    def version(self) -> str:
        """Versions of the alignment and of the words it aligns with."""
        from itrpipe.scene_graph.foreign import foreign_version
        from itrpipe.scene_graph.rules import rules_version

        return foreign_version(rules_version(self.tagger))

    def parser(self) -> Parser:
        """The parser itself."""
        from itrpipe.scene_graph.foreign import ForeignParser
        from itrpipe.scene_graph.rules import RulesBackend

        return ForeignParser(RulesBackend(self.tagger))


BACKENDS: dict[str, type[BackendSettings]] = {
    "rules": RulesSettings,
    "spacy": SpacySettings,
    "foreign": ForeignSettings,
}


def backend_settings(values: Mapping[str, Any]) -> type[BackendSettings]:
    """The settings class of a configuration's backend.

    Raises:
        UsageError: there is no such backend.
    """
    name = values.get("backend")
    if name not in BACKENDS:
        raise UsageError(f"parse: backend = {name!r} is none of {', '.join(BACKENDS)}; leave it out")
    return BACKENDS[name]


def build_parser(settings: BackendSettings) -> Parser:
    """`settings.parser`, as a function that another process can be told to call."""
    return settings.parser()


def _extracting(backend: Backend) -> Parser:
    from itrpipe.scene_graph.parsing import BackendParser

    return BackendParser(backend)
