"""Parts of speech by the statistics of the Hanover tagger, between the closed classes that our own lists decide."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from itrpipe.errors import MissingInputError
from itrpipe.scene_graph.hanta_model import read_model
from itrpipe.scene_graph.lexicon import describes, look_up
from itrpipe.scene_graph.tagger import tag_by_lexicon
from itrpipe.scene_graph.tokenise import plain
from itrpipe.scene_graph.words import ACTION_VERBS, ING_NOUNS

CUTOFF = 5
"""Tags of an unknown word that are less likely than its best one by more than this factor (log) are left out."""
CLOSED_CLASSES: dict[str, frozenset[str]] = {
    "BE": frozenset({"VBB", "VBD", "VBG", "VBI", "VBN", "VBZ"}),
    "AUX": frozenset({"VM0", "VDB", "VDZ", "VDD", "VHB", "VHZ", "VHD"}),
    "CC": frozenset({"CJC"}),
    "CD": frozenset({"CRD", "DT0"}),
    "SUB": frozenset({"CJS", "AVQ"}),
    "WH": frozenset({"PNQ", "DTQ", "CJT"}),
    "D": frozenset({"AT0", "DT0", "DPS"}),
    "PRP": frozenset({"PNP", "PNI", "PNX"}),
    "P": frozenset({"PRP", "PRF", "AVP"}),
    "EX": frozenset({"EX0"}),
    "POS": frozenset({"POS"}),
    "J": frozenset({"AJ0"}),
}
"""Tags of the British National Corpus (C5) that agree with a tag of a closed class."""
TO = frozenset({"TO0", "PRP"})
"""Before a verb or before a noun: the model decides better than the dictionary."""
Row = dict[tuple[int, int], tuple[float, tuple[int, int]]]


class HantaTagger:
    """Most likely tags of a caption under HanTa's trigram model, the words of closed classes being given.

    Source: Wartena, "A probabilistic morphology model for German lemmatization", KONVENS 2019; the package HanTa.

    Raises:
        MissingInputError: HanTa or its model is not installed.
        DataError: the model is not the one that HanTa comes with.
        UnavailableError: it cannot be read now.
    """

    def __init__(self) -> None:
        try:
            from HanTa.HanoverTagger import HanoverTagger
        except ImportError as error:
            raise MissingInputError(
                "the tagger hanta needs the package HanTa, which is not installed: "
                "pip install HanTa, or choose --tagger lexicon"
            ) from error
        # Given a name, HanTa would unpickle a file of that name in the working folder.
        self.model = HanoverTagger(None, read_model(Path(inspect.getfile(HanoverTagger)).parent))
        self.model.strict = False  # as HanTa sets it for a model out of a file: unknown words are guessed
        self.readings: Callable[[str, bool], dict[int, float]] = lru_cache(maxsize=1 << 16)(self._readings)

    def tag(self, words: list[str]) -> list[str]:
        """Tags the words of a caption, given as written.

        Returns:
            A key of `itrpipe.scene_graph.tagger.TAGS` for each word.
        """
        lower = [plain(word) for word in words]
        tags, closed = tag_by_lexicon(lower)
        allowed = [CLOSED_CLASSES.get(tag) if fixed else None for tag, fixed in zip(tags, closed, strict=True)]
        for i, word in enumerate(lower):
            if word == "to" and closed[i]:
                allowed[i], closed[i] = TO, False
        found = self.most_likely(words, allowed)
        return [
            tag if fixed else _merge(tag, name, tags[i - 1] if i else "", lower[i])
            for i, (tag, fixed, name) in enumerate(zip(tags, closed, found, strict=True))
        ]

    def most_likely(self, words: list[str], allowed: list[frozenset[str] | None]) -> list[str]:
        """Viterbi over the trigram model.

        Args:
            words: as written; the case of the first one says nothing.
            allowed: C5 tags that each word may have, None for any; where the model knows none of them, any.

        Returns:
            A C5 tag for each word.
        """
        steps: list[Row] = []
        row: Row = {(0, 1): (0.0, (0, 0))}
        for i, (word, names) in enumerate(zip(words, allowed, strict=True)):
            row = self._advance(row, self._choices(word, i > 0, names))
            steps.append(row)
        return [self.model.int2tag[tag] for tag in self._trace(steps)]

    def _choices(self, word: str, cased: bool, names: frozenset[str] | None) -> dict[int, float]:
        readings = self.readings(word if cased else word.lower(), cased)
        if names is None:
            return readings
        return {tag: score for tag, score in readings.items() if self.model.int2tag[tag] in names} or readings

    def _advance(self, row: Row, choices: dict[int, float]) -> Row:
        following: Row = {}
        for state, (score, _) in row.items():
            transitions = self.model.LP_trans_word[state]
            for tag, emission in choices.items():
                total = score + transitions[tag] + emission
                key = (state[1], tag)
                if key not in following or total > following[key][0]:
                    following[key] = (total, state)
        return following

    def _trace(self, steps: list[Row]) -> list[int]:
        if not steps:
            return []
        end: Any = self.model.tag2int["END"]
        transitions = self.model.LP_trans_word
        state = max(steps[-1], key=lambda key: steps[-1][key][0] + transitions[key].get(end, float("-inf")))
        tags: list[int] = []
        for row in reversed(steps):
            tags.append(state[1])
            state = row[state][1]
        return tags[::-1]

    def _readings(self, word: str, cased: bool) -> dict[int, float]:
        """Log p(word | tag) of the tags a word can have, up to a constant."""
        model = self.model
        readings = {
            model.tag2int[name]: score - model.LP_wtag[model.tag2int[name]]
            for name, score in model.tag_word(word, cutoff=CUTOFF, casesensitive=cased)
            if name in model.tag2int and model.tag2int[name] in model.LP_wtag
        }
        return readings or {model.tag2int["NN1"]: 0.0}


PREFIXES = (
    ("AJ", "J"),
    ("ORD", "J"),
    ("NN", "N"),
    ("NP", "N"),
    ("UNC", "N"),
    ("ZZ", "N"),
    ("AV", "R"),
    ("PR", "P"),
    ("TO", "TO"),
)
FORMS = {"VVG": "VBG", "VDG": "VBG", "VHG": "VBG", "VVN": "VBN", "VDN": "VBN", "VHN": "VBN"}


def _merge(tag: str, name: str, previous: str, word: str) -> str:
    """Tag of an open-class word from the lexicon's tag and HanTa's."""
    if tag == "N" and word in ING_NOUNS and previous != "BE":
        return tag
    if tag == "V" and name.startswith("NN") and look_up(word).verb in ACTION_VERBS and look_up(word).verb != word:
        return tag
    if tag == "J" and name.startswith("AV") and previous == "D":
        return tag
    if tag == "J" and (word.endswith(("ing", "ed")) or describes(word)):
        return tag
    if tag == "VBG" and previous in {"BE", "SUB"}:
        return tag
    if name in FORMS:
        return FORMS[name]
    if name == "VVD":
        return "VBN" if tag in {"VBN", "J"} else "V"
    if name.startswith("V"):
        return "V"
    if tag == "VBG" and previous == "N" and name.startswith(("AJ", "NN")):
        return tag
    if name.startswith("AJ") and tag == "N" and look_up(word).known and not look_up(word).adjective:
        return tag
    if name.startswith("AV") and not look_up(word).adverb:
        return tag
    return next((ours for prefix, ours in PREFIXES if name.startswith(prefix)), tag)
