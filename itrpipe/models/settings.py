"""Settings of the backbones, one class per model file: `vsepp.py` is configured by `Vsepp`.

Kept apart from the models so that a configuration can be read and checked without importing torch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings, hyphenated

WIDEST, DEEPEST, LONGEST = 65_536, 1_000, 65_536
"""Largest width, number of layers or heads, and length in words: an order of magnitude beyond any published model."""
RANDOM = "random"
"""Stands for a hub id or folder: a small encoder with random weights."""


class BackboneSettings(Settings):
    """What is known of every backbone.

    Attributes:
        embeds: whether an image and a caption are one vector each, which mining and search need.
        reads_phrases: whether it needs the scene graphs of captions.
        opens_encoders: whether its module opens encoders of transformers, before captions are read by their tokenizer.
        trained_by: which methods train it, of a model that is trained in phases of its own.
        answers: what can be asked of it beside rankings: `words` (which are wrong), `word-maps` (where a word is seen),
            `writing` (words in masked places), `mean-vectors` (of images and captions, where scores are of pairs),
            `fused-vectors` (of an image and a caption that know each other).
    """

    embeds: ClassVar[bool] = True
    reads_phrases: ClassVar[bool] = False
    opens_encoders: ClassVar[bool] = False
    trained_by: ClassVar[str] = ""
    answers: ClassVar[frozenset[str]] = frozenset()

    def reads(self) -> tuple[str, ...]:
        """What it reads of features: `regions`, `boxes`, `global` or `pixels`."""
        return ("regions",)

    def without(self, missing: str) -> str:
        """Settings with which it does without something that it reads; empty where there are none."""
        return ""

    def pretrained(self) -> dict[str, str]:
        """Setting -> hub id or folder of its encoders and tokenizers, empty for those that it has not."""
        return {}

    def published_weights(self) -> str:
        """File of weights to start from; empty for random ones."""
        return ""


class RegionBackbone(BackboneSettings):
    """Settings of the backbones that read region features and words."""

    embed_dim: int = Field(
        default=1024, ge=1, le=WIDEST, description="Width D of the joint space of images and captions."
    )
    word_dim: int = Field(
        default=300, ge=1, le=WIDEST, description="Width of the word embedding that feeds the text GRU."
    )


class Vsepp(RegionBackbone):
    """VSE++ on region features: mean-pooled regions and a GRU. Source: VSE++ (Faghri et al., BMVC 2018)."""

    measure: Literal["cosine", "order"] = Field(
        default="cosine",
        description="Score of a pair: inner product of the embeddings, or the order-violation penalty.",
    )
    image_norm: bool = Field(default=True, description="Scale the image embedding to unit length (off in VSE0).")
    absolute_values: bool = Field(
        default=False, description="Take absolute values of both embeddings, as order embeddings do."
    )


class Vsrn(RegionBackbone):
    """VSRN: region graph reasoning, a GRU over regions and a captioning branch. Source: VSRN (Li et al., ICCV 2019)."""

    embed_dim: int = Field(
        default=2048, ge=1, le=WIDEST, description="Width D of the joint space of images and captions."
    )
    graph_layers: int = Field(
        default=4, ge=0, le=DEEPEST, description="Number of residual graph layers over the regions."
    )
    region_norm: bool = Field(
        default=True, description="l2-normalise right after the region projection (COCO: on, Flickr30K: off)."
    )
    region_l2_axis: Literal["regions", "channels"] = Field(
        default="regions",
        description="Axis of both region l2-norms: 'regions' as in every published weight, 'channels' as was meant.",
    )
    final_batch_norm: bool = Field(
        default=False, description="BatchNorm on the image vector before its l2-norm (Flickr30K: on, COCO: off)."
    )
    captioner: bool = Field(default=True, description="Train the captioning branch beside the matching loss.")
    caption_dim: int = Field(
        default=512, ge=1, le=WIDEST, description="Hidden width of the captioner's encoder and decoder."
    )
    caption_word_dim: int = Field(
        default=300, ge=1, le=WIDEST, description="Width of the captioner's own word embedding."
    )
    caption_max_length: int = Field(
        default=60,
        ge=2,
        le=LONGEST,
        description="Longest caption label in tokens, start and end included; longer ones are cut.",
    )
    caption_dropout: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="Dropout on the projected regions and on the decoder input."
    )


class Scan(RegionBackbone):
    """SCAN: words attend to regions, or regions to words. Source: SCAN (Lee et al., ECCV 2018)."""

    embeds: ClassVar[bool] = False

    cross_attention: Literal["t2i", "i2t"] = Field(
        default="t2i", description="Who attends to whom: words to regions (t2i), or regions to words (i2t)."
    )
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = Field(
        default="LogSumExp", description="How the relevances of the words (i2t: of the regions) make up the score."
    )
    raw_feature_norm: Literal[
        "clipped_l2norm", "l2norm", "clipped", "softmax", "no_norm", "l1norm", "clipped_l1norm"
    ] = Field(
        default="clipped_l2norm",
        description="Normalisation of the region-word products over the attending side, before the softmax.",
    )
    lambda_softmax: float = Field(
        default=9.0, gt=0.0, description="Inverse temperature of the attention (published: t2i 9, i2t 4)."
    )
    lambda_lse: float = Field(
        default=6.0,
        gt=0.0,
        description="Inverse temperature of LogSumExp (published: t2i 6, i2t 5 on Flickr30K and 20 on COCO).",
    )


class Bfan(RegionBackbone):
    """BFAN: attention in both directions, on the relevant fragments only. Source: BFAN (Liu et al., ACM MM 2019)."""

    embeds: ClassVar[bool] = False

    focal: Literal["equal", "prob"] = Field(
        default="equal",
        description="Fragments kept: weighing more than the plain mean (equal), or than a mean by confidence (prob).",
    )
    lambda_softmax: float = Field(default=20.0, gt=0.0, description="Inverse temperature of the attention.")


class Ssamt(RegionBackbone):
    """SSAMT: phrases, words and regions in one masked Transformer. Source: SSAMT (Fan et al., 2021)."""

    embeds: ClassVar[bool] = False
    reads_phrases: ClassVar[bool] = True
    trained_by: ClassVar[str] = "ssamt-intra and ssamt train ssamt, and nothing else does"

    phase: Literal["intra", "inter"] = Field(
        default="inter",
        description="What is trained and scored: each side alone (intra), or pairs on top of that, frozen (inter).",
    )
    layers: int = Field(default=2, ge=1, le=DEEPEST, description="Layers of each of the three encoders.")
    heads: int = Field(default=16, ge=1, le=DEEPEST, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: int = Field(default=2048, ge=1, le=WIDEST, description="Width of the feed-forward networks.")
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0, description="Dropout of embeddings, attention and layers.")
    max_words: int = Field(default=64, ge=1, le=LONGEST, description="Longest caption in words.")
    mask: Literal["paper", "strict", "none"] = Field(
        default="paper", description="Which edges are closed: the paper's, also node to node, or none but padding."
    )
    phrases: bool = Field(default=True, description="Read phrases; off leaves the words alone (Table 3).")
    mu1: float = Field(default=0.3, ge=0.0, description="Weight of the global cosine of a pair in its score.")
    mu2: float = Field(default=0.1, ge=0.0, description="Weight of each mean of local cosines.")

    @model_validator(mode="after")
    def _heads_fit(self) -> Ssamt:
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim = {self.embed_dim} is no multiple of heads = {self.heads}")
        return self


class Uniter(BackboneSettings):
    """UNITER: words and regions in one BERT. Source: UNITER (Chen et al., ECCV 2020); the sizes are those of base."""

    embeds: ClassVar[bool] = False
    answers: ClassVar[frozenset[str]] = frozenset({"words", "writing"})

    initial: str = Field(
        default="", description="Published weights to start from: a state dict of UNITER, TAGS or BERT; empty: random."
    )
    tokenizer: str = Field(
        default="", description="Tokenizer of word pieces: hub id or folder, as bert-base-cased; empty: our own words."
    )
    tokenizer_revision: str = Field(default="main", description="Branch, tag or commit of its hub id.")
    embed_dim: int = Field(default=768, ge=1, le=WIDEST, description="Width d of all states.")
    layers: int = Field(default=12, ge=1, le=DEEPEST, description="Layers of the encoder.")
    heads: int = Field(default=12, ge=1, le=DEEPEST, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: int = Field(default=3072, ge=1, le=WIDEST, description="Width of the feed-forward networks.")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="Dropout of embeddings, attention and layers.")
    max_words: int = Field(default=512, ge=2, le=LONGEST, description="Positions of a caption, start and end included.")
    initial_deviation: float = Field(
        default=0.02, gt=0, description="Standard deviation of random weights; BERT's suits wide models."
    )

    def reads(self) -> tuple[str, ...]:
        """Regions, and where they lie."""
        return ("regions", "boxes")

    def pretrained(self) -> dict[str, str]:
        """The tokenizer."""
        return {"tokenizer": self.tokenizer}

    def published_weights(self) -> str:
        """Of UNITER, TAGS or BERT."""
        return self.initial

    @model_validator(mode="after")
    def _fits(self) -> Uniter:
        if self.initial and not self.tokenizer:
            raise ValueError("published weights are of word pieces; give --set model.tokenizer=bert-base-cased as well")
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim = {self.embed_dim} is no multiple of heads = {self.heads}")
        return self


class DualEncoder(BackboneSettings):
    """A vision encoder and a text encoder of transformers, trained end to end. Source: FNE §4.1.

    A pretrained encoder is a hub id or a folder; a joint model such as CLIP is named as both. `random` is a small one
    of the given size with random weights: a ViT, or a BERT that reads our own vocabulary of words.
    """

    opens_encoders: ClassVar[bool] = True
    answers: ClassVar[frozenset[str]] = frozenset({"word-maps"})

    images: Literal["pixels", "regions", "global"] = Field(
        default="pixels",
        description="What stands for an image: its pixels, or frozen features: the mean region, or the global vector.",
    )
    vision: str = Field(
        default="google/vit-base-patch16-384", min_length=1, description="Vision encoder: hub id, folder or 'random'."
    )
    text: str = Field(
        default="bert-base-uncased", min_length=1, description="Text encoder: hub id, folder or 'random'."
    )
    vision_revision: str = Field(default="main", description="Branch, tag or commit of the hub id of `vision`.")
    text_revision: str = Field(default="main", description="Branch, tag or commit of the hub id of `text`.")
    embed_dim: int = Field(
        default=0,
        ge=0,
        le=WIDEST,
        description="Width D of a joint space that each side is projected to; 0: no projection.",
    )
    image_pool: Literal["auto", "mean", "cls", "own"] = Field(
        default="auto",
        description="Image vector: mean of all tokens, first token, or the encoder's own (CLIP, SigLIP: auto).",
    )
    text_pool: Literal["auto", "mean", "mean-all", "cls", "eot", "own"] = Field(
        default="auto",
        description="Caption vector: mean of its tokens (mean-all: of padding too), first, last, or the encoder's own.",
    )
    normalisation: Literal["auto", "own", "clip"] = Field(
        default="auto",
        description="Mean and deviation of colours: the encoder's own (auto: of CLIP and SigLIP), else CLIP's.",
    )
    augment: Literal["none", "crop", "flip", "full"] = Field(
        default="full", description="Changes of training images: random crops, and flips, and RandAugment."
    )
    clean_captions: bool = Field(default=True, description="Lower-case captions and drop punctuation.")
    max_words: int = Field(default=30, ge=1, le=LONGEST, description="Words kept of a caption.")
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations anew in the backward pass: a third slower, far less memory."
    )
    image_size: tuple[int, int] = Field(
        default=(96, 128), description="Height and width in pixels that a random vision encoder sees."
    )
    patch_size: int = Field(default=16, ge=1, le=LONGEST, description="Side of its patches in pixels.")
    width: int = Field(default=128, ge=1, le=WIDEST, description="Hidden width of random encoders.")
    heads: int = Field(default=4, ge=1, le=DEEPEST, description="Their attention heads.")
    vision_layers: int = Field(default=3, ge=1, le=DEEPEST, description="Layers of a random vision encoder.")
    text_layers: int = Field(default=2, ge=1, le=DEEPEST, description="Layers of a random text encoder.")

    def reads(self) -> tuple[str, ...]:
        """What stands for an image."""
        return (self.images,)

    def without(self, missing: str) -> str:
        """Frozen features."""
        frozen = "train on frozen features with --set train.model.images=regions --set train.model.embed_dim=512"
        return frozen if missing == "pixels" else ""

    def pretrained(self) -> dict[str, str]:
        """Both encoders, that of images where it reads pixels."""
        named = {"text": self.text} | ({"vision": self.vision} if self.images == "pixels" else {})
        return {name: value for name, value in named.items() if value != RANDOM}

    @model_validator(mode="after")
    def _fits(self) -> DualEncoder:
        if self.images != "pixels" and not self.embed_dim:
            raise ValueError(f"images = {self.images} needs a projection; give --set model.embed_dim=768 or another")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is no multiple of heads = {self.heads}")
        if any(side < self.patch_size for side in self.image_size):
            raise ValueError(f"image_size = {self.image_size} is smaller than a patch of {self.patch_size} pixels")
        return self


class Ascl(BackboneSettings):
    """AsCL: regions and words fused pair by pair, and a vector of the whole image. Source: AsCL (Gong et al.).

    A pretrained text encoder is a hub id or a folder. `random` is a small one of the given size with random weights: a
    BERT that reads our own vocabulary of words.
    """

    embeds: ClassVar[bool] = False
    opens_encoders: ClassVar[bool] = True
    answers: ClassVar[frozenset[str]] = frozenset({"mean-vectors", "fused-vectors"})

    text: str = Field(
        default="bert-base-uncased", min_length=1, description="Text encoder: hub id, folder or 'random'."
    )
    text_revision: str = Field(default="main", description="Branch, tag or commit of the hub id of `text`.")
    tune_text: bool = Field(default=False, description="Train a pretrained text encoder too; a random one always is.")
    text_ends: bool = Field(default=True, description="Take the first and last token of a caption for words, too.")
    clean_captions: bool = Field(default=True, description="Lower-case captions and drop punctuation.")
    max_words: int = Field(default=60, ge=1, le=LONGEST, description="Words kept of a caption.")
    embed_dim: int = Field(
        default=1024, ge=1, le=WIDEST, description="Width D of the joint space of images and captions."
    )
    heads: int = Field(default=8, ge=1, le=DEEPEST, description="Attention heads of the fusion; D is a multiple of it.")
    fusion: Literal["paper", "released", "none"] = Field(
        default="paper",
        description="Attention with learned matrices, without any as in released code, or the mean vectors alone.",
    )
    u1: float = Field(default=0.8, ge=0.0, le=1.0, description="Share of the local score of a pair; Flickr30K: 0.6.")
    text_width: int = Field(default=128, ge=1, le=WIDEST, description="Hidden width of a random text encoder.")
    text_heads: int = Field(default=4, ge=1, le=DEEPEST, description="Its attention heads.")
    text_layers: int = Field(default=2, ge=1, le=DEEPEST, description="Its layers.")

    def reads(self) -> tuple[str, ...]:
        """Regions, and the whole image where it is fused."""
        return ("regions",) if self.fusion == "none" else ("regions", "global")

    def without(self, missing: str) -> str:
        """Without fusion."""
        return "do without with --set train.model.fusion=none" if missing == "global" else ""

    def pretrained(self) -> dict[str, str]:
        """The text encoder."""
        return {} if self.text == RANDOM else {"text": self.text}

    @model_validator(mode="after")
    def _heads_fit(self) -> Ascl:
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim = {self.embed_dim} is no multiple of heads = {self.heads}")
        if self.text_width % self.text_heads:
            raise ValueError(f"text_width = {self.text_width} is no multiple of text_heads = {self.text_heads}")
        return self


def backbone_family(name: str) -> str:
    """The backbone that a name is a variant of: `scan` for `scan-i2t`, itself for `scan` and what is not known."""
    return next((known for known in backbones() if name.startswith(f"{known}-")), name)


def backbones() -> dict[str, type[BackboneSettings]]:
    """Backbone name -> its settings class: `dual-encoder`, of `dual_encoder.py`, is configured by `DualEncoder`."""
    kinds = [kind for base in (BackboneSettings, RegionBackbone) for kind in base.__subclasses__()]
    return {hyphenated(kind.__name__): kind for kind in kinds if kind is not RegionBackbone}
