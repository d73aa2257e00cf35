"""Vision transformers of transformers: a vector per patch, and one for the image.

| family                     | `/regions` are the patch tokens          | `/global`                                    |
|----------------------------|------------------------------------------|----------------------------------------------|
| ViT, ViT-MSN, DeiT         | after the final layer norm               | class token after that norm                  |
| DINOv2, also with          | after the final layer norm               | class token after that norm                  |
| registers; DINOv3          |                                          |                                              |
| BEiT                       | after the final layer norm; without one  | pooler: the class token; in mean-pooling     |
|                            | in mean-pooling configurations           | configurations the normed mean of patches    |
| CLIP                       | after the norm that precedes projection  | image embedding; without a projection the    |
|                            |                                          | class token after that norm                  |
| SigLIP, and SigLIP 2 of    | after the final layer norm               | image embedding: attention pooling           |
| fixed frame                |                                          |                                              |

Class, distillation and register tokens are not regions. ViT's pooler is not used: most checkpoints do not have it.
CLIP trains its last norm on the class token alone; it is applied to the patches too, so that they and the image are
of one scale. Embeddings are not divided by their length. SigLIP 2 checkpoints with frames of varying shape (NaFlex)
are not supported.

Source: "An Image is Worth 16x16 Words" (ViT), "Training data-efficient image transformers" (DeiT), "BEiT", "DINOv2",
"Vision Transformers Need Registers", "DINOv3", "Learning Transferable Visual Models From Natural Language
Supervision" (CLIP), "Sigmoid Loss for Language Image Pre-Training" (SigLIP).
"""

from __future__ import annotations

from typing import Any

import torch

from itrpipe.errors import UsageError
from itrpipe.features.extractors.pretrained import Family, Grid, GridExtractor, GridVectors, Pretrained, load_pretrained
from itrpipe.features.extractors.vit.declaration import Vit


def build(settings: Vit, device: str | torch.device) -> GridExtractor:
    """Returns the extractor of a vision transformer.

    Raises:
        MissingInputError, DataError, UsageError: as of `load`.
    """
    return GridExtractor(load(settings), torch.device(device), bf16=settings.precision == "bf16")


def load(settings: Vit) -> Pretrained:
    """Returns a vision transformer with its preprocessing.

    Raises:
        MissingInputError, DataError: as of `load_pretrained`.
        UsageError: likewise, or the network has no vector for the image.
    """
    pretrained = load_pretrained(settings, FAMILIES)
    config: Any = pretrained.network.model.config
    if not getattr(config, "vision_use_head", True):
        raise UsageError(
            f"{settings.model}: this vision tower has no pooling head ('vision_use_head' is false), so no vector for "
            "the image; choose a whole SigLIP checkpoint."
        )
    return pretrained


def patch_grid(config: Any, pixels: torch.Tensor) -> Grid:
    """Returns the patches of pixels [B, 3, h, w]; what is left over at the right and the bottom is in none."""
    size = config.patch_size
    height, width = (size, size) if isinstance(size, int) else size
    return Grid(pixels.shape[2] // height, pixels.shape[3] // width, height, width)


def _read_class_token(model: Any, pixels: torch.Tensor) -> GridVectors:
    """Tokens: class, registers, patches."""
    tokens = model(pixels).last_hidden_state
    first = 1 + getattr(model.config, "num_register_tokens", 0)
    return GridVectors(tokens[:, first:], tokens[:, 0], patch_grid(model.config, pixels))


def _read_deit(model: Any, pixels: torch.Tensor) -> GridVectors:
    """Tokens: class, distillation, patches."""
    tokens = model(pixels).last_hidden_state
    return GridVectors(tokens[:, 2:], tokens[:, 0], patch_grid(model.config, pixels))


def _read_beit(model: Any, pixels: torch.Tensor) -> GridVectors:
    """Tokens: class, patches."""
    found = model(pixels)
    return GridVectors(found.last_hidden_state[:, 1:], found.pooler_output, patch_grid(model.config, pixels))


def _read_clip(model: Any, pixels: torch.Tensor) -> GridVectors:
    """Tokens: class, patches; the projection is the identity in a checkpoint that has none."""
    found = model.vision_model(pixels)
    patches = model.vision_model.post_layernorm(found.last_hidden_state[:, 1:])
    return GridVectors(patches, model.visual_projection(found.pooler_output), patch_grid(model.config, pixels))


def _read_siglip(model: Any, pixels: torch.Tensor) -> GridVectors:
    """Tokens: patches alone."""
    found = model(pixels)
    return GridVectors(found.last_hidden_state, found.pooler_output, patch_grid(model.config, pixels))


_NO_POOLER = {"add_pooling_layer": False}

FAMILIES: dict[str, Family] = {
    "vit": Family("ViTModel", _read_class_token, options=_NO_POOLER),
    "vit_msn": Family("ViTMSNModel", _read_class_token),
    "deit": Family("DeiTModel", _read_deit, options=_NO_POOLER),
    "beit": Family("BeitModel", _read_beit, unused=("mask_token",)),
    "dinov2": Family("Dinov2Model", _read_class_token, unused=("mask_token",), any_frame=True),
    "dinov2_with_registers": Family(
        "Dinov2WithRegistersModel", _read_class_token, unused=("mask_token",), any_frame=True
    ),
    "dinov3_vit": Family("DINOv3ViTModel", _read_class_token, unused=("mask_token",), any_frame=True),
    "clip": Family("CLIPVisionModelWithProjection", _read_clip, part="vision_config"),
    "clip_vision_model": Family("CLIPVisionModelWithProjection", _read_clip, optional=("visual_projection",)),
    "siglip": Family("SiglipVisionModel", _read_siglip, part="vision_config"),
    "siglip_vision_model": Family("SiglipVisionModel", _read_siglip),
}
