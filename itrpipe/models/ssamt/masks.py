"""Who may look at whom in SSAMT's sequences.

The sequence of an image-caption pair is

    [ C^T | P phrase nodes | W words | C^I | K regions ]

and the intra encoders read its two halves. Three rules of the paper close edges; everything else stays open:

    1. regions are not visible to C^T
    2. phrases and words are not visible to C^I
    3. a phrase is not visible to words outside it, nor they to it

Rule 3 is printed for one direction; the purpose it is given, a node that stands for the words of its phrase, needs the
other one too. `strict` also closes C^T with C^I, through which C^T would read a summary of the image, and one phrase
with another. `none` closes nothing but padding.

Source: SSAMT (Fan et al., ICMR 2022), section on the masked attention.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MaskRule = Literal["paper", "strict", "none"]


def text_mask(phrase_tokens: Tensor, real: Tensor, rule: MaskRule) -> Tensor:
    """Edges inside captions.

    Args:
        phrase_tokens: bool [T, P, W], word w belongs to phrase p.
        real: bool [T, n] with n = 1 + P + W, positions that are no padding; the first is C^T.
        rule: see above.

    Returns:
        bool [T, n, n], row may look at column. Padding is seen by nothing but itself.
    """
    start = 1 + phrase_tokens.shape[1]
    allowed = real.new_ones(*real.shape, real.shape[1])
    if rule != "none":
        allowed[:, 1:start, start:] = phrase_tokens
        allowed[:, start:, 1:start] = phrase_tokens.transpose(1, 2)
    if rule == "strict":
        allowed[:, 1:start, 1:start] = False
    return _without_padding(allowed, real)


def image_mask(real: Tensor) -> Tensor:
    """Edges inside images, all of them.

    Args:
        real: bool [B, m] with m = 1 + K, positions that are no padding; the first is C^I.

    Returns:
        bool [B, m, m].
    """
    return _without_padding(real.new_ones(*real.shape, real.shape[1]), real)


def pair_mask(text: Tensor, real_text: Tensor, real_image: Tensor, rule: MaskRule) -> Tensor:
    """Edges of image-caption pairs.

    Args:
        text: bool [N, n, n] of `text_mask`.
        real_text: bool [N, n].
        real_image: bool [N, m].
        rule: see above.

    Returns:
        bool [N, n + m, n + m].
    """
    length = text.shape[1]
    real = torch.cat([real_text, real_image], dim=1)
    allowed = real[:, None].repeat(1, real.shape[1], 1)
    allowed[:, :length, :length] = text
    if rule != "none":
        allowed[:, 0, length + 1 :] = False  # 1: C^T sees no region
        allowed[:, length, 1:length] = False  # 2: C^I sees no phrase and no word
    if rule == "strict":
        allowed[:, 0, length] = allowed[:, length, 0] = False
    return _without_padding(allowed, real)


def _without_padding(allowed: Tensor, real: Tensor) -> Tensor:
    """Closes the columns of padding; every position sees itself, since a row without an open edge has no softmax."""
    itself = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    return (allowed & real[:, None]) | itself
