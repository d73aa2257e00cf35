"""Find the finished evaluations of a dataset, and those of one model."""

import re
from pathlib import Path

from itrpipe.datasets.definition import DatasetDefinition, check_name
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, first_model, is_given
from itrpipe.storage.artifact import Manifest, check_artifact, folders_in, is_finished


def evaluations_of(root: Path, dataset: str, definition: DatasetDefinition, backbone: str | None) -> list[Manifest]:
    """Return every finished evaluation of a dataset, or those of one backbone.

    Of embeddings with a name only those of the files that the name stands for now.
    """
    found = []
    for folder in filter(is_finished, folders_in(root / check_name(dataset) / "evaluate")):
        evaluation = check_artifact(folder)
        settings = evaluation.settings
        known = definition.embeddings.get(f"{settings['backbone']}.{settings['split']}")
        # The name of given embeddings may have been that of other files before.
        if known is None or settings["backbone"] == GIVEN or known.artifact == first_model(evaluation.inputs).name:
            found.append(evaluation)
    chosen = [each for each in found if backbone in (None, each.settings["backbone"])]
    if not chosen:
        known = ", ".join(sorted({each.settings["backbone"] for each in found}))
        of = f"of {backbone}, only of {known}" if known else "yet"
        option = f"--backbone {backbone} " if known else ""
        raise MissingInputError(
            f"dataset {dataset!r} has no evaluation {of}; run `itrpipe evaluate {option}--dataset {dataset}`"
        )
    return chosen


def evaluations_of_two(
    names: tuple[str, str], evaluations: list[Manifest], definition: DatasetDefinition
) -> tuple[list[Manifest], list[str]]:
    """Return the evaluations of two models on a split that both were evaluated on, and those of the first by folder.

    Raises:
        UsageError: there is no such split, or both are one training.
    """
    first, second = (evaluations_named(name, evaluations, definition) for name in names)
    tests = set(map(tested_on, first.values())) & set(map(tested_on, second.values()))
    if not tests:
        raise UsageError(f"--compare: {' and '.join(names)} share no test set; evaluate both on one split")
    split = min((split for _, split in tests), key=("test", "val", "train").index)
    chosen = {}
    for folder, evaluation in (first | second).items():
        test = tested_on(evaluation)
        if test in tests and test[1] == split:
            chosen[folder] = evaluation
    of_first = first.keys() & chosen.keys()
    if of_first & second.keys():
        raise UsageError(f"--compare: {' and '.join(names)} are the same training; name another model")
    return [*chosen.values()], sorted(of_first)


def tested_on(evaluation: Manifest) -> tuple[str, str]:
    """Return the prepared dataset and the split that were evaluated."""
    return evaluation.inputs["prepare"].name, evaluation.settings["split"]


def evaluations_named(name: str, evaluations: list[Manifest], definition: DatasetDefinition) -> dict[str, Manifest]:
    """Return the evaluations of a model by folder.

    It is named by its own name, by METHOD.BACKBONE of any seed, or by that of a folder.

    Embeddings from files have names of their own, with `given-` before them or without. The mean of several models is
    named by its label alone, and what was re-ranked only where it was not evaluated without.
    """
    found = {}
    for each in evaluations:
        folder = f"{each.label}-{each.fingerprint[:8]}"
        names = {each.label, folder}
        if not each.settings.get("ensemble_with"):
            names |= definition.names_of(first_model(each.inputs).name)
            backbone = each.settings["backbone"]
            names |= {backbone, backbone.removeprefix(f"{GIVEN}-")} if is_given(backbone) else set()
            names |= {own.partition("@")[0] for own in names}  # all seeds of a training elsewhere
        if name in names or re.fullmatch(rf"{re.escape(name)}\.s\d+", each.label):
            found[folder] = each
    found = {folder: each for folder, each in found.items() if not each.settings.get("rerank")} or found
    if not found:
        option = f"`itrpipe evaluate --model {name}`" if name in definition.models else "`itrpipe evaluate` with it"
        names = definition.named_trainings()
        known = ", ".join(sorted({names.get(first_model(each.inputs).name, each.label) for each in evaluations}))
        raise MissingInputError(f"--compare: {name!r} is not evaluated, only {known}; run {option}")
    return found
