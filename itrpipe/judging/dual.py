"""Judge pairs by a joint model of images and captions, such as CLIP: the cosine of both.

Shapes: P pairs, n captions, N images, T captions in all, D width of a vector.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from itrpipe.encoders.encoder import TEXT, VISION, Encoder, open_encoder
from itrpipe.engine.run import usable_cores
from itrpipe.engine.work import cut, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.extraction import MOST_DECODERS, Decoders, decode_image
from itrpipe.judging.captions import encode_captions
from itrpipe.judging.material import Material

_BATCH = 64
_PAIRS = 65_536


def build(model: str, material: Material, device: str, revision: str) -> DualJudge:
    """Open the judge; only sides that are not encoded yet are encoded.

    Raises:
        UsageError: there are no photographs.
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
    return DualJudge(encoded[VISION], encoded[TEXT], material.owners)


class DualJudge:
    """Compares the vectors of images and captions by their inner product.

    Args:
        images: [N, D] vectors.
        captions: [T, D].
        owners: [T] row of each caption's image, -1 for nobody's.
    """

    def __init__(self, images: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> None:
        self._images = images
        self._captions = captions
        self._owners = owners

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P]."""
        scores = np.empty(len(images), np.float32)
        for start in range(0, len(images), _PAIRS):
            pairs = slice(start, start + _PAIRS)
            scores[pairs] = np.einsum("pd,pd->p", self._images[images[pairs]], self._captions[captions[pairs]])
        return scores

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return scores [n] float32 of captions with their own images; NaN for nobody's."""
        owners = self._owners[captions]
        scores = self(owners, captions)
        scores[owners < 0] = np.nan
        return scores


@torch.inference_mode()
def encode_photographs(encoder: Encoder, material: Material, device: str) -> np.ndarray:
    """Return unit vectors [N, D] float32 of photographs; errors are those of `build`."""
    if material.photographs is None:
        raise UsageError("judge dual: it looks at photographs, and there are none; choose a judge that reads captions")
    place = resolve_device(device)
    encoder.to(place)
    vectors = np.empty((material.num_images, encoder.image_width), np.float32)
    batches = [part.content for part in cut(range(material.num_images), _BATCH)]
    decode = partial(decode_image, material.photographs, transform=encoder.images.framed)
    decoders = Decoders(min(MOST_DECODERS, usable_cores()))
    try:
        for rows, frames, refused in decoders.ahead(batches, decode, list):
            for row, reason in refused.items():
                raise DataError(f"the photograph of image {row}: {reason}; restore the file, or leave the image out")
            found = encoder.encode_images(torch.stack(frames).to(place))
            vectors[rows] = F.normalize(found, dim=1).cpu().numpy()
    finally:
        decoders.stop()
    return vectors
