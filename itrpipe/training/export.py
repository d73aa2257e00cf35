"""A trained dual encoder as transformers, sentence-transformers and open_clip open it, with nothing but their own code.

What they read beside weights and configuration is made here: an image processor that frames and normalises photographs
as `itrpipe extract` and the model do, and a tokenizer that reads captions as the model does, cleaning and cutting
included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import transformers
from safetensors.torch import save
from tokenizers import Regex, Tokenizer, normalizers

from itrpipe.models.captions import CaptionTokens, PieceIds, Reading
from itrpipe.models.dual_encoder.native import CLIP, PAIR, SIGLIP, Layout, NoEquivalent, architecture_of, layout_of
from itrpipe.storage.artifact import HISTORY
from itrpipe.storage.disk import write_bytes, write_json
from itrpipe.training.saved import MODEL, SavedModel, load_model

_LAYOUTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("layouts.json").read_bytes())
"""The files of sentence-transformers 6.0 or later, as its own `save` writes them, and open_clip's names of weights."""
_PROCESSORS = {
    CLIP: ("CLIPProcessor", "CLIPImageProcessor"),
    SIGLIP: ("SiglipProcessor", "SiglipImageProcessor"),
    PAIR: ("VisionTextDualEncoderProcessor", "CLIPImageProcessor"),
}
_PADDED = SIGLIP
"""Reads captions padded to its longest, without a mask."""
_BICUBIC = 3
_BYTE = 255.0


@dataclass(frozen=True)
class NativeModel:
    """A trained dual encoder as files of transformers.

    Attributes:
        saved: the model.
        layout: it in the layout of transformers.
        images: settings of the image processor that frames photographs for it.
        tokenizer: reads captions as it does.
    """

    saved: SavedModel
    layout: Layout
    images: dict[str, Any]
    tokenizer: Any

    @classmethod
    def of(cls, trained: Path) -> NativeModel:
        """Return a finished training in the layout of transformers.

        Args:
            trained: the artifact.

        Raises:
            NoEquivalent: nothing of transformers embeds as it does.
            DataError: a file is damaged.
        """
        saved = load_model(trained)
        architecture = architecture_of(saved.model)
        model = saved.model
        masked = architecture != _PADDED
        tokenizer = reading_tokenizer(saved.tokens, model.text.network.config, masked=masked)
        # Scale and bias of the logits are their means over the epoch that validated best; not every training has them.
        best = pq.read_table(trained / HISTORY, filters=[("best", "==", True)]).to_pylist()[-1]
        temperature = best.get("mean_temperature")
        bias = best.get("mean_bias") or 0.0
        scale = (1 / temperature, bias) if temperature else model.pretrained_scale
        images = json.loads(model.vision.images.processor.to_json_string())
        return cls(saved, layout_of(model, scale), images, tokenizer)

    @property
    def padded(self) -> bool:
        """Return whether the model reads captions padded to its longest."""
        return self.layout.architecture == _PADDED

    def write(self, folder: Path) -> dict[str, str]:
        """Writes everything, of `config.json` what transformers has in it; returns what each other file is.

        Raises:
            DiskFullError: no space is left.
        """
        both = getattr(transformers, _PROCESSORS[self.layout.architecture][0])
        self.layout.write(folder)
        images = self.saved.model.vision.images.processor
        both(image_processor=images, tokenizer=self.tokenizer).save_pretrained(folder)
        images.save_pretrained(folder)  # where older releases, and libraries that read no other, look for it
        padded = _LAYOUTS["padded"] if self.padded else {}
        for name, content in {**_LAYOUTS["sentence_transformers"], **padded}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, content)
        return {
            MODEL: f"the weights of the epoch that validated best, by the names of `{self.layout.architecture}`",
            "tokenizer*": "the tokenizer of its captions",
            "*processor_config.json": "how photographs are framed and normalised",
            "modules.json, *sentence_*.json, 1_Normalize/": "what sentence-transformers opens",
        }


def reading_tokenizer(tokens: CaptionTokens, config: Any, *, masked: bool) -> Any:
    """Return a tokenizer of transformers that reads a caption as the model does.

    Args:
        tokens: of the model.
        config: of its text network.
        masked: whether the model is told what is padding.

    Raises:
        NoEquivalent: captions are words of our own vocabulary, or are cleaned and the tokenizer has no such step.
    """
    if not isinstance(tokens, PieceIds):
        raise NoEquivalent("its captions are words of a vocabulary of its own")
    steps = _steps(tokens.reading, tokens.max_tokens)
    tokenizer = tokens.tokenizer
    if steps and not tokenizer.is_fast:
        raise NoEquivalent(f"its captions are cleaned or cut, which {type(tokenizer).__name__} cannot do")
    made = tokenizer
    if steps:  # before those of its own, of a class that takes all of them from its file
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        own = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([*steps, *own])  # pyright: ignore[reportAttributeAccessIssue]
        named = {name: getattr(tokenizer, name) for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
        known = {name: value for name, value in named.items() if isinstance(value, str)}
        known |= {"padding_side": tokenizer.padding_side, "truncation_side": tokenizer.truncation_side}
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **known)
    if not masked or made.pad_token is None:
        made.pad_token = made.convert_ids_to_tokens(config.pad_token_id or 0)
    made.model_max_length = tokens.max_tokens
    made.model_input_names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    made.init_kwargs["model_input_names"] = made.model_input_names  # only what is here is saved
    return made


def _steps(reading: Reading, max_tokens: int) -> list[Any]:
    """Return `Reading.texts` as steps of a normaliser; where tokens are cut first, words are not."""
    replace = normalizers.Replace
    steps = []
    if reading.cleaned:
        steps = [
            normalizers.Lowercase(),
            replace(Regex("[-/]"), " "),
            replace(Regex(r"""[,.'!?"()*#:;~]"""), ""),
            replace("<person>", "person"),
            replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    if reading.max_words < max_tokens:
        steps.append(replace(Regex(rf"\A\s*(?:\S+\s+){{{reading.max_words - 1}}}\S+\K\s(?m:.*)\z"), ""))
    return steps


OPEN_CLIP_MODEL, OPEN_CLIP_CONFIG = "open_clip_model.safetensors", "open_clip_config.json"

_PUBLISHED_TOKENS = 49_408
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}


def write_open_clip(folder: Path, native: NativeModel) -> None:
    """Writes weights and configuration for open_clip beside the tokenizer of transformers.

    The weights are those of a `CLIPModel` by open_clip's names: projections are turned; query, key and value are one.

    Args:
        folder: holds that tokenizer.
        native: the model.

    Raises:
        NoEquivalent: open_clip has no such model.
        DiskFullError: no space is left.
    """
    write_json(folder / OPEN_CLIP_CONFIG, open_clip_config(native))
    names = _LAYOUTS["open_clip"]
    weights = dict(native.layout.weights)
    found = {theirs: weights.pop(ours) for ours, theirs in names["renamed"].items()}
    found |= {theirs: weights.pop(ours).T for ours, theirs in names["turned"].items()}
    for ours, theirs in names["layers"].items():
        numbers = {name.removeprefix(f"{ours}.").partition(".")[0] for name in weights if name.startswith(ours)}
        for layer, kind in product(numbers, ("weight", "bias")):
            block = f"{ours}.{layer}"
            place = f"{theirs}.{layer}"
            for name, name_there in names["of_layer"].items():
                found[f"{place}.{name_there}.{kind}"] = weights.pop(f"{block}.{name}.{kind}")
            joined = [weights.pop(f"{block}.self_attn.{each}_proj.{kind}") for each in "qkv"]
            found[f"{place}.attn.in_proj_{kind}"] = torch.cat(joined)
    assert not weights, f"of CLIPModel, not written: {', '.join(weights)}"
    stored = {name: each.contiguous() for name, each in found.items()}
    write_bytes(folder / OPEN_CLIP_MODEL, save(stored, {"format": "pt"}))


def open_clip_config(native: NativeModel) -> dict[str, Any]:
    """Return the content of `open_clip_config.json`.

    Raises:
        NoEquivalent: open_clip has no such model.
    """
    if native.layout.architecture != "CLIPModel":
        raise NoEquivalent(f"a {native.layout.architecture} is made of other networks there")
    saved = native.saved
    images = native.images
    vision, text = (getattr(saved.model, side).network.config.to_dict() for side in ("vision", "text"))
    activations = {vision["hidden_act"], text["hidden_act"]}
    if len(activations) > 1 or not activations <= _ACTIVATIONS.keys():
        raise NoEquivalent(f"it has no model with {' and '.join(sorted(activations))}")
    (activation,) = activations
    end = text["eos_token_id"]
    tokenizer = native.tokenizer
    # Where the text vector stands: at the first end token, or, by old configurations, at the largest id.
    argmax = end in (2, len(saved.tokens) - 1)
    pooling = {"pool_type": "argmax"} if argmax else {"pool_type": "eos", "eos_id": end}
    # CLIP's published tokenizer is open_clip's own; of any other the files beside are read, by `local-dir:` alone.
    own = type(tokenizer).__name__.removesuffix("Fast") == "CLIPTokenizer" and len(tokenizer) == _PUBLISHED_TOKENS
    reads = {} if own else {"hf_tokenizer_name": "local-dir", "tokenizer_kwargs": {"local_files_only": True}}
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
            **pooling,
            **reads,
        },
    }
    preprocess = {
        "size": [vision["image_size"]] * 2,
        "mode": "RGB",
        "mean": images["image_mean"],
        "std": images["image_std"],
        "interpolation": "bicubic",
        "resize_mode": "shortest" if images["do_center_crop"] else "squash",
    }
    return {"model_cfg": model, "preprocess_cfg": preprocess}


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
    }
    if (eps := config["layer_norm_eps"]) != 1e-5:
        found["norm_kwargs"] = {"eps": eps}
    return found
