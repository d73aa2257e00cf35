"""Claims that a model is better than its baseline: the difference, one word, and one sentence.

`itrpipe.evaluation.intervals` says which differences are significant, and so what `better` and `worse` mean. The report
makes its claims with these functions, and `compare` with nothing but evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import Difference, check_options, paired_differences, significances
from itrpipe.evaluation.metrics import RSUM, reaches_chance
from itrpipe.evaluation.results import Evaluation
from itrpipe.evaluation.tables import signed

BETTER = "better"
WORSE = "worse"
NONE = "no measurable difference"
AT_CHANCE = "both at chance"
TOO_FEW = {1: "one seed is too few", 2: "two seeds are too few"}
WORDS = (BETTER, WORSE, NONE, *TOO_FEW.values(), AT_CHANCE)
"""Verdicts on two models."""
Seeds = Evaluation | Sequence[Evaluation]
"""One evaluation, or one of each seed."""


@dataclass(frozen=True)
class Claim:
    """A claim about a model and its baseline on one test set; `str()` gives the sentence that a report prints.

    Attributes:
        model, baseline: their names in the sentence.
        differences: metric -> model minus baseline, of the six recalls and of `rsum`, which the verdict is about.
        at_chance: whether neither of the two is above chance.
        is_trained: whether one of the two was trained, so that one seed is too few.
        significant: whether the model is better or worse than its baseline, as `mark_claims` finds.
    """

    model: str
    baseline: str
    differences: Mapping[str, Difference]
    at_chance: bool = False
    is_trained: bool = True
    significant: bool = False

    @property
    def word(self) -> str:
        """Return one of `WORDS`."""
        rsum = self.differences[RSUM]
        if self.at_chance:
            return AT_CHANCE
        if self.is_trained and rsum.count in TOO_FEW:
            return TOO_FEW[rsum.count]
        if not self.significant:
            return NONE
        if rsum.value > 0:
            return BETTER
        return WORSE

    def __repr__(self) -> str:
        rsum = self.differences[RSUM]
        if self.significant:
            verdict = f"{self.model} is {self.word} than {self.baseline} by {abs(rsum.value):.1f} points of RSum"
        else:
            verdict = f"{self.model} against {self.baseline}: {self.word}, RSum {signed(rsum.value)}"
        intervals = f"over images {signed(rsum.images.low)} to {signed(rsum.images.high)}"
        if rsum.seeds is not None:
            seeds = f"over {rsum.count} seeds {signed(rsum.seeds.low)} to {signed(rsum.seeds.high)}"
            intervals = f"{seeds}, {intervals}"
        sentence = f"{verdict} ({100 * rsum.level:g} % interval {intervals})."
        return sentence[0].upper() + sentence[1:]


@overload
def compare(
    baseline: Seeds,
    model: Seeds,
    *,
    samples: int = 1000,
    level: float = 0.95,
    trained: bool = True,
) -> Claim: ...


@overload
def compare(
    baseline: Seeds,
    model: Mapping[str, Seeds],
    *,
    samples: int = 1000,
    level: float = 0.95,
    trained: bool = True,
) -> dict[str, Claim]: ...


def compare(
    baseline: Seeds,
    model: Seeds | Mapping[str, Seeds],
    *,
    samples: int = 1000,
    level: float = 0.95,
    trained: bool = True,
) -> Claim | dict[str, Claim]:
    """Tell whether a model is better than its baseline on the same test set.

    Both are evaluated on the same resampled images. Trainings differ by their seed, too: give the evaluations of
    three seeds or more, and the mean difference is tested over seeds (Student's t) and over images. Several models are
    tested together (Holm's correction), so compare in one call all that you show together.

    Args:
        baseline: its evaluation, or one of each seed.
        model: evaluations of the model, of the same seeds in the same order; or of several models by their names.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds, 0..1.
        trained: False where no model has a seed, such as pretrained ones; then the images alone decide. Give the
            evaluation of a model without a seed once for each seed of the other.

    Returns:
        The claim, or the claim on each model by its name.

    Raises:
        DataError: the evaluations are of other test sets, or not as many.
        UsageError: fewer than 100 samples, or a level that is not between 0 and 1.

    Example:
        >>> random = np.random.default_rng(0)
        >>> images, owners = random.normal(size=(200, 16)), np.arange(400) // 2
        >>> def evaluations(noise: float) -> list[Evaluation]:
        ...     texts = [images[owners] + noise * random.normal(size=(400, 16)) for seed in range(5)]
        ...     return [evaluate(images, vectors, owners) for vectors in texts]
        >>> print(compare(evaluations(1.5), evaluations(1.4)))
        The model is better than the baseline by 24.8 points of RSum
        (95 % interval over 5 seeds +9.1 to +40.5, over images +12.0 to +38.9).

    Source: see `itrpipe.evaluation.intervals`.
    """
    check_options(samples, level)
    models = model if isinstance(model, Mapping) else {"the model": model}
    if isinstance(baseline, Evaluation):
        baseline = [baseline]
    claims = []
    for name, seeds in models.items():
        tested = [seeds] if isinstance(seeds, Evaluation) else seeds
        if not baseline or len(baseline) != len(tested):
            raise DataError(
                f"the baseline has {len(baseline)} evaluations and {name} {len(tested)}; give one of each seed, in "
                "order"
            )
        evaluations = [*baseline, *tested]
        owners = evaluations[0].owners
        for evaluation in evaluations:
            if not np.array_equal(evaluation.owners, owners):
                raise DataError(
                    f"{name} and the baseline were evaluated on {len(evaluation.owners)} and {len(owners)} texts of "
                    "other images; evaluate both on the same images and texts, in one order"
                )
        pairs = []
        for first, second in zip(baseline, tested, strict=True):
            pairs.append((first.ranks, second.ranks))
        differences = paired_differences(pairs, owners, samples, level)
        at_chance = all(reaches_chance(evaluation.intervals, evaluation.chance) for evaluation in evaluations)
        claims.append(Claim(name, "the baseline", differences, at_chance, trained))

    marked = mark_claims(claims)
    if isinstance(model, Mapping):
        return {claim.model: claim for claim in marked}
    return marked[0]


def mark_claims(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims that are shown together, those marked that are significant.

    Where no model was trained, the interval over images decides, else the rule of `significances`.
    """
    marks = significances([claim.differences[RSUM] for claim in claims])
    marked = []
    for claim, significant in zip(claims, marks, strict=True):
        if not claim.is_trained:
            significant = claim.differences[RSUM].images.excludes_zero
        marked.append(replace(claim, significant=significant and not claim.at_chance))
    return marked
