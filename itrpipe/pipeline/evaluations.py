"""Find the finished evaluations of a dataset, and those of one model."""

import re
from pathlib import Path

from itrpipe.datasets.definition import DatasetDefinition, check_name
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, first_model, is_given
from itrpipe.storage.artifact import Manifest, check_artifact, folders_in, is_finished


def evaluations_of(root: Path, dataset: str, definition: DatasetDefinition, backbone: str | None) -> list[Manifest]:
    """Return every finished evaluation of a dataset, or of one backbone.

    An evaluation of named embeddings counts only if the name still stands for the files that were evaluated.

    Raises:
        MissingInputError: there is none.
    """
    evaluations = []
    for folder in folders_in(root / check_name(dataset) / "evaluate"):
        if not is_finished(folder):
            continue
        evaluation = check_artifact(folder)
        name = evaluation.settings["backbone"]
        current = definition.embeddings.get(f"{name}.{evaluation.settings['split']}")
        # The name of given embeddings may have been that of other files before.
        if current is None or name == GIVEN or current.artifact == first_model(evaluation.inputs).name:
            evaluations.append(evaluation)
    chosen = [each for each in evaluations if backbone in (None, each.settings["backbone"])]
    if chosen:
        return chosen
    evaluated = {each.settings["backbone"] for each in evaluations}
    if evaluated:
        missing = f"of {backbone}, only of {', '.join(sorted(evaluated))}"
        command = f"itrpipe evaluate --backbone {backbone}"
    else:
        missing = "yet"
        command = "itrpipe evaluate"
    raise MissingInputError(f"dataset {dataset!r} has no evaluation {missing}; run `{command} --dataset {dataset}`")


def evaluations_of_two(
    names: tuple[str, str], evaluations: list[Manifest], definition: DatasetDefinition
) -> tuple[list[Manifest], list[str]]:
    """Return the evaluations of two models on a split that both were evaluated on, and the folders of the first.

    Raises:
        UsageError: there is no such split, or both are one training.
    """
    first = _evaluations_named(names[0], evaluations, definition)
    second = _evaluations_named(names[1], evaluations, definition)
    tests = set(map(_test_set, first.values())) & set(map(_test_set, second.values()))
    if not tests:
        raise UsageError(f"--compare: {' and '.join(names)} share no test set; evaluate both on one split")
    splits = {split for _, split in tests}
    split = min(splits, key=("test", "val", "train").index)
    chosen = {}
    for folder, evaluation in (first | second).items():
        test = _test_set(evaluation)
        if test in tests and test[1] == split:
            chosen[folder] = evaluation
    of_first = first.keys() & chosen.keys()
    if of_first & second.keys():
        raise UsageError(f"--compare: {' and '.join(names)} are the same training; name another model")
    return [*chosen.values()], sorted(of_first)


def _test_set(evaluation: Manifest) -> tuple[str, str]:
    """Return the prepared dataset and the split that were evaluated."""
    return evaluation.inputs["prepare"].name, evaluation.settings["split"]


def _evaluations_named(name: str, evaluations: list[Manifest], definition: DatasetDefinition) -> dict[str, Manifest]:
    """Return the evaluations of a model by folder, re-ranked ones only if there are no others.

    Raises:
        MissingInputError: there is none.
    """
    matches = {}
    for evaluation in evaluations:
        folder = f"{evaluation.label}-{evaluation.fingerprint[:8]}"
        is_a_seed = re.fullmatch(rf"{re.escape(name)}\.s\d+", evaluation.label)
        if is_a_seed or name == folder or name in _names_of(evaluation, definition):
            matches[folder] = evaluation
    first_stage = {folder: each for folder, each in matches.items() if not each.settings.get("rerank")}
    if first_stage:
        return first_stage
    if matches:
        return matches
    remedy = "`itrpipe evaluate` with it"
    if name in definition.models:
        remedy = f"`itrpipe evaluate --model {name}`"
    trainings = definition.named_trainings()
    evaluated = {trainings.get(first_model(each.inputs).name, each.label) for each in evaluations}
    known = ", ".join(sorted(evaluated))
    raise MissingInputError(f"--compare: {name!r} is not evaluated, only {known}; run {remedy}")


def _names_of(evaluation: Manifest, definition: DatasetDefinition) -> set[str]:
    """Return the names by which a user may mean an evaluated model, and that of all seeds of a training elsewhere.

    Embeddings from files have names of their own, with `given-` before them or without. The mean of several models has
    its label alone.
    """
    if evaluation.settings.get("ensemble_with"):
        return {evaluation.label}
    names = {evaluation.label, *definition.names_of(first_model(evaluation.inputs).name)}
    backbone = evaluation.settings["backbone"]
    if is_given(backbone):
        names |= {backbone, backbone.removeprefix(f"{GIVEN}-")}
    for each in list(names):
        names.add(each.partition("@")[0])
    return names
