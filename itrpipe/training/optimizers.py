"""Adapters, optimisers, learning rates and averages of weights: the part of a model that is trained, and its moves.

An adapted linear layer computes W x + (alpha / r) B A x, with the pretrained W [out, in] as it is, and A [r, in] and
B [out, r] trained; B is zero at the start. When training has ended, (alpha / r) B A is added to W, and the model is a
plain one again, which needs no peft.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn

from itrpipe.errors import UsageError
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import own_state
from itrpipe.training.settings import (
    EMA,
    NO_AVERAGE,
    NOTHING,
    WISE_FT,
    LoopSettings,
    TrainSettings,
    parsed_average,
)

QUERIES_AND_VALUES = frozenset(
    ("q_proj", "v_proj", "query", "value", "query_proj", "value_proj", "q_lin", "v_lin", "q", "v", "Wqkv")
)
"""Names that networks of transformers give the layers that make queries and values. Source of the choice: LoRA §4.2."""


def limit_training(model: AnyMatcher, settings: TrainSettings) -> None:
    """Leave only the part of a model to be trained that the settings name.

    Args:
        model: with the weights that it starts from; is changed.
        settings: `freeze`, `adapter` and the options of adapters.

    Raises:
        UsageError: an encoder cannot be adapted so.
    """
    for name in settings.frozen:
        model.freeze(name)
    if settings.adapter == NOTHING:
        return
    from peft import LoraConfig, inject_adapter_in_model

    layers_of = {}
    for name, encoder in model.encoders().items():
        if name not in model.frozen:
            layers_of[name] = _linear_layers(encoder)
    layer_names = set()
    for layers in layers_of.values():
        layer_names.update(layers.values())
    unknown = [name for name in settings.lora_targets if name not in layer_names]
    if unknown:
        raise UsageError(
            f"lora_targets names {', '.join(unknown)}, and no encoder that is trained has a linear layer of that name; "
            f"known: {', '.join(sorted(layer_names))}"
        )
    targets = settings.lora_targets or QUERIES_AND_VALUES
    adapted = set()
    for name, layers in layers_of.items():
        chosen = [layer for layer, layer_name in layers.items() if layer_name in targets]
        if not chosen:
            raise UsageError(
                f"adapter = lora finds no layer to adapt in the {name} encoder: its linear layers are "
                f"{', '.join(sorted(set(layers.values())))}; name some with --set train.lora_targets=[…], or give "
                f"--set train.freeze={name}"
            )
        adapted.update(chosen)
    outside_encoders = own_state(model)
    heads = []
    for name, weights in model.named_parameters():
        if name in outside_encoders and weights.requires_grad:
            heads.append(weights)
    config: Any = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=settings.lora_dropout,
        target_modules=[place for place, layer in model.named_modules() if layer in adapted],
    )
    inject_adapter_in_model(config, model)  # which leaves nothing but adapters to be trained
    for weights in heads:
        weights.requires_grad_(True)


def merge_adapters(model: AnyMatcher) -> None:
    """Add what adapters have learned to the weights that they adapt, and remove them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())


def _linear_layers(encoder: nn.Module) -> dict[nn.Module, str]:
    """Return the linear layers of an encoder, each with its own name.

    Those in torch's own attention are left out: it reads their weights and never calls them.
    """
    attentions = [name for name, part in encoder.named_modules() if isinstance(part, nn.MultiheadAttention)]
    unread = tuple(f"{name}." for name in attentions)
    layers = {}
    for name, part in encoder.named_modules():
        if isinstance(part, nn.Linear) and not name.startswith(unread):
            layers[part] = name.rpartition(".")[2]
    return layers


def depths(model: AnyMatcher) -> dict[int, int]:
    """Return the number of layers of an encoder between each of its parameters and its head.

    Of an encoder of L layers, the head, which follows them, has depth 0, as has all that belongs to no encoder. The
    last layer has depth 1, the first L, and the embeddings, which come before, L + 1.

    Returns:
        `id` of a parameter -> its depth.

    Raises:
        UsageError: an encoder has no list of layers.

    Source: Bao et al. (BEiT), ICLR 2022, released code.
    """
    depth_of = {}
    for name, encoder in model.encoders().items():
        lists = [place for place, part in encoder.named_modules() if isinstance(part, nn.ModuleList)]
        if not lists:
            raise UsageError(f"layer_decay needs layers, and the {name} encoder has no list of them; leave it out")
        first_list, *_ = lists
        prefix = f"{first_list}."
        count = len(encoder.get_submodule(first_list))  # pyright: ignore[reportArgumentType]
        # Parameters come in the order in which a network defines its parts: embeddings, layers, head.
        depth_outside = count + 1
        for key, weights in encoder.named_parameters():
            if key.startswith(prefix):
                layer = int(key.removeprefix(prefix).partition(".")[0])
                depth_of[id(weights)] = count - layer
                depth_outside = 0
            else:
                depth_of[id(weights)] = depth_outside
    return depth_of


def _undecorated(function: Any) -> Any:
    """Return a method of torch without the decorator that loads torch's compiler, which takes seconds."""
    return getattr(function, "__wrapped__", function)


class Adam(torch.optim.Adam):
    """Adam of torch, which does not load the compiler."""

    add_param_group = _undecorated(torch.optim.Adam.add_param_group)
    zero_grad = _undecorated(torch.optim.Adam.zero_grad)
    state_dict = _undecorated(torch.optim.Adam.state_dict)
    load_state_dict = _undecorated(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(_undecorated(torch.optim.Adam.step))


MOMENTS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw-clip": {"betas": (0.9, 0.98), "eps": 1e-6},
    "adamw-siglip": {"betas": (0.9, 0.95)},
}
"""Optimiser that decays weights -> its moments, where they are not those of Adam.

Source: CLIP, Table 18, and SigLIP, section on stabilising large batches.
"""


def optimizer_of(settings: LoopSettings, model: AnyMatcher, further: Iterable[nn.Parameter] = ()) -> Adam:
    """Return an optimiser of the trained weights, in groups by the `scale` of their rate, the highest first.

    A parameter with k layers between it and the head, its own among them, has the rate of the head times
    layer_decay^k. Heads and the parameters of the method have that of the schedule. Weights that do not decay have a
    group of their own.

    Args:
        settings: of the training.
        model: which of its weights are trained is known.
        further: parameters of the method, which are never decayed.

    Source: Clark et al. (ELECTRA), ICLR 2020; Bao et al. (BEiT), ICLR 2022, released code.
    """
    decays = settings.optimizer != "adam"
    depth_of = depths(model) if settings.layer_decay != 1.0 else {}
    spared = model.undecayed()
    decayed = {id(weights) for name, weights in model.named_parameters() if name not in spared}
    members = defaultdict(list)
    for weights in (*model.parameters(), *further):
        if weights.requires_grad:
            is_spared = decays and id(weights) not in decayed
            members[depth_of.get(id(weights), 0), is_spared].append(weights)
    groups = []
    for depth, is_spared in sorted(members):
        group = {"params": members[depth, is_spared], "scale": settings.layer_decay**depth}
        if is_spared:
            group["weight_decay"] = 0.0
        groups.append(group)
    options: dict[str, Any] = {}
    if decays:
        options = {"weight_decay": settings.weight_decay, "decoupled_weight_decay": True, **MOMENTS[settings.optimizer]}
    return Adam(groups, lr=settings.learning_rate, fused=True, **options)


def warmup_updates(settings: LoopSettings, total: int) -> int:
    """Return the number of updates, of so many in all, over which the learning rate rises."""
    if settings.warmup_updates < 1:
        return round(settings.warmup_updates * total)
    return round(settings.warmup_updates)


def learning_rate(settings: LoopSettings, epoch: int, update: int, total: int) -> float:
    """Return the learning rate of an update, by the schedule that the settings name.

    It rises linearly over the first `warmup_updates`, and reaches its height at the last of them. Then it falls, by
    `schedule`:

    - `linear`: linearly to 0, which would come one update after the last one.
    - `linear-uniter`: linearly too, but updates are counted from 1, so that the last update has the lowest rate, 1e-8.
    - `cosine`: to 0 along half a cosine.
    - `step`: by `decay_factor` after each `decay_every` epochs, as in SCAN, BFAN, VSRN and VSE++, or after each of
      `decay_at`, as in FNE's code.

    Args:
        settings: of the training; an update has `batch_size` · `accumulate` pairs.
        epoch, update: 0-based.
        total: updates of the whole training.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, of the warm-up and of the linear scaling by pairs, of
        SGD. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022, of the square root,
        of Adam. `linear`: Devlin et al. (BERT), NAACL 2019, appendix; used by SSAMT. `linear-uniter`: released code of
        UNITER and TAGS-DC. `cosine`: Loshchilov and Hutter, "SGDR", 2017; Radford et al., "CLIP", 2021.
    """
    power = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[settings.learning_rate_scaling]
    pairs = settings.batch_size * settings.accumulate
    highest = settings.learning_rate * (pairs / settings.base_batch_size) ** power
    warmup = warmup_updates(settings, total)
    share = min(1.0, (update + 1) / max(1, warmup))
    if settings.schedule == "step":
        decays = epoch // settings.decay_every
        if settings.decay_at:
            decays = sum(epoch >= end for end in settings.decay_at)
        return highest * settings.decay_factor**decays * share
    rate = highest * share
    lowest = 0.0
    if settings.schedule == "linear-uniter":
        update += 1
        lowest = 1e-8
    left = 1.0
    if update > warmup:
        left = max(0.0, (total - update) / (total - warmup))
    if settings.schedule == "cosine":
        return rate * (1 - math.cos(math.pi * left)) / 2
    return max(lowest, rate * left)


class WeightAverage(nn.Module):
    """The weights that are validated and saved in the place of those of training, w, as the setting `average` has it.

    `ema:d` follows the weights over all updates: a <- d a + (1 - d) w, from the weights at the start. With adapters, it
    is the average of each of their two factors. `wise-ft:a` lies between the weights at the start and those that
    training has reached: (1 - a) w_0 + a w; w_0 is no part of the state, since a training that goes on begins with the
    same. `none` changes nothing.

    An average of weights makes other vectors than the weights of training do, so that BatchNorm gets statistics of its
    own for it, as torch's `update_bn` has it.

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
        # In tuples, so that they are no part of this module and of its state.
        self._model = (model,)
        self._followed = ()
        self._norms = ()
        if self._kind == NO_AVERAGE:
            return
        followed = []
        for name, weights in model.named_parameters():
            # An adapter adds B A, and B is zero at the start: a B A lies between, with A as it is.
            stays = self._kind == WISE_FT and ".lora_A." in name
            if weights.requires_grad and not stays:
                followed.append(weights)
        self._followed = tuple(followed)
        model.train()  # what is frozen stays in evaluation mode
        norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        self._norms = tuple(norm for norm in norms if norm.training)
        for number, weights in enumerate(self._followed):
            self.register_buffer(str(number), weights.detach().clone(), persistent=self._kind == EMA)

    def follow(self) -> None:
        """Take in the weights after an update."""
        if self._kind == EMA:
            get_ema_multi_avg_fn(self._number)(list(self.buffers()), self._followed, 0)

    @contextmanager
    def applied(self, encode_batches: Callable[[], None]) -> Iterator[None]:
        """Put the averages in the place of the weights, and these back at the end, to the bit.

        Args:
            encode_batches: lets the model encode training batches, for the statistics of BatchNorm.
        """
        averages = list(self.buffers())
        if self._kind == WISE_FT:
            starts = averages
            averages = []
            for start, weights in zip(starts, self._followed, strict=True):
                averages.append(torch.lerp(start, weights.data, self._number))
        statistics = []
        for norm in self._norms:
            statistics += norm.buffers()
        replaced = [*self._followed, *statistics]
        before = [tensor.data for tensor in replaced]
        values = [*averages, *map(torch.clone, statistics)]
        for tensor, value in zip(replaced, values, strict=True):
            tensor.data = value
        try:
            if self._norms:  # BatchNorm gets the mean statistics of batches; all else is in evaluation mode
                (model,) = self._model
                model.eval()
                momenta = [norm.momentum for norm in self._norms]
                for norm in self._norms:
                    norm.reset_running_stats()
                    norm.momentum = None  # a mean over all batches instead of a moving one
                    norm.train()
                encode_batches()
                model.eval()
                for norm, momentum in zip(self._norms, momenta, strict=True):
                    norm.momentum = momentum
            yield
        finally:
            for tensor, value in zip(replaced, before, strict=True):
                tensor.data = value
