"""Controls: the simpler methods, with as many epochs or as much time, that a method has to be compared with."""

from __future__ import annotations

from itrpipe.config import load_declaration
from itrpipe.declared import is_control, root_conf
from itrpipe.methods.registry import methods
from itrpipe.reporting.collect import Run

_STAGE = "train"


def controls_of(run: Run, baseline_method: str) -> list[str]:
    """Names of the declared controls of the method of a run, in the order of the declaration.

    They are the controls of its own kind, those that extend what it extends, and those of round one where round one
    trains its backbone too.
    """
    (method, backbone), *_ = ((each.method_name, each.backbone_name) for each in run.members)
    roots = {root_conf(_STAGE, method)}
    exclusive = {each.only_backbone for each in methods().values()}
    if backbone.partition("-")[0] not in exclusive:
        roots.add(baseline_method)
    confs = load_declaration(_STAGE).confs
    return [name for name in confs if is_control(_STAGE, name) and root_conf(_STAGE, name) in roots]


def command_of(run: Run, method: str, seed: int) -> str:
    """The command that evaluates another method, or another seed, of the backbone of a run on its test set."""
    settings, first = run.settings, run.members[0]
    parts = ["itrpipe evaluate"]
    if first.named and method == first.method_name:  # the name stands for all of its settings
        parts += [f"--model {first.named}"]
    else:
        parts += [f"--method {method}", f"--backbone {settings['backbone']}", f"--dataset {run.manifest.dataset}"]
    parts += [f"--seed {seed}"] if seed else []
    parts += [f"--split {settings['split']}"] if settings["split"] != "test" else []
    return " ".join(parts)
