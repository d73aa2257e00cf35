"""Whether a model is better than its baseline: which that is, the difference, one word, and one sentence.

The baseline is fixed before anything is measured: the same training without mined or written negatives, for as many
updates. Declarations name it (`baseline = "updates"` in `stages/4_train.toml`); of a configuration whose negatives can
be chosen it is also that configuration itself with in-batch negatives, for as many epochs. Where neither was run, it is
the first training, and where that was not, the published model that training began with. A second difference tells of
the baseline that trained for as much time (`baseline = "time"`), where it was run.

`itrpipe.evaluation.compare` makes the difference, the word and the sentence from ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from itrpipe.config import baseline_kind, root_conf
from itrpipe.datasets.prepared import Split
from itrpipe.errors import UsageError
from itrpipe.evaluation import compare
from itrpipe.evaluation.compare import AT_CHANCE, WORDS, mark_significant, paired_differences
from itrpipe.evaluation.intervals import Difference
from itrpipe.evaluation.metrics import (
    MOST,
    RSUM,
    SIDES,
    is_alike,
    random_recalls,
    reaches_chance,
    remedy_of_chance,
    share_of_hubs,
)
from itrpipe.evaluation.tables import Number, mean
from itrpipe.report.names import shown, some
from itrpipe.report.runs import (
    DECLARED,
    FIRST,
    FULL,
    MINING,
    OBJECTIVE,
    PLAIN,
    UNTRAINED,
    Model,
    Run,
    Series,
    by_seed,
)
from itrpipe.training.settings import FIRST_TRAINING, unread

UPDATES, TIME = "updates", "time"
_STAGE = "train"
_OF_SCHEDULE = {"epochs", "schedule", "warmup_updates", "max_updates", "patience"}
_OF_SCHEDULE |= {"decay_at", "decay_every", "decay_factor"}
"""Settings in which a training and its twin on in-batch negatives may differ, beside the loss."""
_OF_NEGATIVES = {"sentences", "loss.negatives", "loss.teacher", "loss.twins"}
"""Settings that say which negatives a training has."""
_OPTIONS = {"method": "loss.", "backbone": "model."}
"""Settings whose value decides which options there are -> what the keys of these begin with."""
_OF_GUARDS = {"loss.weigh", "loss.false_negatives", "loss.drop_above"}
_OF_GUARDS |= {f"{MINING}{name}" for name in ("guard", "guard_prior", "guard_batch_size")}
"""Settings of false negatives that mining marks, and of what a training does with them."""
_NAMED = 3
"""Models, or settings, that a sentence names."""


@dataclass(frozen=True)
class Claim:
    """A series of runs against its baseline.

    Attributes:
        series: of the model.
        baseline: trained with the same seeds, or not at all, and re-ranked alike.
        seeds: that both have.
        own: difference of every metric in `COMPARED`, a caption's own image being its only match.
        oracle: the same with all correct matches counted; None where the truth is not known.
        at_chance: whether neither of the two is above chance.
    """

    series: Series
    baseline: Series
    seeds: list[int]
    own: dict[str, Difference]
    oracle: dict[str, Difference] | None
    at_chance: bool = False

    @property
    def rsum(self) -> Difference:
        """Of the sum of recalls, which the word is about."""
        return self.own[RSUM]

    @property
    def word(self) -> str:
        """Return one of `itrpipe.evaluation.compare.WORDS`."""
        return self.verdict().word

    def sentence(self, name: str = "") -> str:
        """Return the verdict with the difference and its intervals; `name` replaces the model's own."""
        return str(self.verdict(name))

    def verdict(self, name: str = "") -> compare.Claim:
        """Return the claim as `itrpipe.compare` makes it: of names, and whether a training, so a seed, is behind it."""
        has_one_backbone = self.baseline.first.backbone == self.series.first.backbone
        baseline = self.baseline.method if has_one_backbone else self.baseline.name
        is_trained = not all(UNTRAINED in each.first.roles for each in (self.baseline, self.series))
        return compare.Claim(name or self.series.name, baseline, self.own, self.at_chance, is_trained)


def claims_of(
    series: Sequence[Series], split: Split | None, samples: int, level: float, kind: str | Series = UPDATES
) -> list[Claim]:
    """Compares every model on a test set with its baseline, where there is one.

    Args:
        series: of all runs on one test set.
        split: they were evaluated on; None when the dataset was removed, and then nothing can be paired.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds.
        kind: of baseline, `updates` or `time`; or the series that all are compared with.
    """
    if split is None:
        return []
    pairs = [(each, kind if isinstance(kind, Series) else baseline_of(each, series, kind)) for each in series]
    return [claim(each, other, split.caption_image, samples, level) for each, other in pairs if other is not None]


def judged(groups: Sequence[Sequence[Claim]]) -> list[list[Claim]]:
    """Marks the differences in RSum that are significant among all that the page shows, over all of its test sets."""
    marked = iter(mark_significant([each.own for group in groups for each in group]))
    return [[replace(each, own=next(marked)) for each in group] for group in groups]


def claim(series: Series, baseline: Series, caption_image: np.ndarray, samples: int, level: float) -> Claim:
    """Differences of one series to another, over the seeds that both have."""
    runs, found = pairs_by_seed(baseline, series), []
    for oracle in (False, True):
        pairs = [(before.ranks(oracle=oracle), after.ranks(oracle=oracle)) for before, after in runs.values()]
        known = [(before, after) for before, after in pairs if before is not None and after is not None]
        found.append(paired_differences(known, caption_image, samples, level) if len(known) == len(pairs) else None)
    own, oracle = found
    assert own is not None
    at_chance = all(is_at_chance(run) for pair in runs.values() for run in pair)
    return Claim(series, baseline, [*runs], own, oracle, at_chance)


def two(series: Sequence[Series], first: Collection[str]) -> tuple[Series, Series]:
    """The two models that a user compares, each of whichever seeds.

    Args:
        series: of both.
        first: names of the evaluations of the first.

    Raises:
        UsageError: a name stands for models of several settings, both for one, or they share no seed.
    """
    sides = [
        [each for each in series if any((run.evaluation.name in first) is side for run in each.all)]
        for side in (True, False)
    ]
    for side in sides:
        if len(side) > 1:
            folders = ", ".join(run.evaluation.name for each in side for run in each.all)
            raise UsageError(f"--compare: one name means {len(side)} models; name one of the folders {folders}")
    (before,), (after,) = sides
    if before is after:
        raise UsageError(f"--compare: both are {before.name}, which differ in nothing but their seed")
    if not pairs_by_seed(before, after):
        raise UsageError(f"--compare: {before.name} and {after.name} share no seed; evaluate both with one")
    return before, after


def pairs_by_seed(baseline: Series, series: Series) -> dict[int, tuple[Run, Run]]:
    """Runs of both by the seed that they share; what was not trained is the same beside each seed of the other."""
    first, second = by_seed(baseline), by_seed(series)
    if UNTRAINED in baseline.first.roles and len(first) == 1:
        first = dict.fromkeys(second, *first.values())
    if UNTRAINED in series.first.roles and len(second) == 1:
        second = dict.fromkeys(first, *second.values())
    return {seed: (first[seed], second[seed]) for seed in first if seed in second}


def score_of(series: Series, metric: str = RSUM, protocol: str = FULL) -> Number | None:
    """Mean of a metric over seeds; of one seed with its interval over images; None where it was not measured."""
    return mean([Number.of(run.metrics.get(protocol, {}).get(metric)) for run in by_seed(series).values()])


def rsum_of(series: Series) -> float:
    """Mean over seeds."""
    found = score_of(series)
    assert found is not None
    return found.value


# -- Which baseline


def baseline_of(series: Series, others: Sequence[Series], kind: str = UPDATES) -> Series | None:
    """What a series is compared with; see above."""
    run = series.first
    if not _is_known(series) or {FIRST, UNTRAINED} & run.roles or any(DECLARED in each.roles for each in run.members):
        return None
    setting = _setting(series)
    ranked = [
        (place, each)
        for each in others
        if each is not series
        and _is_known(each)
        and _setting(each) == setting
        and pairs_by_seed(each, series)
        and (place := _place(each.first, run, kind)) is not None
    ]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def _is_known(series: Series) -> bool:
    return all(each.settings for each in series.first.members)


def _setting(series: Series) -> list[Any]:
    """What both sides have in common: backbones with the encoders that they began with, features, share, re-ranking."""
    run = series.first
    kinds = sorted((each.backbone_name, *each.encoders) for each in run.members)
    return [kinds, run.settings["features"], run.rerank, [m.settings.get("train_share", 1.0) for m in run.members]]


def _place(reference: Run, run: Run, kind: str) -> int | None:
    """How well a run serves as baseline of another, 0 best; None where it does not."""
    one, other = reference.members[0].settings, run.members[0].settings
    alike = one.get("method") != other.get("method") or one.get("model") == other.get("model")
    as_long = PLAIN not in reference.roles or one.get("epochs", 0) >= other.get("epochs", 0)
    # Whether declarations name it as baseline of what the run extends, or of all first trainings.
    model, names = run.members[0], [each.method_name for each in reference.members]
    roots = {root_conf(_STAGE, model.method_name), *(() if model.choices else (FIRST_TRAINING,))}
    named = all(baseline_kind(_STAGE, name) == kind and root_conf(_STAGE, name) in roots for name in names)
    declared = alike and as_long and named
    serves = [declared]
    if kind == UPDATES:
        first = alike and FIRST in reference.roles
        serves = [as_long and _is_plain_twin(reference, run), declared, first, UNTRAINED in reference.roles]
    return serves.index(True) if any(serves) else None


def _is_plain_twin(reference: Run, run: Run) -> bool:
    """Whether both differ in seed and schedule, and in that the run has learned from more than its batches, alone."""
    plain, model = reference.members[0], run.members[0]
    if not len(reference.members) == len(run.members) == 1 or plain.method_name != model.method_name:
        return False
    if PLAIN not in reference.roles or PLAIN in run.roles or plain.choices[OBJECTIVE] != model.choices[OBJECTIVE]:
        return False
    return all(key in _OF_SCHEDULE or key.startswith(_OPTIONS["method"]) for key in _differing(plain, model))


# -- What a page says first


def is_at_chance(run: Run) -> bool:
    """Whether chance lies within or above the interval of its RSum."""
    return reaches_chance(run.metrics[FULL], random_recalls(*run.size))


def why_collapsed(run: Run) -> str:
    """Return that it is at chance, or gives few answers to most queries; empty for a run that has not collapsed."""
    if is_at_chance(run):
        rsum, chance = run.metrics[FULL][RSUM]["value"], random_recalls(*run.size)[RSUM]
        return f"its RSum of {rsum:.1f} is not significantly above chance, {chance:.1f}"
    for side, items, what in zip(SIDES, run.size[::-1], ("captions", "images"), strict=True):
        answers = run.rankings[side]["candidate_ids"].combine_chunks()
        listed = answers.flatten()
        first = listed.take(np.arange(0, len(listed), len(listed) // len(answers))).to_pylist()
        share = share_of_hubs(first)
        if is_alike(share, items, len(first)):
            return f"{MOST} {what} are its first answer to {100 * share:.0f} % of the queries"
    return ""


def differing_settings(claim: Claim) -> list[str]:
    """Return the settings in which the trainings of a claim differ, apart from negatives and seed.

    Each reads "key (the baseline's value, the model's value)".
    """
    baselines, models = claim.baseline.first.members, claim.series.first.members
    if len(baselines) != len(models):
        return [f"models ({len(baselines)}, {len(models)})"]
    differences = {}
    for baseline, model in zip(baselines, models, strict=True):
        for key in _differing(baseline, model):
            before, after = baseline.values.get(key), model.values.get(key)
            differences[f"{key} ({shown(before)}, {shown(after)})"] = None
    return list(differences)


def _differing(baseline: Model, model: Model) -> list[str]:
    """Return the keys of settings in which two trainings differ apart from negatives and seed, the method's first.

    Options that only one of two methods, or of two backbones, has are told by the method and the backbone.
    """
    baseline_values, values = baseline.values, model.values
    skipped = _OF_NEGATIVES | unread(baseline.settings) | unread(model.settings)
    if baseline.has_idle_guard or model.has_idle_guard:
        skipped |= _OF_GUARDS

    one_sided = baseline_values.keys() ^ values.keys()
    for owner, prefix in _OPTIONS.items():
        if baseline_values.get(owner) != values.get(owner):
            skipped |= {key for key in one_sided if key.startswith(prefix)}
    if baseline.mining is None or model.mining is None:
        skipped |= {key for key in one_sided if key.startswith(MINING)}

    keys = (baseline_values.keys() | values.keys()) - skipped
    differing = [key for key in keys if baseline_values.get(key) != values.get(key)]
    return sorted(differing, key=lambda key: (key not in _OPTIONS, key))


def answer(series: Sequence[Series], claims: Sequence[Claim]) -> str:
    """Return which models are better than their baselines, or what there is in place of that, and which collapsed."""
    reasons = [f"{each.name} ({why_collapsed(each.first)})" for each in series if all(map(why_collapsed, each.all))]
    collapsed = ""
    if reasons:
        are_both = len(series) == 2 and all(is_at_chance(each.first) for each in series)
        verdict = AT_CHANCE.capitalize() if are_both else "Learned little"
        collapsed = f"{verdict}: {some(reasons, _NAMED, '; ')}."
        if any(UNTRAINED not in each.first.roles for each in series):
            collapsed += f" {remedy_of_chance(series[0].first.size[0]).capitalize()}."
    if all(is_at_chance(run) for each in series for run in each.all):
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


def _repeats(claim: Claim, claims: Sequence[Claim]) -> bool:
    """Whether the model of a claim is that of another one, but for a guard that marked nothing."""
    model = claim.series.first.members[0]
    if not model.has_idle_guard:
        return False
    for each in claims:
        other = each.series.first.members[0]
        has_same_negatives = other.choices.get("negatives") == model.choices.get("negatives")
        if has_same_negatives and not other.has_idle_guard and not _differing(other, model):
            return True
    return False


def _one(claim: Claim) -> str:
    """Return what one comparison shows; mined negatives are credited where nothing else differs."""
    for side in (claim.baseline, claim.series):
        is_given = side.first.members[0].artifact.stage != _STAGE
        if UNTRAINED in side.first.roles or not _is_known(side) or is_given:
            return claim.sentence()
    if differences := differing_settings(claim):
        return f"{claim.sentence()} They also differ in {some(differences, _NAMED)}."
    baseline, model = claim.baseline.first.members[0], claim.series.first.members[0]
    is_credited = model.mining is not None and baseline.mining is None
    return claim.sentence("training with mined negatives" if is_credited else "")


def _several(claims: Sequence[Claim]) -> str:
    """Return the verdicts on all models before what the best of them reaches, which the choice flatters."""
    verdicts = []
    for word in WORDS:
        names = [each.series.name for each in claims if each.word == word]
        if names:
            verdicts.append(f"{word}: {some(names, _NAMED)}")
    best = max(claims, key=lambda each: rsum_of(each.series))
    verdict = f"Of {len(claims)} models against their baselines, {'; '.join(verdicts)}."
    return f"{verdict} The highest RSum, flattered by the choice: {best.sentence()}"
