"""What is remembered of a dataset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from itrpipe.datasets.definition import (
    DatasetDefinition,
    ModelDefinition,
    StageDefinition,
    load_definition,
    redefine,
    remember_model,
    remember_training,
)
from itrpipe.errors import MissingInputError, UsageError


def test_processes_that_remember_at_once_keep_what_the_others_remember(tmp_path: Path) -> None:
    children = []
    for process in range(3):
        if (child := os.fork()) == 0:
            for number in range(20):
                remember_model(tmp_path, "mine", f"model{process}.{number}", ModelDefinition(method="triplet"))
                stage = StageDefinition(conf="hog")
                own = {f"{process}.{number}": stage}
                redefine(tmp_path, "mine", lambda now, own=own: now.adding(features=own))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    found = load_definition(tmp_path, "mine")
    assert (len(found.models), len(found.features)) == (60, 60)


def test_a_training_is_noted_with_its_name_unless_that_was_forgotten(tmp_path: Path) -> None:
    remember_model(tmp_path, "mine", "kept", ModelDefinition(method="triplet"))
    for name in ("kept", "forgotten"):
        remember_training(tmp_path, "mine", name, "triplet.vsrn", "triplet.vsrn-1")
    models = load_definition(tmp_path, "mine").models
    assert {name: model.trained for name, model in models.items()} == {"kept": {"triplet.vsrn": "triplet.vsrn-1"}}


def test_what_is_known_already_needs_no_place_to_write(tmp_path: Path) -> None:
    model = ModelDefinition(method="triplet")
    remember_model(tmp_path, "mine", "kept", model)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "mine").iterdir()}
    remember_model(tmp_path, "mine", "kept", model)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "mine").iterdir()} == before


def test_features_are_chosen_where_there_is_one_choice() -> None:
    def chosen(*names: str, unasked: tuple[str, ...] = ()) -> str:
        features = {name: StageDefinition(conf=name) for name in names}
        return DatasetDefinition(features=features).default_features("mine", unasked)

    assert chosen("butd") == chosen("pixels", "butd") == chosen("butd", unasked=("hog",)) == "butd"
    assert (chosen("pixels"), chosen(unasked=("pixels", "hog"))) == ("pixels", "hog")
    with pytest.raises(UsageError, match="has features butd, pixels, vit; choose"):
        chosen("butd", "pixels", "vit")
    with pytest.raises(MissingInputError, match="has no features yet"):
        chosen(unasked=("pixels",))
