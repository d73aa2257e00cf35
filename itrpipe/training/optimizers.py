"""The optimisers of the papers, by the names that `optimizer` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from itrpipe.training.encode import AnyMatcher
from itrpipe.training.layers import depths


def _adam(trained: Trained, rate: float, _: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained.groups(decaying=False), lr=rate, fused=True)


def _adamw(trained: Trained, rate: float, decay: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.groups(decaying=True), lr=rate, weight_decay=decay, fused=True, **options)


@dataclass(frozen=True)
class Trained:
    """What is trained.

    Attributes:
        model: the model.
        further: what the method keeps between steps; None for nothing. Its parameters are never decayed.
        layer_decay: of two neighbouring layers of an encoder, the rate of the lower one as a share of the upper one's.
    """

    model: AnyMatcher
    further: nn.Module | None = None
    layer_decay: float = 1.0

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All of it."""
        return (self.model,) if self.further is None else (self.model, self.further)

    def parameters(self) -> list[nn.Parameter]:
        """Those that ask for a gradient."""
        return [each for module in self.modules for each in module.parameters() if each.requires_grad]

    def groups(self, *, decaying: bool) -> list[dict[str, Any]]:
        """The same by the `scale` of their rate, the highest first, and then those apart that decay leaves alone.

        A parameter with k layers between it and the head, its own among them, has the rate of the head times
        layer_decay^k. Heads and what the method keeps have that of the schedule.

        Args:
            decaying: whether the optimiser decays weights at all.

        Source: Clark et al. (ELECTRA), ICLR 2020; Bao et al. (BEiT), ICLR 2022, released code.
        """
        below = depths(self.model) if self.layer_decay != 1.0 else {}
        spared = self.model.undecayed()
        decayed = {id(each) for name, each in self.model.named_parameters() if name not in spared}
        held: dict[tuple[int, bool], list[nn.Parameter]] = {}
        for each in self.parameters():
            held.setdefault((below.get(id(each), 0), decaying and id(each) not in decayed), []).append(each)
        return [
            {"params": held[depth, apart], "scale": self.layer_decay**depth, **({"weight_decay": 0.0} if apart else {})}
            for depth, apart in sorted(held)
        ]


OPTIMIZERS: dict[str, Callable[[Trained, float, float], torch.optim.Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "adamw-clip": partial(_adamw, betas=(0.9, 0.98), eps=1e-6),
    "adamw-siglip": partial(_adamw, betas=(0.9, 0.95)),
}
"""Name -> makes the optimiser of what is trained, given a learning rate and a weight decay.

Source of the moments: CLIP, Table 18, and SigLIP, section on stabilising large batches.
"""
