"""Declare a method without torch: its settings, put together from the classes here, and the methods that there are.

A class of settings derives from `MethodSettings`, or from those of the other classes whose options it has and whose
artifacts it reads. What these give is handed to the method's `build` as an argument, see `INPUTS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt

from itrpipe import plugins
from itrpipe.config import Settings
from itrpipe.errors import UsageError
from itrpipe.judging.declaration import DEFAULT, LOCAL_JUDGES, judge_names
from itrpipe.papers import FNE, NCR, Paper
from itrpipe.registry import Registry

MOST = 1_000_000
"""Largest number of negatives: far beyond what a step can hold."""
Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrNone = Annotated[int, Field(ge=0, le=MOST)]
Written = Annotated[int, Field(ge=1, le=10_000)]
"""Number of sentences that are written for a caption."""
Share = Annotated[float, Field(gt=0, lt=1)]


class MethodSettings(Settings):
    """Settings of a method.

    Attributes:
        trains: whether it trains at all.
        only_backbone: the one backbone that it trains; empty where it trains others too.
        compares_embeddings: whether it compares embeddings by inner product, which not every backbone has.
        heads: of the model, which start from others where the run that this one starts from has not trained them.
        answers: what can be asked of a model that it trained: `words` (which are wrong), `false-negatives`.
        papers: that it comes from.
    """

    trains: ClassVar[bool] = True
    only_backbone: ClassVar[str] = ""
    compares_embeddings: ClassVar[bool] = False
    heads: ClassVar[frozenset[str]] = frozenset()
    answers: ClassVar[frozenset[str]] = frozenset()
    papers: ClassVar[tuple[Paper, ...]] = ()

    def unused_options(self) -> tuple[str, ...]:
        """Return the names of options that others leave without a use, so that their values change nothing."""
        return ()

    def cited(self) -> tuple[Paper, ...]:
        """Return the papers to cite for a model of these settings."""
        return self.papers

    def mined(self) -> Mined | None:
        """Return the mined lists that it reads; None where it reads none as it is set."""

    def reads_sentences(self) -> bool:
        """Return whether it reads synthetic sentences as it is set."""
        return False

    def masked(self) -> Masked | None:
        """Return how it masks captions; None where it masks none as it is set."""


class FirstEpochs(MethodSettings):
    """Settings of methods whose first epochs have another loss, which `patience` does not judge.

    Attributes:
        sum_epochs: train the first so many epochs with all negatives of the batch (AOQ Eq. 1) instead, which
            keeps the hardest-negative loss off its plateau at twice the margin; VSE-infinity does so for one epoch.
        negatives_follow: whether it needs more epochs than its first ones, because negatives of its own follow them.
    """

    negatives_follow: ClassVar[bool] = False

    sum_epochs: NonNegativeInt = 0

    def first_epochs(self) -> int:
        """Return the number of first epochs with another loss, or without negatives of its own."""
        return self.sum_epochs

    def check_epochs(self, epochs: int) -> None:
        """Refuse so few epochs that its negatives are never used.

        Raises:
            ValueError: they are so few.
        """
        first = self.first_epochs()
        if self.negatives_follow and epochs <= first:
            raise ValueError(
                f"epochs = {epochs} all fall within the first {first} (loss.sum_epochs, of fne loss.warm_epochs too), "
                "so no negative beyond the batch would ever be drawn; raise epochs, or lower that under the name of "
                "this configuration, as in --set aoq.loss.sum_epochs=0"
            )


class AuxiliaryLoss(MethodSettings):
    """Settings of methods that train the backbone's own loss beside theirs.

    Attributes:
        auxiliary_weight: weight of the backbone's own loss, such as VSRN's captioning loss.
    """

    auxiliary_weight: NonNegativeFloat = 1.0


class SameImageMask(MethodSettings):
    """Settings of methods whose negatives of a batch may be captions of the same image.

    Attributes:
        mask_same_image: do not count two captions of one image as each other's negatives.
    """

    mask_same_image: bool = False


@dataclass(frozen=True)
class Mined:
    """Mined lists that a method draws negatives from.

    Attributes:
        teacher: `[method.]backbone` or a method of the own backbone, whose embeddings are mined; the first training
            where no method is named. None for the first training of the own backbone.
        judges: of `itrpipe mine-negatives`, which say how likely each candidate is right after all; none where the
            method does not read that.
        refresh_every: epochs after which the lists are mined again with the model that is trained; 0: never.
    """

    teacher: str | None
    judges: tuple[str, ...] = ()
    refresh_every: int = 0


class ReadsLists(MethodSettings):
    """Settings of methods that read mined lists and say by `mined` which.

    The teacher of a backbone without embeddings is VSRN (AOQ §4.2). A method that reads what judges say returns
    `judges_asked()` with `mined`, and does with their probabilities what `judged` says.

    Attributes:
        judged: use of the probability P, by judges, that a candidate of the lists is right after all, wherever its pair
            occurs in a batch. `keep`: none; `drop`: it is no negative where P is above `drop_above`, and candidates
            further down the list move up; `weigh`: its weight is 1 - P; `soft`: P is its target in the loss, in the
            place of 0. P is 0 for pairs that no list holds.
        drop_above: probability of `drop`.
        judges: names of the judges, see `itrpipe.judging.declaration`.
    """

    judged: Literal["keep", "drop", "weigh", "soft"] = "keep"
    drop_above: float = Field(default=0.5, ge=0, le=1)
    judges: Annotated[tuple[str, ...], AfterValidator(judge_names), LOCAL_JUDGES] = Field((DEFAULT,), min_length=1)

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of judges where none is asked, and of `drop` where nothing is dropped."""
        if self.judged == "keep":
            return ("drop_above", "judges")
        return () if self.judged == "drop" else ("drop_above",)

    def judges_asked(self) -> tuple[str, ...]:
        """Return the judges that mining asks for this training."""
        return () if self.judged == "keep" else self.judges

    def judges_cited(self) -> tuple[Paper, ...]:
        """Return the papers of the judges that are asked, and of soft targets."""
        papers = []
        for judge in self.judges_asked():
            if judge.startswith("fne"):
                papers.append(FNE)
        if self.judged == "soft":
            papers.append(NCR)
        return tuple(papers)


class ReadsSentences(MethodSettings):
    """Settings of methods that read sentences of `itrpipe synthesize`."""

    def reads_sentences(self) -> bool:
        """Return that it reads some."""
        return True


class WithTwins(ReadsSentences):
    """Settings of methods that twins can join: pairs of images and pairs of captions that change places.

    Attributes:
        twins: quadruples of `itrpipe synthesize --by twins` drawn for each pair of a batch, of each kind as many.
        twin_weight: of the loss of their four scores.
    """

    twins: float = Field(default=0.0, ge=0, le=16)
    twin_weight: NonNegativeFloat = 1.0

    def reads_sentences(self) -> bool:
        """Return whether twins are drawn."""
        return self.twins > 0


@dataclass(frozen=True)
class Masked:
    """Masked copies of captions that a method reads.

    Attributes:
        units: what is masked together: single `words`, or the `phrases` of the scene graph.
        compare: what is compared with the captions of the image, see `itrpipe.learning.sentences`.
        writer: configuration of `train` whose model, frozen, fills the masks; empty without one.
    """

    units: Literal["words", "phrases"]
    compare: Literal["piece", "off"]
    writer: str = ""


class MasksCaptions(MethodSettings):
    """Settings of methods that mask words of captions, and say by `masked` how."""


INPUTS: dict[str, type[MethodSettings]] = {
    "lists": ReadsLists,
    "decided": ReadsLists,
    "sentences": ReadsSentences,
    "masks": MasksCaptions,
    "writer": MasksCaptions,
    "limits": MethodSettings,
    "matches": MethodSettings,
    "duplicates": MethodSettings,
    "matching": MethodSettings,
}
"""Argument by which a method's `build` asks for an input, and the class that its settings derive from for it.

`build(settings, data, …)` names those that it reads behind these two; each is None where the settings as they are leave
it out, or where a dataset does not have it.

- `lists`: direction -> mined lists, `texts_for_images` [N, K1] and `images_for_texts` [T, K2], rows of candidates, -1
  behind the last; with their probabilities to be matches under the same names behind `PROBABILITY_OF`, where mining
  wrote these. Empty where the settings read none.
- `decided`: a `PairSet` of the pairs that people have found to fit, of those mined lists.
- `sentences`: a `SentenceBank` of synthetic sentences.
- `masks`: `CaptionMasks`, how captions are masked.
- `writer`: a frozen model that fills masks, in evaluation mode and without gradients.
- `limits`: `TokenLimits`, how long a caption may be, and what stands before and behind its words.
- `matches`: rows of all captions that are true of each image, `texts_for_images` [N, K], and of all images that each
  caption is true of, `images_for_texts` [T, L], -1 behind the last.
- `duplicates`: called, it makes what tells pairs whose caption is word for word one of the image's own.
- `matching`: tells which phrases and words of captions hold for images, where the backbone reads phrases.
"""

_METHODS: Registry[MethodSettings] = Registry("itrpipe.methods", "method", plugins.METHODS)


def methods() -> dict[str, type[MethodSettings]]:
    """Return the settings class of every method by its name."""
    return _METHODS.classes


def method_package(name: str) -> str:
    """Return name and version of the package that brings a method; empty for itrpipe."""
    return _METHODS.package(name)


def method_module(name: str) -> ModuleType:
    """Return the module of a method, which needs torch; its `build` makes the method of settings, data and inputs.

    Raises:
        UsageError: `build` names an input that there is not, or that the settings do not declare.
    """
    module = _METHODS.module(name)
    settings = methods()[name]
    for argument in named_inputs(module.build):
        needed = INPUTS.get(argument)
        if needed is None:
            raise UsageError(
                f"{module.__file__}: build() of method {name!r} names {argument}, which no training has; it may name "
                f"{', '.join(INPUTS)}"
            )
        if not issubclass(settings, needed):
            raise UsageError(
                f"{module.__file__}: build() of method {name!r} names {argument}, which its settings do not ask for; "
                f"derive {settings.__name__} from {needed.__name__} of {__name__}"
            )
    return module


def named_inputs(build: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments of a method's `build` behind settings and data."""
    return tuple(inspect.signature(build).parameters)[2:]
