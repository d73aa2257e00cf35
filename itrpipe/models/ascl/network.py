"""AsCL: regions and words fused by attention, pair by pair, and a vector of the whole image beside its regions.

Images are projected regions of unit length and one projected vector of the whole image; captions are the projected
states of a BERT, frozen unless it is to be tuned. Everything that images and captions share is in
`itrpipe.models.ascl.fusion`: no encoding of an image knows a caption, and none of a caption an image.

Noise on words (`itrpipe.negatives.asymmetry`) is put between the two: `encode_texts`, then
`replace(texts, words=noisy)`.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-A and II-C. That regions and the whole image's vector have unit length, and words not, is in the
code of the authors' later method ACF-R only.

Shapes: B images, T captions, R regions, W words, D width, G width of the vector of a whole image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.models import text_tower
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.ascl.fusion import CrossModalFusion, mean_of_real, real_places
from itrpipe.models.base import (
    SCORERS,
    ImageBatch,
    Matcher,
    TextBatch,
    WordEncoding,
    inner_products,
    smallest_count,
    unit_vectors,
)
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import Encoders
from itrpipe.models.text_tower import TextTower
from itrpipe.models.vectors import at_least_single

_NO_VECTOR = (
    "AsCL reads a vector of the whole image beside its regions, which these features have not; give others by "
    "--features, or do without with --set model.fusion=none"
)


@dataclass(frozen=True)
class AsclEncoders(Encoders):
    """What is known before captions are.

    Attributes:
        global_dim: G; 0 for features without such a vector.
    """

    global_dim: int = 0


@dataclass(frozen=True)
class AsclImages:
    """Images on their own.

    Attributes:
        regions: [B, R, D] of unit length; rows past `count` hold anything.
        count: [B] int64, number of real regions per image, or None where all R are real.
        whole: [B, D] V_g2, or None in a model without fusion.
    """

    regions: Tensor
    count: Tensor | None
    whole: Tensor | None


class AsclEncoder(Matcher[AsclImages, WordEncoding]):
    """AsCL. The score of a pair is S of Eq. 4, or without fusion the cosine of the mean region and the mean word.

    Args:
        settings: the options of the model.
        text: text encoder.
        image_dim: width D_in of region features.
        global_dim: G.

    Raises:
        DataError: the fusion needs a vector of the whole image, and there is none.

    Attributes:
        tunes_text: whether the text encoder is trained.
    """

    by_rows = SCORERS

    def __init__(self, settings: Ascl, text: TextTower, image_dim: int, global_dim: int) -> None:
        super().__init__()
        width = settings.embed_dim
        self.settings, self.text, self.global_dim = settings, text, global_dim
        self.project_regions, self.project_words = nn.Linear(image_dim, width), nn.Linear(text.width, width)
        self.project_whole = self.fusion = None
        if settings.fusion != "none":
            if not global_dim:
                raise DataError(_NO_VECTOR)
            # The paper projects G to D and then by X_g: two linear layers with nothing between, which are one.
            self.project_whole = nn.Linear(global_dim, width)
            self.fusion = CrossModalFusion(width, settings.heads, settings.fusion, settings.u1)
        self.tunes_text = settings.tune_text or settings.text == RANDOM
        self.text.requires_grad_(self.tunes_text)

    def train(self, mode: bool = True) -> AsclEncoder:
        """As in PyTorch, but a frozen text encoder stays without dropout."""
        super().train(mode)
        if not self.tunes_text:
            self.text.eval()
        return self

    def encode_images(self, images: ImageBatch) -> AsclImages:
        """Regions and the whole image, projected; images may differ in their number of regions.

        Raises:
            DataError: an image has no region, or the features have no vector of the whole image.
        """
        smallest_count(images)
        regions = unit_vectors(self.project_regions(images.regions.to(self.project_regions.weight.dtype)))
        if self.project_whole is None:
            return AsclImages(regions, images.count, None)
        if images.global_ is None:
            raise DataError(_NO_VECTOR)
        return AsclImages(regions, images.count, at_least_single(self.project_whole(unit_vectors(images.global_))))

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Words [T, W, D], not of unit length.

        Without `text_ends` the first and last token of captions are left out; a caption of nothing else keeps its last.
        """
        with torch.set_grad_enabled(self.tunes_text and torch.is_grad_enabled()):
            states = self.text.tokens(texts.tokens, texts.lengths)
        words, lengths = at_least_single(self.project_words(states)), texts.lengths
        if self.settings.text_ends:
            return WordEncoding(words, lengths)
        return WordEncoding(words[:, 1:], (lengths - 2).clamp(min=1))

    def score_matrix(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Scores [B, T] of every image with every caption, in tiles."""
        if self.fusion is None:
            return inner_products(self.embed_images(images), self.embed_texts(texts))
        assert images.whole is not None
        sides = (images.regions, images.count, images.whole, texts.words, texts.lengths)
        with torch.autocast(images.regions.device.type, enabled=False):
            return self.fusion.score_matrix(*sides)

    def score_pairs(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Scores [B] of image k with caption k; B and T are equal."""
        if self.fusion is None:
            return (self.embed_images(images) * self.embed_texts(texts)).sum(dim=-1)
        assert images.whole is not None
        sides = (images.regions, images.count, images.whole, texts.words, texts.lengths)
        with torch.autocast(images.regions.device.type, enabled=False):
            return self.fusion.score_pairs(*sides)

    def embed_images(self, images: AsclImages) -> Tensor:
        """Mean regions [B, D] of unit length, which analyses compare: the vectors of a pair depend on both sides."""
        return unit_vectors(mean_of_real(images.regions, real_places(images.regions, images.count)))

    def embed_texts(self, texts: WordEncoding) -> Tensor:
        """Mean words [T, D] of unit length."""
        return unit_vectors(mean_of_real(texts.words, real_places(texts.words, texts.lengths)))

    def description(self) -> dict[str, Any]:
        """The text network without its weights, and G, for `restored`."""
        return {"text": self.text.description(), "global_dim": self.global_dim}


def open_encoders(settings: Ascl, global_dim: int, boxes: bool = False) -> AsclEncoders:
    """Loads the text encoder, unless it is a random one, which waits for the vocabulary.

    Args:
        settings: the options of the model.
        global_dim: G; 0 for features without such a vector.
        boxes: whether regions have boxes; not read.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or weights are of another network.
        UsageError: a model type is not supported.
    """
    if settings.text == RANDOM:
        return AsclEncoders(None, None, global_dim=global_dim)
    text, tokenizer, _, notes = text_tower.pretrained(_of_tower(settings))
    return AsclEncoders(None, text, tokenizer, notes, global_dim=global_dim)


def restored(description: Mapping[str, Any]) -> AsclEncoders:
    """The encoders of a trained model's `description`, their weights still random."""
    return AsclEncoders(None, text_tower.restored(description["text"]), global_dim=description["global_dim"])


def build(settings: Ascl, image_dim: int, vocabulary_size: int, encoders: AsclEncoders | None = None) -> AsclEncoder:
    """Make an AsCL model.

    Args:
        settings: the options of the model.
        image_dim: width of region features.
        vocabulary_size: number of token ids, of a random text encoder.
        encoders: what was opened already; None for features without a vector of the whole image.

    Raises:
        DataError: the fusion needs a vector of the whole image, and there is none.
    """
    encoders = encoders or open_encoders(settings, 0)
    text = encoders.text or text_tower.random(_of_tower(settings), vocabulary_size)
    return AsclEncoder(settings, text, image_dim, encoders.global_dim)


def _of_tower(settings: Ascl) -> DualEncoder:
    """The settings of the text tower, which a dual encoder has as well; its pooled vectors are not used here."""
    return DualEncoder(
        images="regions",
        embed_dim=settings.embed_dim,
        text=settings.text,
        text_revision=settings.text_revision,
        text_pool="mean",
        max_words=settings.max_words,
        width=settings.text_width,
        heads=settings.text_heads,
        text_layers=settings.text_layers,
    )
