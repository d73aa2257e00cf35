"""Declaration of the dual encoder."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from itrpipe.config import Settings
from itrpipe.models.declaration import RANDOM, WIDEST, BackboneSettings, Depth, Dropout, Length, Width
from itrpipe.papers import CLIP, FNE, SIGLIP, Paper

FROZEN = ("regions", "global")
"""Values of `images` for which an image is one vector that is never trained."""
FROZEN_DROPOUT = 0.3
"""Ours: on Flickr8k, heads on frozen vectors of both sides gain 12 RSum by it; without, they soon overfit."""


class Augment(Settings):
    """Changes of training images, which are drawn anew for every batch.

    Attributes:
        scale: smallest share of a photograph's area that a random crop keeps; 1: none.
        flip: mirror half of the images whose captions name no sides.
        randaugment: apply two operations of RandAugment, each to half of the images.
    """

    scale: float = Field(default=0.5, gt=0, le=1)
    flip: bool = True
    randaugment: bool = True


NO_CHANGES = Augment(scale=1.0, flip=False, randaugment=False)


class DualEncoder(BackboneSettings):
    """A vision encoder and a text encoder of transformers, trained end to end. Source: FNE §3.1, A.2.

    A pretrained encoder is a hub id or a folder, of any type that transformers has an `AutoModel` of; a joint model
    such as CLIP is named as both. `random` is a small one of the given size with random weights: a ViT, or a BERT that
    reads our own vocabulary of words.

    Attributes:
        images: input of an image: its pixels, or frozen features: the mean region, all regions and their boxes as
            tokens of a small Transformer, or the global vector.
        vision: hub id or folder of the vision encoder, or `random`.
        text: hub id or folder of the text encoder, or `random`.
        vision_revision: branch, tag or commit of the hub id of `vision`.
        text_revision: branch, tag or commit of the hub id of `text`.
        embed_dim: width D of a joint space that each side is projected to; 0: no projection.
        dropout: dropout of the vectors that are projected; .3 where those of images and of captions are frozen.
        image_pool: vector of an image: the network's own, mean of all tokens, or the first; auto: own where it has one.
        text_pool: vector of a caption: mean of its tokens (mean-all: of padding, too), first, last, or the network's
            own; auto: as its folder says, else own of a joint model, else mean.
        normalisation: mean and deviation of colours: those of the encoder's image processor, or CLIP's.
        augment: changes of training images.
        clean_captions: lower-case captions and drop punctuation.
        max_words: words kept of a caption.
        gradient_checkpointing: compute activations anew in the backward pass: a third slower, far less memory.
        image_size: height and width in pixels that a random vision encoder sees.
        patch_size: side of its patches in pixels.
        width: hidden width of random encoders.
        heads: their attention heads.
        vision_layers: layers of a random vision encoder, or over region tokens.
        text_layers: layers of a random text encoder.
    """

    papers = (FNE,)
    opens_encoders = True
    multiples = (("width", "heads"),)

    images: Literal["pixels", "regions", "region-tokens", "global"] = "pixels"
    vision: str = Field(default="google/vit-base-patch16-384", min_length=1)
    text: str = Field(default="bert-base-uncased", min_length=1)
    vision_revision: str = "main"
    text_revision: str = "main"
    embed_dim: int = Field(default=0, ge=0, le=WIDEST)
    dropout: Dropout = 0.0
    image_pool: Literal["auto", "mean", "cls", "own"] = "auto"
    text_pool: Literal["auto", "mean", "mean-all", "cls", "last", "own"] = "auto"
    normalisation: Literal["own", "clip"] = "own"
    augment: Augment = Field(default_factory=Augment)
    clean_captions: bool = True
    max_words: Length = 30
    gradient_checkpointing: bool = False
    image_size: tuple[int, int] = (96, 128)
    patch_size: Length = 16
    width: Width = 128
    heads: Depth = 4
    vision_layers: Depth = 3
    text_layers: Depth = 2

    def reads(self) -> tuple[str, ...]:
        """Return what stands for an image; boxes are read where the features have some."""
        if self.images == "region-tokens":
            return ("regions",)
        return (self.images,)

    def unused_options(self) -> tuple[str, ...]:
        """Return options of encoders that there are not, and of projections where there are none."""
        unused: list[str] = []
        if self.images != "pixels":
            unused += ["vision", "vision_revision", "normalisation"]
            unused += [f"augment.{name}" for name in Augment.model_fields]
        if self.images in FROZEN:
            unused.append("image_pool")
        if not self.embed_dim:
            unused.append("dropout")
        random_vision = self.images == "pixels" and self.vision == RANDOM
        if not random_vision:
            unused += ["image_size", "patch_size"]
        if not random_vision and self.images != "region-tokens":
            unused.append("vision_layers")
        unused.append("text_revision" if self.text == RANDOM else "text_layers")
        if {"vision_layers", "text_layers"} <= set(unused):
            unused += ["width", "heads"]
        return tuple(unused)

    def sees_sides(self) -> bool:
        return self.images in ("pixels", "region-tokens")

    def joint(self) -> str:
        """Return the pretrained model that is named as both encoders, such as CLIP; empty where none is."""
        if self.images != "pixels" or self.vision == RANDOM:
            return ""
        if (self.vision, self.vision_revision) != (self.text, self.text_revision):
            return ""
        return self.vision

    def untrained(self) -> str:
        """Return a reason unless both encoders were trained together and nothing is added to them."""
        if not self.joint():
            return "its encoders were not trained together; name one joint model, such as CLIP, as --vision and --text"
        if self.embed_dim:
            return f"its projection to embed_dim = {self.embed_dim} is random; leave that out"
        return ""

    def cited(self) -> tuple[Paper, ...]:
        """Return the paper of a joint model, if its name shows which; of two encoders FNE's."""
        if not self.joint():
            return self.papers
        name = self.joint().rpartition("/")[2].lower()
        if "siglip" in name:
            return (SIGLIP,)
        if "clip" in name:
            return (CLIP,)
        return ()

    def encoders(self) -> tuple[str, ...]:
        """Return both, or that of captions alone where images are frozen features."""
        if self.images == "pixels":
            return "vision", "text"
        return ("text",)

    def encoder_alone(self, side: str) -> dict[str, Any]:
        """Return pretrained encoder and pooling, and what is read of a caption.

        Vectors depend on the batch where its padding counts, and where images are changed at random.
        """
        if side == "text" and self.text_pool != "mean-all":
            return {
                "encoder": self.text,
                "revision": self.text_revision,
                "pool": self.text_pool,
                "clean_captions": self.clean_captions,
                "max_words": self.max_words,
            }
        if side == "vision" and self.augment == NO_CHANGES:
            return {
                "encoder": self.vision,
                "revision": self.vision_revision,
                "pool": self.image_pool,
                "normalisation": self.normalisation,
            }
        return {}

    def pretrained(self) -> dict[str, str]:
        """Return the encoders that are not random, that of captions first."""
        ids = {name: getattr(self, name) for name in reversed(self.encoders())}
        return {name: model for name, model in ids.items() if model != RANDOM}

    def with_frozen(self, sides: tuple[str, ...]) -> Self:
        """Return the settings for encoders that stay as they are.

        A frozen vision encoder sees photographs without random changes. Where both sides are frozen vectors, a dropout
        that is not set is `FROZEN_DROPOUT`.

        Args:
            sides: `vision`, `text` or both: the frozen encoders.
        """
        changes: dict[str, Any] = {}
        if "vision" in sides:
            changes["augment"] = NO_CHANGES
        images_are_frozen = "vision" in sides or self.images in FROZEN
        if images_are_frozen and "text" in sides and "dropout" not in self.model_fields_set:
            changes["dropout"] = FROZEN_DROPOUT
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.images in FROZEN and not self.embed_dim:
            raise ValueError(f"images = {self.images} needs a projection; give --set model.embed_dim=768 or another")
        if self.images == "region-tokens" and self.image_pool == "own":
            raise ValueError("images = region-tokens has no image vector of its own; give --set model.image_pool=mean")
        if any(side < self.patch_size for side in self.image_size):
            raise ValueError(f"image_size = {self.image_size} is smaller than a patch of {self.patch_size} pixels")
        return self
