"""Words as numbers that can be compared on any device: token ids as they are, or whole words without their case.

A tokenizer may cut `Dog`, `dog` and a word that a model spells piece by piece in different ways. The key of a whole
word is a polynomial over its characters modulo 2^64, and that of a piece can be appended to it, so that the keys of
refilled sentences are computed from token ids alone. Two of a million different words have the same key with a
probability below 1e-7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BASE = 0x5DEECE66D5DEECE7
_MODULUS = 1 << 64
_NO_KEY = torch.iinfo(torch.int64).max
CONTINUATION = "##"
"""Mark of a piece that goes on with the word before it, in BERT's vocabularies."""


@dataclass(frozen=True)
class TokenKeys:
    """Keys of the tokens of a vocabulary.

    Attributes:
        own: int64 [V], of each token.
        shift: int64 [V], what a key is multiplied by before the token's is added to it; None where a token is a word.
        continues: bool [V], tokens that go on with a word; None likewise.
        ignored: bool [V], tokens that no caption is said to hold: start, end, padding.
    """

    own: Tensor
    shift: Tensor | None
    continues: Tensor | None
    ignored: Tensor

    @classmethod
    def of_tokens(cls, size: int, ignored: Sequence[int]) -> TokenKeys:
        """Compares token ids.

        Args:
            size: V.
            ignored: ids of start, end, padding and the like.
        """
        return cls(torch.arange(size), None, None, _flags(size, ignored))

    @classmethod
    def of_words(cls, tokens: Sequence[str], ignored: Sequence[int]) -> TokenKeys:
        """Compares whole words without their case.

        Args:
            tokens: V of them, as the vocabulary writes them; pieces that go on with a word begin with `CONTINUATION`.
            ignored: ids of start, end, padding and the like.
        """
        texts = [token.removeprefix(CONTINUATION).casefold() for token in tokens]
        own = torch.tensor([_signed(_key(text)) for text in texts])
        shift = torch.tensor([_signed(pow(_BASE, len(text), _MODULUS)) for text in texts])
        continues = torch.tensor([token.startswith(CONTINUATION) for token in tokens])
        return cls(own, shift, continues, _flags(len(tokens), ignored))

    def to(self, device: torch.device | str) -> TokenKeys:
        """The same keys on a device."""
        shift = None if self.shift is None else self.shift.to(device)
        continues = None if self.continues is None else self.continues.to(device)
        return TokenKeys(self.own.to(device), shift, continues, self.ignored.to(device))

    def of_captions(self, captions: Tensor) -> Tensor:
        """Sorted keys [T, n W] of the words of T images.

        Args:
            captions: int64 [T, n, W], all captions of each image; rows of padding where it has fewer than n.
        """
        keys, ends = self._words(captions)
        keys = keys.masked_fill(~ends | self.ignored[captions], _NO_KEY)
        return keys.flatten(1).sort(dim=1).values

    def replaced(self, sentences: Tensor, captions: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        """Keys of the words of sentences, and which of these are other words than in their caption.

        Args:
            sentences: int64 [..., W].
            captions: int64 [..., W], broadcast.
            changed: bool [..., W], positions in which the two differ.

        Returns:
            int64 and bool [..., W]; a word of several tokens stands at the last of them.
        """
        keys, ends = self._words(sentences)
        if self.continues is None:
            return keys, changed
        starts, before = ~self.continues[sentences], ~self.continues[captions]
        # A word also becomes another one where the next token no longer goes on with it, or now does.
        cut = torch.zeros_like(changed)
        cut[..., :-1] = (starts != before)[..., 1:]
        touched = torch.empty_like(changed)
        inside = torch.zeros_like(changed[..., 0])
        for position in range(changed.shape[-1]):
            inside = changed[..., position] | (inside & ~starts[..., position])
            touched[..., position] = inside
        return keys, (touched | cut) & ends

    def _words(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Key of each word of [..., W] at its last token, and which tokens are the last of a word."""
        own = self.own[tokens]
        if self.shift is None or self.continues is None:
            return own, torch.ones_like(tokens, dtype=torch.bool)
        goes_on, shift = self.continues[tokens], self.shift[tokens]
        key = torch.zeros_like(own[..., 0])
        keys = torch.empty_like(own)
        for position in range(tokens.shape[-1]):
            before = torch.where(goes_on[..., position], key * shift[..., position], 0)
            key = before + own[..., position]
            keys[..., position] = key
        ends = torch.ones_like(goes_on)
        ends[..., :-1] = ~goes_on[..., 1:]
        return keys, ends


def member(values: Tensor, known: Tensor) -> Tensor:
    """Which values [T, n] are among the sorted `known` [T, k] of the same row, bool [T, n]."""
    place = torch.searchsorted(known, values).clamp(max=known.shape[1] - 1)
    return known.gather(1, place) == values


def _key(text: str) -> int:
    key = 0
    for character in text:
        key = (key * _BASE + ord(character) + 1) % _MODULUS
    return key


def _signed(number: int) -> int:
    """The 64 bits of a number as torch reads them."""
    return number - _MODULUS if number >= _MODULUS // 2 else number


def _flags(size: int, ids: Sequence[int]) -> Tensor:
    flags = torch.zeros(size, dtype=torch.bool)
    flags[list(ids)] = True
    return flags
