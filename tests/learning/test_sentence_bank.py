"""The sentence bank against lists of sentences: the first of every caption, and runs that begin anywhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.learning.sentences import SentenceBank


def bank_of(counts: list[int]) -> tuple[SentenceBank, list[list[tuple[int, ...]]]]:
    """A bank whose sentences all differ, and the sentences of every caption."""
    random = np.random.default_rng(sum(counts))
    lengths = random.integers(1, 6, sum(counts))
    tokens = np.where(np.arange(6) < lengths[:, None], 10 * np.arange(len(lengths))[:, None] + np.arange(1, 7), 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    sentences = [tuple(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)]
    held = [sentences[start:end] for start, end in pairwise(starts)]
    return SentenceBank(tokens.astype(np.int32), lengths.astype(np.int32), starts), held


banks = st.lists(st.integers(0, 5), min_size=1, max_size=6)
choices = st.lists(st.integers(0, 100), max_size=6)


@settings(max_examples=80)
@given(counts=banks, chosen=choices, most=st.integers(1, 7), seed=st.integers(0, 99))
def test_sentences_are_those_of_their_captions(counts: list[int], chosen: list[int], most: int, seed: int) -> None:
    bank, held = bank_of(counts)
    captions = np.array([each % len(counts) for each in chosen], dtype=np.int64)
    random = np.random.default_rng(seed)
    for begins, (texts, owners, places) in (
        ("first", bank.take(captions, most)),
        ("anywhere", bank.take(captions, most, random)),
    ):
        assert texts.tokens.dtype == texts.lengths.dtype == owners.dtype == torch.int64
        found = [tuple(row[:length].tolist()) for row, length in zip(texts.tokens, texts.lengths, strict=True)]
        assert texts.tokens.shape[1] == max(map(len, found), default=1)
        expected_owners = [
            number for number, row in enumerate(captions.tolist()) for _ in range(min(most, counts[row]))
        ]
        assert owners.tolist() == expected_owners
        for number, row in enumerate(captions.tolist()):
            own = [sentence for sentence, owner in zip(found, expected_owners, strict=True) if owner == number]
            assert places[owners == number].tolist() == list(range(len(own)))
            assert len(set(own)) == len(own)
            if begins == "first":
                assert own == held[row][:most]
            elif own:
                first = held[row].index(own[0])
                assert own == (held[row][first:] + held[row][:first])[: len(own)]


def test_every_sentence_is_drawn_equally_often() -> None:
    bank, held = bank_of([3, 0, 5])
    random, seen = np.random.default_rng(0), dict.fromkeys(held[2], 0)
    for _ in range(2000):
        texts, owners, _ = bank.take(np.array([2, 1]), 2, random)
        assert owners.tolist() == [0, 0]
        for row, length in zip(texts.tokens, texts.lengths, strict=True):
            seen[tuple(row[:length].tolist())] += 1
    shares = np.array(list(seen.values())) / 4000
    np.testing.assert_allclose(shares, 0.2, atol=0.03)
