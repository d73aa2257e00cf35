"""Joint models of transformers as they were published: CLIP, SigLIP, and a vision and a text encoder in one folder.

CLIP and SigLIP become the dual encoder that `--method zero-shot` makes of them, with captions as they are; photographs
go through the model's own image processor.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from itrpipe.errors import MissingInputError
from itrpipe.features.extractors.pixels.extractor import PixelExtractor
from itrpipe.features.frames import Preprocessing, load_preprocessing
from itrpipe.features.hub import SAFETENSORS, has_any, quiet
from itrpipe.features.photographs import Photographs
from itrpipe.features.towers import load_config, load_weights
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding, l2_normalise
from itrpipe.models.declaration import LONGEST
from itrpipe.models.dual_encoder import declaration, network
from itrpipe.models.dual_encoder.native import JOINT, PAIR
from itrpipe.models.dual_encoder.network import load_tokenizer, positions_of
from itrpipe.training.captions import PieceIds, Reading
from itrpipe.training.saved import SavedModel

_BACKBONE, _COLOURS = "dual-encoder", 3
_IMAGES_AT_ONCE = 64


class VisionTextPair(DualEncoder):
    """A `VisionTextDualEncoderModel` of transformers as it is, its pooling and projections included.

    Args:
        joint: the model.
        preprocessing: of its images.

    Attributes:
        embed_dim: D.
        vision: has the `frame` of its images.
        text: has `max_tokens`.
    """

    def __init__(self, joint: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.joint, self.embed_dim = joint, int(joint.config.projection_dim)
        self.vision = SimpleNamespace(frame=preprocessing.framing.frame)
        self.text = SimpleNamespace(max_tokens=positions_of(joint.text_model))
        self._padding = joint.config.text_config.pad_token_id or 0
        self._normalise = preprocessing

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Embeddings [B, D] of unit length."""
        assert images.pixels is not None
        parts = [self._normalise(part) for part in images.pixels.split(_IMAGES_AT_ONCE)]
        vectors = torch.cat([self.joint.visual_projection(self.joint.vision_model(part)[1]) for part in parts])
        return ImageEncoding(l2_normalise(vectors.float(), dim=-1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        tokens, mask = self._padded(texts)
        found = self.joint.text_model(input_ids=tokens, attention_mask=mask)
        return TextEncoding(l2_normalise(self.joint.text_projection(found[1]).float(), dim=-1))

    def _padded(self, texts: TextBatch) -> tuple[Tensor, Tensor]:
        real = torch.arange(texts.tokens.shape[1], device=texts.tokens.device) < texts.lengths[:, None]
        return texts.tokens.masked_fill(~real, self._padding), real.long()


def open_joint(folder: Path, name: str) -> tuple[SavedModel, Photographs]:
    """Opens a joint model and what reads photographs for it.

    Args:
        folder: of transformers.
        name: of the model, for messages.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged, or weights are of another network.
        UsageError: the model is no joint one, or its image processor is not supported.
    """
    if not has_any(folder, SAFETENSORS):
        raise MissingInputError(
            f"{folder} has no {' nor '.join(SAFETENSORS)}, and other weights are not loaded; save the model as "
            "safetensors"
        )
    settings = declaration.DualEncoder(vision=str(folder), text=str(folder), clean_captions=False, max_words=LONGEST)
    with quiet():
        kind, joint = load_config(folder, JOINT)
        preprocessing = load_preprocessing(folder)
        if kind.network == PAIR:
            model: Any = VisionTextPair(load_weights(folder, kind, joint)[0], preprocessing)
            tokenizer = load_tokenizer(folder)
        else:
            encoders = network.open_encoders(settings)
            model, tokenizer = network.build(settings, _COLOURS, 0, encoders), encoders.tokenizer
    tokens = PieceIds(tokenizer, Reading.of(settings), model.text.max_tokens)
    config = {"backbone": _BACKBONE, "model": settings.model_dump(), "image_dim": _COLOURS}
    pixels = PixelExtractor(preprocessing.framing, preprocessing.framing.frame)
    return SavedModel(model.eval(), tokens, config), Photographs(name, {"pixels": pixels})
