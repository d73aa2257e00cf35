"""Comparisons of models with their baselines: which these are, the difference, one word, and one sentence.

The baseline is fixed before anything is measured: the same training without mined or written negatives, for as many
updates. Declarations name it (`baseline = "updates"` in `stages/4_train.toml`); of a configuration whose negatives can
be chosen it is also that configuration itself with in-batch negatives, for as many epochs. Where neither was run, it is
the first training, and where that was not, the published model that training began with. A second difference tells of
the baseline that trained for as much time (`baseline = "time"`), where it was run.

`itrpipe.evaluation.compare` makes the difference, the word and the sentence from ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from itrpipe.config import baseline_kind, root_conf
from itrpipe.datasets.prepared import Split
from itrpipe.errors import UsageError
from itrpipe.evaluation.compare import AT_CHANCE, WORDS, Claim, judge_claims
from itrpipe.evaluation.intervals import Difference, paired_differences
from itrpipe.evaluation.metrics import (
    RSUM,
    random_recalls,
    reaches_chance,
    remedy_of_chance,
)
from itrpipe.evaluation.results import FULL, ORACLE
from itrpipe.evaluation.tables import Number, mean
from itrpipe.report.names import shown, some
from itrpipe.report.runs import (
    DECLARED,
    FIRST,
    MINING,
    OBJECTIVE,
    PLAIN,
    UNTRAINED,
    Model,
    Run,
    Series,
    by_seed,
)
from itrpipe.training.settings import FIRST_TRAINING, began_with, unread

UPDATES, TIME = "updates", "time"
_STAGE = "train"
_OF_SCHEDULE = {"epochs", "schedule", "warmup_updates", "max_updates", "patience"}
_OF_SCHEDULE |= {"decay_at", "decay_every", "decay_factor"}
"""Settings in which a training and its twin on in-batch negatives may differ, beside the loss."""
_OF_NEGATIVES = {"sentences", "loss.negatives", "loss.teacher", "loss.twins"}
_OF_NEGATIVES |= {"loss.judged", "loss.drop_above", "loss.judges", f"{MINING}judges"}
"""Settings that say which negatives a training has, and what it does with those that judges mark."""
_OPTIONS = {"method": "loss.", "backbone": "model."}
"""Settings whose value decides which options there are -> what the keys of these begin with."""
_NAMED = 3
"""Models, or settings, that a sentence names."""


@dataclass(frozen=True)
class Comparison:
    """A series of runs against its baseline.

    Attributes:
        series: of the model.
        baseline: trained with the same seeds, or not at all, and re-ranked alike.
        seeds: that both have.
        claim: what the differences say, a caption's own image being its only match.
        oracle: differences with all correct matches counted; None where the truth is not known.
    """

    series: Series
    baseline: Series
    seeds: list[int]
    claim: Claim
    oracle: dict[str, Difference] | None = None

    @property
    def rsum(self) -> Difference:
        """Return the difference of the sum of recalls, which the verdict is about."""
        return self.claim.differences[RSUM]


def claims_of(
    series: Sequence[Series], split: Split | None, samples: int, level: float, kind: str | Series = UPDATES
) -> list[Comparison]:
    """Compare every model on a test set with its baseline, where there is one, over the seeds that both have.

    Args:
        series: of all runs on one test set.
        split: they were evaluated on; None when the dataset was removed, and then nothing can be paired.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds.
        kind: of baseline, `updates` or `time`; or the series that all are compared with.
    """
    if split is None:
        return []
    columns = ["rank"]
    if ORACLE in series[0].first.metrics:
        columns.append("oracle_rank")
    compared = []
    for each in series:
        baseline = kind if isinstance(kind, Series) else baseline_of(each, series, kind)
        if baseline is None:
            continue
        runs = pairs_by_seed(baseline, each)
        found = []
        for column in columns:
            pairs = [(before.ranks(column), after.ranks(column)) for before, after in runs.values()]
            found.append(paired_differences(pairs, split.caption_image, samples, level))
        name = baseline.method if baseline.first.backbone == each.first.backbone else baseline.name
        at_chance = all(map(is_at_chance, itertools.chain.from_iterable(runs.values())))
        is_trained = UNTRAINED not in each.first.roles & baseline.first.roles
        claim = Claim(each.name, name, found[0], at_chance, is_trained)
        compared.append(Comparison(each, baseline, [*runs], claim, *found[1:]))
    return compared


def judged(groups: Sequence[Sequence[Comparison]]) -> list[list[Comparison]]:
    """Mark the claims that are significant among all that the page makes, over all of its test sets."""
    claims = iter(judge_claims([each.claim for each in itertools.chain.from_iterable(groups)]))
    return [[replace(each, claim=next(claims)) for each in group] for group in groups]


def two(series: Sequence[Series], first: Collection[str]) -> tuple[Series, Series]:
    """Return the two models that a user compares, with no other runs than those that are compared.

    Args:
        series: of both.
        first: names of the evaluations of the first.

    Raises:
        UsageError: a name stands for models of several settings, both for one, or they share no seed.
    """
    sides: tuple[list[Series], list[Series]] = [], []
    for each in series:
        is_first = {run.evaluation.name in first for run in each.all}
        if True in is_first:
            sides[0].append(each)
        if False in is_first:
            sides[1].append(each)
    for side in sides:
        if len(side) > 1:
            folders = ", ".join(run.evaluation.name for each in side for run in each.all)
            raise UsageError(f"--compare: one name means {len(side)} models; name one of the folders {folders}")
    (before,), (after,) = sides
    if before is after:
        raise UsageError(f"--compare: both are {before.name}, which differ in nothing but their seed")
    pairs = pairs_by_seed(before, after)
    if not pairs:
        raise UsageError(f"--compare: {before.name} and {after.name} share no seed; evaluate both with one")
    compared = [*itertools.chain.from_iterable(pairs.values())]
    first_runs = tuple(run for run in before.all if run in compared)
    second_runs = tuple(run for run in after.all if run in compared)
    return replace(before, all=first_runs), replace(after, all=second_runs)


def pairs_by_seed(baseline: Series, series: Series) -> dict[int, tuple[Run, Run]]:
    """Return runs of both by the seed that they share; what was not trained is the same beside each seed."""
    first, second = by_seed(baseline), by_seed(series)
    if UNTRAINED in baseline.first.roles and len(first) == 1:
        first = dict.fromkeys(second, *first.values())
    if UNTRAINED in series.first.roles and len(second) == 1:
        second = dict.fromkeys(first, *second.values())
    return {seed: (first[seed], second[seed]) for seed in first if seed in second}


def score_of(series: Series, metric: str = RSUM) -> Number:
    """Return the mean of a metric over seeds; of one seed with its interval over images."""
    score = mean([Number.of(run.metrics[FULL][metric]) for run in by_seed(series).values()])
    assert score is not None
    return score


def rsum_of(series: Series) -> float:
    """Return the mean RSum over seeds."""
    return score_of(series).value


# -- Which baseline


def baseline_of(series: Series, others: Sequence[Series], kind: str = UPDATES) -> Series | None:
    """Return what a series is compared with; see above."""
    run = series.first
    setting = _setting(series)
    is_baseline = any(DECLARED in each.roles for each in run.members)
    if setting is None or is_baseline or {FIRST, UNTRAINED} & run.roles:
        return None
    places = []
    for number, each in enumerate(others):
        if each is not series and _setting(each) == setting and pairs_by_seed(each, series):
            place = _place(each.first, run, kind)
            if place is not None:
                places.append((place, number))
    return others[min(places)[1]] if places else None


def _setting(series: Series) -> list[Any] | None:
    """Return what both sides have in common; None where a model was removed.

    These are backbones with the encoders that they began with, features, share of the training set, and re-ranking.
    """
    run = series.first
    if not all(each.settings for each in run.members):
        return None
    kinds = sorted((each.backbone_name, *began_with(each.settings)) for each in run.members)
    return [
        kinds,
        run.settings["features"],
        run.rerank,
        [each.settings.get("train_share", 1.0) for each in run.members],
    ]


def _place(reference: Run, run: Run, kind: str) -> int | None:
    """Return how well a run serves as baseline of another, 0 best; None where it does not."""
    one, other = reference.members[0].settings, run.members[0].settings
    alike = one.get("method") != other.get("method") or one.get("model") == other.get("model")
    as_long = PLAIN not in reference.roles or one.get("epochs", 0) >= other.get("epochs", 0)
    # Whether declarations name it as baseline of what the run extends, or of all first trainings.
    roots = {root_conf(_STAGE, run.members[0].method_name)}
    if not run.members[0].choices:
        roots.add(FIRST_TRAINING)
    named = True
    for each in reference.members:
        named &= baseline_kind(_STAGE, each.method_name) == kind and root_conf(_STAGE, each.method_name) in roots
    declared = alike and as_long and named
    serves = [declared]
    if kind == UPDATES:
        is_twin = as_long and _is_plain_twin(reference, run)
        serves = [is_twin, declared, alike and FIRST in reference.roles, UNTRAINED in reference.roles]
    return serves.index(True) if True in serves else None


def _is_plain_twin(reference: Run, run: Run) -> bool:
    """Tell whether both differ in seed and schedule, and in that the run has learned from more than its batches."""
    plain, model = reference.members[0], run.members[0]
    if not len(reference.members) == len(run.members) == 1 or plain.method_name != model.method_name:
        return False
    if PLAIN not in reference.roles or PLAIN in run.roles or plain.choices[OBJECTIVE] != model.choices[OBJECTIVE]:
        return False
    return all(key in _OF_SCHEDULE or key.startswith(_OPTIONS["method"]) for key in _differing(plain, model))


# -- What a page says first


def is_at_chance(run: Run) -> bool:
    """Tell whether chance lies within or above the interval of its RSum."""
    return reaches_chance(run.metrics[FULL], random_recalls(*run.size))


def differing_settings(claim: Comparison) -> list[str]:
    """Return the settings in which the trainings of a claim differ, apart from negatives and seed.

    Each reads "key (the baseline's value, the model's value)".
    """
    baselines, models = claim.baseline.first.members, claim.series.first.members
    if len(baselines) != len(models):
        return [f"models ({len(baselines)}, {len(models)})"]
    differences = []
    for baseline, model in zip(baselines, models, strict=True):
        for key in _differing(baseline, model):
            difference = f"{key} ({shown(baseline.values.get(key))}, {shown(model.values.get(key))})"
            if difference not in differences:
                differences.append(difference)
    return differences


def _differing(baseline: Model, model: Model) -> list[str]:
    """Return the keys of settings in which two trainings differ apart from negatives and seed, the method's first.

    Options that only one of two methods, or of two backbones, has are told by the method and the backbone.
    """
    baseline_values, values = baseline.values, model.values
    skipped = _OF_NEGATIVES | unread(baseline.settings) | unread(model.settings)

    one_sided = baseline_values.keys() ^ values.keys()
    for owner, prefix in _OPTIONS.items():
        if baseline_values.get(owner) != values.get(owner):
            skipped |= {key for key in one_sided if key.startswith(prefix)}
    if baseline.mining is None or model.mining is None:
        skipped |= {key for key in one_sided if key.startswith(MINING)}

    keys = (baseline_values.keys() | values.keys()) - skipped
    differing = [key for key in keys if baseline_values.get(key) != values.get(key)]
    return sorted(differing, key=lambda key: (key not in _OPTIONS, key))


def answer(series: Sequence[Series], claims: Sequence[Comparison]) -> str:
    """Return which models are better than their baselines, or what there is in place of that, and which collapsed."""
    lost = [each for each in series if all(map(is_at_chance, each.all))]
    collapsed = ""
    if lost:
        reasons = []
        for each in lost:
            rsum, chance = each.first.metrics[FULL][RSUM]["value"], random_recalls(*each.first.size)[RSUM]
            reasons.append(f"{each.name} (its RSum of {rsum:.1f} is not significantly above chance, {chance:.1f})")
        verdict = AT_CHANCE.capitalize() if len(lost) == len(series) == 2 else "Learned little"
        collapsed = f"{verdict}: {some(reasons, _NAMED, '; ')}."
        if any(UNTRAINED not in each.first.roles for each in series):
            collapsed += f" {remedy_of_chance(series[0].first.size[0]).capitalize()}."
    if len(lost) == len(series):
        return collapsed
    asked = [each for each in claims if PLAIN not in each.series.first.roles and not _repeats(each, claims)]
    asked = asked or list(claims)
    if len(asked) == 1:
        said = _one(asked[0])
    elif asked:
        said = _several(asked)
    else:
        first = max(series, key=rsum_of)
        chance = random_recalls(*first.first.size)[RSUM]
        said = f"{first.name} reaches an RSum of {rsum_of(first):.1f} of 600; chance gives {chance:.1f}."
        said += " No baseline was evaluated."
    return f"{said} {collapsed}".rstrip()


def _repeats(claim: Comparison, claims: Sequence[Comparison]) -> bool:
    """Tell whether the model of a claim is that of another one, but for judges that marked nothing."""
    model = claim.series.first.members[0]
    if not model.has_idle_judges:
        return False
    for each in claims:
        other = each.series.first.members[0]
        has_same_negatives = other.choices.get("negatives") == model.choices.get("negatives")
        if has_same_negatives and not other.has_idle_judges and not _differing(other, model):
            return True
    return False


def _one(comparison: Comparison) -> str:
    """Return what one comparison shows; mined negatives are credited where nothing else differs."""
    baseline, model = comparison.baseline.first, comparison.series.first
    for series in (comparison.baseline, comparison.series):
        is_given = series.first.members[0].artifact.stage != _STAGE
        if UNTRAINED in series.first.roles or _setting(series) is None or is_given:
            return str(comparison.claim)
    if differences := differing_settings(comparison):
        return f"{comparison.claim} They also differ in {some(differences, _NAMED)}."
    if model.members[0].mining is not None and baseline.members[0].mining is None:
        return str(replace(comparison.claim, model="training with mined negatives"))
    return str(comparison.claim)


def _several(claims: Sequence[Comparison]) -> str:
    """Return the verdicts on all models before what the best of them reaches, which the choice flatters."""
    verdicts = []
    for word in WORDS:
        names = [each.series.name for each in claims if each.claim.word == word]
        if names:
            verdicts.append(f"{word}: {some(names, _NAMED)}")
    best = max(claims, key=lambda each: rsum_of(each.series))
    verdict = f"Of {len(claims)} models against their baselines, {'; '.join(verdicts)}."
    return f"{verdict} The highest RSum, flattered by the choice: {best.claim}"
