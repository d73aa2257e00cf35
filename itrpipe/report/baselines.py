"""Baselines: which training a model is compared with, and the settings in which two trainings differ.

The baseline is fixed before anything is measured: the same training without mined or written negatives, for as many
updates. Declarations name it (`baseline = "updates"` in `stages/4_train.toml`); of a configuration whose negatives can
be chosen it is also that configuration itself with in-batch negatives, for as many epochs. Where neither was run, it is
the first training, and where that was not, the published model that training began with. A second difference tells of
the baseline that trained for as much time (`baseline = "time"`), where it was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from itrpipe.config import baseline_kind, root_conf
from itrpipe.report.runs import MINING, OBJECTIVE, EvaluatedRun, TrainedModel
from itrpipe.report.series import Series, SeriesPair
from itrpipe.training.settings import FIRST_TRAINING, began_with, unread

UPDATES, TIME = "updates", "time"
"""Kinds of baselines: trained for as many updates, or for as much time."""
_SETTINGS_OF_SCHEDULE = {
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
_SETTINGS_OF_NEGATIVES = {
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


def pairs_with_baselines(all_series: Sequence[Series], kind: str) -> list[SeriesPair]:
    """Return every series of a test set that has a baseline there, with the best of its baselines.

    Args:
        all_series: of all runs on the test set.
        kind: of baseline, `UPDATES` or `TIME`.
    """
    pairs = []
    for series in all_series:
        run = series.first_run
        conditions = shared_conditions(run)
        is_baseline = any("declared" in model.roles for model in run.members)
        if conditions is None or is_baseline or {"first training", "untrained"} & run.roles:
            continue
        baselines = {}
        for other in all_series:
            pair = SeriesPair(other, series)
            if other is series or shared_conditions(other.first_run) != conditions or not pair.runs_by_seed():
                continue
            preference = _preference(other.first_run, run, kind)
            if preference is not None:
                baselines.setdefault(preference, pair)
        if baselines:
            pairs.append(baselines[min(baselines)])
    return pairs


def shared_conditions(run: EvaluatedRun) -> list[Any] | None:
    """Return what a run must have in common with its baseline; None where one of its models was removed.

    It is a list of the backbones with the encoders that they began with, features, re-ranking, and the shares of the
    training set.
    """
    backbones, shares = [], []
    for model in run.members:
        if not model.settings:
            return None
        backbones.append((model.backbone_name, *began_with(model.settings)))
        shares.append(model.settings.get("train_share", 1.0))
    return [sorted(backbones), run.settings["features"], run.rerank, shares]


def _preference(
    baseline: EvaluatedRun,
    run: EvaluatedRun,
    kind: str,
) -> int | None:
    """Return the place of a run among possible baselines of another, 0 for the best; None where it cannot be one.

    In this order, baselines for as many updates are the twin with in-batch negatives, the declared baseline, the first
    training, and the untrained model. For as much time the declared baseline alone counts.
    """
    baseline_settings, settings = baseline.model.settings, run.model.settings
    has_other_method = baseline_settings.get("method") != settings.get("method")
    has_same_network = has_other_method or baseline_settings.get("model") == settings.get("model")
    is_as_long = "in-batch" not in baseline.roles or baseline_settings.get("epochs", 0) >= settings.get("epochs", 0)

    # A declared baseline serves the configuration that it extends, or all that extend the first training.
    roots = {root_conf("train", run.model.method_name)}
    if not run.model.choices:
        roots.add(FIRST_TRAINING)
    is_declared = has_same_network and is_as_long
    for model in baseline.members:
        name = model.method_name
        is_declared &= baseline_kind("train", name) == kind and root_conf("train", name) in roots

    if kind != UPDATES:
        return 0 if is_declared else None
    if is_as_long and _is_twin(baseline, run):
        return 0
    if is_declared:
        return 1
    if has_same_network and "first training" in baseline.roles:
        return 2
    return 3 if "untrained" in baseline.roles else None


def _is_twin(baseline: EvaluatedRun, run: EvaluatedRun) -> bool:
    """Tell whether the baseline is the training of the run with in-batch negatives alone, but for seed and schedule."""
    twin, model = baseline.model, run.model
    if len(run.members) > 1 or twin.method_name != model.method_name:
        return False
    if "in-batch" not in baseline.roles or "in-batch" in run.roles:
        return False
    if twin.choices[OBJECTIVE] != model.choices[OBJECTIVE]:
        return False
    differing = set(differing_keys(twin, model)) - _SETTINGS_OF_SCHEDULE
    return all(key.startswith("loss.") for key in differing)


def differing_keys(baseline: TrainedModel, model: TrainedModel) -> list[str]:
    """Return the keys of settings in which two trainings differ apart from negatives and seed, the method's first.

    An option that only one of two methods, or of two backbones, has is left out: `method` or `backbone` stands for it.
    """
    baseline_values, values = baseline.values, model.values
    prefixes = []
    for owner, prefix in _OPTIONS.items():
        if baseline_values.get(owner) != values.get(owner):
            prefixes.append(prefix)
    if baseline.mining is None or model.mining is None:
        prefixes.append(MINING)
    skipped = _SETTINGS_OF_NEGATIVES | unread(baseline.settings) | unread(model.settings)
    for key in baseline_values.keys() ^ values.keys():
        if key.startswith(tuple(prefixes)):
            skipped.add(key)

    keys = (baseline_values.keys() | values.keys()) - skipped
    differing = []
    for key in sorted(keys, key=lambda key: (key not in _OPTIONS, key)):
        if baseline_values.get(key) != values.get(key):
            differing.append(key)
    return differing
