"""Masks, refills, filters and the bank of sentences, against the rules written out and numbers of the released code."""

from __future__ import annotations

import numpy as np
import torch
from torch.testing import assert_close

from itrpipe.learning.sentences import (
    IDENTICAL,
    KEPT,
    NO_WORD,
    OUTRANKED,
    REASONS,
    UNLABELLED,
    CaptionMasks,
    Compare,
    SpecialTokens,
    mark_outranked,
    mask_captions,
    over_pieces,
    refill,
    select_hardest,
    selection_rates,
)
from tests.methods.toys import reference

PIECES = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "A", "a", "dog", "##s", "cat", "run", "road", "##way")
START, END, MASK = 1, 2, 3
SPECIALS = SpecialTokens(MASK, (0, START, END), (4, len(PIECES)))
# "A dogs run" and "a road cat" of image 1, "roadway" of image 0, nothing of image 2.
CAPTIONS = np.array([[START, 4, 6, 7, 9, END], [START, 10, 11, END, 0, 0], [START, 5, 10, 8, END, 0]])
WORDS = np.array([[NO_WORD, 0, 1, 1, 2, NO_WORD], [NO_WORD, 0, 0, *[NO_WORD] * 3], [NO_WORD, 0, 1, 2, *[NO_WORD] * 2]])
IMAGES = np.array([1, 0, 1])
# "dogs" and "dogs run" of the first caption, nothing of the second, "A ... cat" of the third.
PHRASES = np.zeros((3, 2, 3), dtype=bool)
PHRASES[0, 0, 1] = PHRASES[0, 1, 1:] = PHRASES[2, 0, [0, 2]] = True


def masks(phrases: bool = True, compare: Compare = "piece") -> CaptionMasks:
    candidates = (lambda rows: PHRASES[rows]) if phrases else None
    return CaptionMasks(CAPTIONS, WORDS, IMAGES, candidates, SPECIALS, compare)


def test_phrases_are_masked_as_wholes_and_captions_without_any_word_by_word() -> None:
    rows = np.array([2, 0, 1])
    drawn = masks().draw(rows, 6, 200, False, np.random.default_rng(0))
    tokens, labels = (each.reshape(3, 200, 6) for each in drawn)
    found = [{tuple(np.flatnonzero(row).tolist()) for row in own} for own in labels != UNLABELLED]
    assert found[0] == {(1, 3)}
    assert found[1] == {(2, 3), (2, 3, 4)}
    assert found[2] == {(1,), (2,), (1, 2)}  # pieces of a word that no phrase holds are single positions
    labelled = labels != UNLABELLED
    own = np.broadcast_to(CAPTIONS[rows][:, None], labelled.shape)
    assert (labels[labelled] == own[labelled]).all()
    assert (tokens[labelled] == MASK).all()
    assert (tokens[~labelled] == own[~labelled]).all()


def test_single_words_never_take_start_end_or_padding_along() -> None:
    drawn = masks(phrases=False).draw(np.arange(3), 6, 500, True, np.random.default_rng(0))
    tokens, labels = (each.reshape(3, 500, 6) for each in drawn)
    labelled = labels != UNLABELLED
    assert labelled.any(axis=1).tolist() == (WORDS != NO_WORD).tolist()
    assert labelled.any(axis=2).all()
    shown = tokens[labelled]
    assert 0.7 < (shown == MASK).mean() < 0.9
    assert set(shown.tolist()) == {MASK, *range(4, len(PIECES))}


def test_what_the_captions_of_an_image_say_is_known_without_what_is_no_word() -> None:
    found = masks().known(np.array([2, 1]))
    assert found is not None
    assert [set(row) - {-1} for row in found.tolist()] == [{4, 5, 6, 7, 8, 9, 10}, {10, 11}]
    assert masks(compare="off").known(np.array([2, 1])) is None


def test_a_caption_without_words_stays_as_it_is():
    tokens = np.array([[1, 2]])
    nothing = over_pieces(np.zeros((1, 2, 0), dtype=bool), np.full((1, 2), NO_WORD))
    masked, labels = mask_captions(tokens, nothing, 3, SPECIALS, True, np.random.default_rng(0))
    assert (masked == tokens).all()
    assert (labels == UNLABELLED).all()


TEMPERATURE = 1.5
RELEASE = reference("tags_generation")


def test_phrases_are_masked_as_often_as_in_the_release():
    caption, sizes = RELEASE["mask/caption"].numpy(), RELEASE["mask/phrase_len"].numpy()
    candidates, copies = np.zeros((1, len(sizes), len(caption)), dtype=bool), 40_000
    candidates[0, np.repeat(np.arange(len(sizes)), sizes), RELEASE["mask/phrase_flat"]] = True
    np.testing.assert_allclose(selection_rates(candidates)[0], RELEASE["mask/phrase_prob"], atol=1e-6)
    specials = SpecialTokens(103, (), (11, 90))
    (shown,), (labels,) = mask_captions(caption[None], candidates, copies, specials, True, np.random.default_rng(5))
    labelled = labels != UNLABELLED
    for found, name in (
        (labelled.mean(axis=0), "label_rate"),
        ((shown == 103).mean(axis=0), "mask_token_rate"),
        ((labelled & (shown == caption)).mean(axis=0), "kept_rate"),
        (np.bincount(labelled.sum(axis=1), minlength=9) / copies, "num_labelled_hist"),
    ):
        np.testing.assert_allclose(found, RELEASE[f"mask/{name}"], atol=0.01, err_msg=name)


def test_refills_follow_the_tempered_distribution_of_the_release():
    masked, labels, draws = RELEASE["in/mlm_input_ids"], RELEASE["in/mlm_txt_labels"], 20_000
    drawing = torch.Generator().manual_seed(3)
    found = refill(masked, labels, RELEASE["mlm/logits_at_labels"], draws, TEMPERATURE, generator=drawing)
    labelled = labels != UNLABELLED
    assert (found.transpose(1, 2)[~labelled] == masked[~labelled][:, None]).all()
    frequencies = torch.stack([row.bincount(minlength=120) for row in found.transpose(1, 2)[labelled]]) / draws
    assert_close(frequencies, RELEASE["mlm/sampling_probs_at_labels"], atol=0.015, rtol=0)


PAD, START, END = 0, 1, 2


def test_the_hardest_are_sorted_and_rejected_ones_never_fill_up():
    low = float("-inf")
    scores = torch.tensor([[0.1, low, 0.9, 0.1], [low, low, low, 5.0], [low] * 4])
    rows, real = select_hardest(scores, 3)
    assert real.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert rows[0].tolist() == [2, 0, 3]
    assert rows[1, 0].item() == 3
    assert select_hardest(scores, 9)[0].shape == (3, 4)
    reasons = torch.where(scores.isfinite(), KEPT, IDENTICAL)
    marked = mark_outranked(reasons, *select_hardest(scores, 1))
    assert marked.tolist() == [[OUTRANKED, IDENTICAL, KEPT, OUTRANKED], [1, 1, 1, KEPT], [1] * 4]
    assert REASONS[OUTRANKED] == "outranked"
