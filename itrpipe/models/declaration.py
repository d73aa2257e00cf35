"""Declarations of backbones: options, what is read, what can be asked; and the backbones that there are.

Read without torch.
"""

import functools
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from itrpipe import plugins
from itrpipe.config import Settings, load_declaration, unknown, why_unusable
from itrpipe.errors import UsageError
from itrpipe.papers import Paper
from itrpipe.registry import Registry

WIDEST = 65_536
DEEPEST = 1_000
LONGEST = 65_536
"""Largest width, number of layers or heads, and length in words: an order of magnitude beyond any published model."""
Width = Annotated[int, Field(ge=1, le=WIDEST)]
Depth = Annotated[int, Field(ge=1, le=DEEPEST)]
Length = Annotated[int, Field(ge=1, le=LONGEST)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]

RANDOM = "random"
"""Stands for a hub id or folder: a small encoder with random weights."""


class BackboneSettings(Settings):
    """Settings and facts of every backbone.

    Attributes:
        embeds: whether an image and a caption are one vector each, which mining and search need.
        reads_phrases: whether it needs the scene graphs of captions.
        opens_encoders: whether its module opens encoders of transformers, before captions are read by their tokenizer.
        answers: what can be asked of it beside rankings: `words` (which are wrong), `writing` (words in masked places),
            `mean-vectors` (of images and captions, where scores are of pairs).
        papers: that it comes from.
        multiples: names of options of which the first is a multiple of the second, as a width is of its heads.
    """

    embeds: ClassVar[bool] = True
    reads_phrases: ClassVar[bool] = False
    opens_encoders: ClassVar[bool] = False
    answers: ClassVar[frozenset[str]] = frozenset()
    papers: ClassVar[tuple[Paper, ...]] = ()
    multiples: ClassVar[tuple[tuple[str, str], ...]] = ()

    def cited(self) -> tuple[Paper, ...]:
        """Return the papers to cite for a model of these settings."""
        return self.papers

    def reads(self) -> tuple[str, ...]:
        """Return the parts of features that it reads: `regions`, `boxes`, `global` or `pixels`."""
        return ("regions",)

    def sees_sides(self) -> bool:
        """Return whether an image and its mirror image differ for it."""
        return not {"boxes", "pixels"}.isdisjoint(self.reads())

    def without(self, missing: str) -> str:
        """Return the advice for features that lack something that it reads; empty where there is none."""
        return ""

    def refuses(self, loss: Settings) -> str:
        """Return why a method of these settings does not train it; empty where it does."""
        return ""

    def pretrained(self) -> dict[str, str]:
        """Return setting -> hub id or folder of its encoders and tokenizers, empty for those that it has not."""
        return {}

    def joint(self) -> str:
        """Return the hub id or folder of the one model with both its encoders, such as CLIP; empty where none is."""
        return ""

    def unused_options(self) -> tuple[str, ...]:
        """Return the names of options that others leave without a use, so that their values change nothing."""
        return ()

    def encoders(self) -> tuple[str, ...]:
        """Return the names of networks that can be frozen, adapted, or trained at rates that fall by the layer."""
        return ()

    def encoder_alone(self, side: str) -> dict[str, Any]:
        """Return the settings that the vectors of an encoder depend on; empty if they depend on the batch, too."""
        return {}

    def untrained(self) -> str:
        """Return why it cannot be used without training; empty where its weights were published as a whole."""
        if self.published_weights():
            return ""
        return "it starts from random weights"

    def published_weights(self) -> str:
        """Return the file of weights to start from; empty for random ones."""
        return ""

    @model_validator(mode="after")
    def _multiples_fit(self) -> Self:
        for width, heads in self.multiples:
            dim = getattr(self, width)
            divisor = getattr(self, heads)
            if dim % divisor:
                raise ValueError(f"{width} = {dim} is no multiple of {heads} = {divisor}")
        return self


class RegionBackbone(BackboneSettings):
    """Settings of the backbones that read region features and words.

    Attributes:
        embed_dim: width D of the joint space of images and captions.
        word_dim: width of the word embedding.
    """

    embed_dim: Width = 1024
    word_dim: Width = 300


class PlacedRegionBackbone(RegionBackbone):
    """Settings of the region backbones that can see where regions are.

    Attributes:
        boxes: read the boxes of regions, too; the papers do not, and see no left or right.
    """

    boxes: bool = False

    def reads(self) -> tuple[str, ...]:
        """Return regions, and boxes where they are asked for."""
        if self.boxes:
            return "regions", "boxes"
        return ("regions",)


BACKBONES: Registry[BackboneSettings] = Registry("itrpipe.models", "network", plugins.BACKBONES)
"""The backbones; their network modules have `build`, see `network_module`."""


def backbones() -> dict[str, type[BackboneSettings]]:
    """Return backbone name -> its settings class."""
    return BACKBONES.classes


def backbone_family(name: str) -> str:
    """Return the backbone that a name is a variant of: `scan` for `scan-i2t`, itself for `scan` and unknown ones."""
    for backbone in backbones():
        if name.startswith(f"{backbone}-"):
            return backbone
    return name


def network_module(name: str) -> ModuleType:
    """Import the network of a backbone, or of a variant of one, which needs torch: its `build` makes it."""
    return BACKBONES.module(backbone_family(name))


@functools.cache
def backbone_names() -> tuple[str, ...]:
    """Return every backbone, and the variants of them that have a table in the declaration."""
    defaults = load_declaration("train").defaults
    variants = [name for name in defaults if backbone_family(name) != name]
    return (*backbones(), *variants)


def canonical_backbone(name: str) -> str:
    """Return the canonical name of a backbone that is written as people write it: `vse++` is `vsepp`."""
    return name.lower().replace("+", "p")


def settings_of(backbone: str) -> type[BackboneSettings]:
    """Return the settings class of a backbone.

    Raises:
        UsageError: there is no such backbone.
    """
    name = canonical_backbone(backbone)
    settings = backbones().get(backbone_family(name))
    if settings is None:
        raise UsageError(why_unusable(name) or unknown("backbone", name, sorted(backbone_names())))
    return settings
