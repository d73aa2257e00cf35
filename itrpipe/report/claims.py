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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from itrpipe.config import baseline_kind, root_conf
from itrpipe.datasets.prepared import Split
from itrpipe.errors import UsageError
from itrpipe.evaluation.compare import AT_CHANCE, WORDS, Claim, judge_claims
from itrpipe.evaluation.intervals import Difference, paired_differences
from itrpipe.evaluation.metrics import RSUM, random_recalls, reaches_chance, remedy_of_chance
from itrpipe.evaluation.results import FULL, ORACLE
from itrpipe.evaluation.tables import Number, mean
from itrpipe.printable import quantity
from itrpipe.report.names import join_some, value_text
from itrpipe.report.runs import (
    DECLARED,
    FIRST,
    MINING,
    OBJECTIVE,
    PLAIN,
    UNTRAINED,
    EvaluatedRun,
    Series,
    TrainedModel,
    newest_by_seed,
)
from itrpipe.training.settings import FIRST_TRAINING, began_with, unread

UPDATES, TIME = "updates", "time"
"""Kinds of baselines: trained for as many updates, or for as much time."""
_STAGE = "train"
_OF_SCHEDULE = {
    "epochs",
    "schedule",
    "warmup_updates",
    "max_updates",
    "patience",
    "decay_at",
    "decay_every",
    "decay_factor",
}
"""Settings in which a training and its twin on in-batch negatives may differ, beside the loss."""
_OF_NEGATIVES = {
    "sentences",
    "loss.negatives",
    "loss.teacher",
    "loss.twins",
    "loss.judged",
    "loss.drop_above",
    "loss.judges",
    f"{MINING}judges",
}
"""Settings that say which negatives a training has, and what it does with those that judges mark."""
_OPTIONS = {"method": "loss.", "backbone": "model."}
"""Settings whose value decides which options there are -> what the keys of these begin with."""
_MOST_NAMED = 3
"""Models, or settings, that a sentence names."""


class SeriesPair(NamedTuple):
    """A model after the baseline that it is compared with, as differences are `second - first`."""

    baseline: Series
    model: Series


@dataclass(frozen=True)
class Comparison:
    """A series of runs against its baseline.

    Attributes:
        baseline: trained with the same seeds, or not at all, and re-ranked alike.
        series: of the model.
        seeds: that both have.
        claim: what the differences say, a caption's own image being its only match.
        oracle: differences with all correct matches counted; None where the truth is not known.
    """

    baseline: Series
    series: Series
    seeds: list[int]
    claim: Claim
    oracle: dict[str, Difference] | None = None

    @property
    def rsum(self) -> Difference:
        """Return the difference of the sum of recalls, which the verdict is about."""
        return self.claim.differences[RSUM]


def compare_with_baselines(
    pairs: Sequence[SeriesPair],
    split: Split,
    samples: int,
    level: float,
) -> list[Comparison]:
    """Compare models with their baselines, over the seeds that both have.

    Args:
        pairs: on one test set.
        split: they were evaluated on.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds.
    """
    comparisons = []
    for baseline, series in pairs:
        runs = pairs_by_seed(baseline, series)
        columns = ["rank"]
        if ORACLE in series.first.metrics:
            columns.append("oracle_rank")
        differences = []
        for column in columns:
            ranks = [(before.ranks(column), after.ranks(column)) for before, after in runs.values()]
            differences.append(paired_differences(ranks, split.caption_image, samples, level))

        has_same_backbone = baseline.first.backbone == series.first.backbone
        claim = Claim(
            series.name,
            baseline.method if has_same_backbone else baseline.name,
            differences[0],
            at_chance=all(map(is_at_chance, itertools.chain.from_iterable(runs.values()))),
            is_trained=UNTRAINED not in series.first.roles & baseline.first.roles,
        )
        comparisons.append(Comparison(baseline, series, list(runs), claim, *differences[1:]))
    return comparisons


def mark_significant(groups: Sequence[Sequence[Comparison]]) -> list[list[Comparison]]:
    """Mark the claims that are significant, with the p-values of all groups corrected together.

    A page corrects the claims on all of its test sets together, but for baselines of as much time: these are corrected
    apart, on every test set alone.
    """
    claims = iter(judge_claims([each.claim for each in itertools.chain.from_iterable(groups)]))
    marked = []
    for group in groups:
        marked.append([replace(each, claim=next(claims)) for each in group])
    return marked


def two_compared(series: Sequence[Series], first: Collection[str]) -> SeriesPair:
    """Return the two models that a user compares, with no other runs than those that are compared; first the baseline.

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
            folders = []
            for each in side:
                for run in each.all:
                    folders.append(run.evaluation.name)
            raise UsageError(
                f"--compare: one name means {len(side)} models; name one of the folders {', '.join(folders)}"
            )
    (before,), (after,) = sides
    if before is after:
        raise UsageError(f"--compare: both are {before.name}, which differ in nothing but their seed")

    pairs = pairs_by_seed(before, after)
    if not pairs:
        raise UsageError(f"--compare: {before.name} and {after.name} share no seed; evaluate both with one")
    compared = list(itertools.chain.from_iterable(pairs.values()))
    runs_before = tuple(run for run in before.all if run in compared)
    runs_after = tuple(run for run in after.all if run in compared)
    return SeriesPair(replace(before, all=runs_before), replace(after, all=runs_after))


def pairs_by_seed(baseline: Series, series: Series) -> dict[int, tuple[EvaluatedRun, EvaluatedRun]]:
    """Return runs of baseline and model by the seed that they share; an untrained one is the same beside each seed."""
    baselines = newest_by_seed(baseline)
    runs = newest_by_seed(series)
    if UNTRAINED in baseline.first.roles and len(baselines) == 1:
        baselines = dict.fromkeys(runs, *baselines.values())
    if UNTRAINED in series.first.roles and len(runs) == 1:
        runs = dict.fromkeys(baselines, *runs.values())
    return {seed: (baselines[seed], runs[seed]) for seed in baselines if seed in runs}


def score_of(series: Series, metric: str = RSUM) -> Number:
    """Return the mean of a metric over seeds; of one seed with its interval over images."""
    scores = []
    for run in newest_by_seed(series).values():
        scores.append(Number.of(run.metrics[FULL][metric]))
    score = mean(scores)
    assert score is not None
    return score


def rsum_of(series: Series) -> float:
    """Return the mean RSum over seeds."""
    return score_of(series).value


# -- Which baseline


def pairs_with_baselines(series: Sequence[Series], kind: str) -> list[SeriesPair]:
    """Return each model on a test set that has a baseline with it, as the top of this file defines it.

    Args:
        series: of all runs on the test set.
        kind: of baseline, `updates` or `time`.
    """
    pairs = []
    for model in series:
        is_baseline = any(DECLARED in member.roles for member in model.first.members)
        if _setting(model) is None or is_baseline or {FIRST, UNTRAINED} & model.first.roles:
            continue
        baselines = {}
        for other in series:
            if other is model or _setting(other) != _setting(model) or not pairs_by_seed(other, model):
                continue
            fitness = _baseline_fitness(other.first, model.first, kind)
            if fitness is not None:
                baselines.setdefault(fitness, other)
        if baselines:
            pairs.append(SeriesPair(baselines[min(baselines)], model))
    return pairs


def _setting(series: Series) -> list[Any] | None:
    """Return what both sides have in common; None where a model was removed.

    These are backbones with the encoders that they began with, features, share of the training set, and re-ranking.
    """
    run = series.first
    backbones, shares = [], []
    for model in run.members:
        if not model.settings:
            return None
        backbones.append((model.backbone_name, *began_with(model.settings)))
        shares.append(model.settings.get("train_share", 1.0))
    return [sorted(backbones), run.settings["features"], run.rerank, shares]


def _baseline_fitness(
    baseline: EvaluatedRun,
    run: EvaluatedRun,
    kind: str,
) -> int | None:
    """Return how well a run serves as the baseline of another, 0 best; None where it does not."""
    baseline_settings, settings = baseline.model.settings, run.model.settings
    has_other_method = baseline_settings.get("method") != settings.get("method")
    is_alike = has_other_method or baseline_settings.get("model") == settings.get("model")
    is_as_long = PLAIN not in baseline.roles or baseline_settings.get("epochs", 0) >= settings.get("epochs", 0)

    # Declarations name it as baseline of what the run extends, or of all first trainings.
    roots = {root_conf(_STAGE, run.model.method_name)}
    if not run.model.choices:
        roots.add(FIRST_TRAINING)
    is_declared = is_alike and is_as_long
    for model in baseline.members:
        name = model.method_name
        is_declared &= baseline_kind(_STAGE, name) == kind and root_conf(_STAGE, name) in roots

    if kind != UPDATES:
        return 0 if is_declared else None
    if is_as_long and _is_plain_twin(baseline, run):
        return 0
    if is_declared:
        return 1
    if is_alike and FIRST in baseline.roles:
        return 2
    return 3 if UNTRAINED in baseline.roles else None


def _is_plain_twin(baseline: EvaluatedRun, run: EvaluatedRun) -> bool:
    """Tell whether both differ in seed and schedule, and in that the run has learned from more than its batches."""
    plain, model = baseline.model, run.model
    if len(baseline.members) > 1 or len(run.members) > 1 or plain.method_name != model.method_name:
        return False
    if PLAIN not in baseline.roles or PLAIN in run.roles or plain.choices[OBJECTIVE] != model.choices[OBJECTIVE]:
        return False
    differing = set(_differing_keys(plain, model)) - _OF_SCHEDULE
    return all(key.startswith("loss.") for key in differing)


# -- What a page says first


def is_at_chance(run: EvaluatedRun) -> bool:
    """Tell whether chance lies within or above the interval of its RSum."""
    return reaches_chance(run.metrics[FULL], random_recalls(*run.size))


def all_at_chance(series: Series) -> bool:
    """Tell whether all runs of a series are at chance."""
    return all(map(is_at_chance, series.all))


def differing_settings(comparison: Comparison) -> list[str]:
    """Return the settings in which two trainings that are compared differ, apart from negatives and seed.

    Each reads "key (the baseline's value, the model's value)".
    """
    baselines, models = comparison.baseline.first.members, comparison.series.first.members
    if len(baselines) != len(models):
        return [f"models ({len(baselines)}, {len(models)})"]
    differences = {}
    for baseline, model in zip(baselines, models, strict=True):
        for key in _differing_keys(baseline, model):
            before = value_text(baseline.values.get(key))
            after = value_text(model.values.get(key))
            differences[f"{key} ({before}, {after})"] = None
    return list(differences)


def _differing_keys(baseline: TrainedModel, model: TrainedModel) -> list[str]:
    """Return the keys of settings in which two trainings differ apart from negatives and seed, the method's first.

    Options that only one of two methods, or of two backbones, has are told by the method and the backbone.
    """
    baseline_values, values = baseline.values, model.values
    prefixes = []
    for owner, prefix in _OPTIONS.items():
        if baseline_values.get(owner) != values.get(owner):
            prefixes.append(prefix)
    if baseline.mining is None or model.mining is None:
        prefixes.append(MINING)
    one_sided = baseline_values.keys() ^ values.keys()
    skipped = _OF_NEGATIVES | unread(baseline.settings) | unread(model.settings)
    for key in one_sided:
        if key.startswith(tuple(prefixes)):
            skipped.add(key)

    keys = (baseline_values.keys() | values.keys()) - skipped
    differing = []
    for key in sorted(keys, key=lambda key: (key not in _OPTIONS, key)):
        if baseline_values.get(key) != values.get(key):
            differing.append(key)
    return differing


def answer(series: Sequence[Series], comparisons: Sequence[Comparison]) -> str:
    """Return which models are better than their baselines, or what there is without these, and which collapsed."""
    collapsed = list(filter(all_at_chance, series))
    warning = ""
    if collapsed:
        reasons = []
        for each in collapsed:
            rsum = each.first.metrics[FULL][RSUM]["value"]
            chance = random_recalls(*each.first.size)[RSUM]
            reasons.append(f"{each.name} (its RSum of {rsum:.1f} is not significantly above chance, {chance:.1f})")
        verdict = AT_CHANCE.capitalize() if len(collapsed) == len(series) == 2 else "Learned little"
        warning = f"{verdict}: {join_some(reasons, _MOST_NAMED, '; ')}."
        if any(UNTRAINED not in each.first.roles for each in series):
            images, _ = series[0].first.size
            warning += f" {remedy_of_chance(images).capitalize()}."
    if len(collapsed) == len(series):
        return warning

    of_interest = []
    for comparison in comparisons:
        if PLAIN not in comparison.series.first.roles and not _repeats(comparison, comparisons):
            of_interest.append(comparison)
    of_interest = of_interest or list(comparisons)
    if len(of_interest) == 1:
        verdict = _one_verdict(of_interest[0])
    elif of_interest:
        verdict = _several_verdicts(of_interest)
    else:
        best = max(series, key=rsum_of)
        chance = random_recalls(*best.first.size)[RSUM]
        verdict = (
            f"{best.name} reaches an RSum of {rsum_of(best):.1f} of 600; chance gives {chance:.1f}. "
            "No baseline was evaluated."
        )
    return f"{verdict} {warning}".rstrip()


def _repeats(comparison: Comparison, comparisons: Iterable[Comparison]) -> bool:
    """Tell whether its model is that of another comparison, but for judges that marked nothing."""
    model = comparison.series.first.model
    if not model.has_idle_judges:
        return False
    for each in comparisons:
        other = each.series.first.model
        has_same_negatives = other.choices.get("negatives") == model.choices.get("negatives")
        if has_same_negatives and not other.has_idle_judges and not _differing_keys(other, model):
            return True
    return False


def _one_verdict(comparison: Comparison) -> str:
    """Return what one comparison shows; mined negatives are credited where nothing else differs."""
    baseline, model = comparison.baseline.first.model, comparison.series.first.model
    for series in (comparison.baseline, comparison.series):
        is_given = series.first.model.artifact.stage != _STAGE
        if UNTRAINED in series.first.roles or _setting(series) is None or is_given:
            return str(comparison.claim)
    differences = differing_settings(comparison)
    if differences:
        return f"{comparison.claim} They also differ in {join_some(differences, _MOST_NAMED)}."
    if model.mining is not None and baseline.mining is None:
        return str(replace(comparison.claim, model="training with mined negatives"))
    return str(comparison.claim)


def _several_verdicts(comparisons: Sequence[Comparison]) -> str:
    """Return the verdicts on all models before what the best of them reaches, which the choice flatters."""
    verdicts = []
    for word in WORDS:
        names = [each.series.name for each in comparisons if each.claim.word == word]
        if names:
            verdicts.append(f"{word}: {join_some(names, _MOST_NAMED)}")
    best = max(comparisons, key=lambda each: rsum_of(each.series))
    return (
        f"Of {len(comparisons)} models against their baselines, {'; '.join(verdicts)}. "
        f"The highest RSum, flattered by the choice: {best.claim}"
    )


def decision_notes(series: Sequence[Series], comparisons: Sequence[Comparison]) -> list[str]:
    """Say what people's decisions did to mined lists, and to the models that were trained with these.

    Args:
        series: of all runs on a test set.
        comparisons: of models with the same trainings without decisions.
    """
    notes = []
    for each in series:
        mining = each.first.model.mining
        if mining is None or mining.manifest is None:
            continue
        decided = mining.statistics.get("decided")
        if decided is not None:
            unsure = decided["mined"] - decided["left_out"] - decided["kept"]
            notes.append(
                f"Of {quantity(decided['decisions'], 'decision')}, {decided['mined']:,} are on mined candidates: "
                f"{decided['left_out']:,} right (left out), {decided['kept']:,} wrong (kept), {unsure:,} unsure."
            )
            break  # other models mostly read the same lists
    for comparison in comparisons:
        name = comparison.series.first.model.user_name or comparison.series.name
        claim = replace(comparison.claim, model=f"{name} with these decisions", baseline="without them")
        before = rsum_of(comparison.baseline)
        after = rsum_of(comparison.series)
        notes.append(f"{claim} RSum was {before:.1f} without them and is {after:.1f} with them.")
    return notes
