"""SCAN: image regions and words in one space, matched by attention in one direction.

Source: Lee et al., "Stacked Cross Attention for Image-Text Matching", ECCV 2018. Where the paper clips by ReLU,
the published code has a leaky ReLU of slope 0.1; the code is followed.
"""

from __future__ import annotations

from itrpipe.models.base import (
    CrossAttentionModel,
    ImageBatch,
    RegionEncoding,
    TextBatch,
    WordEncoding,
    smallest_count,
    unit_vectors,
)
from itrpipe.models.cross_attention import Attention, CrossAttention
from itrpipe.models.declaration import RegionBackbone
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.text import BiGruWordEncoder
from itrpipe.models.vsepp.network import image_projection


class RegionWordModel(CrossAttentionModel):
    """The encoders of SCAN, which BFAN shares: a linear layer per region, a bidirectional GRU over words.

    Args:
        settings: the widths.
        scoring: the directions of attention and their options.
        image_dim: width D_in of the region features.
        vocabulary_size: number of token ids.
    """

    def __init__(self, settings: RegionBackbone, scoring: CrossAttention, image_dim: int, vocabulary_size: int) -> None:
        super().__init__(scoring)
        self.fc = image_projection(image_dim, settings.embed_dim)
        self.text = BiGruWordEncoder(vocabulary_size, settings.word_dim, settings.embed_dim)

    def encode_images(self, images: ImageBatch) -> RegionEncoding:
        """Regions [B, R, D] of unit length; images may differ in their number of regions.

        Raises:
            DataError: an image has no region, or more than the batch has room for.
        """
        smallest_count(images)  # raises
        regions = self.fc(images.regions.to(self.fc.weight.dtype))  # [B, R, D]
        return RegionEncoding(unit_vectors(regions), images.count)

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Words [T, W, D] of unit length."""
        return WordEncoding(self.text(texts), texts.lengths)


def build(settings: Scan, image_dim: int, vocabulary_size: int) -> CrossAttentionModel:
    """Make a SCAN model with fresh weights."""
    attention = Attention(
        settings.lambda_softmax,
        settings.raw_feature_norm,
        aggregation=settings.aggregation,
        lambda_lse=settings.lambda_lse,
    )
    return RegionWordModel(settings, _DIRECTIONS[settings.cross_attention](attention), image_dim, vocabulary_size)


_DIRECTIONS = {
    "t2i": lambda attention: CrossAttention(words_to_regions=attention),
    "i2t": lambda attention: CrossAttention(regions_to_words=attention),
}
