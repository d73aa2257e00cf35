"""Parts of speech by the statistics of the Hanover tagger, between the closed classes that our own lists decide.

The English model is read as data: from the installed package alone, with known content, and without running any.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph.tag import TaggedWords, tag_by_lexicon
from itrpipe.scene_graph.words import is_hyphenated_adjective, lists
from itrpipe.storage.disk import unavailable

CUTOFF = 5
"""Tags of an unknown word that are less likely than its best one by more than this factor (log) are left out."""
AGREEING = {tag: frozenset(names.split()) for tag, names in lists.CLOSED_CLASSES.items()}
MODEL = "morphmodel_en.pgz"
SHA256 = "99ddc9b14b3fe604b245e2d7a3aef59ab1bdd06b1bae4f4ce74738902e2a0265"
"""File of the model in HanTa 1.2.1, wheel and source distribution."""
REMEDY = "pip install --force-reinstall HanTa==1.2.1, or choose --tagger lexicon"
Row = dict[tuple[int, int], tuple[float, tuple[int, int]]]


class HantaTagger:
    """Most likely tags of a caption under HanTa's trigram model, the words of closed classes being given.

    Source: Wartena, "A probabilistic morphology model for German lemmatization", KONVENS 2019; the package HanTa.

    Raises:
        MissingInputError: the model is not installed.
        DataError: the model is not the one that HanTa comes with.
        UnavailableError: it cannot be read now.
    """

    def __init__(self) -> None:
        from HanTa.HanoverTagger import HanoverTagger

        # Given a name, HanTa would unpickle a file of that name in the working folder.
        package = Path(inspect.getfile(HanoverTagger)).parent
        self.model = HanoverTagger(None, read_hanta_model(package))
        self.model.strict = False  # as HanTa sets it for a model out of a file: unknown words are guessed
        self.readings: Callable[[str, bool], dict[int, float]] = lru_cache(maxsize=1 << 16)(self._readings)

    def tag(self, sentence: TaggedWords, written: Sequence[str]) -> None:
        """Tags a caption.

        Args:
            sentence: gets the tags.
            written: its words as they are written; the case of the first one says nothing.
        """
        closed = tag_by_lexicon(sentence)
        by_lexicon = list(sentence.tags)
        allowed: list[frozenset[str] | None] = [None] * sentence.size
        for i, is_closed in enumerate(closed):
            if sentence.words[i] == "to":
                # Before a verb or before a noun: the model decides better than the dictionary.
                closed[i] = False
                allowed[i] = frozenset({"TO0", "PRP"})
            elif is_closed:
                allowed[i] = AGREEING.get(by_lexicon[i])
        for i, name in enumerate(self.most_likely(written, allowed)):
            if not closed[i]:
                sentence.tags[i] = _choose_tag(sentence, i, by_lexicon[i - 1], name)

    def most_likely(
        self,
        words: Sequence[str],
        allowed: Sequence[frozenset[str] | None],
    ) -> list[str]:
        """Return the most likely tags of words, by Viterbi's algorithm over the trigram model.

        Args:
            words: as written.
            allowed: C5 tags that each word may have, None for any; where the model knows none of them, any.

        Returns:
            A C5 tag for each word.
        """
        names = self.model.int2tag
        transitions = self.model.LP_trans_word
        row: Row = {(0, 1): (0.0, (0, 0))}
        steps = [row]
        for i, word in enumerate(words):
            if i == 0:
                word = word.lower()
            readings = self.readings(word, i > 0)
            allowed_names = allowed[i]
            if allowed_names:
                choices = {tag: readings[tag] for tag in readings if names[tag] in allowed_names}
                readings = choices or readings
            next_row: Row = {}
            for state, (score, _) in row.items():
                onward = transitions[state]
                for tag, emission in readings.items():
                    total = score + onward[tag] + emission
                    key = (state[1], tag)
                    if key not in next_row or total > next_row[key][0]:
                        next_row[key] = (total, state)
            row = next_row
            steps.append(row)
        end = self.model.tag2int["END"]
        totals = {}
        for state, (score, _) in row.items():
            totals[state] = score + transitions[state].get(end, float("-inf"))
        state = max(totals, key=totals.__getitem__)
        tags: list[str] = []
        for row in reversed(steps[1:]):
            tags.append(names[state[1]])
            state = row[state][1]
        return tags[::-1]

    def _readings(self, word: str, cased: bool) -> dict[int, float]:
        """Return log p(word | tag) of the tags a word can have, up to a constant."""
        numbers = self.model.tag2int
        scores = self.model.LP_wtag
        readings = {}
        for name, score in self.model.tag_word(word, cutoff=CUTOFF, casesensitive=cased):
            number = numbers.get(name)
            if number in scores:
                readings[number] = score - scores[number]
        return readings or {numbers["NN1"]: 0.0}


def _choose_tag(
    sentence: TaggedWords,
    i: int,
    previous: str,
    name: str,
) -> str:
    """Choose the tag of an open-class word.

    Args:
        sentence: with the lexicon's tags from the word on.
        i: number of the word.
        previous: the lexicon's tag of the word before.
        name: HanTa's C5 tag of the word.
    """
    tag = sentence.tags[i]
    here = sentence.entries[i]
    is_noun = name.startswith("NN")
    is_adjective = name.startswith("AJ")
    is_adverb = name.startswith("AV")
    match tag:  # where the lexicon decides better
        case "N" if here.word in lists.ING_NOUNS and previous != "BE":
            return tag
        case "V" if is_noun and here.verb in lists.ACTION_VERBS and not here.bare:
            return tag
        case "J" if is_adverb and previous == "D":
            return tag
        case "J" if here.word.endswith(("ing", "ed")) or is_hyphenated_adjective(here.word):
            return tag
        case "VBG" if previous in {"BE", "SUB"}:
            return tag
    if name in lists.OPEN_CLASSES:
        return lists.OPEN_CLASSES[name]
    if name == "VVD" and tag in {"VBN", "J"}:
        return "VBN"
    if name.startswith("V"):
        return "V"
    if tag == "VBG" and previous == "N" and (is_adjective or is_noun):
        return tag
    if tag == "N" and is_adjective and here.known and not here.adjective:
        return tag
    if is_adverb and not here.adverb:
        return tag
    for start, open_class in lists.OPEN_CLASSES.items():
        if name.startswith(start):
            return open_class
    return tag


# -- the model ---------------------------------------------------------------------------------------------------------


def read_hanta_model(package: Path) -> tuple[Any, ...]:
    """Read the tables of the model, which `HanoverTagger` takes in place of a file.

    Args:
        package: folder of the installed HanTa.

    Raises:
        MissingInputError: the model is not there.
        DataError: it is another one.
        UnavailableError: it cannot be read now.
    """
    path = package.absolute() / MODEL
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unavailable(error, path) or MissingInputError(
            f"{path}, the model of the tagger hanta, is not there; {REMEDY}"
        ) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise DataError(f"{path} is not the model of HanTa 1.2.1 (sha256 {digest[:12]}… for {SHA256[:12]}…); {REMEDY}")
    return DataUnpickler(io.BytesIO(gzip.decompress(content))).load()


def _scalar(kind: np.dtype, content: bytes) -> float:
    """Make a float of what NumPy pickles as `numpy._core.multiarray.scalar`."""
    return float(np.frombuffer(content, kind)[0])


class DataUnpickler(pickle.Unpickler):
    """Reads a pickle of builtin containers, text, numbers and NumPy's numbers, which become floats.

    Loads nothing by name but the two names that the model has: NumPy's types, and a function of this module.

    Raises:
        pickle.UnpicklingError: the pickle names anything else.
    """

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name == "numpy.dtype":
            return np.dtype
        if name == "numpy._core.multiarray.scalar":
            return _scalar
        raise pickle.UnpicklingError(f"the model names {name}, which is no data")
