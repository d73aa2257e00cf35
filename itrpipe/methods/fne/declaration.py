"""Settings of FNE."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from itrpipe.methods.declaration import AuxiliaryLoss, FirstEpochs, SameImageMask, Share
from itrpipe.papers import FNE


class Fne(FirstEpochs, SameImageMask, AuxiliaryLoss):
    """False-negative elimination over a momentum memory. Source: FNE (Li et al., ACM MM 2023); its released code.

    Attributes:
        margin: of the triplet loss.
        candidates: one negative for each anchor, `drawn` with weights that fall with its probability of being false, or
            the `hardest` (the paper's "w/o FNE").
        momentum_twin: candidates are encoded by a slowly following copy of the model; off: by the model itself, and
            there is no memory (the paper's "w/o MMM").
        momentum: m of the copy.
        momentum_eval: the copy runs in evaluation mode; in the released code dropout is active.
        memory_size: pairs of earlier batches that are candidates too (paper: 8192; released code: 8224).
        mask_unfilled: the memory starts empty; in the released code it starts with random vectors that count.
        prior: p, share of matches among all pairs.
        alpha: of the weights of candidates that are no likely match.
        posterior_threshold: lambda, probability above which a candidate is a likely match (released code; paper: 0.01).
        posterior_scale: factor of the probability in the weight of a likely match (released code; paper: 1).
        window: draw only candidates above the mean similarity of matches less the margin (released code).
        fallback: the hardest candidate where the window leaves none (released code).
        min_count: P is 0 until more matches than these were counted (released code).
        negative_source: mismatches of the statistics are the `hardest` of the batch (released code) or `all` (paper).
        ties: of pairs tied for the highest score `none` is kept, or the `first` (released code).
        reset_each_epoch: start the statistics anew in every epoch (released code).
        monotone: let the probability not fall again for the most similar candidates.
        warm_epochs: first epochs with the hardest negatives of the batch alone (released code).
        mask_same_image: pairs of one image are no negatives of the first epochs and of the statistics either (released
            code: they are); they are never drawn.

    Inherited: `sum_epochs`, `auxiliary_weight`.
    """

    papers = (FNE,)
    negatives_follow = True
    compares_embeddings = True
    answers = frozenset({"false-negatives"})

    margin: NonNegativeFloat = 0.2
    candidates: Literal["drawn", "hardest"] = "drawn"
    momentum_twin: bool = True
    momentum: float = Field(default=0.995, ge=0, lt=1)
    momentum_eval: bool = True
    memory_size: int = Field(default=8192, ge=0, le=100_000_000)
    mask_unfilled: bool = True
    prior: Share = 1e-4
    alpha: NonNegativeFloat = 0.5
    posterior_threshold: float = Field(default=0.001, ge=0, le=1)
    posterior_scale: NonNegativeFloat = 0.5
    window: bool = True
    fallback: bool = True
    min_count: NonNegativeInt = 200
    negative_source: Literal["hardest", "all"] = "hardest"
    ties: Literal["none", "first"] = "none"
    reset_each_epoch: bool = True
    monotone: bool = False
    warm_epochs: NonNegativeInt = 1

    def first_epochs(self) -> int:
        """Return the number of first epochs with in-batch negatives only."""
        return max(self.warm_epochs, self.sum_epochs)

    @model_validator(mode="after")
    def _memory_has_its_twin(self) -> Fne:
        if self.memory_size and not self.momentum_twin:
            raise ValueError(
                f"memory_size = {self.memory_size} needs momentum_twin = true; give --set loss.memory_size=0 as well"
            )
        return self
