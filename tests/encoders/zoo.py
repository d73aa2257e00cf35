"""Tiny pretrained models of random weights, one of each type, as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

FRAME = 32
WORDS = ["a", "dog", "cat", "on", "the", "runs", "sits", "red", "blue", "grass", "beach", "two"]
LIMIT = 20
LAYERS: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION: dict[str, Any] = {"image_size": FRAME, "patch_size": 16, **LAYERS}
SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
VOCABULARY = {word: number for number, word in enumerate([*SPECIAL.values(), *WORDS])}
TEXT: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": LIMIT,
    "pad_token_id": VOCABULARY["[PAD]"],
    "bos_token_id": VOCABULARY["[CLS]"],
    "eos_token_id": VOCABULARY["[SEP]"],
    **LAYERS,
}
# RoBERTa and its like count positions from behind that of padding.
ROBERTA = {**TEXT, "max_position_embeddings": LIMIT + 1}
SQUARE = {"height": FRAME, "width": FRAME}
CROP = {"size": {"shortest_edge": FRAME}, "crop_size": SQUARE}


def save_tokenizer(folder: Path, *, masked: bool = True) -> None:
    """Save a tokenizer of `WORDS`, which tells what is padding if `masked`."""
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)  # pyright: ignore
    names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=LIMIT, model_input_names=names, **SPECIAL
    ).save_pretrained(folder)


def _joint(name: str, vision: dict[str, Any], text: dict[str, Any], **more: Any) -> Any:
    made = getattr(transformers, f"{name}Config")
    return made(vision_config=vision, text_config=text, **more)


def _clip() -> Any:
    return _joint("CLIP", VISION, TEXT, projection_dim=12)


def _siglip() -> Any:
    return _joint("Siglip", VISION, {**TEXT, "projection_size": 16})


def _align() -> Any:
    vision = {
        "image_size": FRAME,
        "in_channels": [32, 8],
        "out_channels": [8, 8],
        "kernel_sizes": [3, 3],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "depthwise_padding": [],
        "hidden_dim": 16,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
    }
    return _joint("Align", vision, TEXT, projection_dim=16)


def _groupvit() -> Any:
    vision = {
        **VISION,
        "depths": [1, 1, 0],
        "num_group_tokens": [4, 2, 0],
        "num_output_groups": [4, 2, 0],
        "patch_size": 8,
    }
    return _joint("GroupViT", vision, TEXT, projection_dim=12, projection_intermediate_dim=24)


def _flava() -> Any:
    return transformers.FlavaConfig(
        image_config=VISION, text_config=TEXT, multimodal_config=LAYERS, projection_dim=12, hidden_size=16
    )


def _pair() -> Any:
    return transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        transformers.ViTConfig(**VISION), transformers.BertConfig(**TEXT), projection_dim=12
    )


JOINT: dict[str, Callable[[], Any]] = {
    "clip": _clip,
    "siglip": _siglip,
    "align": _align,
    "altclip": lambda: _joint("AltCLIP", VISION, {**ROBERTA, "project_dim": 16}, projection_dim=12),
    "chinese_clip": lambda: _joint("ChineseCLIP", VISION, TEXT, projection_dim=12),
    "metaclip_2": lambda: _joint("MetaClip2", VISION, TEXT, projection_dim=12),
    "blip": lambda: _joint(
        "Blip", VISION, {**TEXT, "projection_dim": 12, "encoder_hidden_size": 16}, projection_dim=12
    ),
    "clipseg": lambda: _joint("CLIPSeg", VISION, TEXT, projection_dim=12),
    "groupvit": _groupvit,
    "vision-text-dual-encoder": _pair,
}
"""Model type -> its configuration: models of images and captions."""

VISION_ALONE: dict[str, Callable[[], Any]] = {
    "vit": lambda: transformers.ViTConfig(**VISION),
    "deit": lambda: transformers.DeiTConfig(**VISION),
    "beit": lambda: transformers.BeitConfig(**VISION),
    "dinov2": lambda: transformers.Dinov2Config(**VISION),
    "dinov2_with_registers": lambda: transformers.Dinov2WithRegistersConfig(**VISION),
    "dinov3_vit": lambda: transformers.DINOv3ViTConfig(**VISION),
    "clip_vision_model": lambda: transformers.CLIPVisionConfig(**VISION),
    "siglip_vision_model": lambda: transformers.SiglipVisionConfig(**VISION),
    "swin": lambda: transformers.SwinConfig(
        image_size=FRAME, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    ),
    "resnet": lambda: transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "regnet": lambda: transformers.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8),
    "convnext": lambda: transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "convnextv2": lambda: transformers.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "mobilenet_v2": lambda: transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=FRAME),
    "timm_wrapper": lambda: transformers.TimmWrapperConfig.from_dict(
        {
            "architecture": "resnet10t",
            "model_args": {},
            "num_classes": 0,
            "num_features": 512,
            "pretrained_cfg": {"input_size": [3, FRAME, FRAME], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0},
        }
    ),
}
"""Model type -> its configuration: models of images alone."""

TEXT_ALONE: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertConfig(**TEXT),
    "roberta": lambda: transformers.RobertaConfig(**ROBERTA),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**ROBERTA),
    "camembert": lambda: transformers.CamembertConfig(**ROBERTA),
    "mpnet": lambda: transformers.MPNetConfig(**{**ROBERTA, "pad_token_id": 0}),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=LIMIT, dim=16, n_layers=2, n_heads=2, hidden_dim=32
    ),
    "electra": lambda: transformers.ElectraConfig(**TEXT, embedding_size=16),
    "albert": lambda: transformers.AlbertConfig(**TEXT, embedding_size=16),
    "deberta-v2": lambda: transformers.DebertaV2Config(**TEXT),
    "modernbert": lambda: transformers.ModernBertConfig(
        **{**TEXT, "cls_token_id": TEXT["bos_token_id"], "sep_token_id": TEXT["eos_token_id"]}
    ),
    "clip_text_model": lambda: transformers.CLIPTextConfig(**TEXT),
    "qwen3": lambda: transformers.Qwen3Config(**TEXT, head_dim=8, num_key_value_heads=1),
}
"""Model type -> its configuration: models of captions alone."""

ALL = {**JOINT, **VISION_ALONE, **TEXT_ALONE}
_PADDED = ("siglip",)


UNPOOLED: dict[str, Callable[[], Any]] = {"flava": _flava}
"""Joint models that give one vector for each token."""
ALL_AND_UNPOOLED = {**ALL, **UNPOOLED}


def save(name: str, folder: Path) -> Path:
    """Save a model of random weights with its processor and its tokenizer, and return the folder."""
    torch.manual_seed(0)
    config = ALL_AND_UNPOOLED[name]()
    model = transformers.AutoModel.from_config(config).eval()
    for weights in model.parameters():
        if weights.ndim > 2:
            torch.nn.init.kaiming_normal_(weights)
        elif weights.ndim == 2:
            torch.nn.init.normal_(weights, std=0.1)  # with their own a tiny network hardly sees its input
    model.save_pretrained(folder)
    if name not in TEXT_ALONE:
        kind = "Siglip" if name.startswith("siglip") else "CLIP"
        sizes = {"size": SQUARE} if kind == "Siglip" else CROP
        if name == "timm_wrapper":
            return folder
        getattr(transformers, f"{kind}ImageProcessor")(**sizes).save_pretrained(folder)
    if name not in VISION_ALONE:
        save_tokenizer(folder, masked=name not in _PADDED)
    return folder
