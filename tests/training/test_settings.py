"""Settings of a training that follow from its others."""

from __future__ import annotations

from typing import Any

import pytest

from itrpipe.config import load_declaration, resolve
from itrpipe.models.declaration import backbone_names
from itrpipe.training.settings import TrainSettings


def of_a_dual_encoder(freeze: str, **model: Any) -> Any:
    """The settings of a training of two named encoders with projections."""
    declared = resolve(load_declaration("train"), "contrastive", backbones=backbone_names(), backbone="dual-encoder")
    model = declared.values["model"] | {"vision": "v", "text": "t", "embed_dim": 8} | model
    given = {"backbone": "dual-encoder", "freeze": freeze, "model": model}
    return TrainSettings.model_validate(declared.values | given)


@pytest.mark.parametrize(
    ("freeze", "model", "share"),
    [
        ("both", {}, 0.3),
        ("text", {"images": "global"}, 0.3),
        ("both", {"dropout": 0.0}, 0.0),
        ("none", {"images": "global"}, 0.0),
        ("vision", {}, 0.0),
        ("text", {}, 0.0),
    ],
)
def test_heads_have_dropout_where_both_sides_are_frozen(freeze: str, model: dict[str, Any], share: float) -> None:
    settings = of_a_dual_encoder(freeze, **model)
    assert settings.model.dropout == share
    again: Any = TrainSettings.model_validate(settings.model_dump(mode="json"))
    assert again.model.dropout == share


def test_a_frozen_vision_encoder_reads_photographs_once_where_twins_are_drawn() -> None:
    dumped = of_a_dual_encoder("vision").model_dump(mode="json")
    twins = {"sentences": "twins", "loss": dumped["loss"] | {"twins": 0.5}}
    settings: Any = TrainSettings.model_validate(dumped | twins)
    assert list(settings.encoded_once()) == ["vision"]
