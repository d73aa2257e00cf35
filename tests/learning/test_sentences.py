"""Masks, refills, filters and the bank of sentences, against the rules written out and numbers of the released code."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from itrpipe.learning.sentences import (
    DUPLICATE,
    FALSE_NEGATIVE,
    IDENTICAL,
    KEPT,
    NO_WORD,
    OUTRANKED,
    REASONS,
    UNLABELLED,
    CaptionMasks,
    Compare,
    SentenceBank,
    SpecialTokens,
    log_probabilities,
    mark_outranked,
    mask_captions,
    over_pieces,
    refill,
    reject,
    score_kept,
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
TOKENS = 13


def naive_reasons(sentences: list[list[int]], caption: list[int], own: list[list[int]]) -> list[int]:
    known = {token for each in own for token in each} - {PAD, START, END}
    found = []
    for number, sentence in enumerate(sentences):
        replaced = {token for token, before in zip(sentence, caption, strict=True) if token != before}
        if sentence == caption:
            found.append(IDENTICAL)
        elif replaced <= known:
            found.append(FALSE_NEGATIVE)
        else:
            found.append(DUPLICATE if sentence in sentences[number + 1 :] else KEPT)
    return found


@st.composite
def refilled(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Captions [T, W] of words between start and end, all captions of their images [T, 3, W], sentences [T, N, W]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, width, number = draw(st.integers(1, 3)), draw(st.integers(3, 6)), draw(st.integers(1, 12))
    captions = rng.integers(3, TOKENS, size=(count, width))
    captions[:, 0], captions[:, -1] = START, END
    others = rng.integers(3, TOKENS, size=(count, 2, width))
    siblings = np.concatenate([captions[:, None], others], axis=1)
    siblings[:, 2] = PAD
    sentences = np.repeat(captions[:, None], number, axis=1)
    edited = rng.random(sentences.shape) < 0.3
    edited[..., [0, -1]] = False
    sentences = np.where(edited, rng.integers(TOKENS, size=sentences.shape), sentences)
    return torch.from_numpy(captions), torch.from_numpy(siblings), torch.from_numpy(sentences)


@settings(max_examples=150)
@given(refilled())
def test_filters_reject_what_the_rules_say(made):
    captions, siblings, sentences = made
    known = siblings.masked_fill(siblings <= END, -1).flatten(1).sort(dim=1).values
    reasons = reject(sentences, captions, known)
    for row, found in enumerate(reasons.tolist()):
        assert found == naive_reasons(sentences[row].tolist(), captions[row].tolist(), siblings[row].tolist())


def test_every_labelled_position_gets_a_draw_of_its_own_logits():
    copies = torch.tensor([[1, 5, 9, 2], [1, 9, 9, 2]])
    labels = torch.tensor([[-1, -1, 7, -1], [-1, 5, 7, -1]])
    certain = torch.full((3, 12), -100.0)
    certain[torch.arange(3), torch.tensor([4, 6, 8])] = 100.0
    found = refill(copies, labels, certain, 2, 1.0)
    assert found.tolist() == [[[1, 5, 4, 2]] * 2, [[1, 6, 8, 2]] * 2]
    before = certain.clone()
    other = refill(copies, labels, certain, 2, 1.0, excluded=(4,))
    assert (other[0, :, 2] != 4).all()
    assert torch.equal(other[1], found[1])
    assert torch.equal(certain, before)


def test_probabilities_are_averaged_over_the_labelled_positions():
    labels = torch.tensor([[-1, 5, 7, -1], [-1, -1, 6, -1], [-1, -1, -1, -1]])
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    sentences = torch.tensor([[[1, 3, 4, 2], [1, 5, 7, 2]], [[1, 9, 8, 2], [1, 9, 6, 2]], [[1, 9, 9, 2]] * 2])
    likely = logits.log_softmax(dim=1)
    expected = [
        [(likely[0, 3] + likely[1, 4]).item() / 2, (likely[0, 5] + likely[1, 7]).item() / 2],
        [likely[2, 8].item(), likely[2, 6].item()],
        [0.0, 0.0],
    ]
    torch.testing.assert_close(log_probabilities(sentences, labels, logits), torch.tensor(expected))


def test_only_kept_sentences_are_scored_and_at_once():
    sentences = torch.arange(12).view(2, 3, 2)
    reasons = torch.tensor([[KEPT, DUPLICATE, KEPT], [IDENTICAL, FALSE_NEGATIVE, KEPT]])
    calls = []

    def score(owners: Tensor, chosen: Tensor) -> Tensor:
        calls.append((owners.tolist(), chosen.tolist()))
        return chosen.sum(dim=1).double()

    scores = score_kept(score, sentences, reasons)
    assert calls == [([0, 0, 1], [[0, 1], [4, 5], [10, 11]])]
    low = float("-inf")
    assert scores.tolist() == [[1.0, low, 9.0], [low, low, 21.0]]
    nothing = torch.full_like(reasons, IDENTICAL)
    assert (score_kept(score, sentences, nothing) == low).all()
    assert len(calls) == 1


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


def bank_of(counts: list[int]) -> tuple[SentenceBank, list[list[list[int]]]]:
    """A bank whose sentences all differ, and the sentences of every caption."""
    lengths = np.random.default_rng(sum(counts)).integers(1, 6, sum(counts))
    tokens = np.where(np.arange(6) < lengths[:, None], 10 * np.arange(len(lengths))[:, None] + np.arange(1, 7), 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    sentences = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    bank = SentenceBank(tokens.astype(np.int32), lengths.astype(np.int32), starts)
    return bank, [sentences[start:end] for start, end in pairwise(starts)]


banks = st.lists(st.integers(0, 5), min_size=1, max_size=6)
choices = st.lists(st.integers(0, 100), max_size=6)


@settings(max_examples=80)
@given(counts=banks, chosen=choices, most=st.integers(1, 7), seed=st.integers(0, 99))
def test_sentences_are_those_of_their_captions(counts: list[int], chosen: list[int], most: int, seed: int) -> None:
    bank, held = bank_of(counts)
    captions = np.array([each % len(counts) for each in chosen], dtype=np.int64)
    for first in (None, np.random.default_rng(seed).integers(0, np.maximum(np.array(counts)[captions], 1))):
        expected = []
        for owner, row in enumerate(captions):
            start = 0 if first is None else first[owner]
            own = (held[row][start:] + held[row][:start])[:most]
            expected += [(owner, place, sentence) for place, sentence in enumerate(own)]
        texts, *numbers = bank.take(captions, most, None if first is None else np.random.default_rng(seed))
        assert {each.dtype for each in (texts.tokens, texts.lengths, *numbers)} == {torch.int64}
        found = [row[:length] for row, length in zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True)]
        assert [*zip(*(each.tolist() for each in numbers), found, strict=True)] == expected
        assert texts.tokens.shape[1] == max(map(len, found), default=1)


def test_every_sentence_is_drawn_equally_often() -> None:
    bank, held = bank_of([3, 0, 5])
    random, seen = np.random.default_rng(0), Counter()
    for _ in range(2000):
        texts, owners, _ = bank.take(np.array([2, 1]), 2, random)
        assert owners.tolist() == [0, 0]
        seen.update(row[0].item() for row in texts.tokens)
    assert seen.keys() == {sentence[0] for sentence in held[2]}
    np.testing.assert_allclose(np.array(list(seen.values())) / 4000, 0.2, atol=0.03)
