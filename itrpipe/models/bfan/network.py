"""BFAN: attention in both directions, each confined to the fragments that matter more than the others.

Source: Liu et al., "Focus Your Attention: A Bidirectional Focal Attention Network for Image-Text Matching",
ACM MM 2019. Its encoders are SCAN's, always with the bidirectional GRU.
"""

from itrpipe.models.bfan.declaration import Bfan
from itrpipe.models.scan.network import Attention, CrossAttention, CrossAttentionModel


def build(settings: Bfan, image_dim: int, vocabulary_size: int) -> CrossAttentionModel:
    """Make a BFAN model with fresh weights; its score lies in [-2, 2], a mean cosine per direction."""
    attention = Attention(settings.lambda_softmax, focal=settings.focal)
    both_directions = CrossAttention(attention, attention)
    return CrossAttentionModel(settings, both_directions, image_dim, vocabulary_size)
