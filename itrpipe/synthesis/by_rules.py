"""Sentences of whole training sets by rules, the baseline that no model is needed for.

Source: VSE-C (Shi et al., COLING 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.synthesis.edits import apply_edits
from itrpipe.synthesis.rules import (
    RULES,
    NounVocabulary,
    Slot,
    TaggedCaption,
    draw_sentences,
    noun_of,
    noun_slots,
    numeral_slots,
    relation_slots,
)
from itrpipe.synthesis.sentences import Sentence


@dataclass(frozen=True)
class RuleCaptions:
    """The captions of a training set.

    Attributes:
        caption_ids: of each.
        image_ids: of each image.
        image_rows: int64 [captions], row of each caption's image.
        tagged: their words and parts of speech.
    """

    caption_ids: Sequence[str]
    image_ids: Sequence[str]
    image_rows: np.ndarray
    tagged: Sequence[TaggedCaption]


class RuleMaker:
    """Makes sentences by rules; see `itrpipe.synthesis.make.SentenceMaker`.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Args:
        captions: of the training set.
        vocabulary: the nouns that are written.
        rules: some of `RULES`.
        keep: sentences of a caption by each rule, at most.
        seed: of everything random.
    """

    def __init__(
        self, captions: RuleCaptions, vocabulary: NounVocabulary, rules: Sequence[str], keep: int, seed: int
    ) -> None:
        self._captions, self._vocabulary, self._keep, self._seed = captions, vocabulary, keep, seed
        ways: Sequence[Callable[[int], list[Slot]]] = (self._noun_slots, self._numeral_slots, self._relation_slots)
        self._slots = [way for rule, way in zip(RULES, ways, strict=True) if rule in rules]
        order = np.argsort(captions.image_rows, kind="stable")
        ends = np.cumsum(np.bincount(captions.image_rows, minlength=len(captions.image_ids)))
        self._own = np.split(order, ends[:-1])

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        rng = np.random.default_rng([self._seed, block])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            own = {self._captions.tagged[other].text for other in self._siblings(row)}
            written: set[str] = set()
            for slots in self._slots:
                for sentence in self._by_rule(row, slots(row), rng):
                    reason = self._reason(sentence.text, row, own, written)
                    drawn[reason] += 1
                    written.add(sentence.text)
                    made += [sentence] if reason == "kept" else []
        return made, dict(sorted(drawn.items()))

    def _by_rule(self, row: int, slots: list[Slot], rng: np.random.Generator) -> list[Sentence]:
        captions, tagged = self._captions, self._captions.tagged[row]
        starts = [token.start for token in tagged.tokens]
        caption_id, image_id = captions.caption_ids[row], captions.image_ids[int(captions.image_rows[row])]
        found = []
        for edits in draw_sentences(slots, self._keep, rng):
            text = apply_edits(tagged.text, starts, edits)
            found.append(Sentence(caption_id, image_id, text, sorted(edits), None, None, None, None, True, "kept"))
        return found

    def _reason(self, text: str, row: int, own: set[str], written: set[str]) -> str:
        if text == self._captions.tagged[row].text:
            return "identical"
        if text in own:
            return "false negative"
        return "duplicate" if text in written else "kept"

    def _noun_slots(self, row: int) -> list[Slot]:
        own = [self._captions.tagged[other] for other in self._siblings(row)]
        words = {word for caption in own for word in caption.words}
        words |= {form for caption in own for token in caption.tokens for form in (token.lemma, noun_of(token))}
        return noun_slots(self._captions.tagged[row], words, self._vocabulary)

    def _numeral_slots(self, row: int) -> list[Slot]:
        return numeral_slots(self._captions.tagged[row])

    def _relation_slots(self, row: int) -> list[Slot]:
        return relation_slots(self._captions.tagged[row])

    def _siblings(self, row: int) -> list[int]:
        """All captions of a caption's image."""
        return self._own[self._captions.image_rows[row]].tolist()
