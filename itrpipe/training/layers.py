"""Where the parameters of a network of layers stand: how far below its head."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from itrpipe.errors import UsageError
from itrpipe.training.encode import AnyMatcher


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
