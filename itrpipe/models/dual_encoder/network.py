"""Any vision encoder and any text encoder of transformers as one dual encoder, trained from pixels or frozen features.

Each side is an `itrpipe.encoders.encoder.Encoder`: it makes one vector of an image's pixels, or of a caption. Frozen
features are one vector of an image, or its regions as the tokens of a small Transformer.

Embeddings are unit vectors; a linear projection of each side to a joint space is optional between encoders of one
width. A joint model such as CLIP or SigLIP is named as both encoders: it is one encoder with both sides, keeps its own
projections, and so can be fine-tuned with any method. Vectors that both networks make themselves are projected without
a bias, as transformers joins two encoders.

Source: FNE (Li et al., ACM MM 2023), §4.1: ViT and BERT, mean of the tokens; its released code has no projection.

Shapes: B images, R regions, T captions, W tokens of a caption, D_in width of frozen features, D width of a token, of an
encoder's vector, or of an embedding.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from itrpipe.encoders.encoder import TEXT, VISION, Encoder, open_encoder, open_network
from itrpipe.encoders.images import ImageReader
from itrpipe.encoders.texts import PADDED_LENGTH, Pool, TextReader, positions_of
from itrpipe.errors import UsageError
from itrpipe.models.base import (
    EmbeddingModel,
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    boxes_of,
    first_places,
    l2_normalise,
    mean_of_first,
    real_count,
)
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.uniter.network import NORM_EPSILON, EncoderLayers, RegionEmbedding, initialise

JOINT = "encoder"
"""Name of the encoder of both sides."""
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
"""Mean and deviation of red, green and blue in 0..1. Source: CLIP, also FNE's released code."""
_BICUBIC = 3
_OWN = "own"


class RegionTower(nn.Module):
    """One vector of an image's regions.

    Args:
        image_dim: D_in.
        width: D, a multiple of `heads`.
        heads, layers: of the Transformer.
        pool: `mean` of the regions, or `cls`: a class token before them.
        boxes: whether the features have boxes, which are read then.

    Attributes:
        image_width: D.
        boxes: as given.
    """

    def __init__(self, image_dim: int, width: int, heads: int, layers: int, pool: str, boxes: bool) -> None:
        super().__init__()
        self.image_width = width
        self.boxes = boxes
        self.embedding = RegionEmbedding(width, image_dim, boxes)
        self.start = None
        if pool == "cls":
            self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.layers = EncoderLayers(layers, width, heads, 4 * width, 0.0, NORM_EPSILON)
        initialise(self)
        if self.start is not None:
            nn.init.normal_(self.start, std=0.02)

    def forward(self, images: ImageBatch) -> Tensor:
        """Encode images as vectors [B, D]; what is behind the number of an image's regions plays no part.

        Raises:
            DataError: the images have no boxes and the model was trained with some.
        """
        count = real_count(images)
        boxes = None
        if self.boxes:
            boxes = boxes_of(images)
        states = self.embedding(images.regions.float(), boxes)
        if self.start is not None:
            start = self.start.expand(len(states), 1, -1)
            states = torch.cat([start, states], dim=1)
            if count is not None:
                count = count + 1
        allowed = None
        if count is not None:
            allowed = first_places(states, count)[:, None, None]
        if self.start is not None:
            return self.layers(states, allowed, first=1)[:, 0]
        return mean_of_first(self.layers(states, allowed), count)


class TransformerDualEncoder(EmbeddingModel):
    """A vision and a text encoder that compare unit vectors by inner product.

    Args:
        settings: the options of the model.
        vision: vision encoder, or one of region tokens; None where images are one frozen vector each.
        text: text encoder; that of images where one network encodes both.
        image_dim: width D_in of frozen features.

    Raises:
        UsageError: the encoders differ in width and are not projected, or one has no gradient checkpointing.

    Attributes:
        sides: the encoders, by the names of the folders that a trained model keeps them in: `vision` and `text`, or
            `encoder`.
        embed_dim: D.
    """

    def __init__(
        self,
        settings: DualEncoder,
        vision: Encoder | RegionTower | None,
        text: Encoder,
        image_dim: int,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.sides = nn.ModuleDict()
        if vision is text:
            self.sides[JOINT] = text
            self.pretrained_scale = text.scale()
        else:
            if vision is not None:
                self.sides[VISION] = vision
            self.sides[TEXT] = text
        image_width = image_dim
        if vision is not None:
            image_width = vision.image_width
        if not settings.embed_dim and image_width != text.text_width:
            raise UsageError(
                f"image vectors have width {image_width} and text vectors of {settings.text} {text.text_width}; "
                f"project both with --set model.embed_dim={text.text_width}"
            )
        self.embed_dim = settings.embed_dim or image_width
        self.project_images = nn.Identity()
        self.project_texts = nn.Identity()
        self.dropout = nn.Identity()
        if settings.embed_dim:
            # transformers projects vectors that networks make themselves without a bias; so do we, to be opened there.
            own_vectors = isinstance(vision, Encoder) and vision.image_pool == text.texts.pool == _OWN
            self.dropout = nn.Dropout(settings.dropout)
            self.project_images = nn.Linear(image_width, self.embed_dim, bias=not own_vectors)
            self.project_texts = nn.Linear(text.text_width, self.embed_dim, bias=not own_vectors)
        if settings.gradient_checkpointing:
            for encoder in self.sides.values():
                if isinstance(encoder, Encoder):
                    encoder.checkpoint_gradients()

    @property
    def vision(self) -> Encoder | RegionTower | None:
        """Return what encodes images; None where they are one frozen vector each."""
        for name in (VISION, JOINT):
            if name in self.sides:
                return self.sides[name]  # pyright: ignore[reportReturnType]
        return None

    @property
    def text(self) -> Encoder:
        """Return what encodes captions."""
        name = TEXT if TEXT in self.sides else JOINT
        return self.sides[name]  # pyright: ignore[reportReturnType]

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Encode images as vectors [B, D] of unit length."""
        vision = self.vision
        if isinstance(vision, RegionTower):
            vectors = vision(images)
        elif vision is not None and images.pixels is not None:
            vectors = vision.encode_images(images.pixels)
        elif self.settings.images == "regions":
            vectors = mean_of_first(images.regions.float(), real_count(images))
        else:  # of the features, or of the vision encoder itself, where it is frozen
            assert images.global_ is not None
            vectors = images.global_.float()
        vectors = self.project_images(self.dropout(vectors))
        return ImageEncoding(l2_normalise(vectors.float(), dim=-1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Encode captions as vectors [T, D] of unit length."""
        vectors = texts.vectors
        if vectors is None:
            vectors = self.text.encode_texts(texts.tokens, texts.lengths, texts.in_training)
        vectors = self.project_texts(self.dropout(vectors))
        return TextEncoding(l2_normalise(vectors.float(), dim=-1))

    def encoders(self) -> dict[str, nn.Module]:
        """Return the parts of the networks that `vision`, where images are pixels, and `text` are made of."""
        parts: dict[str, nn.Module] = {}
        for side in self.settings.encoders():
            encoder: Any = self.vision if side == VISION else self.text
            parts[side] = nn.ModuleDict(encoder.parts(side))
        return parts


@dataclass(frozen=True)
class Encoders:
    """Encoders of a model, opened before the data are.

    Attributes:
        vision: the vision encoder; None where images are frozen features.
        text: the text encoder, the same where one network encodes both; None where it is a random one, which waits for
            the vocabulary.
        notes: what a user should know.
        boxes: whether the regions of the features have boxes.
        global_dim: width of their vectors of whole images; 0 where they have none, or the model reads none.
    """

    vision: Encoder | None = None
    text: Encoder | None = None
    notes: tuple[str, ...] = ()
    boxes: bool = False
    global_dim: int = 0


def open_encoders(
    settings: DualEncoder,
    global_dim: int = 0,
    boxes: bool = True,
    trained: Path | None = None,
) -> Encoders:
    """Open the pretrained encoders, and make a random vision encoder.

    Args:
        settings: the options of the model.
        global_dim: width of the global vectors of the features; not read.
        boxes: whether their regions have boxes.
        trained: folder of a trained model, whose encoders are opened in the place of those that the settings name.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or weights are of another network.
        UsageError: an encoder is of no use here, or a random one has nothing that the settings ask for.
    """
    if settings.joint():
        name = settings.vision
        if trained:
            name = str(trained)  # of `itrpipe export`, which makes all of it such a folder
            if (trained / JOINT).is_dir():
                name = str(trained / JOINT)
        encoder, notes = open_encoder(
            name,
            settings.vision_revision,
            image_pool=settings.image_pool,
            text_pool=settings.text_pool,
        )
        set_colours(encoder, settings.normalisation)
        return Encoders(encoder, encoder, notes, boxes)

    vision = None
    notes = ()
    name = settings.vision
    if trained:
        name = str(trained / VISION)
    if settings.images == "pixels" and name == RANDOM:
        vision = random_vision(settings)
    elif settings.images == "pixels":
        vision, notes = open_encoder(name, settings.vision_revision, (VISION,), settings.image_pool)
        set_colours(vision, settings.normalisation)
    encoders = open_text(settings, settings.text_pool, trained)
    return replace(encoders, vision=vision, notes=(*notes, *encoders.notes), boxes=boxes)


def open_text(settings: Any, pool: Pool, trained: Path | None = None) -> Encoders:
    """Open a text encoder, unless it is a random one, which waits for the vocabulary.

    Args:
        settings: with `text` and `text_revision`.
        pool: of its tokens.
        trained: see `open_encoders`; of a random one weights are there, too.

    Raises:
        MissingInputError, DataError, UsageError: see `open_encoders`.
    """
    if settings.text != RANDOM:
        name = settings.text
        if trained:
            name = str(trained / TEXT)
        encoder, notes = open_encoder(name, settings.text_revision, (TEXT,), text_pool=pool)
        return Encoders(text=encoder, notes=notes)
    if trained:
        return Encoders(text=_words_encoder(open_network(trained / TEXT), pool))
    return Encoders()


def build(settings: DualEncoder, image_dim: int, vocabulary_size: int, encoders: Encoders) -> TransformerDualEncoder:
    """Make a dual encoder.

    Args:
        settings: the options of the model.
        image_dim: width of frozen features.
        vocabulary_size: number of token ids, of a random text encoder.
        encoders: what was opened already.
    """
    vision = encoders.vision
    if settings.images == "region-tokens":
        pool = "cls" if settings.image_pool == "cls" else "mean"
        vision = RegionTower(image_dim, settings.width, settings.heads, settings.vision_layers, pool, encoders.boxes)
    text = encoders.text
    if text is None:
        text = random_text(
            vocabulary_size,
            settings.width,
            settings.heads,
            settings.text_layers,
            settings.max_words,
            settings.text_pool,
        )
    return TransformerDualEncoder(settings, vision, text, image_dim)


def random_vision(settings: DualEncoder) -> Encoder:
    """Make a small ViT with random weights."""
    height, width = settings.image_size
    processor = transformers.ViTImageProcessor(
        size={"height": height, "width": width},
        resample=_BICUBIC,
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
    )
    config = transformers.ViTConfig(
        image_size=settings.image_size,
        patch_size=settings.patch_size,
        hidden_size=settings.width,
        intermediate_size=4 * settings.width,
        num_hidden_layers=settings.vision_layers,
        num_attention_heads=settings.heads,
    )
    network = transformers.ViTModel(config, add_pooling_layer=settings.image_pool == _OWN)
    return Encoder(network, ImageReader(processor), None, settings.image_pool)


def random_text(vocabulary_size: int, width: int, heads: int, layers: int, max_words: int, pool: Pool) -> Encoder:
    """Make a small BERT with random weights.

    Args:
        vocabulary_size: number of token ids.
        width, heads, layers: of the BERT.
        max_words: longest caption without start and end.
        pool: of its tokens.
    """
    positions = max(max_words + 2, PADDED_LENGTH)
    config = transformers.BertConfig(
        vocab_size=vocabulary_size,
        max_position_embeddings=positions,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )
    network = transformers.BertModel(config, add_pooling_layer=pool == _OWN)
    return _words_encoder(network, pool)


def _words_encoder(network: Any, pool: Pool) -> Encoder:
    """Return an encoder of captions that are words of our own vocabulary."""
    if pool == "auto":
        pool = "mean"
    reader = TextReader(None, pool, positions_of(network), [])
    return Encoder(network, None, reader)


def set_colours(encoder: Encoder, normalisation: str) -> None:
    """Take CLIP's colours in the place of an encoder's own, where `normalisation` says `clip`.

    Raises:
        UsageError: the image processor has no such colours.
    """
    if normalisation == _OWN:
        return
    processor = encoder.images.processor
    if not hasattr(processor, "image_mean"):
        raise UsageError(
            f"the image processor {type(processor).__name__} has colours of its own alone; give --set "
            "model.normalisation=own"
        )
    processor.image_mean = CLIP_MEAN
    processor.image_std = CLIP_STD
    encoder.images = ImageReader(processor)
