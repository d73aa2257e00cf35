"""The backbone itself."""

from torch import nn

from itrpipe.models.base import EmbeddingModel, ImageEncoding, TextEncoding, l2_normalise, mean_of_first


class MeanWordsEncoder(EmbeddingModel):
    """Two linear maps into the joint space, of regions and of words."""

    def __init__(self, settings, image_dim, vocabulary_size):
        super().__init__()
        self.regions = nn.Linear(image_dim, settings.embed_dim)
        self.words = nn.Embedding(vocabulary_size, settings.embed_dim)

    def encode_images(self, images):
        """Unit vectors [B, D]."""
        regions = self.regions(images.regions.float())
        return ImageEncoding(l2_normalise(mean_of_first(regions, images.count), dim=-1))

    def encode_texts(self, texts):
        """Unit vectors [T, D]."""
        return TextEncoding(l2_normalise(mean_of_first(self.words(texts.tokens), texts.lengths), dim=-1))


def build(settings, image_dim, vocabulary_size):
    """Makes the model, freshly initialised."""
    return MeanWordsEncoder(settings, image_dim, vocabulary_size)
