"""What the differences of methods from their baselines allow to say, in sentences; see `itrpipe.evaluation.claims`."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.claims import Difference, excludes_zero, verdict
from itrpipe.reporting.collapse import said_of_collapsed, why_collapsed
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import interval_text, signed
from itrpipe.reporting.seeds import SeedComparison, by_seed
from itrpipe.reporting.series import Series

_RSUM, _NAMED = "rsum", 3
RULE = (
    "Significant: a mean over two seeds or more whose interval over seeds and whose interval over images both "
    "exclude zero, also where both vary at once and after Holm's correction over all comparisons on this page."
)


def answer(series: Sequence[Series[Run]], compared: Sequence[SeedComparison]) -> str:
    """Whether methods are better than their baselines, or what is missing to say so, and which runs have collapsed.

    Args:
        series: of all runs on one test set.
        compared: of `itrpipe.reporting.seeds.judged`.
    """
    collapsed = said_of_collapsed(series)
    if all(why_collapsed(run) for each in series for run in each.all):
        return collapsed
    said = _answer(series, compared)
    return " ".join(filter(None, (said, _below_published(series, said), collapsed)))


def _answer(series: Sequence[Series[Run]], compared: Sequence[SeedComparison]) -> str:
    methods = [each for each in series if any(one.series is each for one in compared)]
    methods.sort(key=lambda each: each.first.is_plain)  # what learned from its batches alone is not the question
    told = {each.name: [one for one in compared if one.series is each and len(one.seeds) > 1] for each in methods}
    # A baseline with one seed is a baseline that nothing can be claimed against yet.
    single = {one.series.name: one for one in compared if len(one.seeds) == 1 and one.is_controlled}
    claimed = [each for each in methods if any(one.is_controlled for one in told[each.name])]
    asked = claimed if any(not each.first.is_plain for each in claimed) else methods if claimed else []
    waiting = next((single[each.name] for each in asked if each.name in single), None)
    if waiting is not None:
        return _of_one_seed([waiting])
    if claimed:
        claims = {each.name: told[each.name] for each in claimed}
        said = _claim(told[claimed[0].name]) if len(claimed) == 1 else _claims(claims)
        return f"{said} {_too_short(claims)}".rstrip()
    several = next((each for each in methods if told[each.name]), None)
    if several is not None:
        return _without_control(told[several.name][0])
    if methods:
        return _of_one_seed([each for each in compared if each.series is methods[0]])
    return _compared_with_nothing(series)


def _below_published(series: Sequence[Series[Run]], said: str) -> str:
    """That no trained model reaches the one that was published, where that is so and not said yet."""
    for published in (each for each in series if each.first.is_untrained):
        rivals = [
            each for each in series if not each.first.is_untrained and each.first.backbone == published.first.backbone
        ]
        if rivals and published.method not in said and max(map(_mean, rivals)) < _mean(published):
            return f"No model that was trained here reaches {published.method}, which has {_mean(published):.1f}."
    return ""


def _mean(series: Series[Run]) -> float:
    values = [run.metrics["full"][_RSUM]["value"] for run in by_seed(series).values()]
    return sum(values) / len(values)


def versus(comparison: SeedComparison) -> str:
    """Whether one series of runs is better than another, whichever they are."""
    if len(comparison.seeds) > 1:
        return _claim([comparison])
    if _is_trained(comparison):
        return _of_one_seed([comparison])
    rsum = comparison.own[_RSUM].images
    shown = "so that seeds play no part" if rsum.low > 0 or rsum.high < 0 else "and no difference is shown"
    return f"{_one_seed(comparison)}; neither was trained here, {shown}."


def conclusion_of(comparison: SeedComparison) -> str:
    """One difference in words, with all correct matches counted too where the truth is known."""
    rsum = comparison.own[_RSUM]
    sentence = (
        f"{comparison.series.name} against {comparison.reference.method}, {len(comparison.seeds)} seeds: "
        f"RSum {signed(rsum.value)}; {_reason(rsum)}"
    )
    if comparison.oracle is None:
        return f"{sentence}."
    oracle = comparison.oracle[_RSUM]
    return f"{sentence}; with all correct matches counted {signed(oracle.value)} ({_intervals(oracle)})."


def summary(comparisons: Sequence[SeedComparison]) -> str:
    """How many differences are significant; empty when none was measured."""
    rsums = [each.own[_RSUM] for each in comparisons]
    if not rsums:
        return ""
    found = [[each for each in comparisons if _is_significant(each.own[_RSUM], sign)] for sign in (1, -1)]
    up, down = map(len, found)
    if len(rsums) == 1:
        kind = "a significant gain" if up else "a significant loss" if down else "not significant"
        counted = f"the one mean difference in RSum to the first training or a baseline is {kind}"
    else:
        names = [_listed(each) for each in found]
        counted = (
            f"of {len(rsums)} mean differences in RSum to the first training or a baseline, {up or 'none'} "
            f"{'are' if up > 1 else 'is'} significant and positive{names[0]}, {down or 'none'} significant and negative"
            f"{names[1]}"
        )
    return f"Across seeds, {counted}. {RULE}"


def _is_significant(difference: Difference, sign: int) -> bool:
    return difference.significant and sign * difference.value > 0


def _listed(comparisons: Sequence[SeedComparison]) -> str:
    """Which differences these are, in brackets; of many the first."""
    names = [f"{each.series.name} against {_reference(each)}" for each in comparisons]
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return f" ({'; '.join([*names[:_NAMED], *more])})" if names else ""


def _strongest(compared: Sequence[SeedComparison]) -> SeedComparison:
    """The one of a method's references that leaves it the least; where it is worse than some, the one of these."""
    worse = [each for each in compared if each.own[_RSUM].significant and each.own[_RSUM].value < 0]
    return min(worse or compared, key=lambda each: each.own[_RSUM].value)


def _claim(compared: Sequence[SeedComparison]) -> str:
    strongest, kind = _strongest(compared), verdict([each.own[_RSUM] for each in compared])
    rsum, others = strongest.own[_RSUM], len(compared) - 1
    name, reference = _capital(strongest.series.name), _reference(strongest)
    rest = f", the strongest of the {others + 1} runs to compare it with," if others else ""
    if kind == "better":
        said = f"{name} is better than {reference}{rest} by {rsum.value:.1f} points of RSum"
    elif kind == "worse":
        said = f"{name} is worse than {reference}{rest} by {-rsum.value:.1f} points of RSum"
    else:
        said = f"{name} is not shown to be better than {reference}{rest.removesuffix(',')}: RSum {signed(rsum.value)}"
    return f"{said} ({_intervals(rsum)})."


def _reference(comparison: SeedComparison) -> str:
    """What a series is compared with; the backbone is only named where it is another."""
    reference = comparison.reference
    return reference.method if reference.first.backbone == comparison.series.first.backbone else reference.name


def _claims(told: dict[str, list[SeedComparison]]) -> str:
    """Which of several methods are better than all of their baselines, and which are worse than one."""
    kinds = {name: verdict([each.own[_RSUM] for each in compared]) for name, compared in told.items()}
    parts = []
    for kind, words in (("better", "better than all of them"), ("worse", "worse than one of them")):
        named = [
            f"{name} ({signed(strongest.own[_RSUM].value)} to {strongest.reference.method})"
            for name, compared in told.items()
            if kinds[name] == kind and (strongest := _strongest(compared))
        ]
        parts.append(f"{', '.join(named) or 'none'} {'are' if len(named) > 1 else 'is'} {words}")
    return f"Of {len(told)} methods that were compared with baselines over seeds, {parts[0]}, and {parts[1]}, in RSum."


def _too_short(told: dict[str, list[SeedComparison]]) -> str:
    """That no baseline of a better second training has the epochs of both trainings; often empty."""
    for compared in told.values():
        run = compared[0].series.first
        both = run.members[0].epochs_of_both
        trained = [each.reference.first for each in compared if not each.reference.first.is_untrained]
        better = verdict([each.own[_RSUM] for each in compared]) == "better"
        declared = any(each.is_control and not each.is_plain for each in trained)  # to take as long as both trainings
        if not better or declared or not run.members[0].mining or both is None or not trained:
            continue
        if max(each.members[0].epochs or 0.0 for each in trained) < both:
            what = "it" if len(told) == 1 else compared[0].series.name
            return f"No run to compare {what} with was trained for the {both:g} epochs that both trainings take."
    return ""


def _without_control(comparison: SeedComparison) -> str:
    rsum = comparison.own[_RSUM]
    return (
        f"{_capital(comparison.series.name)} differs from {comparison.reference.method} by {signed(rsum.value)} points "
        f"of RSum ({_intervals(rsum)}); a claim takes a baseline with as many epochs as well, and none was evaluated "
        "with these seeds."
    )


def _of_one_seed(compared: Sequence[SeedComparison]) -> str:
    """What one seed tells, against the strongest baseline where there is one.

    Args:
        compared: one series with each of its references.
    """
    controls = [each for each in compared if each.is_controlled]
    shown = _strongest(controls or compared)
    if shown.reference.first.is_untrained:
        if _is_unchanged(shown) and shown.series.first.is_plain:
            return f"{_one_seed(shown)}: training changed none."
        if not controls:
            return f"{_one_seed(shown)}; a claim takes a baseline that was trained as well, and several seeds."
    return f"{_one_seed(shown)}, which allows no claim: how much seeds differ is not known."


def _one_seed(comparison: SeedComparison) -> str:
    rsum = comparison.own[_RSUM]
    if _is_unchanged(comparison):
        return f"{_capital(comparison.series.name)} has the same recalls as {_reference(comparison)} on these images"
    return (
        f"{_capital(comparison.series.name)} differs from {_reference(comparison)} by {signed(rsum.value)} points of "
        f"RSum{' with one seed' if _is_trained(comparison) else ''} ({100 * rsum.level:g} % interval over images "
        f"{interval_text(rsum.images)})"
    )


def _is_unchanged(comparison: SeedComparison) -> bool:
    rsum = comparison.own[_RSUM]
    return rsum.value == rsum.images.low == rsum.images.high == 0


def _is_trained(comparison: SeedComparison) -> bool:
    """Whether one of the sides was trained, so that its seeds count."""
    return not (comparison.reference.first.is_untrained and comparison.series.first.is_untrained)


def _compared_with_nothing(series: Sequence[Series[Run]]) -> str:
    others = [each for each in series if not each.first.is_baseline] or list(series)
    best = max(others, key=_mean)
    missing = "no other method is compared with it" if best.first.is_about_training else "no baseline is there"
    return f"{_reached(best, len(others))}; {missing}."


def _reached(series: Series[Run], others: int) -> str:
    """RSum of the best of so many series, of several seeds the mean."""
    runs = list(by_seed(series).values())
    chance, several = random_recalls(*runs[0].size)[_RSUM], len(runs) > 1
    name = f"{_capital(series.name)}, seed {runs[0].seed}" if runs[0].seed and not several else _capital(series.name)
    most = f", the most of {others}," if others > 1 else ""
    mean = f" on average of {len(runs)} seeds" if several else ""
    return f"{name}{most} reaches an RSum of {_mean(series):.1f} of 600{mean}, and chance {chance:.1f}"


def _intervals(difference: Difference) -> str:
    assert difference.seeds is not None
    return (
        f"{100 * difference.level:g} % interval over {difference.count} seeds {interval_text(difference.seeds)}, over "
        f"images {interval_text(difference.images)}"
    )


def _reason(difference: Difference) -> str:
    if difference.significant:
        return f"a significant {'gain' if difference.value > 0 else 'loss'}"
    if difference.seeds is None:
        return "a single seed"
    seeds, images = excludes_zero(difference.seeds), excludes_zero(difference.images)
    if seeds and images:
        return "both intervals exclude zero, but not with both at once and after Holm's correction: not significant"
    if not seeds and not images:
        return "both intervals include zero: not significant"
    excluding, including = ("seeds", "images") if seeds else ("images", "seeds")
    return f"only the interval over {excluding} excludes zero, that over {including} does not: not significant"


def _capital(name: str) -> str:
    return f"{name[0].upper()}{name[1:]}"
