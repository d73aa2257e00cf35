"""Judge pairs by a joint model of images and captions, such as CLIP: the cosine of both.

Shapes: P pairs, n captions, N images, T captions in all, D width of a vector.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from itrpipe.encoders.encoder import TEXT, VISION, Encoder, open_encoder
from itrpipe.engine.work import cut, resolve_device
from itrpipe.judging.captions import encode_captions
from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge
from itrpipe.judging.photographs import read_ahead

_BATCH = 64
_PAIRS = 65_536


@dataclass(eq=False)
class DualJudge(OpenedJudge):
    """Compares the vectors of images and captions by their inner product.

    Attributes:
        image_vectors: [N, D].
        caption_vectors: [T, D].
        material: the images and captions that were encoded.
    """

    image_vectors: np.ndarray
    caption_vectors: np.ndarray
    material: Material

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P]."""
        scores = np.empty(len(images), np.float32)
        for start in range(0, len(images), _PAIRS):
            pairs = slice(start, start + _PAIRS)
            image_vectors = self.image_vectors[images[pairs]]
            caption_vectors = self.caption_vectors[captions[pairs]]
            scores[pairs] = np.einsum("pd,pd->p", image_vectors, caption_vectors)
        return scores


def build(model: str, material: Material, device: str, revision: str) -> DualJudge:
    """Open the judge; only sides that are not encoded yet are encoded.

    Raises:
        DataError: a photograph cannot be used.
        MissingInputError, UnavailableError: see `open_encoder` and `decode_image`.
    """
    encoded = dict(material.encoded)
    missing = tuple(side for side in (VISION, TEXT) if side not in encoded)
    if missing:
        encoder, _ = open_encoder(model, revision, missing)
        if TEXT in missing:
            encoded[TEXT] = encode_captions(encoder, material.captions, device)
        if VISION in missing:
            encoded[VISION] = encode_photographs(encoder, material, device)
    return DualJudge(encoded[VISION], encoded[TEXT], material)


@torch.inference_mode()
def encode_photographs(encoder: Encoder, material: Material, device: str) -> np.ndarray:
    """Return unit vectors [N, D] float32 of photographs; errors are those of `build`."""
    device = resolve_device(device)
    encoder.to(device)
    vectors = np.empty((material.num_images, encoder.image_width), np.float32)
    batches = [part.content for part in cut(range(material.num_images), _BATCH)]
    for rows, frames in read_ahead(material, batches, encoder.images.framed):
        batch = encoder.encode_images(torch.stack(frames).to(device))
        vectors[rows] = F.normalize(batch, dim=1).cpu().numpy()
    return vectors
