"""Settings of the backbones, one class per model file: `vsepp.py` is configured by `Vsepp`.

Kept apart from the models so that a configuration can be read and checked without importing torch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings


class BackboneSettings(Settings):
    """Settings that every backbone has.

    Attributes:
        embeds: whether an image and a caption are one vector each, which mining and search need.
        reads_phrases: whether it needs the scene graphs of captions.
    """

    embeds: ClassVar[bool] = True
    reads_phrases: ClassVar[bool] = False

    embed_dim: int = Field(default=1024, ge=1, description="Width D of the joint space of images and captions.")
    word_dim: int = Field(default=300, ge=1, description="Width of the word embedding that feeds the text GRU.")


class Vsepp(BackboneSettings):
    """VSE++ on region features: mean-pooled regions and a GRU. Source: VSE++ (Faghri et al., BMVC 2018)."""

    measure: Literal["cosine", "order"] = Field(
        default="cosine",
        description="Score of a pair: inner product of the embeddings, or the order-violation penalty.",
    )
    image_norm: bool = Field(default=True, description="Scale the image embedding to unit length (off in VSE0).")
    absolute_values: bool = Field(
        default=False, description="Take absolute values of both embeddings, as order embeddings do."
    )


class Vsrn(BackboneSettings):
    """VSRN: region graph reasoning, a GRU over regions and a captioning branch. Source: VSRN (Li et al., ICCV 2019)."""

    embed_dim: int = Field(default=2048, ge=1, description="Width D of the joint space of images and captions.")
    graph_layers: int = Field(default=4, ge=0, description="Number of residual graph layers over the regions.")
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
    caption_dim: int = Field(default=512, ge=1, description="Hidden width of the captioner's encoder and decoder.")
    caption_word_dim: int = Field(default=300, ge=1, description="Width of the captioner's own word embedding.")
    caption_max_length: int = Field(
        default=60, ge=2, description="Longest caption label in tokens, start and end included; longer ones are cut."
    )
    caption_dropout: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="Dropout on the projected regions and on the decoder input."
    )


class Scan(BackboneSettings):
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


class Bfan(BackboneSettings):
    """BFAN: attention in both directions, on the relevant fragments only. Source: BFAN (Liu et al., ACM MM 2019)."""

    embeds: ClassVar[bool] = False

    focal: Literal["equal", "prob"] = Field(
        default="equal",
        description="Fragments kept: weighing more than the plain mean (equal), or than a mean by confidence (prob).",
    )
    lambda_softmax: float = Field(default=20.0, gt=0.0, description="Inverse temperature of the attention.")


class Ssamt(BackboneSettings):
    """SSAMT: phrases, words and regions in one masked Transformer. Source: SSAMT (Fan et al., 2021)."""

    embeds: ClassVar[bool] = False
    reads_phrases: ClassVar[bool] = True

    phase: Literal["intra", "inter"] = Field(
        default="inter",
        description="What is trained and scored: each side alone (intra), or pairs on top of that, frozen (inter).",
    )
    layers: int = Field(default=2, ge=1, description="Layers of each of the three encoders.")
    heads: int = Field(default=16, ge=1, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: int = Field(default=2048, ge=1, description="Width of the feed-forward networks.")
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0, description="Dropout of embeddings, attention and layers.")
    max_words: int = Field(default=64, ge=1, description="Longest caption in words.")
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


def backbone_family(name: str) -> str:
    """The backbone that a name is a variant of: `scan` for `scan-i2t`, itself for `scan`."""
    return name.partition("-")[0]


def backbones() -> dict[str, type[BackboneSettings]]:
    """Backbone name (file stem of its model) -> its settings class."""
    return {kind.__name__.lower(): kind for kind in BackboneSettings.__subclasses__()}
