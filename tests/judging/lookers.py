"""Tiny models of random weights that look at photographs, as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.encoders.zoo import CROP, FRAME, SPECIAL, SQUARE, VISION, WORDS

IMAGE = "<image>"
_QWEN = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
_IDEFICS = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
_MARKS = ["<user>", "<assistant>", IMAGE, *_QWEN, *_IDEFICS]
_QUESTION = ["Does", "this", "figure", "show", '"', '"?', "Please", "answer", "yes", "or", "no", "."]
_VOCABULARY = {token: row for row, token in enumerate([*SPECIAL.values(), *_MARKS, *WORDS, *_QUESTION])}
_LAYERS: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_TEXT: dict[str, Any] = {
    "vocab_size": len(_VOCABULARY),
    "max_position_embeddings": 512,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    **_LAYERS,
}
_LANGUAGE: dict[str, Any] = {**_TEXT, "num_key_value_heads": 1, "head_dim": 8}
_CHAT = """{% for message in messages %}<user>{% for part in message.content %}{% if part.type == 'image' %}IMAGE
{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<assistant>"""


def _tokenizer(*, ends: bool, **special: str) -> Any:
    made = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    if ends:
        marks = [("[CLS]", _VOCABULARY["[CLS]"]), ("[SEP]", _VOCABULARY["[SEP]"])]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)  # pyright: ignore
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=512, additional_special_tokens=_MARKS, **SPECIAL, **special
    )


def _blip() -> tuple[Any, Any, Any]:
    text = {**_TEXT, "projection_dim": 12, "encoder_hidden_size": 16, "hidden_dropout_prob": 0.0}
    text["sep_token_id"] = 3
    config = transformers.BlipConfig(vision_config=VISION, text_config=text, image_text_hidden_size=12)
    images = transformers.BlipImageProcessor(size=SQUARE)
    processor = transformers.BlipProcessor(images, _tokenizer(ends=True))
    return transformers.BlipForImageTextRetrieval, config, processor


def _blip2() -> tuple[Any, Any, Any]:
    queries = {**_TEXT, "encoder_hidden_size": 16, "cross_attention_frequency": 1, "use_qformer_text_input": True}
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config=queries,
        text_config={"model_type": "opt", **_TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16},
        num_query_tokens=4,
        image_text_hidden_size=12,
        image_token_index=_VOCABULARY[IMAGE],
    )
    images = transformers.BlipImageProcessor(size=SQUARE)
    processor = transformers.Blip2Processor(images, _tokenizer(ends=True), num_query_tokens=4)
    return transformers.Blip2ForImageTextRetrieval, config, processor


def _bridgetower() -> tuple[Any, Any, Any]:
    config = transformers.BridgeTowerConfig(
        **{**_LAYERS, "hidden_size": 64},
        vision_config={**VISION, "hidden_size": 64, "num_hidden_layers": 2},
        text_config={**_TEXT, "hidden_size": 64},
    )
    edge = {"shortest_edge": FRAME}
    images = transformers.BridgeTowerImageProcessor(size=edge, crop_size=edge, size_divisor=16)
    processor = transformers.BridgeTowerProcessor(images, _tokenizer(ends=True))
    return transformers.BridgeTowerForImageAndTextRetrieval, config, processor


def _qwen2_vl() -> tuple[Any, Any, Any]:
    vision = {"depth": 2, "embed_dim": 16, "num_heads": 2, "hidden_size": 16, "mlp_ratio": 2, "patch_size": 14}
    config = transformers.Qwen2VLConfig(
        vision_config=vision,
        text_config={**_LANGUAGE, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
        image_token_id=_VOCABULARY["<|image_pad|>"],
        video_token_id=_VOCABULARY["<|video_pad|>"],
        vision_start_token_id=_VOCABULARY["<|vision_start|>"],
        vision_end_token_id=_VOCABULARY["<|vision_end|>"],
    )
    limits: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 3 * 28 * 28}
    processor = transformers.Qwen2VLProcessor(
        transformers.Qwen2VLImageProcessor(**limits),
        _tokenizer(ends=False),
        transformers.Qwen2VLVideoProcessor(**limits),
        chat_template=_CHAT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return transformers.Qwen2VLForConditionalGeneration, config, processor


def _llava() -> tuple[Any, Any, Any]:
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **VISION},
        text_config={"model_type": "llama", **_LANGUAGE},
        image_token_index=_VOCABULARY[IMAGE],
        image_seq_length=4,
    )
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size=CROP["size"], crop_size=CROP["crop_size"]),
        _tokenizer(ends=False),
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_CHAT.replace("IMAGE", IMAGE),
    )
    return transformers.LlavaForConditionalGeneration, config, processor


def _paligemma() -> tuple[Any, Any, Any]:
    config = transformers.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        text_config={"model_type": "gemma", **_LANGUAGE, "vocab_size": len(_VOCABULARY) + 1152},
        image_token_index=_VOCABULARY[IMAGE],
        projection_dim=16,
    )
    images = transformers.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 4  # pyright: ignore[reportAttributeAccessIssue]
    return (
        transformers.PaliGemmaForConditionalGeneration,
        config,
        transformers.PaliGemmaProcessor(images, _tokenizer(ends=False, bos_token="[CLS]")),
    )


MATCHING: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "blip": _blip,
    "blip-2": _blip2,
    "bridgetower": _bridgetower,
}
"""Model type -> class, configuration and processor of a network with a matching head."""
ANSWERING: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "qwen2_vl": _qwen2_vl,
    "llava": _llava,
    "paligemma": _paligemma,
}
"""Model type -> class, configuration and processor of a vision-language model."""


def save(name: str, folder: Path) -> Path:
    """Save a model of random weights with its processor, and return the folder."""
    torch.manual_seed(0)
    kind, config, processor = {**MATCHING, **ANSWERING}[name]()
    network = kind(config).eval()
    for weights in network.parameters():
        if weights.ndim >= 2:
            torch.nn.init.normal_(weights, std=0.2)  # with their own a tiny network hardly sees its input
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
