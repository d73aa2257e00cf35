"""Rows of tokens as sentences: which words stay as they are written, and where each stands."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.analysis.word_corrections import match_probability, word_maxima
from itrpipe.negatives.caption_masks import NO_WORD
from itrpipe.synthesis.captions import TokenCaptions
from itrpipe.synthesis.respelling import respell

TEXT = "A  Dog, two cats!"
PIECES = ["[PAD]", "[CLS]", "[SEP]", "a", "dog", ",", "two", "cat", "##s", "!", "bird", "##ling"]
OWN = (1, 3, 4, 5, 6, 7, 8, 9, 2)
WORDS = (NO_WORD, 0, 1, 2, 3, 4, 4, 5, NO_WORD)
SPANS = np.array([(0, 1), (3, 6), (6, 7), (8, 11), (12, 16), (16, 17)])


def captions() -> TokenCaptions:
    row, tokens = np.zeros(1, np.int64), np.array([(*OWN, 0)])
    return TokenCaptions(
        ["c"], [TEXT], ["i"], row, tokens, np.array([9]), np.array([(*WORDS, NO_WORD)]), [SPANS], PIECES
    )


@pytest.mark.parametrize(
    ("changed", "text", "words"),
    [
        ({}, TEXT, ["A", "Dog", ",", "two", "cats", "!"]),
        ({2: "bird"}, "A  bird, two cats!", ["A", "bird", ",", "two", "cats", "!"]),
        ({5: "bird"}, "A  Dog, two birds!", ["A", "Dog", ",", "two", "birds", "!"]),
        ({6: "dog"}, "A  Dog, two cat dog!", ["A", "Dog", ",", "two", "cat dog", "!"]),
        ({4: "##ling"}, "A  Dog,ling cats!", ["A", "Dog", ",", "ling", "cats", "!"]),
        ({3: "two"}, "A  Dog two two cats!", ["A", "Dog", "two", "two", "cats", "!"]),
        ({3: "!"}, "A  Dog! two cats!", ["A", "Dog", "!", "two", "cats", "!"]),
    ],
)
def test_changed_words_are_spelled_and_others_stay(changed: dict[int, str], text: str, words: list[str]) -> None:
    tokens = np.array(OWN)
    for place, piece in changed.items():
        tokens[place] = PIECES.index(piece)
    found = respell(captions(), 0, tokens)
    assert found.text == text
    assert [found.text[start:end] for start, end in found.spans] == words


def test_words_that_were_cut_off_stay() -> None:
    found = respell(captions(), 0, np.array([1, 3, PIECES.index("bird")]))
    assert found.text == "A  bird, two cats!"


def test_a_word_in_pieces_has_the_highest_of_their_values() -> None:
    values = np.array([[0.9, 0.1, 0.2, 0.8], [0.9, 0.3, 0.0, 0.0]])
    words = np.array([[NO_WORD, 0, 1, 1], [NO_WORD, 0, NO_WORD, NO_WORD]])
    np.testing.assert_array_equal(word_maxima(values, words), [[0.1, 0.8], [0.3, 0.0]])


@pytest.mark.parametrize(("score", "chance"), [(0.0, 0.5), (800.0, 1.0), (-800.0, 0.0), (2.0, 0.880797)])
def test_scores_of_any_size_are_probabilities(score: float, chance: float) -> None:
    assert match_probability(score) == pytest.approx(chance, abs=1e-6)
