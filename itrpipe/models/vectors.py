"""Precision of vectors, and means over those that are real."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(vectors: Tensor) -> Tensor:
    """The vectors in single precision, or in double where they are."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def first_places(vectors: Tensor, counts: Tensor | None) -> Tensor:
    """bool [N, n], true at the first so many [N] of vectors [N, n, ...], which are real; None stands for all."""
    places = torch.arange(vectors.shape[1], device=vectors.device)
    return (places < (vectors.shape[1] if counts is None else counts[:, None])).expand(len(vectors), -1)


def mean_of_first(vectors: Tensor, counts: Tensor | None) -> Tensor:
    """Means [N, D] over the first so many [N] of vectors [N, n, D], or over all of them; the others are padding."""
    if counts is None:
        return vectors.mean(dim=1)
    return vectors.masked_fill(~first_places(vectors, counts)[..., None], 0.0).sum(dim=1) / counts[:, None]
