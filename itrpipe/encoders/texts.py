"""Readers of captions: they prepare a network's inputs by its own tokenizer, and pool as its folder says.

Shapes: T captions, W tokens of a caption, D width of a vector.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from itrpipe.encoders.folders import read_config
from itrpipe.encoders.images import own_vector
from itrpipe.errors import DataError, UsageError
from itrpipe.storage.disk import reading, write_json

Pool = Literal["auto", "own", "mean", "mean-all", "cls", "last"]
PADDED_LENGTH = 30
"""Tokens that captions are padded to where padding counts. Source: FNE's released code, testing."""
MODULES, LIMITS = "modules.json", "sentence_bert_config.json"
"""Files of sentence-transformers: what follows the network, and how many tokens it reads."""
_POOLING = "1_Pooling"
_UNCHANGED = ("Transformer", "Normalize")
"""Modules of sentence-transformers that change nothing here, where vectors are compared by their angle."""
_POOLS: dict[str, Pool] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
"""Pooling of sentence-transformers -> ours."""
_OLDER = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Keys that poolings had before sentence-transformers 5.4 -> their names since."""
_UNLIMITED = 1 << 20
_SDPA, _WITHOUT_WAITING = "sdpa", "sdpa-without-waiting"


class Dense(nn.Module):
    """A layer behind the pooling, as sentence-transformers stores it.

    Args:
        config: content of its `config.json`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        name = config.get("activation_function", "Tanh").rpartition(".")[2]
        self.activation: nn.Module = getattr(nn, name)()

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [T, D'] of [T, D]."""
        return self.activation(self.linear(vectors))


class TextReader(nn.Module):
    """Pools what a network makes of captions.

    Args:
        tokenizer: of transformers; None where captions are words of our own vocabulary.
        pool: `own`, the vector that the network makes itself; `mean` of a caption's tokens; `mean-all`, of padding too,
            as FNE's code has it; `cls`, the first token; `last`.
        positions: longest caption in tokens.
        layers: what follows the pooling.

    Attributes:
        tokenizer, pool: as given.
        max_tokens: longest caption in tokens.
        masked: whether the network is told what is padding. One that is not was trained on captions of one length.
        layers: a sequence.
    """

    def __init__(self, tokenizer: Any, pool: Pool, positions: int, layers: list[Dense]) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.pool = pool
        self.max_tokens = positions
        self.layers = nn.Sequential(*layers)
        self.masked = True
        self.padding = 0
        if tokenizer is not None:
            self.max_tokens = min(positions, tokenizer.model_max_length)
            self.masked = "attention_mask" in tokenizer.model_input_names
            self.padding = tokenizer.pad_token_id or 0

    def inputs(self, tokens: Tensor, lengths: Tensor, in_training: bool = False) -> dict[str, Tensor]:
        """Return the inputs of the network.

        Args:
            tokens: [T, W] int64; what is behind a length plays no part.
            lengths: [T].
            in_training: padding that counts is that of the batch, in place of that up to `PADDED_LENGTH`.
        """
        width = 0
        if not self.masked:
            width = self.max_tokens
        elif self.pool == "mean-all" and not in_training:
            width = PADDED_LENGTH
        tokens = F.pad(tokens, (0, max(0, width - tokens.shape[1])))
        is_real = within_lengths(tokens, lengths)
        inputs = {"input_ids": tokens.masked_fill(~is_real, self.padding)}
        if self.masked:
            inputs["attention_mask"] = is_real.long()
        return inputs

    def forward(self, outputs: Any, lengths: Tensor) -> Tensor:
        """Return vectors [T, D] of the output of a network for captions of these lengths [T].

        Raises:
            UsageError: it has none of its own, and these are asked for.
        """
        if self.pool == "own":
            vectors = own_vector(outputs)
            if vectors is None:
                raise UsageError(f"{type(outputs).__name__} has no caption vector of its own; give text_pool=mean")
            return self.layers(vectors)
        states = outputs.last_hidden_state
        if self.pool == "cls":
            vectors = states[:, 0]
        elif self.pool == "last":
            vectors = states[torch.arange(len(states), device=states.device), lengths - 1]
        elif self.pool == "mean-all":
            vectors = states.mean(dim=1)
        else:
            is_real = within_lengths(states, lengths)[..., None]
            vectors = (states * is_real).sum(dim=1) / lengths[:, None]
        return self.layers(vectors)


def never_wait(network: Any) -> None:
    """Let a network of captions attend without asking the device whether a mask hides anything, as transformers does.

    A host that has to know waits until the device has done all that it was given.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def mask(*, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
        if attention_mask is not None:
            options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(attention_mask=attention_mask, **options)

    if network.config._attn_implementation == _SDPA:
        AttentionInterface.register(_WITHOUT_WAITING, sdpa_attention_forward)
        AttentionMaskInterface.register(_WITHOUT_WAITING, mask)
        network.set_attn_implementation(_WITHOUT_WAITING)


def within_lengths(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Return which places [T, W] of captions [T, W] or [T, W, D] lie before their lengths [T]."""
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]


def positions_of(network: Any) -> int:
    """Return the longest caption in tokens that a network has positions for."""
    config = network.config.get_text_config()
    unused = 0
    for name, part in network.named_modules():
        # RoBERTa and its like count positions from behind that of padding.
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            unused = part.padding_idx + 1
    return getattr(config, "max_position_embeddings", _UNLIMITED) - unused


def read_modules(folder: Path) -> tuple[Pool | None, list[Dense], int]:
    """Read what follows the network in a folder of sentence-transformers.

    Returns:
        The pooling, the layers behind it, and the longest caption in tokens; None, none and a million where the folder
        names none.

    Raises:
        DataError: a file is damaged.
        UsageError: there is a module or a pooling that is not known.
    """
    pool: Pool | None = None
    layers: list[Dense] = []
    limit = _UNLIMITED
    if (folder / LIMITS).is_file():
        limit = read_config(folder / LIMITS).get("max_seq_length") or limit
    path = folder / MODULES
    if not path.is_file():
        return pool, layers, limit
    modules = []
    with reading(path, "modules of sentence-transformers", "download the model again"):
        for module in json.loads(path.read_text("utf-8")):
            modules.append((module["type"].rpartition(".")[2], module["path"]))
    for kind, place in modules:
        inside = folder / place
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path} leads out of the folder by '{place}'; download the model again")
        config_path = inside / "config.json"
        if kind == "Pooling":
            config = read_config(config_path)
            mode = config.get("pooling_mode")
            if mode is None:
                mode = "+".join(name for key, name in _OLDER.items() if config.get(key))
            if mode not in _POOLS:
                raise UsageError(
                    f"{config_path}: the pooling '{mode}' is none of {', '.join(_POOLS)}; choose another model"
                )
            pool = _POOLS[mode]
        elif kind == "Dense":
            weights = inside / "model.safetensors"
            config = read_config(config_path)
            with reading(weights, "the weights of a layer", "download the model again"):
                layer = Dense(config)
                layer.load_state_dict(load_file(weights))
            layers.append(layer)
        elif kind not in _UNCHANGED:
            raise UsageError(
                f"{path} has a module {kind}, which is not read here; mine with vectors of the model instead: itrpipe "
                "mine-negatives --embeddings"
            )
    return pool, layers, limit


def write_modules(folder: Path, reader: TextReader, width: int) -> None:
    """Write what sentence-transformers reads of an encoder of captions alone, unless its pooling is not known there.

    Args:
        folder: of the model.
        reader: of the encoder.
        width: of a token.
    """
    modes = {ours: theirs for theirs, ours in _POOLS.items()}
    if reader.pool not in modes:
        return
    modules = []
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(reader.layers)
    for place, kind in enumerate(kinds):
        path = f"{place}_{kind}" if place else ""
        modules.append({"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"})
    write_json(folder / MODULES, modules)
    write_json(folder / LIMITS, {"max_seq_length": reader.max_tokens, "do_lower_case": False})
    (folder / _POOLING).mkdir()
    config = {"word_embedding_dimension": width}
    for key, mode in _OLDER.items():
        config[key] = mode == modes[reader.pool]
    write_json(folder / _POOLING / "config.json", config)
    for place, layer in enumerate(reader.layers, start=2):
        inside = folder / f"{place}_Dense"
        inside.mkdir()
        write_json(inside / "config.json", layer.config)
        save_file(layer.state_dict(), inside / "model.safetensors")
