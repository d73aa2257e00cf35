"""What nouns mean to the rules: which are things that can be seen, and which are no contradiction of each other.

There are two lexicons, and a user names the one that is wanted: `WordNet`, in a directory of its database files, or
`SmallLexicon`, a few hundred nouns of everyday captions that come with itrpipe.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from itrpipe.artifacts.disk import reading_error
from itrpipe.errors import DataError, MissingInputError
from itrpipe.synthesis.small_lexicon import KINDS, PARENTS

if TYPE_CHECKING:
    from nltk.corpus.reader.wordnet import Synset, WordNetCorpusReader

_FILES = ("lexnames", *(f"{kind}.{part}" for kind in ("index", "data") for part in ("noun", "verb", "adj", "adv")))
_PHYSICAL = "physical_entity"


class NounLexicon(Protocol):
    """Meanings of nouns, each meaning under a name."""

    def concrete(self, noun: str) -> bool:
        """Whether a noun (lower-case lemma) names something that can be seen."""
        ...

    def meanings(self, noun: str) -> frozenset[str]:
        """What a noun can mean; nothing where it is unknown."""
        ...

    def compatible(self, noun: str) -> frozenset[str]:
        """Meanings that may be true of what the noun names: its own, and those next above and below them."""
        ...


def contradict(lexicon: NounLexicon, first: str, second: str) -> bool:
    """Whether what two nouns name is never the same, as far as the lexicon tells.

    Source: VSE-C (Shi et al., COLING 2018): no common synset, and none that is a direct hypernym or hyponym.
    """
    return not lexicon.compatible(first) & lexicon.meanings(second)


class WordNet:
    """Princeton's WordNet, read through nltk.

    A noun is concrete if its most frequent meaning is a physical entity.

    Args:
        folder: holds the database files, `index.noun`, `data.noun` and so on, as in nltk's package `wordnet`.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        missing = [name for name in _FILES if not (folder / name).is_file()]
        if missing:
            raise MissingInputError(
                f"{folder} has no file {missing[0]!r}, so it is no WordNet database; name the unpacked folder of "
                "nltk's package wordnet, or choose the lexicon that comes with itrpipe"
            )
        self._folder = folder
        self._reader = _open_wordnet(folder)

    @functools.cache  # noqa: B019 - lives as long as the process
    def concrete(self, noun: str) -> bool:
        """See `NounLexicon`."""
        synsets = self._synsets(noun)
        above = synsets[0].closure(lambda each: each.hypernyms()) if synsets else ()
        return any(_PHYSICAL in each.lemma_names() for each in (*synsets[:1], *above))

    @functools.cache  # noqa: B019
    def meanings(self, noun: str) -> frozenset[str]:
        """See `NounLexicon`."""
        return frozenset(str(each.name()) for each in self._synsets(noun))

    @functools.cache  # noqa: B019
    def compatible(self, noun: str) -> frozenset[str]:
        """See `NounLexicon`."""
        own = self._synsets(noun)
        near = [other for each in own for other in (*each.hypernyms(), *each.hyponyms())]
        return frozenset(str(each.name()) for each in (*own, *near))

    def _synsets(self, noun: str) -> list[Synset]:
        try:
            return [each for each in self._reader.synsets(noun.replace(" ", "_"), "n") if each is not None]
        except (ValueError, LookupError, StopIteration) as error:
            raise _damaged(self._folder, error) from None


def _open_wordnet(folder: Path) -> WordNetCorpusReader:
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader, WordNetError

    class EnglishWordNet(WordNetCorpusReader):
        """WordNet without the tables of other languages."""

        def map_wn(self, version: str = "wordnet") -> None:
            """Leaves out what only other languages need: a second WordNet in nltk's own folder."""

    # nltk reads from folders on this list alone; the user named this one, so it alone is added.
    if str(folder.resolve()) not in nltk.data.path:
        nltk.data.path.append(str(folder.resolve()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has no other languages
            return EnglishWordNet(str(folder.resolve()), None)
    except (WordNetError, ValueError, AssertionError, LookupError, StopIteration, OSError) as error:
        raise reading_error(error, folder, _damaged(folder, error)) from None


def _damaged(folder: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(f"{folder}: the WordNet database is damaged ({reason}); unpack it again")


class SmallLexicon:
    """The nouns of `itrpipe.synthesis.small_lexicon`; others are neither concrete nor known."""

    def concrete(self, noun: str) -> bool:
        """See `NounLexicon`."""
        return noun in KINDS

    def meanings(self, noun: str) -> frozenset[str]:
        """See `NounLexicon`."""
        return frozenset(KINDS.get(noun, ()))

    def compatible(self, noun: str) -> frozenset[str]:
        """See `NounLexicon`; it has all meanings above and below, not only the next."""
        own = self.meanings(noun)
        above = {parent for kind in own for parent in _ancestors(kind)}
        below = {kind for kind in PARENTS if own & set(_ancestors(kind))}
        return frozenset(own | above | below)


@functools.cache
def _ancestors(kind: str) -> tuple[str, ...]:
    parents = PARENTS.get(kind, ())
    return tuple({*parents, *(above for parent in parents for above in _ancestors(parent))})
