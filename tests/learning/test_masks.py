"""What of captions is masked, and what all captions of an image say, against loops written from the definition."""

from __future__ import annotations

import numpy as np

from itrpipe.learning.sentences import (
    NO_WORD,
    UNLABELLED,
    CaptionMasks,
    Compare,
    SpecialTokens,
    mask_captions,
    over_pieces,
)

PIECES = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "A", "a", "dog", "##s", "cat", "run", "road", "##way")
CLS, SEP, MASK = 1, 2, 3
SPECIALS = SpecialTokens(MASK, (0, CLS, SEP), (4, len(PIECES)))
# "A dogs run" and "a road cat" of image 1, "roadway" of image 0, nothing of image 2.
TOKENS = np.array([[CLS, 4, 6, 7, 9, SEP], [CLS, 10, 11, SEP, 0, 0], [CLS, 5, 10, 8, SEP, 0]])
WORDS = np.array(
    [
        [NO_WORD, 0, 1, 1, 2, NO_WORD],
        [NO_WORD, 0, 0, NO_WORD, NO_WORD, NO_WORD],
        [NO_WORD, 0, 1, 2, NO_WORD, NO_WORD],
    ]
)
IMAGES = np.array([1, 0, 1])
# "dogs" and "dogs run" of the first caption, nothing of the second, "A ... cat" of the third.
PHRASES = np.zeros((3, 2, 3), dtype=bool)
PHRASES[0, 0, 1] = PHRASES[0, 1, 1:] = PHRASES[2, 0, [0, 2]] = True


def masks(phrases: bool = True, compare: Compare = "piece") -> CaptionMasks:
    candidates = (lambda rows: PHRASES[rows]) if phrases else None
    return CaptionMasks(TOKENS, WORDS, IMAGES, candidates, SPECIALS, compare)


def test_phrases_are_masked_as_wholes_and_captions_without_any_word_by_word() -> None:
    rows = np.array([2, 0, 1])
    drawn = masks().draw(rows, 6, 200, False, np.random.default_rng(0))
    assert drawn.tokens.shape == drawn.labels.shape == (3, 200, 6)
    found = [{tuple(np.flatnonzero(row).tolist()) for row in own} for own in drawn.labels != UNLABELLED]
    assert found[0] == {(1, 3)}
    assert found[1] == {(2, 3), (2, 3, 4)}
    assert found[2] == {(1,), (2,), (1, 2)}  # pieces of a word that no phrase holds are single positions
    labelled = drawn.labels != UNLABELLED
    own = np.broadcast_to(TOKENS[rows][:, None], labelled.shape)
    assert (drawn.labels[labelled] == own[labelled]).all()
    assert (drawn.tokens[labelled] == MASK).all()
    assert (drawn.tokens[~labelled] == own[~labelled]).all()


def test_single_words_never_take_start_end_or_padding_along() -> None:
    drawn = masks(phrases=False).draw(np.arange(3), 6, 500, True, np.random.default_rng(0))
    labelled = drawn.labels != UNLABELLED
    assert labelled.any(axis=1).tolist() == (WORDS != NO_WORD).tolist()
    assert labelled.any(axis=2).all()
    shown = drawn.tokens[labelled]
    assert 0.7 < (shown == MASK).mean() < 0.9
    assert set(shown.tolist()) == {MASK, *range(4, len(PIECES))}


def test_what_the_captions_of_an_image_say_is_known_without_what_is_no_word() -> None:
    found = masks().known(np.array([2, 1]))
    assert found is not None
    assert [set(row) - {-1} for row in found.tolist()] == [{4, 5, 6, 7, 8, 9, 10}, {10, 11}]
    assert masks(compare="off").known(np.array([2, 1])) is None


def test_all_pieces_of_a_word_are_masked_together():
    candidates = np.array([[[True, False, True], [False, True, False]]])
    pieces = np.array([[-1, 0, 1, 1, 2, -1, -1]])
    found = over_pieces(candidates, pieces)
    assert [np.flatnonzero(row).tolist() for row in found[0]] == [[1, 4], [2, 3]]
    assert over_pieces(np.zeros((1, 2, 0), dtype=bool), pieces).shape == (1, 2, 7)


def test_a_caption_without_words_stays_as_it_is():
    tokens = np.array([[1, 2]])
    masked = mask_captions(tokens, np.zeros((1, 2, 2), dtype=bool), 3, SPECIALS, True, np.random.default_rng(0))
    assert (masked.tokens == tokens).all()
    assert (masked.labels == UNLABELLED).all()
