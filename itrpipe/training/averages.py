"""Averages of weights, which take the place of the weights in training where these are validated and saved.

Only what is trained is averaged. Buffers, such as the statistics of BatchNorm, are averages already and stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from itrpipe.training.adapters import goes_in
from itrpipe.training.encode import AnyMatcher
from itrpipe.training.settings import EMA, NO_AVERAGE, WISE_FT, parsed_average


class WeightAverage(nn.Module):
    """No average: weights are validated and saved as they are.

    Args:
        weights: what is averaged.
    """

    def __init__(self, weights: Sequence[nn.Parameter] = ()) -> None:
        super().__init__()
        # In a tuple, so that they are no part of this module and of its state.
        self._followed = tuple(weights)

    def follow(self) -> None:
        """Takes in the weights after an update."""

    def values(self) -> list[Tensor]:
        """The averages, in the order of the weights."""
        return []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the averages in the place of the weights, and these back at the end, to the bit."""
        raw = [each.data for each in self._followed]
        self._put(self.values())
        try:
            yield
        finally:
            self._put(raw)

    def _put(self, values: Sequence[Tensor]) -> None:
        for each, value in zip(self._followed, values, strict=True):
            each.data = value


class ExponentialAverage(WeightAverage):
    """Follows the weights over all updates: a <- d a + (1 - d) w, from the weights at the start.

    With adapters, it is the average of each of their two factors.

    Args:
        weights: w.
        decay: d, 0..1.

    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; with an exponential
        window, Dong et al., "CLIP Itself is a Strong Fine-tuner", 2022.
    """

    def __init__(self, weights: Sequence[nn.Parameter], decay: float) -> None:
        super().__init__(weights)
        self._decay = decay
        for number, each in enumerate(weights):
            self.register_buffer(str(number), each.detach().clone())

    @torch.no_grad()
    def follow(self) -> None:
        """Takes in the weights after an update."""
        at_once: Any = torch  # the type stubs leave this function out
        at_once._foreach_lerp_(self.values(), [each.detach() for each in self._followed], 1.0 - self._decay)

    def values(self) -> list[Tensor]:
        """The averages, in the order of the weights."""
        return list(self.buffers())


class Interpolation(WeightAverage):
    """Lies between the weights at the start and those that training has reached: (1 - a) w_0 + a w.

    The weights at the start are no part of the state: a training that goes on begins with the same ones.

    Args:
        weights: w, with their values at the start.
        share: a, 0..1.

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models" (WiSE-FT), CVPR 2022, Eq. 1.
    """

    def __init__(self, weights: Sequence[nn.Parameter], share: float) -> None:
        super().__init__(weights)
        self._share = share
        self._first = tuple(each.detach().clone() for each in weights)

    @torch.no_grad()
    def values(self) -> list[Tensor]:
        """The averages, in the order of the weights."""
        pairs = zip(self._first, self._followed, strict=True)
        return [torch.lerp(first, each.detach(), self._share) for first, each in pairs]


def weight_average(average: str, model: AnyMatcher) -> WeightAverage:
    """The average that a setting names, of a model on its device before its first update.

    Args:
        average: `none`, `ema:DECAY` or `wise-ft:SHARE`.
        model: which of its weights are trained is known.
    """
    kind, number = parsed_average(average)
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if kind == EMA:
        return ExponentialAverage([each for _, each in trained], number)
    if kind == WISE_FT:
        # An adapter adds B A, and B is zero at the start: a B A lies between, and takes A as it is.
        return Interpolation([each for name, each in trained if not goes_in(name)], number)
    assert kind == NO_AVERAGE
    return WeightAverage()
