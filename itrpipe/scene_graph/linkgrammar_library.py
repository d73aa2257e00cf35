"""The C library of link grammar (Sleator & Temperley, 1991) through ctypes: a text and its cheapest linkages."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import re
from collections.abc import Sequence
from ctypes import CDLL, CFUNCTYPE, c_char_p, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.errors import MissingInputError
from itrpipe.isolation import away

LIBRARY, SONAME = "link-grammar", "liblink-grammar.so.5"
OLDEST = (5, 12)
"""Before it `linkage_disjunct_cost` returned another type."""
LANGUAGE, DIALECT = b"en", b"headline"
MOST_NULLS, MOST_LINKAGES = 4, 60
SECONDS = 20
"""Time for one text. It is long, because a result that depends on the machine's speed is none."""
REMEDY = "apt-get install -y liblink-grammar5 link-grammar-dictionaries-en, or leave out --backend"

_FUNCTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    "linkgrammar_get_version": (c_char_p, ()),
    "dictionary_create_lang": (c_void_p, (c_char_p,)),
    "dictionary_get_data_dir": (c_char_p, ()),
    "parse_options_create": (c_void_p, ()),
    "parse_options_set_verbosity": (None, (c_void_p, c_int)),
    "parse_options_set_linkage_limit": (None, (c_void_p, c_int)),
    "parse_options_set_min_null_count": (None, (c_void_p, c_int)),
    "parse_options_set_max_null_count": (None, (c_void_p, c_int)),
    "parse_options_set_max_parse_time": (None, (c_void_p, c_int)),
    "parse_options_set_dialect": (None, (c_void_p, c_char_p)),
    "sentence_create": (c_void_p, (c_char_p, c_void_p)),
    "sentence_split": (c_int, (c_void_p, c_void_p)),
    "sentence_parse": (c_int, (c_void_p, c_void_p)),
    "sentence_num_valid_linkages": (c_int, (c_void_p,)),
    "sentence_delete": (None, (c_void_p,)),
    "linkage_create": (c_void_p, (c_size_t, c_void_p, c_void_p)),
    "linkage_get_num_words": (c_size_t, (c_void_p,)),
    "linkage_get_word": (c_char_p, (c_void_p, c_size_t)),
    "linkage_get_word_byte_start": (c_size_t, (c_void_p, c_size_t)),
    "linkage_get_word_byte_end": (c_size_t, (c_void_p, c_size_t)),
    "linkage_get_num_links": (c_size_t, (c_void_p,)),
    "linkage_get_link_label": (c_char_p, (c_void_p, c_size_t)),
    "linkage_get_link_lword": (c_size_t, (c_void_p, c_size_t)),
    "linkage_get_link_rword": (c_size_t, (c_void_p, c_size_t)),
    "linkage_unused_word_cost": (c_int, (c_void_p,)),
    "linkage_disjunct_cost": (c_float, (c_void_p,)),
    "linkage_link_cost": (c_int, (c_void_p,)),
    "linkage_delete": (None, (c_void_p,)),
}
_Silent = CFUNCTYPE(None, c_void_p, c_void_p)


class RawLink(NamedTuple):
    """A link between two words, the left one first, such as `Ss*s` between dog and runs."""

    label: str
    left: int
    right: int


@dataclass(frozen=True)
class Linkage:
    """One reading of a text.

    Attributes:
        words: with the library's subscripts, such as `dogs.n`, the walls at both ends among them.
        starts, ends: bytes of each word in the text.
        links: between words.
        disjunct_cost, link_cost: as the library counts them.
        unused: words without links.
    """

    words: list[str]
    starts: list[int]
    ends: list[int]
    links: list[RawLink]
    disjunct_cost: float
    link_cost: int
    unused: int


@cache
def open_library() -> CDLL:
    """Loads the library, without a dictionary.

    Raises:
        MissingInputError: it is not installed or too old.
    """
    try:
        library = CDLL(ctypes.util.find_library(LIBRARY) or SONAME)
    except OSError:
        raise MissingInputError(f"the parser linkgrammar needs {SONAME}, which is not installed: {REMEDY}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    found = library_version(library)
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise MissingInputError(f"{SONAME} is {found} and the parser linkgrammar needs 5.12 or later: {REMEDY}")
    return library


def library_version(library: CDLL) -> str:
    """Version of the library, such as `link-grammar-5.12.0`."""
    return library.linkgrammar_get_version().decode()


def dictionary_digest(library: CDLL) -> str:
    """First digits of the sha256 of the English dictionary.

    Raises:
        MissingInputError: it is not installed.
    """
    folders = [Path((library.dictionary_get_data_dir() or b"").decode()), Path("/usr/share/link-grammar")]
    for folder in folders:
        files = sorted((folder / LANGUAGE.decode()).glob("4.0.*"))
        if any(file.name == "4.0.dict" for file in files):
            content = b"".join(file.read_bytes() for file in files)
            return hashlib.sha256(content).hexdigest()[:12]
    raise MissingInputError(f"the English dictionary of link grammar is not installed: {REMEDY}")


class LinkGrammar:
    """The English dictionary, loaded.

    Raises:
        MissingInputError: the library or the dictionary is not installed.
    """

    def __init__(self) -> None:
        self._library = library = open_library()
        # It would print remarks on locales and hard sentences to the error stream; what matters is in the linkages.
        self._silent = _Silent(lambda error, data: None)
        library.lg_error_set_handler(self._silent, None)
        with away():  # it prefers a dictionary of the working folder, or of the one above
            self._dictionary = library.dictionary_create_lang(LANGUAGE)
        if not self._dictionary:
            raise MissingInputError(f"the English dictionary of link grammar is not installed: {REMEDY}")
        self._options = library.parse_options_create()
        library.parse_options_set_verbosity(self._options, 0)
        library.parse_options_set_linkage_limit(self._options, MOST_LINKAGES)
        library.parse_options_set_max_parse_time(self._options, SECONDS)
        library.parse_options_set_dialect(self._options, DIALECT)

    def linkages(self, text: bytes, wanted: int) -> list[Linkage]:
        """The cheapest readings of a text, those without unused words if there are any.

        Args:
            text: UTF-8.
            wanted: how many at most.
        """
        for fewest, most in ((0, 0), (1, MOST_NULLS)):
            self._library.parse_options_set_min_null_count(self._options, fewest)
            self._library.parse_options_set_max_null_count(self._options, most)
            found = self._parse(text, wanted)
            if found:
                return found
        return []

    def _parse(self, text: bytes, wanted: int) -> list[Linkage]:
        library = self._library
        sentence = library.sentence_create(text, self._dictionary)
        try:
            if library.sentence_split(sentence, self._options) < 0:
                return []
            library.sentence_parse(sentence, self._options)
            count = max(library.sentence_num_valid_linkages(sentence), 0)
            return [self._linkage(number, sentence) for number in range(min(count, wanted))]
        finally:
            library.sentence_delete(sentence)

    def _linkage(self, number: int, sentence: int) -> Linkage:
        library = self._library
        linkage = library.linkage_create(number, sentence, self._options)
        words, links = range(library.linkage_get_num_words(linkage)), range(library.linkage_get_num_links(linkage))
        found = Linkage(
            [library.linkage_get_word(linkage, word).decode(errors="replace") for word in words],
            [library.linkage_get_word_byte_start(linkage, word) for word in words],
            [library.linkage_get_word_byte_end(linkage, word) for word in words],
            [
                RawLink(
                    library.linkage_get_link_label(linkage, link).decode(),
                    library.linkage_get_link_lword(linkage, link),
                    library.linkage_get_link_rword(linkage, link),
                )
                for link in links
            ],
            library.linkage_disjunct_cost(linkage),
            library.linkage_link_cost(linkage),
            library.linkage_unused_word_cost(linkage),
        )
        library.linkage_delete(linkage)
        return found
