"""Where training first met a number that is not finite.

Everything is kept on the device, so that no step waits for it; `trouble` is asked where running sums are collected.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class FirstNonFinite:
    """Remembers the first step at which each loss was NaN or infinite, and the first update with such a gradient.

    Args:
        modules: whose gradients are looked at.
    """

    def __init__(self, *modules: nn.Module) -> None:
        named = itertools.chain.from_iterable(module.named_parameters() for module in modules)
        self._parameters = [(name, each) for name, each in named if each.requires_grad]
        self._device = self._parameters[0][1].device
        self._never = torch.tensor(math.inf, device=self._device)
        self._losses: dict[str, Tensor] = {}
        self._update, self._norms = self._never, torch.zeros(len(self._parameters), device=self._device)

    def see_losses(self, losses: Mapping[str, Tensor], step: int) -> None:
        """Looks at the losses of a step of the epoch, counted from 1."""
        for name, loss in losses.items():
            found = torch.where(loss.detach().isfinite(), math.inf, float(step)).to(self._device)
            self._losses[name] = self._losses.get(name, self._never).minimum(found)

    def clip(self, most: float, step: int) -> Tensor:
        """Scales the gradients to a global norm of `most` at most; returns the norm that they had, as a scalar."""
        none = self._never.new_zeros(())
        gradients = [each.grad for _, each in self._parameters]
        norms = torch.stack([none if each is None else torch.linalg.vector_norm(each) for each in gradients])
        total = torch.linalg.vector_norm(norms)
        nn.utils.clip_grads_with_norm_((each for _, each in self._parameters), most, total)
        first = self._update.isinf() & ~total.isfinite()
        self._norms = torch.where(first, norms, self._norms)
        self._update = torch.where(first, float(step), self._update)
        return total

    def trouble(self) -> str:
        """What was not finite first, for an error message; empty where everything was finite."""
        found = {name: first.item() for name, first in self._losses.items() if first.isfinite()}
        told = [f"loss_{name} first at step {found[name]:.0f}" for name in sorted(found, key=found.__getitem__)]
        if self._update.isfinite():
            row = int(self._norms.isfinite().logical_not().nonzero()[0]) if not self._norms.isfinite().all() else -1
            where = f"the gradient of {self._parameters[row][0]}" if row >= 0 else "the norm of the gradient"
            told.append(f"{where} at step {self._update.item():.0f}")
        return ", ".join(told)
