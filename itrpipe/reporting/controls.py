"""What a run has to be compared with: simpler methods with as many epochs or as much time, and what it began with."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from itrpipe.config import assignment, extended, leaves, load_declaration
from itrpipe.datasets.definition import PIXELS
from itrpipe.declared import is_control, root_conf
from itrpipe.methods.registry import methods
from itrpipe.reporting.collect import Run
from itrpipe.reporting.departures import TOLD
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
_MADE = (_STAGE, "mine_negatives", "synthesize")
"""Stages whose artifacts a training reads, and whose settings may have been given for it."""


def controls_of(run: Run, baseline_method: str) -> list[str]:
    """Names of the controls of the method of a run, in the order of their declaration.

    They are the declared ones of its own kind, those that extend what it extends, and those of round one where round
    one trains its backbone too. A method of its own settings whose negatives can be chosen, such as `clip-finetune`,
    is its own control, with the negatives of the batch alone.
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
    """Whether a run is to be compared with another: round one, one of its controls, or the model it began with.

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

    What learned from its batches alone is about training at all: the model that it began with is its control. One that
    was trained for fewer epochs is none, but where a declaration gives it the epochs of both rounds.
    """
    declared = reference.is_control and not (reference.is_plain and _asked_epochs(reference) < _asked_epochs(run))
    return declared or _is_plain_twin(reference, run) or (reference.is_untrained and run.is_plain)


def seed_command(run: Run, seed: int) -> str:
    """The command that evaluates another seed of a run on its test set."""
    first = run.members[0]
    if first.named:  # the name stands for all of its settings, among them a seed that need not be 0
        return _command(run, f"--model {first.named} --seed {seed}")
    return _command(run, _unnamed(run, first.method_name), seed, own_options(run))


def own_options(run: Run) -> list[str]:
    """Options that give a model without a name the settings that it has; none of a model that was removed."""
    first = run.members[0]
    return [] if first.artifact.manifest is None else _options(run, first.changed())


def longer_command(reference: Run, epochs: float) -> str:
    """The command that trains a reference for so many epochs, for a control; without a name it is evaluated, too."""
    first, asked = reference.members[0], math.ceil(epochs)
    if first.named:
        return f"itrpipe train --name {first.named}-longer --like {first.named} --set epochs={asked}"
    given = [each for each in own_options(reference) if ".epochs=" not in each]
    options = [*given, f"--set {first.method_name}.epochs={asked}"]
    return _command(reference, _unnamed(reference, first.method_name), reference.seed, options)


def control_command(run: Run, method: str, seed: int) -> str:
    """The command that evaluates a control of a run on its test set; see `controls_of`."""
    first, options = run.members[0], []
    if method == first.method_name:
        options = _options(run, _without_choices(first), alone=True)
    return _command(run, _unnamed(run, method), seed, options)


def _command(run: Run, model: str, seed: int = 0, options: Sequence[str] = ()) -> str:
    parts = ["itrpipe evaluate", model]
    parts += [f"--seed {seed}"] if seed else []
    parts += [f"--split {run.settings['split']}"] if run.settings["split"] != "test" else []
    return " ".join([*parts, *options])


def _unnamed(run: Run, method: str) -> str:
    return f"--method {method} --backbone {run.settings['backbone']} --dataset {run.manifest.dataset}"


def _without_choices(model: Model) -> dict[str, Any]:
    """What is not as declared of a model and would be read by one that learns from its batches alone."""
    assert model.artifact.manifest is not None
    settings = model.artifact.manifest.settings
    kind = methods()[settings["method"]]
    plain = kind.model_construct(**{key: value for key, value in settings["loss"].items() if key == OBJECTIVE})
    skipped = {*kind.chosen, *plain.unused_options()} - {OBJECTIVE}
    return {key: value for key, value in model.changed().items() if key.removeprefix(_LOSS) not in skipped}


def _is_own_control(model: Model) -> bool:
    """Whether its configuration has negatives to choose, and settings of its own that no other has as control."""
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
    """What a control has in common with a model: all settings but those of loss and schedule, and the objective."""
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


def _options(run: Run, changed: Mapping[str, Any], *, alone: bool = False) -> list[str]:
    """Options of `evaluate` that give a training these settings, and what it reads the settings that it had.

    Args:
        run: of the training.
        changed: its own settings.
        alone: it reads no other model.
    """
    model = run.members[0]
    assert model.artifact.manifest is not None
    read = [each for each in model.artifact.chain() if each.path != model.artifact.path]
    made = [] if alone else [each for each in read if each.stage in _MADE]
    # What has a name is found by that, with all of its settings.
    others = {each.conf: model.changed(each) for each in made if each.stage == _STAGE and each.name not in run.names}
    shared = {
        key for key, value in changed.items() if others and all(each.get(key) == value for each in others.values())
    }
    own = model.artifact.manifest.conf
    found = {f"{_STAGE if key in shared else own}.{key}": value for key, value in changed.items()}
    for conf, theirs in others.items():
        found |= {f"{conf}.{key}": value for key, value in theirs.items() if conf != own and key not in shared}
    for each in (*(each for each in made if each.stage != _STAGE), *(each for each in read if each.conf == PIXELS)):
        scope = PIXELS if each.conf == PIXELS else each.stage
        found |= {f"{scope}.{key}": value for key, value in model.changed(each).items() if key not in TOLD}
    return [f"--set {shlex.quote(assignment(*each))}" for each in found.items() if each[1] is not None]
