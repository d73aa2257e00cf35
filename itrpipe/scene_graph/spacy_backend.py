"""Backend `spacy`: the dependencies of an English model of spaCy, in ClearNLP's labels, as typed links."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.scene_graph.dependencies import Word, find_links
from itrpipe.scene_graph.graph import Analysis, Status, Token
from itrpipe.scene_graph.links import NOUN_TAGS

SPACY_VERSION = "1"
"""Changes with every change of the mapping."""
NEEDED_LABELS = frozenset({"nsubj", "nsubjpass", "dobj", "pobj", "prep", "amod"})
UNUSED_PIPES = ("ner",)


def spacy_version(model: str) -> str:
    """`SpacyBackend.version`, without importing spaCy.

    Raises:
        MissingInputError: spaCy or the model is not installed.
    """
    try:
        library = version("spacy")
    except PackageNotFoundError:
        raise MissingInputError(
            "the parser spacy needs the package spacy, which is missing: pip install spacy, or leave out --backend"
        ) from None
    try:
        return f"spacy/{SPACY_VERSION} spacy-{library} {model}-{version(model)}"
    except PackageNotFoundError:
        raise MissingInputError(
            f"the model {model} of spaCy is not installed: python -m spacy download {model}, or name another with "
            "--set model=NAME"
        ) from None


class SpacyBackend:
    """Tokens and links of captions by a model of spaCy.

    Args:
        model: name of an installed package.

    Raises:
        MissingInputError: spaCy or the model is not installed.
        UsageError: the model has no parser with ClearNLP's labels.
    """

    name = "spacy"

    def __init__(self, model: str) -> None:
        self.version = spacy_version(model)
        spacy: Any = import_module("spacy")
        self._model = spacy.load(model, exclude=list(UNUSED_PIPES))
        check_labels(model, self._model.pipe_labels.get("parser", ()))

    def analyse(self, text: str) -> Analysis:
        """Tokens and links of a caption, which may be empty or hold any Unicode."""
        return analysis_of(self._model(text))


def check_labels(model: str, labels: Iterable[str]) -> None:
    """Refuses a model whose dependencies would be misread.

    Raises:
        UsageError: it has no parser, or one with the labels of Universal Dependencies.
    """
    missing = sorted(NEEDED_LABELS - set(labels))
    if missing:
        raise UsageError(
            f"the model {model} of spaCy has no dependencies called {', '.join(missing)}; name an English model with "
            "ClearNLP's labels, such as --set model=en_core_web_sm"
        )


def analysis_of(doc: Any) -> Analysis:
    """What a parsed document of spaCy amounts to.

    Args:
        doc: a `Doc`, or any sequence of tokens with its attributes `text`, `idx`, `tag_`, `lemma_`, `dep_`, `head`,
            `i` and `is_space`. White space that it takes for words is left out.

    Returns:
        Status is `failed` where there are words but none of them is a noun.
    """
    kept = [token for token in doc if not token.is_space]
    place = {token.i: number for number, token in enumerate(kept)}
    words = [Word(each.text.lower(), _lemma(each), each.tag_, each.dep_, place[_head(each).i]) for each in kept]
    tokens = tuple(
        Token(each.text, each.idx, each.idx + len(each.text), word.tag, word.lemma)
        for each, word in zip(kept, words, strict=True)
    )
    nouns = any(word.tag in NOUN_TAGS for word in words)
    status: Status = "ok" if nouns or not words else "failed"
    return Analysis(tokens, tuple(find_links(words)), status)


def _lemma(token: Any) -> str:
    return token.lemma_.lower() or token.text.lower()


def _head(token: Any) -> Any:
    """The nearest governor that is no white space; the token itself if there is none."""
    head = token.head
    while head.is_space and head.head is not head and head.head.i != head.i:
        head = head.head
    return token if head.is_space else head
