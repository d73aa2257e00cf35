"""Training a part of a model: encoders that are frozen, and low-rank adapters (LoRA) in encoders that are not.

An adapted linear layer computes W x + (alpha / r) B A x, with the pretrained W [out, in] as it is, and A [r, in] and
B [out, r] trained; B is zero at the start. When training has ended, (alpha / r) B A is added to W, and the model is a
plain one again, which needs no peft.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from itrpipe.errors import UsageError
from itrpipe.training.encode import AnyMatcher
from itrpipe.training.settings import LORA, NOTHING, TrainSettings

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
