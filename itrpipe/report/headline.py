"""The headline of a test set, which says what series are better than their baselines, and the notes below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from itrpipe.datasets.prepared import LEAKED
from itrpipe.evaluation.compare import AT_CHANCE, WORDS
from itrpipe.evaluation.metrics import RSUM, random_recalls, remedy_of_chance
from itrpipe.evaluation.results import FULL
from itrpipe.printable import quantity
from itrpipe.report.baselines import differing_keys, shared_conditions
from itrpipe.report.comparisons import Comparison
from itrpipe.report.names import join_some, value_text
from itrpipe.report.negatives import Galleries
from itrpipe.report.series import Series
from itrpipe.training.checks import why_longer

_MOST_NAMED = 3
"""Series, or settings, that a sentence names."""
_MOST_UNFINISHED = 4
"""Trainings that were stopped early that a note names."""


def headline(all_series: Sequence[Series], comparisons: Sequence[Comparison]) -> str:
    """Say which series are better than their baselines, then which series are at chance.

    Without a comparison, say what the best series reaches.
    """
    at_chance = list(filter(Series.is_at_chance, all_series))
    warning = ""
    if at_chance:
        reasons = []
        for series in at_chance:
            run = series.first_run
            rsum = run.metrics[FULL][RSUM]["value"]
            chance = random_recalls(*run.size)[RSUM]
            reasons.append(f"{series.name} (its RSum of {rsum:.1f} is not significantly above chance, {chance:.1f})")
        verdict = AT_CHANCE.capitalize() if len(at_chance) == len(all_series) == 2 else "Learned little"
        warning = f"{verdict}: {join_some(reasons, _MOST_NAMED, '; ')}."
        if any("untrained" not in series.first_run.roles for series in all_series):
            images, _ = all_series[0].first_run.size
            warning += f" {remedy_of_chance(images).capitalize()}."
    if len(at_chance) == len(all_series):
        return warning

    of_interest = []
    for comparison in comparisons:
        if "in-batch" not in comparison.series.first_run.roles and not _repeats(comparison, comparisons):
            of_interest.append(comparison)
    of_interest = of_interest or list(comparisons)
    if not of_interest:
        best = max(all_series, key=Series.rsum)
        chance = random_recalls(*best.first_run.size)[RSUM]
        verdict = (
            f"{best.name} reaches an RSum of {best.rsum():.1f} of 600; chance gives {chance:.1f}. "
            "No baseline was evaluated."
        )
    elif len(of_interest) == 1:
        verdict = _one_verdict(of_interest[0])
    else:
        # The verdicts on all come before what the best of them reaches, which the choice flatters.
        verdicts = []
        for word in WORDS:
            names = [comparison.series.name for comparison in of_interest if comparison.claim.word == word]
            if names:
                verdicts.append(f"{word}: {join_some(names, _MOST_NAMED)}")
        highest = max(of_interest, key=lambda comparison: comparison.series.rsum())
        verdict = (
            f"Of {len(of_interest)} models against their baselines, {'; '.join(verdicts)}. "
            f"The highest RSum, flattered by the choice: {highest.claim}"
        )
    return f"{verdict} {warning}".rstrip()


def _repeats(comparison: Comparison, comparisons: Iterable[Comparison]) -> bool:
    """Tell whether its training is that of another comparison, but for judges that marked nothing."""
    model = comparison.series.first_run.model
    if not model.has_idle_judges:
        return False
    for candidate in comparisons:
        other = candidate.series.first_run.model
        has_same_negatives = other.choices.get("negatives") == model.choices.get("negatives")
        if has_same_negatives and not other.has_idle_judges and not differing_keys(other, model):
            return True
    return False


def _one_verdict(comparison: Comparison) -> str:
    """Say what one comparison shows, and credit mined negatives where the two trainings differ in nothing else."""
    for series in (comparison.baseline, comparison.series):
        run = series.first_run
        is_removed = shared_conditions(run) is None
        if "untrained" in run.roles or is_removed or run.model.artifact.stage != "train":
            return str(comparison.claim)
    differences = differing_settings(comparison)
    if differences:
        return f"{comparison.claim} They also differ in {join_some(differences, _MOST_NAMED)}."
    baseline, model = comparison.baseline.first_run.model, comparison.series.first_run.model
    if model.mining is not None and baseline.mining is None:
        return str(replace(comparison.claim, model="training with mined negatives"))
    return str(comparison.claim)


def differing_settings(comparison: Comparison) -> list[str]:
    """Return the settings in which two trainings that are compared differ, apart from negatives and seed.

    Each reads "key (the baseline's value, the model's value)".
    """
    baselines, models = comparison.baseline.first_run.members, comparison.series.first_run.members
    if len(baselines) != len(models):
        return [f"models ({len(baselines)}, {len(models)})"]
    differences = {}
    for baseline, model in zip(baselines, models, strict=True):
        for key in differing_keys(baseline, model):
            before = value_text(baseline.values.get(key))
            after = value_text(model.values.get(key))
            differences[f"{key} ({before}, {after})"] = None
    return list(differences)


# -- Notes below the headline


def training_notes(all_series: Sequence[Series], gallery_of: Galleries) -> list[str]:
    """Say how many pictures are in two splits, and name the trainings that were stopped early, with the reasons.

    Args:
        all_series: of all runs on a test set.
        gallery_of: see `Galleries`.
    """
    notes = []
    prepare = all_series[0].first_run.prepare
    if prepare.manifest is not None and prepare.manifest.metrics.get("leaks"):
        notes.append(f"{LEAKED.format(prepare.manifest.metrics['leaks'])}.")

    unfinished = []
    for series in all_series:
        model = series.first_run.model
        if not model.history:
            continue
        gallery = gallery_of(model.artifact, "val")
        if gallery is not None:
            reason = why_longer(model.history, model.settings, len(gallery.split.image_ids))
            if reason:
                unfinished.append(f"{series.name}: {reason}")
    if unfinished:
        notes.append(f"Train longer first. {join_some(unfinished, _MOST_UNFINISHED, '; ')}.")
    return notes


def decision_notes(all_series: Sequence[Series], comparisons: Sequence[Comparison]) -> list[str]:
    """Say what people's decisions did to mined lists, and to the models that were trained with these lists.

    Args:
        all_series: of all runs on a test set.
        comparisons: of series with the same trainings without decisions.
    """
    notes = []
    for series in all_series:
        mining = series.first_run.model.mining
        if mining is None or mining.manifest is None:
            continue
        counts = mining.statistics.get("decided")
        if counts is not None:
            unsure = counts["mined"] - counts["left_out"] - counts["kept"]
            notes.append(
                f"Of {quantity(counts['decisions'], 'decision')}, {counts['mined']:,} are on mined candidates: "
                f"{counts['left_out']:,} right (left out), {counts['kept']:,} wrong (kept), {unsure:,} unsure."
            )
            break  # other series mostly read the same lists
    for comparison in comparisons:
        name = comparison.series.first_run.model.user_name or comparison.series.name
        claim = replace(comparison.claim, model=f"{name} with these decisions", baseline="without them")
        before = comparison.baseline.rsum()
        after = comparison.series.rsum()
        notes.append(f"{claim} RSum was {before:.1f} without them and is {after:.1f} with them.")
    return notes
