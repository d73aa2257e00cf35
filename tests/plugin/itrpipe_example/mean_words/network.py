"""The backbone itself."""

import torch
from torch import nn

from itrpipe.models.base import DualEncoder, ImageEncoding, TextEncoding, l2_normalise


def mean(vectors, counts):
    """Means [N, D] over the first so many [N] of vectors [N, n, D]."""
    real = torch.arange(vectors.shape[1], device=vectors.device) < counts[:, None]
    return (vectors * real[..., None]).sum(dim=1) / counts[:, None]


class MeanWordsEncoder(DualEncoder):
    """Two linear maps into the joint space, of regions and of words."""

    def __init__(self, settings, image_dim, vocabulary_size):
        super().__init__()
        self.regions = nn.Linear(image_dim, settings.embed_dim)
        self.words = nn.Embedding(vocabulary_size, settings.embed_dim)

    def encode_images(self, images):
        """Unit vectors [B, D]."""
        regions = self.regions(images.regions.float())
        full = torch.full((len(regions),), regions.shape[1], device=regions.device)
        return ImageEncoding(l2_normalise(mean(regions, full if images.count is None else images.count), dim=-1))

    def encode_texts(self, texts):
        """Unit vectors [T, D]."""
        return TextEncoding(l2_normalise(mean(self.words(texts.tokens), texts.lengths), dim=-1))


def build(settings, image_dim, vocabulary_size):
    """Makes the model, freshly initialised."""
    return MeanWordsEncoder(settings, image_dim, vocabulary_size)
