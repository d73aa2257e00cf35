"""A CLIP of transformers as open_clip opens it: the names of its weights, its configuration and preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from itrpipe.models.dual_encoder.native import NoEquivalent
from itrpipe.storage.disk import write_json
from itrpipe.training.native import NativeModel, save_tensors

OPEN_CLIP_MODEL, OPEN_CLIP_CONFIG = "open_clip_model.safetensors", "open_clip_config.json"

_PUBLISHED_TOKENS = 49_408
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_RENAMED = {
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "logit_scale": "logit_scale",
    **{
        f"{ours}.{each}": f"{theirs}.{each}"
        for ours, theirs in (
            ("vision_model.pre_layrnorm", "visual.ln_pre"),
            ("vision_model.post_layernorm", "visual.ln_post"),
            ("text_model.final_layer_norm", "ln_final"),
        )
        for each in ("weight", "bias")
    },
}
_TURNED = {"visual_projection.weight": "visual.proj", "text_projection.weight": "text_projection"}
_SIDES = {"vision_model": "vision", "text_model": "text"}
_TRANSFORMERS = {"vision_model": "visual.transformer", "text_model": "transformer"}


def write_open_clip(folder: Path, native: NativeModel) -> None:
    """Writes weights and configuration for open_clip beside the tokenizer of transformers.

    Args:
        folder: holds that tokenizer.
        native: the model.

    Raises:
        NoEquivalent: open_clip has no such model.
        DiskFullError: no space is left.
    """
    config = open_clip_config(native)
    save_tensors(folder / OPEN_CLIP_MODEL, open_clip_weights(native))
    write_json(folder / OPEN_CLIP_CONFIG, config)


def open_clip_weights(native: NativeModel) -> dict[str, Tensor]:
    """The weights of a `CLIPModel` by open_clip's names: projections are turned; query, key and value are one."""
    weights = dict(native.layout.weights)
    found = {theirs: weights.pop(ours) for ours, theirs in _RENAMED.items()}
    found |= {theirs: weights.pop(ours).T for ours, theirs in _TURNED.items()}
    for side, theirs in _TRANSFORMERS.items():
        for layer in range(getattr(native.saved.model, _SIDES[side]).network.config.num_hidden_layers):
            block, place = f"{side}.encoder.layers.{layer}", f"{theirs}.resblocks.{layer}"
            for kind in ("weight", "bias"):
                for name, name_there in _BLOCK.items():
                    found[f"{place}.{name_there}.{kind}"] = weights.pop(f"{block}.{name}.{kind}")
                joined = [weights.pop(f"{block}.self_attn.{each}_proj.{kind}") for each in "qkv"]
                found[f"{place}.attn.in_proj_{kind}"] = torch.cat(joined)
    assert not weights, f"of CLIPModel, not written: {', '.join(weights)}"
    return found


def open_clip_config(native: NativeModel) -> dict[str, Any]:
    """The content of `open_clip_config.json`.

    Raises:
        NoEquivalent: open_clip has no such model.
    """
    if native.layout.architecture != "CLIPModel":
        raise NoEquivalent(f"a {native.layout.architecture} is made of other networks there")
    saved, images = native.saved, native.images
    vision, text = (getattr(saved.model, side).network.config.to_dict() for side in _SIDES.values())
    activations = {vision["hidden_act"], text["hidden_act"]}
    if len(activations) > 1 or not activations <= _ACTIVATIONS.keys():
        raise NoEquivalent(f"it has no model with {' and '.join(sorted(activations))}")
    (activation,) = activations
    model = {
        "embed_dim": saved.embed_dim,
        "quick_gelu": _ACTIVATIONS[activation],
        "vision_cfg": {
            **_sizes(vision),
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            "patch_size": vision["patch_size"],
            "image_size": vision["image_size"],
        },
        "text_cfg": {
            **_sizes(text),
            "heads": text["num_attention_heads"],
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            **_pooling(text, len(saved.tokens)),
            **_tokenizer(native.tokenizer),
        },
    }
    framing = "shortest" if images["do_center_crop"] else "squash"
    colours = {"mean": images["image_mean"], "std": images["image_std"]}
    size = [vision["image_size"]] * 2
    preprocess = {"size": size, "mode": "RGB", **colours, "interpolation": "bicubic", "resize_mode": framing}
    return {"model_cfg": model, "preprocess_cfg": preprocess}


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
    }
    if (eps := config["layer_norm_eps"]) != 1e-5:
        found["norm_kwargs"] = {"eps": eps}
    return found


def _pooling(config: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Where CLIP's text vector stands: at the first end token, or, by old configurations, at the largest id."""
    end = config["eos_token_id"]
    return {"pool_type": "argmax"} if end == 2 or end == tokens - 1 else {"pool_type": "eos", "eos_id": end}


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    """CLIP's published tokenizer is open_clip's own; of any other the files beside are read, by `local-dir:` alone."""
    if type(tokenizer).__name__.removesuffix("Fast") == "CLIPTokenizer" and len(tokenizer) == _PUBLISHED_TOKENS:
        return {}
    return {"hf_tokenizer_name": "local-dir", "tokenizer_kwargs": {"local_files_only": True}}
