"""What of a model is trained, and how it moves: adapters, optimisers, learning rates, norms and averages of weights.

An adapted linear layer computes W x + (alpha / r) B A x, with the pretrained W [out, in] as it is, and A [r, in] and
B [out, r] trained; B is zero at the start. When training has ended, (alpha / r) B A is added to W, and the model is a
plain one again, which needs no peft.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from itrpipe.errors import UsageError
from itrpipe.methods.base import Batch
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.settings import (
    EMA,
    LORA,
    NO_AVERAGE,
    NOTHING,
    PLATEAU,
    WISE_FT,
    LoopSettings,
    TrainSettings,
    parsed_average,
)

QUERIES_AND_VALUES = frozenset(
    ("q_proj", "v_proj", "query", "value", "query_proj", "value_proj", "q_lin", "v_lin", "q", "v", "Wqkv")
)
"""What networks of transformers call the layers that make queries and values. Source of the choice: LoRA §4.2."""


def limit_training(model: AnyMatcher, settings: TrainSettings) -> None:
    """Leaves only that of a model to be trained which the settings say.

    Args:
        model: with the weights that it starts from; is changed.
        settings: `freeze`, `adapter` and what belongs to it.

    Raises:
        UsageError: an encoder cannot be adapted so.
    """
    if settings.freeze != NOTHING:
        model.freeze(settings.freeze)
    if settings.adapter == LORA:
        _add_lora(model, settings)


def merge_adapters(model: AnyMatcher) -> None:
    """Adds what adapters have learned to the weights that they adapt, and removes them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    for encoder in model.encoders().values():
        encoder.__dict__.pop("peft_config", None)


def trained_weights(model: nn.Module) -> tuple[int, int]:
    """Numbers that are trained, and all."""
    sizes = [(each.numel(), each.requires_grad) for each in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def goes_in(name: str) -> bool:
    """Whether a parameter of this name is the factor A of an adapter."""
    return ".lora_A." in name


def _add_lora(model: AnyMatcher, settings: TrainSettings) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    encoders = {name: each for name, each in model.encoders().items() if name not in model.frozen}
    linear = {name: _linear_layers(each) for name, each in encoders.items()}
    _refuse_unknown(settings.lora_targets, sorted({_own(layer) for each in linear.values() for layer in each}))
    for name, encoder in encoders.items():
        chosen = [each for each in linear[name] if _own(each) in (settings.lora_targets or QUERIES_AND_VALUES)]
        if not chosen:
            known = ", ".join(sorted({_own(each) for each in linear[name]})) or "none at all"
            raise UsageError(
                f"adapter = lora finds no layer to adapt in the {name} encoder: its linear layers are {known}; name "
                f"some with --set train.lora_targets=[…], or give --set train.freeze={name}"
            )
        config: Any = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,  # pyright: ignore[reportArgumentType]
            lora_dropout=settings.lora_dropout,
            target_modules=chosen,
        )
        inject_adapter_in_model(config, encoder)


def _refuse_unknown(targets: Sequence[str], known: Sequence[str]) -> None:
    if missing := [name for name in targets if name not in known]:
        raise UsageError(
            f"lora_targets names {', '.join(missing)}, and no encoder that is trained has a linear layer of that name; "
            f"known: {', '.join(known)}"
        )


def _linear_layers(encoder: nn.Module) -> list[str]:
    """Places of the linear layers, without those in torch's own attention, which reads weights and calls no layer."""
    unread = tuple(f"{name}." for name, part in encoder.named_modules() if isinstance(part, nn.MultiheadAttention))
    named = (name for name, part in encoder.named_modules() if isinstance(part, nn.Linear))
    return [name for name in named if not name.startswith(unread)]


def _own(place: str) -> str:
    return place.rpartition(".")[2]


def depths(model: AnyMatcher) -> dict[int, int]:
    """How many layers of an encoder lie between each of its parameters and its head.

    Of an encoder of L layers, what follows them is the head and has depth 0, as has all that belongs to no encoder. The
    last layer has depth 1, the first L, and the embeddings, which come before, L + 1.

    Returns:
        `id` of a parameter -> its depth.

    Raises:
        UsageError: an encoder has no list of layers, or the model has no encoders.

    Source: Bao et al. (BEiT), ICLR 2022, released code.
    """
    encoders = model.encoders()
    if not encoders:
        raise UsageError(f"layer_decay needs encoders with layers, and {type(model).__name__} has none; leave it out")
    return {id(each): depth for name, part in encoders.items() for each, depth in _depths(name, part)}


def _depths(name: str, encoder: nn.Module) -> Iterator[tuple[nn.Parameter, int]]:
    """Parameters come in the order in which a network defines its parts: embeddings, layers, head."""
    lists = ((f"{place}.", part) for place, part in encoder.named_modules() if isinstance(part, nn.ModuleList))
    place, layers = next(lists, ("", None))
    if layers is None:
        raise UsageError(f"layer_decay needs layers, and the {name} encoder has no list of them; leave it out")
    depth = len(layers) + 1
    for key, each in encoder.named_parameters():
        if key.startswith(place):
            depth = len(layers) - int(key.removeprefix(place).partition(".")[0])
            yield each, depth
        else:
            yield each, depth if depth > len(layers) else 0


def _adamw(trained: Trained, rate: float, decay: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.groups(decaying=True), lr=rate, weight_decay=decay, fused=True, **options)


class Trained(nn.Module):
    """What is trained; as a module it gives the losses of a batch.

    Args:
        model: the model.
        method: of its losses; None where these are not asked for.
        further: what the method keeps between steps; None for nothing. Its parameters are never decayed.
        layer_decay: of two neighbouring layers of an encoder, the rate of the lower one as a share of the upper one's.
    """

    def __init__(
        self, model: AnyMatcher, method: Any = None, further: nn.Module | None = None, layer_decay: float = 1.0
    ) -> None:
        super().__init__()
        self.model, self.further, self._method, self.layer_decay = model, further, method, layer_decay

    def forward(self, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Named loss terms of a batch of an epoch (0-based)."""
        return self._method.losses(self.model, batch, epoch)

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
        for each in filter(lambda each: each.requires_grad, self.parameters()):
            held.setdefault((below.get(id(each), 0), decaying and id(each) not in decayed), []).append(each)
        return [
            {"params": held[depth, apart], "scale": self.layer_decay**depth, **({"weight_decay": 0.0} if apart else {})}
            for depth, apart in sorted(held)
        ]


OPTIMIZERS: dict[str, Callable[[Trained, float, float], torch.optim.Optimizer]] = {
    "adam": lambda trained, rate, _: torch.optim.Adam(trained.groups(decaying=False), lr=rate, fused=True),
    "adamw": _adamw,
    "adamw-clip": partial(_adamw, betas=(0.9, 0.98), eps=1e-6),
    "adamw-siglip": partial(_adamw, betas=(0.9, 0.95)),
}
"""Name -> makes the optimiser of what is trained, given a learning rate and a weight decay.

Source of the moments: CLIP, Table 18, and SigLIP, section on stabilising large batches.
"""


def warmed_up(rate: float, update: int, warmup: int) -> float:
    """Learning rate of an update (0-based), which rises linearly over the first ones.

    Source: Goyal et al., 2017, gradual warm-up.
    """
    return rate * min(1.0, (update + 1) / max(1, warmup))


def warmup_and_linear_decay(base: float, update: int, *, warmup: int, total: int) -> float:
    """Learning rate of an update: rising linearly to `base` over the first ones, then falling linearly to 0.

    Args:
        base: highest rate, reached at update `warmup`.
        update: 0-based.
        warmup: updates until then.
        total: updates of the whole training; the rate would be 0 at the next one.

    Source: Devlin et al. (BERT), NAACL 2019, appendix; used by SSAMT.
    """
    if update < warmup:
        return base * (update + 1) / warmup
    return base * max(0.0, (total - update) / max(1, total - warmup))


def warmup_and_cosine_decay(base: float, update: int, *, warmup: int, total: int) -> float:
    """Learning rate of an update: rising linearly to `base`, then falling to 0 along half a cosine.

    Arguments as in `warmup_and_linear_decay`.

    Source: Loshchilov and Hutter, "SGDR", 2017; Radford et al., "CLIP", 2021.
    """
    if update < warmup:
        return warmed_up(base, update, warmup)
    return base * (1 + math.cos(math.pi * min(1.0, (update - warmup) / max(1, total - warmup)))) / 2


def warmup_and_decay_to_floor(base: float, update: int, *, warmup: int, total: int, floor: float = 1e-8) -> float:
    """Learning rate of an update, as UNITER counts: the decay ends at the last update, and never below `floor`.

    Args:
        base: highest rate, reached at update `warmup`, counted from 1.
        update: 0-based.
        warmup: updates until then.
        total: updates of the whole training.
        floor: lowest rate.

    Source: UNITER and TAGS-DC, released code.
    """
    step = update + 1
    if step < warmup:
        return base * step / warmup
    return max(floor, base * (total - step) / max(1, total - warmup))


_BY_UPDATES = {
    "linear": warmup_and_linear_decay,
    "cosine": warmup_and_cosine_decay,
    "linear-uniter": warmup_and_decay_to_floor,
}
"""Schedules that change the rate at every update, by the names that `schedule` takes."""
_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def learning_rate(settings: LoopSettings, epoch: int, update: int, total: int, plateaus: int) -> float:
    """Learning rate of an update, by the schedule that the settings name.

    Under `step` it is multiplied by `decay_factor` after each `decay_every` epochs, as in SCAN, BFAN, VSRN and VSE++,
    or after each of `decay_at`, as in FNE's code; under `plateau`, at each plateau.

    Args:
        settings: of the training; an update has `batch_size` · `accumulate` pairs.
        epoch, update: 0-based.
        total: updates of the whole training.
        plateaus: how often validation has been flat so far.

    Source: of the scaling by pairs, linear, of SGD: Goyal et al., "Accurate, Large Minibatch SGD", 2017, which asks for
        a warm-up beside it. Square root, of Adam: Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
        Algorithms", 2022.
    """
    pairs, warmup = settings.batch_size * settings.accumulate, settings.warmup_updates
    scale = (pairs / settings.base_batch_size) ** _POWERS[settings.learning_rate_scaling]
    base = settings.learning_rate * scale
    if settings.schedule in _BY_UPDATES:
        return _BY_UPDATES[settings.schedule](base, update, warmup=warmup, total=total)
    if settings.schedule == PLATEAU:
        decays = plateaus
    elif settings.decay_at:
        decays = sum(epoch >= end for end in settings.decay_at)
    else:
        decays = epoch // settings.decay_every
    return warmed_up(base * settings.decay_factor**decays, update, warmup)


class FirstNonFinite:
    """Remembers the first step at which each loss was NaN or infinite, and the first update with such a gradient.

    Args:
        trained: whose gradients are looked at.
    """

    def __init__(self, trained: Trained) -> None:
        named = ((name.partition(".")[2], each) for name, each in trained.named_parameters())
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
        known = [none if each is None else each for each in gradients]
        norms = torch.stack(torch._foreach_norm(known))  # pyright: ignore[reportPrivateImportUsage]
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


class WeightAverage(nn.Module):
    """What is validated and saved in the place of the weights: w, as the setting `average` has it.

    `ema:d` follows the weights over all updates: a <- d a + (1 - d) w, from the weights at the start. With adapters, it
    is the average of each of their two factors. `wise-ft:a` lies between the weights at the start and those that
    training has reached: (1 - a) w_0 + a w; w_0 is no part of the state, since a training that goes on begins with the
    same. `none` changes nothing.

    Args:
        average: the setting.
        model: on its device before its first update; which of its weights are trained is known.

    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; with an exponential
        window, Dong et al., "CLIP Itself is a Strong Fine-tuner", 2022. Wortsman et al., "Robust fine-tuning of
        zero-shot models" (WiSE-FT), CVPR 2022, Eq. 1.
    """

    def __init__(self, average: str, model: AnyMatcher) -> None:
        super().__init__()
        self._kind, self._number = parsed_average(average)
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        # An adapter adds B A, and B is zero at the start: a B A lies between, and takes A as it is.
        kept = {EMA: trained, WISE_FT: [named for named in trained if not goes_in(named[0])], NO_AVERAGE: []}
        # In a tuple, so that they are no part of this module and of its state.
        self._followed = tuple(each for _, each in kept[self._kind])
        for number, each in enumerate(self._followed):
            self.register_buffer(str(number), each.detach().clone(), persistent=self._kind == EMA)

    def follow(self) -> None:
        """Takes in the weights after an update."""
        if self._kind == EMA:
            get_ema_multi_avg_fn(self._number)(list(self.buffers()), self._followed, 0)

    @torch.no_grad()
    def values(self) -> list[Tensor]:
        """The averages, in the order of the weights."""
        if self._kind != WISE_FT:
            return list(self.buffers())
        pairs = zip(self.buffers(), self._followed, strict=True)
        return [torch.lerp(first, each.detach(), self._number) for first, each in pairs]

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
