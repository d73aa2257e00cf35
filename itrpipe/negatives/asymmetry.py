"""Captions that say more, less or something else than an image shows, made from the captions of a training batch.

Something else (Asymmetry-I, negatives): noise on the states of words, between the text encoder and what compares them
with images. More (Asymmetry-II, positives): two captions of an image joined. Less (Asymmetry-III, positives): the first
half of a caption. A method that compares words without regard to their order, as AsCL does, cannot tell shuffled states
from the original ones: its scores are the same, and the negative is none. `shuffle_tokens` shuffles what the encoder
reads instead, which gives other states.

All captions of a batch are made at once, on states by a `torch.Generator`, on token ids by a `numpy` one.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-B. Deviation, rates, and which half is kept are in the code of the authors' later method ACF-R
only; there one row, one column and one kind of noise are drawn for a whole batch, here for each caption.

Shapes: T captions, W tokens or words, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DEVIATION, DROP_RATE = 1.0, 0.5


def gaussian(states: Tensor, lengths: Tensor, generator: torch.Generator, deviation: float = DEVIATION) -> Tensor:
    """States [T, W, D] with normal noise of this standard deviation added to every element.

    Args:
        states: [T, W, D].
        lengths: [T] words per caption; here and in the other kinds of noise what is past them may hold anything.
        generator: of random numbers, on any device.
        deviation: of the noise, in units of the states.
    """
    noise = torch.randn(states.shape, generator=generator, device=generator.device)
    return states + deviation * noise.to(states)


def shuffle(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with the words of each caption in a random order; padding stays where it is."""
    keys = _uniform(states.shape[:2], states, generator)
    places = torch.arange(states.shape[1], device=states.device)
    order = torch.where(places < lengths[:, None], keys, 1.0 + places).argsort(dim=1)
    return states.gather(1, order[..., None].expand_as(states))


def cut_token(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with one random word of each caption zero."""
    word = (_uniform((len(states),), states, generator) * lengths).long().minimum(lengths - 1)
    places = torch.arange(states.shape[1], device=states.device)
    return states.masked_fill((places == word[:, None])[..., None], 0.0)


def cut_feature(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with one random element of all words of each caption zero."""
    width = states.shape[2]
    column = (_uniform((len(states),), states, generator) * width).long().clamp(max=width - 1)
    return states.masked_fill((torch.arange(width, device=states.device) == column[:, None])[:, None], 0.0)


def cutoff(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Each caption with one word or one feature zero, as probably the one as the other."""
    words = _uniform((len(states), 1, 1), states, generator) < 0.5
    return torch.where(words, cut_token(states, lengths, generator), cut_feature(states, lengths, generator))


def dropout(states: Tensor, lengths: Tensor, generator: torch.Generator, rate: float = DROP_RATE) -> Tensor:
    """States [T, W, D] with elements zero at this rate, the others divided by one minus it; in any mode of a model."""
    kept = _uniform(states.shape, states, generator) >= rate
    return torch.where(kept, states / (1.0 - rate), 0.0)


Noise = Callable[[Tensor, Tensor, torch.Generator], Tensor]

NOISES: dict[str, Noise] = {"gaussian": gaussian, "shuffle": shuffle, "cutoff": cutoff, "dropout": dropout}
"""Name -> noise on states [T, W, D] of captions with lengths [T]."""


def add_noise(states: Tensor, lengths: Tensor, kinds: Sequence[str], generator: torch.Generator) -> Tensor:
    """States [T, W, D] with noise of its own kind on each caption.

    Args:
        states, lengths, generator: see `gaussian`.
        kinds: T names of `NOISES`; others leave a caption as it is, for what is done before the encoder.
    """
    for name in sorted(NOISES.keys() & set(kinds)):
        rows = torch.tensor([kind == name for kind in kinds], device=states.device).nonzero()[:, 0]
        states = states.index_copy(0, rows, NOISES[name](states[rows], lengths[rows], generator))
    return states


class Tokens(NamedTuple):
    """Captions as token ids, usually from a start to an end token.

    Attributes:
        tokens: int [T, W]; what is past the length is 0.
        lengths: int [T], at least what `ends` adds up to, which they include.
        ends: how many tokens stand before the words of every caption and how many behind; SigLIP's have no start.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    ends: tuple[int, int] = (1, 1)


def shuffle_tokens(captions: Tokens, rng: np.random.Generator) -> Tokens:
    """Captions from a start to an end token with what is between these in a random order."""
    places = np.arange(captions.tokens.shape[1])
    inside = (places > 0) & (places < captions.lengths[:, None] - 1)
    keys = np.where(inside, rng.random(captions.tokens.shape), np.where(places > 0, 1.0 + places, -1.0))
    return captions._replace(tokens=np.take_along_axis(captions.tokens, np.argsort(keys, axis=1), axis=1))


def joined(first: Tokens, second: Tokens, max_tokens: int) -> Tokens:
    """Captions of the first with those of the second behind them (Asymmetry-II).

    Args:
        first, second: T captions each, with the same ends.
        max_tokens: longest caption that may result, start and end included; words past it are left out.
    """
    before, behind = first.ends
    inside = first.lengths.astype(np.int64) - behind  # start and words of the first
    lengths = np.minimum(inside + second.lengths - before, max_tokens)
    places = np.arange(lengths.max(initial=0))
    of_first = _taken(first.tokens, places)
    of_second = _taken(second.tokens, places - inside[:, None] + before)
    return _ended(np.where(places < inside[:, None], of_first, of_second), lengths, first)


def shortened(captions: Tokens) -> Tokens:
    """The first half of the tokens between start and end, rounded down, but at least one (Asymmetry-III).

    A caption without any stays as it is. Of pieces of words, half the pieces are kept.
    """
    around = sum(captions.ends)
    inside = captions.lengths - around
    lengths = np.minimum(np.maximum(inside // 2, 1), inside) + around
    return _ended(_taken(captions.tokens, np.arange(lengths.max(initial=0))), lengths, captions)


def either(choose_first: np.ndarray, first: Tokens, second: Tokens) -> Tokens:
    """Captions of the first where `choose_first` bool [T], else of the second; both have the same ends."""
    width = max(first.tokens.shape[1], second.tokens.shape[1])
    wide = [np.pad(each.tokens, ((0, 0), (0, width - each.tokens.shape[1]))) for each in (first, second)]
    lengths = np.where(choose_first, first.lengths, second.lengths)
    return Tokens(np.where(choose_first[:, None], *wide)[:, : lengths.max(initial=0)], lengths, first.ends)


class CaptionPairs:
    """Draws two captions of an image.

    Args:
        caption_image: [T] row of the image that each caption describes.
    """

    def __init__(self, caption_image: np.ndarray) -> None:
        self._ordered = np.argsort(caption_image, kind="stable")
        self._counts = np.bincount(caption_image)
        self._starts = np.cumsum(self._counts) - self._counts

    def draw(self, images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows of two different captions, [B] each, of the given images [B], all pairs being equally probable.

        An image with one caption gives it twice.
        """
        counts, starts = self._counts[images], self._starts[images]
        first = rng.integers(counts)
        other = rng.integers(np.maximum(counts - 1, 1))
        second = np.minimum(other + (other >= first), counts - 1)
        return self._ordered[starts + first], self._ordered[starts + second]


def _uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers in 0..1 in single precision, drawn where the generator is, on the device of `like`."""
    return torch.rand(*shape, generator=generator, device=generator.device).to(like.device)


def _taken(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Tokens [T, W] at places [n] or [T, n]; those outside are anything."""
    places = np.broadcast_to(places, (len(tokens), places.shape[-1]))
    return np.take_along_axis(tokens, np.clip(places, 0, tokens.shape[1] - 1), axis=1)


def _ended(tokens: np.ndarray, lengths: np.ndarray, like: Tokens) -> Tokens:
    """Tokens [T, W] of these lengths, with the end tokens of other captions at their ends and zeros behind."""
    places, end = np.arange(tokens.shape[1]), lengths[:, None]
    ends = _taken(like.tokens, places - end + like.lengths.astype(np.int64)[:, None])
    kept = np.where(places < end - like.ends[1], tokens, ends)
    return Tokens(np.where(places < end, kept, 0), lengths, like.ends)
