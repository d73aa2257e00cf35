"""Whether a model is better than its baseline: which that is, the difference, one word, and one sentence.

The baseline is fixed before anything is measured: the same training without mined or written negatives, for as many
updates. Declarations name it (`baseline = "updates"` in `stages/4_train.toml`); of a configuration whose negatives can
be chosen it is also that configuration itself with in-batch negatives, for as many epochs. Where neither was run, it is
the first training, and where that was not, the published model that training began with. A second difference tells of
the baseline that trained for as much time (`baseline = "time"`), where it was run.

`itrpipe.evaluation.intervals` says which differences are significant, and so what `better` and `worse` mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from itrpipe.config import extended, leaves, load_declaration
from itrpipe.datasets.prepared import Split
from itrpipe.declared import baseline_kind, root_conf
from itrpipe.errors import UsageError
from itrpipe.evaluation.intervals import Difference, paired_intervals, seed_interval, significances
from itrpipe.evaluation.metrics import (
    MOST,
    RECALLS,
    REMEDY,
    RSUM,
    SIDES,
    Ranks,
    is_alike,
    metrics,
    random_recalls,
    share_of_hubs,
)
from itrpipe.evaluation.tables import Number, mean, signed
from itrpipe.methods.declaration import methods
from itrpipe.report.names import choices_of
from itrpipe.report.runs import FULL, OBJECTIVE, Model, Run
from itrpipe.report.series import Series, by_seed
from itrpipe.training.settings import FIRST_TRAINING, newer_defaults, unread

COMPARED = (*RECALLS, RSUM)
UPDATES, TIME = "updates", "time"
BETTER, WORSE, NONE, ONE_SEED = "better", "worse", "no measurable difference", "one seed"
_STAGE, _LOSS = "train", "loss."
_GIVEN = "see that the embeddings belong to these images and captions"
_SCHEDULE = (
    "epochs",
    "schedule",
    "decay_at",
    "decay_every",
    "decay_factor",
    "warmup_updates",
    "max_updates",
    "patience",
)
_NAMED = 3
"""Models that a sentence names."""


@dataclass(frozen=True)
class Claim:
    """A series of runs against its baseline.

    Attributes:
        series: of the model.
        baseline: trained with the same seeds, or not at all, and re-ranked alike.
        seeds: that both have.
        own: difference of every metric in `COMPARED`, a caption's own image being its only match.
        oracle: the same with all correct matches counted; None where the truth is not known.
    """

    series: Series
    baseline: Series
    seeds: list[int]
    own: dict[str, Difference]
    oracle: dict[str, Difference] | None

    @property
    def rsum(self) -> Difference:
        """Of the sum of recalls, which the word is about."""
        return self.own[RSUM]

    @property
    def word(self) -> str:
        """`better`, `worse`, `no measurable difference`, or `one seed`, which allows none of these."""
        if self._is_trained and len(self.seeds) == 1:
            return ONE_SEED
        images = self.rsum.images
        found = self.rsum.significant if self._is_trained else images.excludes_zero
        return NONE if not found else BETTER if self.rsum.value > 0 else WORSE

    def sentence(self, name: str = "") -> str:
        """The difference with its intervals, in words; the model by another name than its own where one is given."""
        rsum, name, baseline = self.rsum, name or self.series.name, self._baseline
        name = name[0].upper() + name[1:]
        points, intervals = f"{abs(rsum.value):.1f} points of RSum", self._intervals
        if self.word in (BETTER, WORSE):
            return f"{name} is {self.word} than {baseline} by {points} ({intervals})."
        if not rsum.value and rsum.images.low == rsum.images.high == 0:
            return f"{name} has the same recalls as {baseline} on these images."
        if self.word == NONE:
            return f"{name} against {baseline}: no measurable difference, RSum {signed(rsum.value)} ({intervals})."
        told = "too little to tell" if rsum.images.low <= 0 <= rsum.images.high else "more than the images explain, but"
        told += " with one seed" if told.startswith("too") else " one seed does not tell how much seeds differ"
        return f"{name} changed RSum by {signed(rsum.value)} against {baseline}: {told} ({intervals})."

    @property
    def _is_trained(self) -> bool:
        """Whether one of the sides was trained, so that its seeds count."""
        return not (self.baseline.first.is_untrained and self.series.first.is_untrained)

    @property
    def _baseline(self) -> str:
        """The backbone is only named where it is another."""
        own = self.baseline.first.backbone == self.series.first.backbone
        return self.baseline.method if own else self.baseline.name

    @property
    def _intervals(self) -> str:
        rsum = self.rsum
        images = f"over images {signed(rsum.images.low)} to {signed(rsum.images.high)}"
        over = [images]
        if rsum.seeds is not None:
            over = [f"over {rsum.count} seeds {signed(rsum.seeds.low)} to {signed(rsum.seeds.high)}", images]
        return f"{100 * rsum.level:g} % interval {', '.join(over)}"


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
    shown = [each.rsum for group in groups for each in group if len(each.seeds) > 1]
    marks = dict(zip(map(id, shown), significances(shown), strict=True))

    def marked(one: Claim) -> Claim:
        return replace(one, own={**one.own, RSUM: replace(one.rsum, significant=marks.get(id(one.rsum), False))})

    return [[marked(each) for each in group] for group in groups]


def claim(series: Series, baseline: Series, caption_image: np.ndarray, samples: int, level: float) -> Claim:
    """Differences of one series to another, over the seeds that both have."""
    runs = pairs_by_seed(baseline, series)
    own, oracle = (
        _differences(
            [(before.ranks(oracle=counted), after.ranks(oracle=counted)) for before, after in runs.values()],
            caption_image,
            samples,
            level,
        )
        for counted in (False, True)
    )
    assert own is not None
    return Claim(series, baseline, [*runs], own, oracle)


def _differences(
    pairs: Sequence[tuple[Ranks | None, Ranks | None]], caption_image: np.ndarray, samples: int, level: float
) -> dict[str, Difference] | None:
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if len(known) < len(pairs):
        return None
    images = paired_intervals(known, caption_image, samples, level)
    measured = [(metrics(before), metrics(after)) for before, after in known]
    found = {}
    for name in COMPARED:
        single = [after[name] - before[name] for before, after in measured]
        seeds = seed_interval(single, level) if len(single) > 1 else None
        found[name] = Difference(float(np.mean(single)), seeds, images[name], len(single), level)
    return found


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
            raise UsageError(f"--compare: one name stands for {len(side)} models; name one of the folders {folders}")
    (before,), (after,) = sides
    if before is after:
        raise UsageError(f"--compare: both are {before.name}, which differ in nothing but their seed")
    if not pairs_by_seed(before, after):
        raise UsageError(f"--compare: {before.name} and {after.name} share no seed; evaluate both with one")
    return before, after


def pairs_by_seed(baseline: Series, series: Series) -> dict[int, tuple[Run, Run]]:
    """Runs of both by the seed that they share; what was not trained is the same beside each seed of the other."""
    first, second = by_seed(baseline), by_seed(series)
    if baseline.first.is_untrained and len(first) == 1:
        first = dict.fromkeys(second, *first.values())
    if series.first.is_untrained and len(second) == 1:
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
    if not series.known or run.is_untrained or run.is_first or any(member.is_baseline for member in run.members):
        return None
    ranked = [
        (place, each)
        for each in others
        if each is not series
        and each.known
        and _setting(each) == _setting(series)
        and pairs_by_seed(each, series)
        and (place := _place(each.first, run, kind)) is not None
    ]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def _setting(series: Series) -> list[Any]:
    """What both sides have in common: backbones with the encoders that they began with, features, share, re-ranking."""
    run = series.first
    kinds = sorted((each.backbone_name, *each.encoders) for each in run.members)
    return [kinds, run.settings["features"], run.rerank, [m.settings.get("train_share", 1.0) for m in run.members]]


def _place(reference: Run, run: Run, kind: str) -> int | None:
    """How well a run serves as baseline of another, 0 best; None where it does not."""
    if kind == TIME:
        return 0 if _is_declared(reference, run, TIME) else None
    if _is_plain_twin(reference, run):
        return 0
    if _is_declared(reference, run, UPDATES):
        return 1
    if reference.is_first and not _is_of_other_size(reference, run):
        return 2
    return 3 if reference.is_untrained else None


def _is_declared(reference: Run, run: Run, kind: str) -> bool:
    """Whether declarations name all members of a reference, which have as many updates or as much time."""
    if _is_of_other_size(reference, run) or (reference.is_plain and _epochs(reference) < _epochs(run)):
        return False
    names = {member.method_name for member in reference.members} - {FIRST_TRAINING}
    return bool(names) and names <= set(_declared_baselines(run.members[0], kind))


def _declared_baselines(model: Model, kind: str) -> list[str]:
    """Configurations that are baselines of a model: of what it extends, or of the first training of its backbone."""
    roots = {root_conf(_STAGE, model.method_name)}
    declaration, exclusive = load_declaration(_STAGE), {each.only_backbone for each in methods().values()}
    if model.backbone_name.partition("-")[0] not in exclusive and not _chooses_itself(model):
        roots.add(FIRST_TRAINING)
    return [
        each for each in declaration.confs if baseline_kind(_STAGE, each) == kind and root_conf(_STAGE, each) in roots
    ]


def _chooses_itself(model: Model) -> bool:
    """Whether its configuration has negatives to choose, and settings of its own that no other has as baseline."""
    declaration = load_declaration(_STAGE)
    known = model.method_name in declaration.confs
    return known and bool(model.choices) and len(extended(declaration, model.method_name)) > 1


def _is_of_other_size(reference: Run, run: Run) -> bool:
    """Whether both learn by the same method with other networks, which differ in more than in their negatives."""
    both = [[each.settings for each in one.members if each.settings] for one in (reference, run)]
    named = [[each["method"] for each in one] for one in both]
    return named[0] == named[1] and [e.get("model") for e in both[0]] != [e.get("model") for e in both[1]]


def _is_plain_twin(reference: Run, run: Run) -> bool:
    """Whether both differ in nothing but the seed, and in that the run has learned from more than its batches.

    The reference may have learned for longer, and by another schedule.
    """
    return (
        reference.is_plain
        and len(reference.members) == len(run.members) == 1
        and not run.is_plain
        and reference.members[0].method_name == run.members[0].method_name
        and _shared(reference.members[0]) == _shared(run.members[0])
        and _epochs(reference) >= _epochs(run)
    )


def _epochs(run: Run) -> int:
    return run.members[0].settings.get("epochs", 0)


def _shared(model: Model) -> dict[str, Any]:
    """What a baseline has in common with a model: all settings but those of loss and schedule, and the objective."""
    skipped = {"seed", *_SCHEDULE, *unread(model.settings)}
    known = {
        key: value
        for key, value in leaves(model.settings)
        if key not in skipped and not key.startswith(_LOSS) and (key, value) not in newer_defaults()
    }
    return {**known, OBJECTIVE: choices_of(model.settings)[OBJECTIVE]}


# -- What a page says first


def why_collapsed(run: Run) -> str:
    """Chance within the interval of its RSum, or few answers to most queries; empty for a run that has not."""
    rsum, chance = run.metrics[FULL]["rsum"], random_recalls(*run.size)["rsum"]
    if rsum["low"] <= chance:
        return f"its RSum of {rsum['value']:.1f} is no better than chance, {chance:.1f}"
    for side, what in zip(SIDES, ("captions", "images"), strict=True):
        share, items, queries = answered_by_hubs(run, side)
        if is_alike(share, items, queries):
            return f"{MOST} {what} are its first answer to {100 * share:.0f} % of the queries"
    return ""


def answered_by_hubs(run: Run, side: str) -> tuple[float, int, int]:
    """Share of the queries of a direction that hubs answer, 0..1, and how many items and queries there are."""
    queries, (images, captions) = run.rankings[side], run.size
    share = share_of_hubs(each[0] for each in queries.candidates if each)
    return share, *((captions, images) if side == "i2t" else (images, captions))


def said_of_collapsed(series: Sequence[Series]) -> str:
    """One sentence on the runs of which every seed has collapsed; empty where there are none."""
    found = {each.name: each for each in series if all(map(why_collapsed, each.all))}
    if not found:
        return ""
    names, first = list(found), next(iter(found.values())).first
    why, who = why_collapsed(first), f"{names[0][0].upper()}{names[0][1:]} has"
    if len(names) > 1:
        listed = "; ".join([*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
        who = f"{len(names)} of {len(series)} models ({listed}) have" if len(names) < len(series) else "All models have"
        why = "they rank no better than chance or answer most queries alike"
    remedy = _GIVEN if all(each.first.is_untrained for each in found.values()) else REMEDY
    return f"{who} collapsed: {why}; {remedy}."


def answer(series: Sequence[Series], claims: Sequence[Claim]) -> str:
    """Which models are better than their baselines, or what there is in place of that, and which have collapsed."""
    collapsed = said_of_collapsed(series)
    if all(why_collapsed(run) for each in series for run in each.all):
        return collapsed
    asked = [each for each in claims if not each.series.first.is_plain] or list(claims)
    if len(asked) == 1:
        said = asked[0].sentence("training with mined negatives" if asked[0].series.first.members[0].mining else "")
    else:
        said = _of_many(asked) if asked else _reached(series)
    return f"{said} {collapsed}".rstrip()


def _of_many(claims: Sequence[Claim]) -> str:
    parts = []
    for word in (BETTER, WORSE, NONE, ONE_SEED):
        found = [each for each in claims if each.word == word]
        names = [f"{each.series.name} {signed(each.rsum.value)}" for each in found[:_NAMED]]
        more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
        if found:
            parts.append(f"{word}: {len(found)} ({'; '.join([*names, *more])})")
    return f"{len(claims)} models against their baselines, by RSum. {'; '.join(parts).capitalize()}."


def _reached(series: Sequence[Series]) -> str:
    """RSum of the best model, where none has a baseline."""
    best = max(series, key=rsum_of)
    chance = random_recalls(*best.first.size)[RSUM]
    reached = f"{best.name} reaches an RSum of {rsum_of(best):.1f} of 600; chance gives {chance:.1f}."
    return f"{reached} No baseline was evaluated."
