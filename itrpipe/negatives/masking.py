"""Masked copies of captions, in which a masked language model writes something else: phrases as wholes, or words.

A caption comes with candidates, sets of positions that are masked together: the objects, attributes and relations of
its scene graph, or single positions (`single_positions`), which is the usual masking of words. Each of K copies masks a
random choice of them, about 15 % of the words, and at least one.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, section 2.1.1. That a position which lies in several candidates counts less, that
some labelled words are not masked, and that no copy is left unmasked is in the released code only.

Shapes: T captions, P candidates, W positions of a caption, K copies of it, V token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNLABELLED = -1
"""Label of a position that nothing is written at."""
MASK_RATE = 0.15
_MASKED, _NOT_RANDOM = 0.8, 0.9


@dataclass(frozen=True)
class MaskTokens:
    """What stands at labelled positions.

    Attributes:
        mask_id: token id of `[MASK]`.
        random_ids: first token id of ordinary words, and one more than the last.
        noise: put a random word at 10 % of them and leave 10 % as they are; otherwise all are masked.
    """

    mask_id: int
    random_ids: tuple[int, int]
    noise: bool = True


@dataclass(frozen=True)
class MaskedCaptions:
    """K masked copies of T captions.

    Attributes:
        tokens: int64 [T, K, W].
        labels: int64 [T, K, W], the caption's own token at labelled positions, `UNLABELLED` elsewhere.
    """

    tokens: np.ndarray
    labels: np.ndarray


def single_positions(maskable: np.ndarray) -> np.ndarray:
    """Every position as a candidate of its own, bool [T, W, W]; those that are not `maskable` [T, W] have no member."""
    return np.eye(maskable.shape[1], dtype=bool) & maskable[:, None]


def with_single_positions(candidates: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Candidates that lie within the maskable positions, and single positions for captions that have none.

    Args:
        candidates: bool [T, P, W].
        maskable: bool [T, W], positions of words: no start, no end, no padding.

    Returns:
        bool [T, P', W]; P' is P, or P + W where some caption has no candidate.
    """
    candidates = candidates & maskable[:, None]
    bare = ~np.any(candidates, axis=(1, 2))
    if not bare.any():
        return candidates
    return np.concatenate([candidates, single_positions(maskable & bare[:, None])], axis=1)


def over_pieces(candidates: np.ndarray, word_of_piece: np.ndarray) -> np.ndarray:
    """Candidates of words as candidates of the pieces that a tokenizer cuts words into; a word is masked as a whole.

    Args:
        candidates: bool [T, P, W], of words.
        word_of_piece: int [T, n], word that each piece is part of; -1 for start, end and padding.

    Returns:
        bool [T, P, n].
    """
    if not candidates.shape[2]:
        return np.zeros((*candidates.shape[:2], word_of_piece.shape[1]), dtype=bool)
    inside = np.broadcast_to(word_of_piece[:, None], (*candidates.shape[:2], word_of_piece.shape[1]))
    return np.take_along_axis(candidates, np.maximum(inside, 0), axis=2) & (inside >= 0)


def selection_rates(candidates: np.ndarray, rate: float = MASK_RATE) -> np.ndarray:
    """How probable it is that a candidate is masked.

    Args:
        candidates: bool [T, P, W].
        rate: share of the words to mask, 0..1.

    Returns:
        float64 [T, P]: the mean over its positions of rate / (number of candidates with this position); 0 for a
        candidate without positions.
    """
    shared = rate / np.maximum(candidates.sum(axis=1), 1)  # [T, W]
    sizes = candidates.sum(axis=2)
    return np.einsum("tpw,tw->tp", candidates, shared) / np.maximum(sizes, 1)


def mask_captions(
    tokens: np.ndarray,
    candidates: np.ndarray,
    copies: int,
    words: MaskTokens,
    rng: np.random.Generator,
    rate: float = MASK_RATE,
) -> MaskedCaptions:
    """Masks every caption several times, each time at random.

    A candidate is chosen with its rate; where none is, one of them is, all being equally probable. A caption without
    any candidate comes back unchanged and unlabelled.

    Args:
        tokens: int [T, W].
        candidates: bool [T, P, W], see `with_single_positions`.
        copies: K.
        words: what stands at labelled positions.
        rng: source of randomness.
        rate: share of the words to mask, 0..1.
    """
    chosen = _choose(candidates, selection_rates(candidates, rate), copies, rng)
    # [T, K, P] x [T, P, W]
    labelled = np.matmul(chosen.astype(np.float32), candidates.astype(np.float32)) > 0
    own = np.broadcast_to(tokens[:, None], labelled.shape).astype(np.int64)
    shown = np.where(labelled, _shown(own, words, rng), own)
    return MaskedCaptions(shown, np.where(labelled, own, UNLABELLED))


def _choose(candidates: np.ndarray, rates: np.ndarray, copies: int, rng: np.random.Generator) -> np.ndarray:
    """Chosen candidates, bool [T, K, P]."""
    shape = (len(rates), copies, rates.shape[1])
    chosen = rng.random(shape) < rates[:, None]
    # The first of a random order is the one with the largest of independent keys.
    usable = np.any(candidates, axis=2)[:, None]
    keys = np.where(usable, rng.random(shape), -1.0)
    first = (keys == keys.max(axis=2, keepdims=True, initial=-1.0)) & usable
    return np.where(chosen.any(axis=2, keepdims=True), chosen, first)


def _shown(own: np.ndarray, words: MaskTokens, rng: np.random.Generator) -> np.ndarray:
    """What would stand at every position if it was labelled."""
    if not words.noise:
        return np.full_like(own, words.mask_id)
    lot = rng.random(own.shape)
    other = rng.integers(*words.random_ids, size=own.shape)
    return np.where(lot < _MASKED, words.mask_id, np.where(lot < _NOT_RANDOM, other, own))
