"""What the differences of methods from their controls allow to say, in sentences; see `itrpipe.evaluation.claims`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.claims import Difference, excludes_zero, verdict
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import interval_text, signed
from itrpipe.reporting.controls import control_command, controls_of, longer_command, own_options, seed_command
from itrpipe.reporting.seeds import SeedComparison, by_seed
from itrpipe.reporting.series import Series

_RSUM, _NAMED = "rsum", 3
RULE = (
    "Significant: a mean over two seeds or more whose interval over seeds and whose interval over images both "
    "exclude zero, also where both vary at once and after Holm's correction over all comparisons on this page."
)


@dataclass(frozen=True)
class Finding:
    """What a page says first.

    Attributes:
        said: whether methods are better than their controls, one sentence.
        then: what the commands are for; empty without commands.
        commands: to go on with.
    """

    said: str
    then: str = ""
    commands: tuple[str, ...] = ()

    def __str__(self) -> str:
        *others, last = (f"`{each}`" for each in self.commands) if self.commands else ("",)
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"{self.said} {self.then} {listed}." if self.commands else self.said


def answer(series: Sequence[Series[Run]], compared: Sequence[SeedComparison], baseline_method: str) -> Finding:
    """Whether methods are better than their controls, or what is missing to say so, and what to do next.

    Args:
        series: of all runs on one test set.
        compared: of `itrpipe.reporting.seeds.judged`.
        baseline_method: the method of round one.
    """
    found = _at_chance(series) or _answer(series, compared, baseline_method)
    return replace(found, said=f"{found.said}{_below_published(series, found.said)}{_near_chance(series, found.said)}")


def _answer(series: Sequence[Series[Run]], compared: Sequence[SeedComparison], baseline_method: str) -> Finding:
    methods = [each for each in series if any(one.series is each for one in compared)]
    methods.sort(key=lambda each: each.first.is_plain)  # what learned from its batches alone is not the question
    told = {each.name: [one for one in compared if one.series is each and len(one.seeds) > 1] for each in methods}
    # A control with one seed is a control that nothing can be claimed against yet.
    single = {one.series.name: one for one in compared if len(one.seeds) == 1 and one.is_controlled}
    claimed = [each for each in methods if any(one.is_controlled for one in told[each.name])]
    asked = claimed if any(not each.first.is_plain for each in claimed) else methods if claimed else []
    waiting = next((single[each.name] for each in asked if each.name in single), None)
    if waiting is not None:
        return _of_one_seed([waiting], baseline_method)
    if claimed:
        claims = {each.name: told[each.name] for each in claimed}
        said = _claim(told[claimed[0].name]) if len(claimed) == 1 else _claims(claims)
        short = _too_short(claims)
        return Finding(f"{said} {short[0]}", *short[1:]) if short else Finding(said, *_after(claims))
    several = next((each for each in methods if told[each.name]), None)
    if several is not None:
        return _without_control(told[several.name][0], baseline_method)
    if methods:
        return _of_one_seed([each for each in compared if each.series is methods[0]], baseline_method)
    return _compared_with_nothing(series, baseline_method)


def _below_published(series: Sequence[Series[Run]], said: str) -> str:
    """That no trained model reaches the one that was published, where that is so and not said yet."""
    for published in (each for each in series if each.first.is_untrained):
        rivals = [
            each for each in series if not each.first.is_untrained and each.first.backbone == published.first.backbone
        ]
        if rivals and published.method not in said and max(map(_mean, rivals)) < _mean(published):
            return f" No model that was trained here reaches {published.method}, which has {_mean(published):.1f}."
    return ""


def _near_chance(series: Sequence[Series[Run]], said: str) -> str:
    """That chance is within the interval of every run, where that is so and not said yet."""
    runs = [run for each in series for run in each.all]
    if "hance" in said or any(run.metrics["full"][_RSUM]["low"] > _chance(run) for run in runs):
        return ""
    return f" Chance, {_chance(runs[0]):.1f}, is within the intervals of all runs over images."


def _mean(series: Series[Run]) -> float:
    values = [run.metrics["full"][_RSUM]["value"] for run in by_seed(series).values()]
    return sum(values) / len(values)


def _validated(series: Series[Run]) -> float:
    """RSum on the validation split, of several seeds the mean; below any where a model of them has none."""
    manifests = [run.members[0].artifact.manifest for run in by_seed(series).values()]
    values = [-math.inf if each is None else each.metrics.get("validation_rsum", -math.inf) for each in manifests]
    return sum(values) / len(values)


def versus(comparison: SeedComparison) -> Finding:
    """Whether one series of runs is better than another, whichever they are."""
    if len(comparison.seeds) > 1:
        return Finding(_claim([comparison]))
    trained = _trained(comparison)
    if trained:
        return _of_one_seed([comparison])
    rsum = comparison.own[_RSUM].images
    shown = "so that seeds play no part" if rsum.low > 0 or rsum.high < 0 else "and no difference is shown"
    return Finding(f"{_one_seed(comparison)}; neither was trained here, {shown}.")


def conclusion_of(comparison: SeedComparison) -> str:
    """One difference in words, with every true match counted as right too where the truth is known."""
    rsum = comparison.own[_RSUM]
    sentence = (
        f"{comparison.series.name} against {comparison.reference.method}, {len(comparison.seeds)} seeds: "
        f"RSum {signed(rsum.value)}; {_reason(rsum)}"
    )
    if comparison.oracle is None:
        return f"{sentence}."
    oracle = comparison.oracle[_RSUM]
    return f"{sentence}; with every true match counted as right {signed(oracle.value)} ({_intervals(oracle)})."


def summary(comparisons: Sequence[SeedComparison]) -> str:
    """How many differences are significant; empty when none was measured."""
    rsums = [each.own[_RSUM] for each in comparisons]
    if not rsums:
        return ""
    found = [[each for each in comparisons if _is_significant(each.own[_RSUM], sign)] for sign in (1, -1)]
    up, down = map(len, found)
    if len(rsums) == 1:
        kind = "a significant gain" if up else "a significant loss" if down else "not significant"
        counted = f"the one mean difference in RSum to round one or a control is {kind}"
    else:
        names = [_listed(each) for each in found]
        counted = (
            f"of {len(rsums)} mean differences in RSum to round one or a control, {up or 'none'} "
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
    """Which of several methods are better than all of their controls, and which are worse than one."""
    kinds = {name: verdict([each.own[_RSUM] for each in compared]) for name, compared in told.items()}
    parts = []
    for kind, words in (("better", "better than all of them"), ("worse", "worse than one of them")):
        named = [
            f"{name} ({signed(strongest.own[_RSUM].value)} to {strongest.reference.method})"
            for name, compared in told.items()
            if kinds[name] == kind and (strongest := _strongest(compared))
        ]
        parts.append(f"{', '.join(named) or 'none'} {'are' if len(named) > 1 else 'is'} {words}")
    return f"Of {len(told)} methods that were compared with controls over seeds, {parts[0]}, and {parts[1]}, in RSum."


def _too_short(told: dict[str, list[SeedComparison]]) -> tuple[str, str, tuple[str, ...]] | None:
    """That no control of a better second round has the epochs of both rounds, and what trains one."""
    for compared in told.values():
        run = compared[0].series.first
        both = run.members[0].epochs_of_both
        trained = [each.reference.first for each in compared if not each.reference.first.is_untrained]
        better = verdict([each.own[_RSUM] for each in compared]) == "better"
        declared = any(each.is_control and not each.is_plain for each in trained)  # to take as long as both rounds
        if not better or declared or not run.members[0].mining or both is None:
            continue
        longest = max(trained, key=lambda each: each.members[0].epochs or 0.0, default=None)
        if longest is not None and (longest.members[0].epochs or 0.0) < both:
            what = "it" if len(told) == 1 else compared[0].series.name
            said = f"No run to compare {what} with was trained for the {both:g} epochs that both rounds take."
            return said, "Train one with", (longer_command(longest, both),)
    return None


def _after(told: dict[str, list[SeedComparison]]) -> tuple[str, tuple[str, ...]]:
    """What to do after a claim: give the best of the better ones to others, else ask why there is none."""
    better = [each for each in told.values() if verdict([one.own[_RSUM] for one in each]) == "better"]
    if better:
        run = max(better, key=lambda each: _strongest(each).own[_RSUM].value)[0].series.first
        return "Export it with", (_export(run),)
    compared = next(iter(told.values()))
    first = compared[0]
    if any(member.mining and member.named for member in first.series.first.members):  # round one was asked already
        started = [each.reference for each in compared if each.reference.first.is_untrained]
        trained = [each.reference for each in compared if not each.reference.first.is_untrained]
        simpler = max(trained, key=_validated, default=first.reference)
        if any(_mean(each) > _mean(simpler) for each in started):  # what is simpler still is there already
            return "Ask what the training lacks with", (_advise(simpler.first),)
        return "Export the simpler model with", (_export(simpler.first),)
    run = first.series.first if first.reference.first.is_untrained else first.reference.first
    return "Ask what other negatives can do with", (_advise(run),)


def _export(run: Run) -> str:
    """The command that makes a folder of a model for others."""
    first, backbone = run.members[0], run.settings["backbone"]
    if first.named:
        return f"itrpipe export --model {first.named} --to {backbone}-{first.named}"
    named = f"--method {first.method_name} --backbone {backbone} --dataset {run.manifest.dataset}"
    return " ".join([f"itrpipe export {named} --to {backbone}-{first.method_name}", *own_options(run)])


def _advise(run: Run) -> str:
    """The command that tells of round one, or of a control that serves as one, what negatives may add."""
    first = run.members[0]
    if first.named:
        return f"itrpipe advise --model {first.named}"
    method = "" if run.is_baseline else f" --method {first.method_name}"
    named = f"itrpipe advise{method} --backbone {first.backbone_name} --dataset {run.manifest.dataset}"
    return " ".join([named, *own_options(run)])


def _without_control(comparison: SeedComparison, baseline_method: str) -> Finding:
    rsum, run = comparison.own[_RSUM], comparison.series.first
    said = (
        f"{_capital(comparison.series.name)} differs from {comparison.reference.method} by {signed(rsum.value)} points "
        f"of RSum ({_intervals(rsum)})"
    )
    controls = controls_of(run, baseline_method)
    if not controls:
        return Finding(f"{said}; a claim takes a control as well, and none is declared for this method.")
    return Finding(
        f"{said}; a claim takes a control with as many epochs as well, and none was evaluated with these seeds.",
        "Run",
        tuple(control_command(run, controls[0], seed) for seed in comparison.seeds),
    )


def _of_one_seed(compared: Sequence[SeedComparison], baseline_method: str = "") -> Finding:
    """What one seed tells, against the strongest control where there is one.

    Args:
        compared: one series with each of its references.
        baseline_method: the method of round one; empty where the reference is what was asked for.
    """
    controls = [each for each in compared if each.is_controlled]
    shown = _strongest(controls or compared)
    run = shown.series.first
    if _is_unchanged(shown) and run.is_plain and shown.reference.first.is_untrained:
        return Finding(f"{_one_seed(shown)}: training changed none.", "See what it has learned with", (_advise(run),))
    if baseline_method and not controls and shown.reference.first.is_untrained:
        wanted = controls_of(run, baseline_method)
        said = f"{_one_seed(shown)}; a claim takes a control that was trained as well, and several seeds."
        return Finding(said, "Run", tuple(control_command(run, name, shown.seeds[0]) for name in wanted[:1]))
    return Finding(
        f"{_one_seed(shown)}, which allows no claim: how much seeds differ is not known.",
        "Evaluate another seed with",
        _another_seed(shown),
    )


def _one_seed(comparison: SeedComparison) -> str:
    rsum = comparison.own[_RSUM]
    if _is_unchanged(comparison):
        return f"{_capital(comparison.series.name)} has the same recalls as {_reference(comparison)} on these images"
    return (
        f"{_capital(comparison.series.name)} differs from {_reference(comparison)} by {signed(rsum.value)} points of "
        f"RSum{' with one seed' if _trained(comparison) else ''} ({100 * rsum.level:g} % interval over images "
        f"{interval_text(rsum.images)})"
    )


def _is_unchanged(comparison: SeedComparison) -> bool:
    rsum = comparison.own[_RSUM]
    return rsum.value == rsum.images.low == rsum.images.high == 0


def _trained(comparison: SeedComparison) -> list[Series[Run]]:
    """The sides that were trained, whose seeds therefore count; the reference first, which may also mine."""
    return [each for each in (comparison.reference, comparison.series) if not each.first.is_untrained]


def _another_seed(comparison: SeedComparison) -> tuple[str, ...]:
    """What evaluates a second seed of both sides, one that one of them has already where there is such a seed."""
    (seed,), held = comparison.seeds, {each.name: by_seed(each) for each in _trained(comparison)}
    others = {one for seeds in held.values() for one in seeds} - {seed}
    wanted = min(others, default=0 if seed else 1)
    return tuple(seed_command(each.first, wanted) for each in _trained(comparison) if wanted not in held[each.name])


def _compared_with_nothing(series: Sequence[Series[Run]], baseline_method: str) -> Finding:
    others = [each for each in series if not each.first.is_baseline] or list(series)
    best = max(others, key=_mean)
    run, reached = best.first, _reached(best, len(others))
    if run.is_about_training:
        alone = f"{reached}; no other method is compared with it."
        if run.is_untrained:
            return Finding(alone)
        return Finding(alone, "Ask whether a second round is worth it with", (_advise(run),))
    wanted = next(iter(controls_of(run, baseline_method)), baseline_method)
    return Finding(
        f"{reached}; no control is there to compare with.",
        "Run",
        (control_command(run, wanted, run.seed),),
    )


def _at_chance(series: Sequence[Series[Run]]) -> Finding | None:
    """What is to be said where no run is above chance, so that no difference between runs means anything."""
    runs = [run for each in series for run in each.all]
    best = max(runs, key=lambda run: run.metrics["full"][_RSUM]["value"])
    rsum, chance = best.metrics["full"][_RSUM]["value"], _chance(best)
    if rsum > chance:
        return None
    said = f"No model is above chance: the best reaches an RSum of {rsum:.1f} of 600, and a random order {chance:.1f}."
    asked = [run for run in runs if run.is_baseline or run.is_plain]
    if not asked:
        return Finding(said)
    run = max(asked, key=lambda each: (not each.is_untrained, each.metrics["full"][_RSUM]["value"]))
    return Finding(said, f"See what {'it' if run is best else run.name} has learned with", (_advise(run),))


def _reached(series: Series[Run], others: int) -> str:
    """RSum of the best of so many series, of several seeds the mean."""
    runs = list(by_seed(series).values())
    chance, several = _chance(runs[0]), len(runs) > 1
    name = f"{_capital(series.name)}, seed {runs[0].seed}" if runs[0].seed and not several else _capital(series.name)
    most = f", the most of {others}," if others > 1 else ""
    mean = f" on average of {len(runs)} seeds" if several else ""
    said = f"{name}{most} reaches an RSum of {_mean(series):.1f} of 600{mean}, and chance {chance:.1f}"
    if any(run.metrics["full"][_RSUM]["low"] > chance for run in runs):
        return said
    whose = "all their intervals over images include" if several else "its interval over images includes"
    return f"{said}, which {whose}"


def _chance(run: Run) -> float:
    return random_recalls(*run.size)[_RSUM]


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
