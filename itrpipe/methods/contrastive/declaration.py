"""Settings of contrastive training."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from itrpipe.methods.declaration import (
    MOST,
    AuxiliaryLoss,
    Count,
    CountOrNone,
    FirstEpochs,
    Mined,
    ReadsLists,
    SameImageMask,
    Share,
    WithTwins,
)
from itrpipe.papers import ANCE, AOQ, CLIP, FNE, NEG_CLIP, NV_RETRIEVER, SIGLIP, VSEPP, Paper

SOURCES = ("batch", "mined", "synthetic")
OWN = "own"
"""Temperature and bias of a pretrained joint model."""

_TITLES = {
    "infonce": "InfoNCE",
    "sigmoid": "sigmoid loss",
    "hardest": "hardest triplets",
    "sum": "all triplets",
}
"""Objective -> its title."""
_PAPERS = {
    "infonce": CLIP,
    "sigmoid": SIGLIP,
    "hardest": VSEPP,
    "sum": VSEPP,
    "synthetic": NEG_CLIP,
    "mined": AOQ,
    "fne": FNE,
}
"""Objective, source of negatives or weights -> the paper that it comes from."""
_LISTS = {"mined", "neighbours", "judged"}
"""Choices that read mined lists."""
_READ_WITH = (
    ({"mined"}, ("mined_texts", "mined_images")),
    ({"mined", "synthetic"}, ("shared",)),
    ({"synthetic"}, ("synthetic_sentences",)),
    ({"fne"}, ("prior", "min_count")),
    ({"positive-aware"}, ("relative_margin", "absolute_margin", "max_score")),
    ({"neighbours"}, ("neighbour_group", "neighbour_share")),
    ({"InfoNCE", "sigmoid loss"}, ("temperature", "learn_temperature", "largest_scale")),
    ({"sigmoid loss"}, ("bias",)),
    ({"hardest triplets", "all triplets"}, ("margin",)),
    ({"hardest triplets"}, ("sum_epochs",)),
    (_LISTS, ("top_texts", "top_images", "skip_texts", "skip_images", "teacher", "refresh_every")),
)
"""Choices, and the options that are read with any of them and with no other one."""


CHOICES = ("negatives", "weigh", "judged", "objective", "batches", "refresh_every", "twins")
"""Options that `Contrastive.choices` tells."""


class Contrastive(ReadsLists, WithTwins, FirstEpochs, SameImageMask, AuxiliaryLoss):
    """Any negatives, weighed in any way, under any objective.

    Attributes:
        negatives: where candidates come from. `batch`, always; `mined`: drawn from lists of `itrpipe mine-negatives`;
            `synthetic`: sentences of `itrpipe synthesize`.
        weigh: what candidates count: all alike (`none`); the `hardest` of each anchor alone; 1 - P with the probability
            P to be a false negative by the similarities seen in training (`fne`); none that scores about as high as
            the positive (`positive-aware`); or none that the dataset knows to be true (`truth`), which is what a
            perfect filter would do. Synthetic sentences were made to be false and are weighed by `hardest` alone.
            Weights of `judged` are multiplied by these.
        objective: `infonce`, `sigmoid`, or triplets with the `hardest` candidate or the `sum` of all. `hardest` keeps
            each candidate with the probability that is its weight.
        batches: captions of an epoch are `shuffled`, or `neighbours` in the mined lists share a batch.
        temperature: t at the start, 0.07 (CLIP) or for `sigmoid` 0.1 (SigLIP); `own`: that of the pretrained model.
        bias: of `sigmoid` at the start; `own` likewise.
        learn_temperature: train both.
        largest_scale: 1 / t at most (CLIP).
        margin: of triplets.
        mined_texts, mined_images: drawn for every image and for every caption in each step.
        top_texts, top_images: negatives are drawn among the first so many of the mined lists, which hold a tenth of
            all captions and images at most.
        skip_texts, skip_images: the first so many of them are left out.
        shared: what was drawn for one anchor is a candidate of all.
        drop_duplicates: captions that are word for word one of the image's own are no negatives of it.
        refresh_every: epochs after which the training set is mined again with the weights as they are; 0: never.
        teacher: model whose lists are drawn from, `[method.]backbone`; None for the first training of the own backbone.
        synthetic_sentences: drawn for every caption in each step.
        prior: of `fne`: share of matches among all pairs.
        min_count: of `fne`: matches that an epoch must have seen before probabilities are used.
        relative_margin, absolute_margin, max_score: of `positive-aware`, see `itrpipe.learning.losses`.
        neighbour_group: captions that are neighbours of one of them.
        neighbour_share: of the captions of an epoch, those that are put beside neighbours.
    """

    papers = (CLIP,)

    mask_same_image: bool = True
    negatives: tuple[Literal["batch", "mined", "synthetic"], ...] = ("batch",)
    weigh: Literal["none", "hardest", "fne", "positive-aware", "truth"] = "none"
    objective: Literal["infonce", "sigmoid", "hardest", "sum"] = "infonce"
    batches: Literal["shuffled", "neighbours"] = "shuffled"
    temperature: float | str = Field(default_factory=lambda set_: 0.1 if set_.get("objective") == "sigmoid" else 0.07)
    bias: float | str = -10.0
    learn_temperature: bool = True
    largest_scale: PositiveFloat = 100.0
    margin: NonNegativeFloat = 0.2
    mined_texts: int = Field(default=1, ge=0, le=1_000)
    mined_images: int = Field(default=1, ge=0, le=1_000)
    top_texts: Count = 300
    top_images: Count = 60
    skip_texts: CountOrNone = 0
    skip_images: CountOrNone = 0
    shared: bool = True
    drop_duplicates: bool = False
    refresh_every: NonNegativeInt = 0
    teacher: str | None = None
    synthetic_sentences: int = Field(default=1, ge=1, le=1_000)
    prior: Share = 1e-4
    min_count: NonNegativeInt = 200
    relative_margin: float | None = 0.05
    absolute_margin: float | None = None
    max_score: float | None = None
    neighbour_group: int = Field(default=8, ge=2, le=MOST)
    neighbour_share: float = Field(default=0.5, gt=0, le=1)

    def cited(self) -> tuple[Paper, ...]:
        """Return the papers of its parts."""
        mined = self.mined()
        chosen = [self.objective, *self.negatives, self.weigh]
        if mined:
            chosen.append("mined")
        papers = [_PAPERS[name] for name in chosen if name in _PAPERS]
        if self.weigh == "positive-aware":
            papers.append(NV_RETRIEVER)
        papers += self.judges_cited()
        if mined and mined.refresh_every:
            papers.append(ANCE)
        return tuple(papers)

    def choices(self) -> dict[str, str]:
        """Return the names of all parts, in the order in which a title tells them; empty for the usual ones."""
        negatives = [*self.negatives[1:]]
        if self.twins:
            negatives.append("twins")
        weights = []
        if self.weigh != "none":
            weights.append(self.weigh)
        if self.judged != "keep":
            kinds = [judge.partition(":")[0] for judge in self.judges]
            weights += [f"{'+'.join(kinds)} judge", self.judged]
        batches = []
        if self.batches != "shuffled":
            batches.append(self.batches)
        if self.mined() and self.refresh_every:
            batches.append(f"mined every {self.refresh_every} epochs")
        return {
            "objective": _TITLES[self.objective],
            "negatives": "+".join(negatives),
            "weights": ", ".join(weights),
            "batches": ", ".join(batches),
        }

    @property
    def has_scale(self) -> bool:
        """Return whether the objective divides scores by a temperature."""
        return self.objective in ("infonce", "sigmoid")

    def reads_pretrained_scale(self) -> bool:
        """Return whether temperature or bias begins as that of a pretrained joint model."""
        used = {"temperature", "bias"} - set(self.unused_options())
        return OWN in {getattr(self, name) for name in used}

    def mined(self) -> Mined | None:
        """Return the lists of the teacher, where some part reads lists."""
        if not _LISTS & self._chosen():
            return None
        return Mined(self.teacher, self.judges_asked(), self.refresh_every)

    def reads_sentences(self) -> bool:
        """Return whether sentences are negatives, or have twins."""
        return super().reads_sentences() or "synthetic" in self.negatives

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of sources, weights, batches, objectives and judges that are not chosen."""
        chosen = self._chosen()
        unused: list[str] = []
        for choices, names in _READ_WITH:
            if not choices & chosen:
                unused += names
        return (*unused, *super().unused_options())

    def _chosen(self) -> set[str]:
        chosen = {*self.negatives, self.weigh, self.batches, _TITLES[self.objective]}
        if self.judged != "keep":
            chosen.add("judged")
        return chosen

    @field_validator("negatives")
    @classmethod
    def _with_the_batch(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in SOURCES if name == "batch" or name in value)

    @field_validator("temperature", "bias")
    @classmethod
    def _is_number_or_own(cls, value: float | str, info: ValidationInfo) -> float | str:
        if value == OWN:
            return value
        if not isinstance(value, str) and (info.field_name == "bias" or value > 0):
            return value
        raise ValueError("give a number, above 0 for the temperature, or own for that of a pretrained joint model")

    @model_validator(mode="after")
    def _combines(self) -> Contrastive:
        if self.refresh_every and self.judged != "keep":
            raise ValueError("refresh_every mines lists that no judge has seen; leave it or judged out")
        if self.objective == self.weigh == "hardest":
            raise ValueError("objective = hardest takes the hardest candidate already; leave weigh = hardest out")
        if "mined" in self.negatives and not self.mined_texts and not self.mined_images:
            raise ValueError("mined_texts = 0 and mined_images = 0 draw nothing from mined lists; raise one of them")
        if self.temperature != OWN and "temperature" not in self.unused_options():
            scale = 1 / float(self.temperature)
            if scale > self.largest_scale:
                raise ValueError(
                    f"temperature = {self.temperature} is the scale 1/t = {scale:g}, above largest_scale = "
                    f"{self.largest_scale:g}; raise one of them"
                )
        lists = (
            ("texts", self.top_texts, self.skip_texts, self.mined_texts),
            ("images", self.top_images, self.skip_images, self.mined_images),
        )
        for side, top, skipped, count in lists:
            needed = 1
            if "mined" in self.negatives:
                needed = max(1, count)
            if self.mined() and top - skipped < needed:
                raise ValueError(
                    f"the first {top} of a list without the first {skipped} are fewer than mined_{side} = {count}; "
                    f"raise top_{side}, or lower one of the others"
                )
        if self.weigh == "positive-aware" and self.relative_margin is self.absolute_margin is self.max_score is None:
            raise ValueError("weigh = positive-aware needs relative_margin, absolute_margin or max_score; give one")
        return self
