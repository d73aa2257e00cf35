"""Any vision encoder and any text encoder of transformers as one dual encoder, trained from pixels or frozen features.

Frozen features are one vector of an image, or its regions as the tokens of a small Transformer.

Embeddings are unit vectors; a linear projection of each side to a joint space is optional between encoders of one
width. A joint model such as CLIP or SigLIP is named as both encoders, keeps its own projections, and so can be
fine-tuned with any method. Vectors of poolers are projected without a bias, as transformers joins two encoders.

Source: FNE (Li et al., ACM MM 2023), §4.1: ViT and BERT, mean of the tokens; its released code has no projection.

Shapes: B images, R regions, D_in width of their features, T captions, D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from itrpipe.errors import DataError, UsageError
from itrpipe.features.towers import kind_of
from itrpipe.models.base import DualEncoder as Base
from itrpipe.models.base import ImageBatch, ImageEncoding, TextBatch, TextEncoding, l2_normalise, real_count
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder import towers
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.towers import Encoders, TextTower, VisionTower
from itrpipe.models.uniter.network import NORM_EPSILON, EncoderLayer, RegionEmbedding, initialise
from itrpipe.models.vectors import first_places, mean_of_first
from itrpipe.models.vsepp.network import mean_of_regions

_IMAGES_AT_ONCE = 64
"""Outside training; a block of 512 images of 384 pixels would take gigabytes for a ViT's tokens."""


class TransformerDualEncoder(Base):
    """A vision and a text encoder that compare unit vectors by inner product.

    Args:
        settings: the options of the model.
        vision: vision encoder, or one of region tokens; None where images are one frozen vector each.
        text: text encoder.
        image_dim: width D_in of frozen features.
        scale: see `pretrained_scale`.

    Raises:
        UsageError: the encoders differ in width and are not projected, or one has no gradient checkpointing.

    Attributes:
        embed_dim: D.
    """

    def __init__(
        self,
        settings: DualEncoder,
        vision: VisionTower | RegionTower | None,
        text: TextTower,
        image_dim: int,
        scale: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self._scale = scale
        self.settings, self.vision, self.text = settings, vision, text
        width = image_dim if vision is None else vision.width
        if not settings.embed_dim and width != text.width:
            made_by = settings.vision if isinstance(vision, VisionTower) else settings.images
            raise UsageError(
                f"image vectors of {made_by} have width {width} and text vectors of {settings.text} "
                f"{text.width}; project both with --set model.embed_dim={text.width}"
            )
        self.embed_dim = settings.embed_dim or width
        # transformers projects an encoder's own vector and a pooler's without a bias; so do we, to be opened there.
        own = isinstance(vision, VisionTower) and vision.pool == text.pool == "own"
        bias = not (own and kind_of(text.network, towers.TEXT_KINDS).own == "pooler")
        self.project_images, self.project_texts = (
            nn.Linear(each, self.embed_dim, bias) if settings.embed_dim else nn.Identity()
            for each in (width, text.width)
        )
        for tower in self.encoders().values() if settings.gradient_checkpointing else ():
            network: Any = tower.network
            if not network.supports_gradient_checkpointing:
                raise UsageError(f"{type(network).__name__} has no gradient checkpointing; leave it out")
            network.config.use_cache = False  # else transformers says on the terminal that it turns it off
            # Releases of transformers 5 before the newest know the old name alone, which the newest warns of.
            enable = getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)
            enable({"use_reentrant": False})

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Embeddings [B, D] of unit length."""
        return ImageEncoding(l2_normalise(self.project_images(self._image_vectors(images)).float(), dim=-1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        vectors = self.project_texts(self.text(texts.tokens, texts.lengths, texts.in_training))
        return TextEncoding(l2_normalise(vectors.float(), dim=-1))

    def encoders(self) -> dict[str, nn.Module]:
        """`vision`, where images are pixels, and `text`."""
        vision = {"vision": self.vision} if isinstance(self.vision, VisionTower) else {}
        return {**vision, "text": self.text}

    def description(self) -> dict[str, Any]:
        """The networks without their weights, for `restored`."""
        vision = self.vision.description() if isinstance(self.vision, VisionTower) else None
        known: dict[str, Any] = {} if self._scale is None else {"scale": list(self._scale)}
        if isinstance(self.vision, RegionTower):
            known["boxes"] = self.vision.boxes
        return {"vision": vision, "text": self.text.description(), **known}

    def pretrained_scale(self) -> tuple[float, float] | None:
        """Of CLIP and SigLIP, as they were when they were opened; training moves a scale of the method's."""
        return self._scale

    @property
    def has_word_maps(self) -> bool:
        """Whether `word_maps` is defined: images are pixels, and both sides the mean of their tokens."""
        return isinstance(self.vision, VisionTower) and self.vision.pool == self.text.pool == "mean"

    def word_maps(self, images: ImageBatch, texts: TextBatch) -> Tensor:
        """What each word of caption k finds at each place of image k; needs no gradient.

        With x_p and t_w the projected tokens, x and t their means, the map of word w is m_w[p] = <x_p, t_w> / (|x||t|).
        The score of the pair is <x, t> / (|x||t|), hence the mean of m_w[p] over all p and w, exactly. A bias of the
        projections is part of every token, which leaves this true.

        Args:
            images: B images.
            texts: B captions.

        Returns:
            [B, n, W], n tokens of an image as `VisionTower.tokens` orders them; zero behind the length of a caption.

        Raises:
            UsageError: the scores of this model are no mean over words and places.
        """
        if not self.has_word_maps or not isinstance(self.vision, VisionTower):
            raise UsageError(
                f"word maps need a model that takes means of tokens; this one has model.images={self.settings.images}, "
                f"image_pool={self.vision.pool if self.vision else 'none'} and text_pool={self.text.pool}; train one "
                "with --set model.images=pixels --set model.image_pool=mean --set model.text_pool=mean"
            )
        assert images.pixels is not None
        parts = images.pixels.split(_IMAGES_AT_ONCE)
        places = self.project_images(torch.cat([self.vision.tokens(part) for part in parts])).float()
        words = self.project_texts(self.text.tokens(texts.tokens, texts.lengths)).float()
        words = words.masked_fill(~first_places(words, texts.lengths)[..., None], 0)  # a bias has filled the padding
        image, text = places.mean(dim=1), words.sum(dim=1) / texts.lengths[:, None]
        lengths = torch.linalg.vector_norm(image, dim=1) * torch.linalg.vector_norm(text, dim=1)  # |x| |t|
        products = torch.einsum("bpd,bwd->bpw", places, words)
        return products / lengths.masked_fill(lengths == 0, 1.0)[:, None, None]

    def _image_vectors(self, images: ImageBatch) -> Tensor:
        if isinstance(self.vision, RegionTower):
            return self.vision(images)
        if self.vision is not None:
            assert images.pixels is not None
            parts = [images.pixels] if self.training else images.pixels.split(_IMAGES_AT_ONCE)
            return torch.cat([self.vision(part) for part in parts])
        if self.settings.images == "global":
            assert images.global_ is not None
            return images.global_.float()
        return mean_of_regions(images)


class RegionTower(nn.Module):
    """One vector of an image's regions.

    Args:
        image_dim: D_in.
        width: D, a multiple of `heads`.
        heads, layers: of the Transformer.
        pool: `mean` of the regions, or `cls`: a class token before them.
        boxes: whether the features have boxes, which are read then.

    Attributes:
        width, boxes: as given.
    """

    def __init__(self, image_dim: int, width: int, heads: int, layers: int, pool: str, boxes: bool) -> None:
        super().__init__()
        self.width, self.boxes = width, boxes
        self.embedding = RegionEmbedding(width, image_dim, boxes)
        self.start = nn.Parameter(torch.zeros(1, 1, width)) if pool == "cls" else None
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 4 * width, 0.0, NORM_EPSILON) for _ in range(layers))
        initialise(self)
        if self.start is not None:
            nn.init.normal_(self.start, std=0.02)

    def forward(self, images: ImageBatch) -> Tensor:
        """Returns vectors [B, D]; what is behind the number of an image's regions plays no part.

        Raises:
            DataError: the images have no boxes and the model was trained with some, or an image has no region.
        """
        if self.boxes and images.boxes is None:
            raise DataError(
                "this model was trained on features with boxes, which these have not; extract them as those were"
            )
        count, boxes = real_count(images), None if images.boxes is None else images.boxes.float()
        states = self.embedding(images.regions.float(), boxes)
        if self.start is not None:
            states = torch.cat([self.start.expand(len(states), 1, -1), states], dim=1)
            count = None if count is None else count + 1
        allowed = None if count is None else first_places(states, count)[:, None, None]
        for layer in self.layers[:-1]:
            states = layer(states, allowed)
        if self.start is not None:
            return self.layers[-1](states, allowed, first=1)[:, 0]
        return mean_of_first(self.layers[-1](states, allowed), count)


def open_encoders(settings: DualEncoder, global_dim: int = 0, boxes: bool = True) -> Encoders:
    """Loads the pretrained encoders and makes a random vision encoder.

    Args:
        settings: the options of the model.
        global_dim: width of the global vectors of the features; not read.
        boxes: whether their regions have boxes.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or weights are of another network.
        UsageError: a model type is not supported, or its tokens cannot be pooled so.
    """
    vision, notes = None, ()
    if settings.images == "pixels":
        random = settings.vision == RANDOM
        vision, notes = (towers.random_vision(settings), ()) if random else towers.pretrained_vision(settings)
    text = Encoders()
    if settings.text != RANDOM:
        text = towers.pretrained_text(settings.text, settings.text_revision, settings.text_pool)
    notes = tuple(dict.fromkeys(notes + text.notes))
    return replace(text, vision=vision, notes=notes, scale=text.scale if settings.joint() else None, boxes=boxes)


def restored(description: Mapping[str, Any]) -> Encoders:
    """The encoders of a trained model's `description`, their weights still random."""
    return Encoders(
        None if description["vision"] is None else towers.restored_vision(description["vision"]),
        towers.restored_text(description["text"]),
        scale=tuple(description["scale"]) if "scale" in description else None,  # older models do not tell it
        boxes=description.get("boxes", False),
    )


def build(
    settings: DualEncoder, image_dim: int, vocabulary_size: int, encoders: Encoders | None = None
) -> TransformerDualEncoder:
    """Make a dual encoder.

    Args:
        settings: the options of the model.
        image_dim: width of frozen features.
        vocabulary_size: number of token ids, of a random text encoder.
        encoders: what was opened already.
    """
    encoders = encoders or open_encoders(settings)
    vision = encoders.vision
    if settings.images == "region-tokens":
        pool = "mean" if settings.image_pool == "auto" else settings.image_pool
        sizes = settings.width, settings.heads, settings.vision_layers
        vision = RegionTower(image_dim, *sizes, pool, encoders.boxes)
    sizes = settings.width, settings.heads, settings.text_layers, settings.max_words
    text = encoders.text or towers.random_text(vocabulary_size, *sizes, settings.text_pool)
    return TransformerDualEncoder(settings, vision, text, image_dim, encoders.scale)
