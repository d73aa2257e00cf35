"""What a method declares: its settings, and what it asks for; and the methods that there are.

Read without torch, as plans are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe import plugins
from itrpipe.config import Settings
from itrpipe.papers import Paper
from itrpipe.registry import Registry

MOST, MOST_WRITTEN = 1_000_000, 10_000
"""Largest number of negatives, and of sentences written for a caption: far beyond what a step can hold."""


@dataclass(frozen=True)
class Mined:
    """Mined lists that a method draws negatives from.

    Attributes:
        texts, images: it draws among the first so many captions of an image and images of a caption.
        teacher: `[method.]backbone` or a method of the own backbone, whose embeddings are mined; the first training
            where no method is named. None for the first training of the own backbone.
        teacher_of_pairs: the same for backbones that have no embeddings to mine with.
        guard: of `itrpipe mine-negatives`, which estimates how likely each candidate is a false negative; empty where
            the method does not read that.
    """

    texts: int
    images: int
    teacher: str | None
    teacher_of_pairs: str
    guard: str


@dataclass(frozen=True)
class Masked:
    """How a method masks captions.

    Attributes:
        units: what is masked together: single `words`, or the `phrases` of the scene graph.
        compare: what is compared with the captions of the image, see `itrpipe.learning.sentences`.
    """

    units: Literal["words", "phrases"]
    compare: Literal["piece", "off"]


class MethodSettings(Settings):
    """Settings that every method has, and what a method asks for.

    Attributes:
        auxiliary_weight: weight of the backbone's own loss, such as VSRN's captioning loss.
        mask_same_image: do not count two captions of one image as each other's negatives.
        sum_epochs: train the first so many epochs with all negatives of the batch (AOQ Eq. 1) instead, which
            keeps the hardest-negative loss off its plateau at twice the margin; VSE-infinity does so for one epoch.
        trains: whether it trains at all.
        negatives_follow: whether it needs more epochs than its first ones, because negatives of its own follow them.
        chosen: options that `choices` tells.
        only_backbone: the one backbone that it trains; empty where it trains others too.
        unread: those of these options that it does not read and refuses.
        heads: of the model, which start from others where the run that this one starts from has not trained them.
        counts_matches: whether it counts correct matches among its negatives, where the dataset knows them.
        answers: what can be asked of a model that it trained: `words` (which are wrong), `false-negatives`.
        papers: that it comes from.
    """

    trains: ClassVar[bool] = True
    negatives_follow: ClassVar[bool] = False
    chosen: ClassVar[tuple[str, ...]] = ()
    only_backbone: ClassVar[str] = ""
    unread: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[frozenset[str]] = frozenset()
    counts_matches: ClassVar[bool] = False
    answers: ClassVar[frozenset[str]] = frozenset()
    papers: ClassVar[tuple[Paper, ...]] = ()

    auxiliary_weight: float = Field(default=1.0, ge=0)
    mask_same_image: bool = False
    sum_epochs: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _reads_what_is_given(self) -> MethodSettings:
        for name in self.unread_options():
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"{name} = {value} is an option that is not read with the others; leave it out")
        return self

    def unread_options(self) -> tuple[str, ...]:
        """Names of the options that are not read with the others as they are."""
        return self.unread

    def reads_pretrained_scale(self) -> bool:
        """Whether it begins with the scale of the logits that a joint model was pretrained with."""
        return False

    def choices(self) -> dict[str, str]:
        """What it was put together from, of a method whose parts can be chosen, in the order of its name.

        `objective`, `negatives`, `weights` and `batches`, empty where the usual one is taken.
        """
        return {}

    def refreshes(self) -> int:
        """Epochs after which its lists are mined again with the model that it trains; 0: never."""
        return 0

    def unused_options(self) -> tuple[str, ...]:
        """Names of options that others leave without a use, so that their values change nothing."""
        return ()

    def cited(self) -> tuple[Paper, ...]:
        """The papers to cite for a model of these settings."""
        return self.papers

    def first_epochs(self) -> int:
        """First epochs that it trains with another loss, or without negatives of its own."""
        return self.sum_epochs

    def check_epochs(self, epochs: int) -> None:
        """Refuses so few epochs that its negatives are never used.

        Raises:
            ValueError: they are so few.
        """
        if self.negatives_follow and epochs <= (first := self.first_epochs()):
            raise ValueError(
                f"epochs = {epochs} all fall within the first {first} (loss.sum_epochs, of fne loss.warm_epochs too), "
                "so no negative beyond the batch would ever be drawn; raise epochs, or lower that under the name of "
                "this configuration, as in --set aoq.loss.sum_epochs=0"
            )

    def compares_embeddings(self) -> bool:
        """Whether it compares embeddings by inner product, which not every backbone has."""
        return False

    def mined(self) -> Mined | None:
        """The mined lists that it reads."""
        return None

    def in_batch(self) -> bool:
        """Whether a step knows no negatives but those of its batch."""
        return not (self.mined() or self.compares_embeddings() or self.reads_sentences())

    def masked(self) -> Masked | None:
        """How it masks captions, where it does."""
        return None

    def reads_sentences(self) -> bool:
        """Whether it reads sentences of `itrpipe synthesize`."""
        return False

    def written_by(self) -> str:
        """Configuration of `train` whose model, frozen, writes sentences for it; empty without one."""
        return ""

    def joins_captions(self) -> bool:
        """Whether it makes captions of others, for which it has to know where their words begin and end."""
        return False

    def longest_made(self) -> int:
        """Longest caption in tokens that it makes; 0 where it keeps to what the model reads."""
        return 0


class WithTwins(MethodSettings):
    """Settings of methods that twins can join: pairs of images and pairs of captions that change places.

    Attributes:
        twins: quadruples of `itrpipe synthesize --by twins` drawn for each pair of a batch, of each kind as many.
        twin_weight: of the loss of their four scores.
    """

    twins: float = Field(default=0.0, ge=0, le=16)
    twin_weight: float = Field(default=1.0, ge=0)

    def reads_sentences(self) -> bool:
        """For their twins."""
        return self.twins > 0


_METHODS: Registry[MethodSettings] = Registry("itrpipe.methods", "method", plugins.METHODS)


def methods() -> dict[str, type[MethodSettings]]:
    """Method name -> its settings class."""
    return _METHODS.classes


def method_package(name: str) -> str:
    """Name and version of the package that brings a method; empty for itrpipe."""
    return _METHODS.package(name)


def method_module(name: str) -> ModuleType:
    """The method itself, which needs torch: its `build` makes it of settings, a training set and mined lists."""
    return _METHODS.module(name)
