"""The optimisers of the papers, by the names that `optimizer` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from itrpipe.training.encode import AnyMatcher
from itrpipe.training.layers import depths


class UniterAdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay, in the order of the released code of UNITER.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g²
        p <- p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)
        p <- p - lr weight_decay p

    It differs from `torch.optim.AdamW` in two ways: eps is added to sqrt(v) before and not after the correction of its
    bias, and the decay is taken of the weights that Adam has moved already.

    Args:
        parameters: tensors, or groups of them.
        lr: learning rate.
        betas: b1 and b2.
        eps: keeps the division finite.
        weight_decay: share of a weight, times the learning rate, that goes at each step.

    Source: UNITER and TAGS-DC, released code.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Moves every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}
            for weights in group["params"]:
                if weights.grad is not None:
                    by_step.setdefault(self._count(weights), []).append(weights)
            for step, members in by_step.items():
                self._move(group, members, step)
        return loss

    def _count(self, weights: Tensor) -> int:
        """Which step of this parameter comes now, from 1; others may have had gradients before it."""
        state = self.state[weights]
        if not state:
            state["step"] = torch.zeros(())  # on the CPU, so that reading it waits for nothing
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        state["step"] += 1
        return int(state["step"])

    def _move(self, group: dict[str, Any], members: list[Tensor], step: int) -> None:
        (b1, b2), rate = group["betas"], group["lr"]
        gradients = [weights.grad for weights in members if weights.grad is not None]
        means, squares = ([self.state[weights][name] for weights in members] for name in ("exp_avg", "exp_avg_sq"))
        at_once: Any = torch  # the type stubs leave these functions out
        at_once._foreach_lerp_(means, gradients, 1.0 - b1)
        at_once._foreach_mul_(squares, b2)
        at_once._foreach_addcmul_(squares, gradients, gradients, 1.0 - b2)
        divisors = at_once._foreach_sqrt(squares)
        at_once._foreach_add_(divisors, group["eps"])
        at_once._foreach_addcdiv_(members, means, divisors, -rate * (1.0 - b2**step) ** 0.5 / (1.0 - b1**step))
        if group["weight_decay"]:
            at_once._foreach_mul_(members, 1.0 - rate * group["weight_decay"])


def _adam(trained: Trained, rate: float, _: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained.groups(decaying=False), lr=rate, fused=True)


def _adamw(trained: Trained, rate: float, decay: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.groups(decaying=True), lr=rate, weight_decay=decay, fused=True, **options)


def _adamw_uniter(trained: Trained, rate: float, decay: float) -> torch.optim.Optimizer:
    return UniterAdamW(trained.groups(decaying=True), rate, weight_decay=decay)


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
    "adamw-uniter": _adamw_uniter,
}
"""Name -> makes the optimiser of what is trained, given a learning rate and a weight decay.

Source of the moments: CLIP, Table 18, and SigLIP, section on stabilising large batches.
"""
