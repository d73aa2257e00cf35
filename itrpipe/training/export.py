"""A trained dual encoder as transformers, sentence-transformers and open_clip open it, with nothing but their own code.

A joint model is the folder of its encoder. Two encoders whose vectors are projected become one of a class that
transformers has for any two. Beside them are files of sentence-transformers, and a tokenizer that reads captions as the
model does, cleaning and cutting included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import transformers
from tokenizers import Regex, Tokenizer, normalizers
from torch import Tensor

from itrpipe.encoders.encoder import Encoder
from itrpipe.encoders.texts import LIMITS, TextReader
from itrpipe.models.captions import PieceIds
from itrpipe.models.dual_encoder.network import TransformerDualEncoder
from itrpipe.storage.artifact import HISTORY
from itrpipe.storage.disk import write_json
from itrpipe.training.saved import SavedModel, load_model, save_weights

_LAYOUTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("layouts.json").read_bytes())
"""The files of sentence-transformers 6.0 or later, as its own `save` writes them, and names of weights in open_clip.

Of `open_clip` each part of a name is replaced in turn.
"""
_PAIR = "VisionTextDualEncoderModel"


class NoEquivalent(Exception):  # noqa: N818 (a finding, not a failure)
    """A model, or a part of it that the message names, has no equivalent elsewhere."""


@dataclass(frozen=True)
class JointModel:
    """A trained dual encoder as one encoder of transformers.

    Attributes:
        saved: the model.
        encoder: of images and captions; its tokenizer reads captions as the model does.
        settings: those of `config.json` that build it of this encoder.
    """

    saved: SavedModel
    encoder: Encoder
    settings: dict[str, Any]

    @classmethod
    def of(cls, trained: Path) -> JointModel:
        """Return a finished training of a dual encoder as a joint model.

        Args:
            trained: the artifact.

        Raises:
            NoEquivalent: nothing of transformers embeds as it does.
            DataError: a file is damaged.
        """
        saved = load_model(trained)
        model = saved.model
        settings = saved.config
        if not isinstance(model.vision, Encoder):
            raise NoEquivalent("its images are frozen features")
        if not isinstance(saved.tokens, PieceIds):
            raise NoEquivalent("its captions are words of a vocabulary of its own")
        if model.vision is not model.text:
            # Two encoders that become one have its pools, and no projection of ours.
            joined = {"embed_dim": 0, "image_pool": "auto", "text_pool": "auto", "vision": _PAIR, "text": _PAIR}
            settings = {**settings, "model": settings["model"] | joined}
            encoder = _join(model, model.vision, model.text)
            best_rows = pq.read_table(trained / HISTORY, filters=[("best", "==", True)])
            row = best_rows.to_pylist()[-1]
            if row.get("mean_temperature"):
                encoder.set_scale(1 / row["mean_temperature"], 0.0)
        else:
            encoder = model.text
            pools = encoder.image_pool, encoder.texts.pool
            if pools != ("own", "own"):
                raise NoEquivalent(f"its vectors are pooled by {pools[0]} and {pools[1]}, not by the model itself")
            if model.settings.embed_dim:
                raise NoEquivalent(f"its projections to embed_dim = {model.settings.embed_dim} have no place there")
        encoder.texts.tokenizer = reading_tokenizer(saved.tokens, encoder.texts)
        return cls(saved, encoder, settings)

    @property
    def padded(self) -> bool:
        """Tell whether captions are padded to the longest that the model reads; the card names it."""
        return not self.encoder.texts.masked

    def write(self, folder: Path) -> None:
        """Write all files; `config.json` is as transformers has it.

        Raises:
            DiskFullError: no space is left.
        """
        self.encoder.save(folder)
        for name, content in _LAYOUTS["sentence_transformers"].items():
            if self.padded and name == LIMITS:
                content = content | _LAYOUTS["padded"]
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, content)


def _join(model: TransformerDualEncoder, vision: Encoder, text: Encoder) -> Encoder:
    """Return two encoders and their projections as one joint model.

    Raises:
        NoEquivalent: the class for any two does not embed as they do.
    """
    pools = vision.image_pool, text.texts.pool
    if pools != ("own", "own") or not model.settings.embed_dim:
        projected = "projected" if model.settings.embed_dim else "not projected"
        raise NoEquivalent(
            f"its vectors are pooled by {pools[0]} and {pools[1]} and {projected}; --set train.model.image_pool=own "
            f"--set train.model.text_pool=own --set train.model.embed_dim=512 trains a {_PAIR} of encoders that have a "
            "vector of their own"
        )
    for encoder, width in ((vision, vision.image_width), (text, text.text_width)):
        name = type(encoder.network).__name__
        if encoder.is_joint:
            raise NoEquivalent(
                f"its vectors are projected twice, by {name} and to embed_dim; name a model of one side alone, which "
                "has no projection"
            )
        if getattr(encoder.network.config, "hidden_size", 0) != width:
            raise NoEquivalent(f"a {_PAIR} takes no {name}, whose config.json has no width")
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        vision.network.config, text.network.config, projection_dim=model.embed_dim
    )
    network = transformers.VisionTextDualEncoderModel(config, vision.network, text.network)
    network.visual_projection.load_state_dict(model.project_images.state_dict())
    network.text_projection.load_state_dict(model.project_texts.state_dict())
    texts = TextReader(text.texts.tokenizer, "own", text.texts.max_tokens, [])
    return Encoder(network.eval(), vision.images, texts)


def reading_tokenizer(tokens: PieceIds, reader: TextReader) -> transformers.PreTrainedTokenizerBase:
    """Return a tokenizer of transformers that reads a caption as the model does.

    Args:
        tokens: of the model.
        reader: of its encoder.

    Raises:
        NoEquivalent: captions are cleaned, and the tokenizer has no such step.
    """
    # Steps of a normaliser that do what `CaptionPart.texts` does; where tokens are cut first, words are not.
    replace = normalizers.Replace
    part = tokens.part
    steps: list[normalizers.Normalizer] = []
    if part.cleaned:
        steps = [
            normalizers.Lowercase(),
            replace(Regex("[-/]"), " "),
            replace(Regex(r"""[,.'!?"()*#:;~]"""), ""),
            replace("<person>", "person"),
            replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    if part.max_words < tokens.max_tokens:
        steps.append(replace(Regex(rf"\A\s*(?:\S+\s+){{{part.max_words - 1}}}\S+\K\s(?m:.*)\z"), ""))
    tokenizer = tokens.tokenizer
    if steps:  # before those of its own, of a class that takes all of them from its file
        if not tokenizer.is_fast:
            raise NoEquivalent(f"its captions are cleaned or cut, which {type(tokenizer).__name__} cannot do")
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        if backend.normalizer is not None:
            steps.append(backend.normalizer)
        backend.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend,
            padding_side=tokenizer.padding_side,
            truncation_side=tokenizer.truncation_side,
            **tokenizer.special_tokens_map,
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(reader.padding)
    tokenizer.model_max_length = tokens.max_tokens
    tokenizer.model_input_names = ["input_ids", "attention_mask"] if reader.masked else ["input_ids"]
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # `save_pretrained` reads it here
    return tokenizer


OPEN_CLIP_MODEL = "open_clip_model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"

_PUBLISHED_TOKENS = 49_408
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
"""Activation of transformers -> `quick_gelu` of open_clip."""


def write_open_clip(folder: Path, joint: JointModel) -> None:
    """Write weights and configuration for open_clip beside the tokenizer of transformers.

    The weights are those of a `CLIPModel` by open_clip's names: projections are transposed; query, key and value are
    one.

    Args:
        folder: holds that tokenizer.
        joint: the model.

    Raises:
        NoEquivalent: open_clip has no such model.
        DiskFullError: no space is left.
    """
    write_json(folder / OPEN_CLIP_CONFIG, open_clip_config(joint))
    tensors: dict[str, Tensor] = {}
    state = joint.encoder.network.state_dict()
    for name, weights in state.items():
        open_clip_name = name
        for part, open_clip_part in _LAYOUTS["open_clip"].items():
            open_clip_name = open_clip_name.replace(part, open_clip_part)
        if open_clip_name in ("visual.proj", "text_projection"):
            tensors[open_clip_name] = weights.T
        elif "q_proj" in name:
            key = state[name.replace("q_proj", "k_proj")]
            value = state[name.replace("q_proj", "v_proj")]
            tensors[open_clip_name.replace("q_proj.", "in_proj_")] = torch.cat([weights, key, value])
        elif "k_proj" not in name and "v_proj" not in name:
            tensors[open_clip_name] = weights
    save_weights(folder / OPEN_CLIP_MODEL, tensors)


def open_clip_config(joint: JointModel) -> dict[str, Any]:
    """Return the content of `open_clip_config.json`.

    Raises:
        NoEquivalent: open_clip has no such model.
    """
    architecture = type(joint.encoder.network).__name__
    if architecture != "CLIPModel":
        raise NoEquivalent(f"a {architecture} is made of other networks there")
    images = joint.encoder.images.processor
    config = joint.encoder.network.config
    vision = config.vision_config.to_dict()
    text = config.text_config.to_dict()
    activations = {vision["hidden_act"], text["hidden_act"]}
    if len(activations) > 1 or not activations <= _ACTIVATIONS.keys():
        raise NoEquivalent(f"it has no model with {' and '.join(sorted(activations))}")
    # The text vector stands at the first end token, or, by old configurations, at the largest id.
    end = text["eos_token_id"]
    reading = {"pool_type": "eos", "eos_id": end}
    if end in (2, len(joint.saved.tokens) - 1):
        reading = {"pool_type": "argmax"}
    # CLIP's published tokenizer is open_clip's own; of any other the files beside are read, by `local-dir:` alone.
    tokenizer = joint.encoder.texts.tokenizer
    is_published = type(tokenizer).__name__.removesuffix("Fast") == "CLIPTokenizer"
    if not is_published or len(tokenizer) != _PUBLISHED_TOKENS:
        reading |= {"hf_tokenizer_name": "local-dir", "tokenizer_kwargs": {"local_files_only": True}}
    model = {
        "embed_dim": joint.saved.embed_dim,
        "quick_gelu": _ACTIVATIONS[text["hidden_act"]],
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
            **reading,
        },
    }
    preprocess = {
        "size": [vision["image_size"]] * 2,
        "mode": "RGB",
        "mean": list(images.image_mean),
        "std": list(images.image_std),
        "interpolation": {2: "bilinear", 3: "bicubic"}[images.resample],  # by their numbers in Pillow
        "resize_mode": "shortest" if images.do_center_crop else "squash",
    }
    return {"model_cfg": model, "preprocess_cfg": preprocess}


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
    }
    if config["layer_norm_eps"] != 1e-5:
        sizes["norm_kwargs"] = {"eps": config["layer_norm_eps"]}
    return sizes
