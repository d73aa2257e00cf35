"""What a run has to be compared with: simpler methods with as many epochs or as much time, and what it began with."""

from __future__ import annotations

from typing import Any

from itrpipe.config import extended, leaves, load_declaration
from itrpipe.declared import is_control, root_conf
from itrpipe.methods.declaration import methods
from itrpipe.reporting.collect import Run
from itrpipe.reporting.model import OBJECTIVE, Model
from itrpipe.reporting.titles import choices_of
from itrpipe.training.settings import newer_defaults, unread

_STAGE, _LOSS = "train", "loss."
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


def controls_of(run: Run, baseline_method: str) -> list[str]:
    """Names of the baselines of the method of a run, in the order of their declaration.

    They are the declared ones of its own kind, those that extend what it extends, and those of the first training where
    that trains its backbone too. A method of its own settings whose negatives can be chosen, such as `clip-finetune`,
    is its own baseline, with in-batch negatives.
    """
    first, declaration = run.members[0], load_declaration(_STAGE)
    if _is_own_control(first):
        return [] if first.is_plain else [first.method_name]
    roots = {root_conf(_STAGE, first.method_name)}
    exclusive = {each.only_backbone for each in methods().values()}
    if first.backbone_name.partition("-")[0] not in exclusive:
        roots.add(baseline_method)
    return [name for name in declaration.confs if is_control(_STAGE, name) and root_conf(_STAGE, name) in roots]


def is_reference_of(reference: Run, run: Run, baseline_method: str) -> bool:
    """Whether a run is to be compared with another: the first training, its baselines, or the model it began from.

    Backbones, encoders and features are taken to be equal.
    """
    if run.is_untrained or run.is_baseline or run.is_control:
        return False
    if reference.is_untrained or _is_plain_twin(reference, run):
        return True
    if _is_of_other_size(reference, run):
        return False
    names = {member.method_name for member in reference.members}
    declared = reference.is_baseline or reference.is_control
    return declared and names - {baseline_method} <= set(controls_of(run, baseline_method))


def is_control_of(reference: Run, run: Run) -> bool:
    """Whether a reference had the same training but for what the run is about.

    What learned from its batches alone is about training at all: the model that it began with is its baseline. One that
    was trained for fewer epochs is none, but where a declaration gives it the epochs of both trainings.
    """
    declared = reference.is_control and not (reference.is_plain and _asked_epochs(reference) < _asked_epochs(run))
    return declared or _is_plain_twin(reference, run) or (reference.is_untrained and run.is_plain)


def _is_own_control(model: Model) -> bool:
    """Whether its configuration has negatives to choose, and settings of its own that no other has as baseline."""
    declaration, name = load_declaration(_STAGE), model.method_name
    if name not in declaration.confs or is_control(_STAGE, name) or model.artifact.manifest is None:
        return False
    return bool(choices_of(model.artifact.manifest.settings)) and len(extended(declaration, name)) > 1


def _is_of_other_size(reference: Run, run: Run) -> bool:
    """Whether both learn by the same method with other networks, which differ in more than in their negatives."""
    both = [[each.artifact.manifest for each in one.members] for one in (reference, run)]
    found = [[(each.settings["method"], each.settings.get("model")) for each in one if each] for one in both]
    methods_ = [[method for method, _ in one] for one in found]
    return methods_[0] == methods_[1] and found[0] != found[1]


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
        and _asked_epochs(reference) >= _asked_epochs(run)
    )


def _asked_epochs(run: Run) -> int:
    manifest = run.members[0].artifact.manifest
    return 0 if manifest is None else manifest.settings.get("epochs", 0)


def _shared(model: Model) -> dict[str, Any] | None:
    """What a baseline has in common with a model: all settings but those of loss and schedule, and the objective."""
    manifest = model.artifact.manifest
    if manifest is None:
        return None
    skipped = {"seed", *_SCHEDULE, *unread(manifest.settings)}
    known = {
        key: value
        for key, value in leaves(manifest.settings)
        if key not in skipped and not key.startswith(_LOSS) and (key, value) not in newer_defaults()
    }
    return {**known, OBJECTIVE: choices_of(manifest.settings)[OBJECTIVE]}
