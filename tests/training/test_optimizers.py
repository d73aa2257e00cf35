"""What of a model is trained, and how: adapters, frozen encoders, decay, rates by the layer and over the updates."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.methods.base import MomentumTwin
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, build, open_encoders
from itrpipe.testing import LOOP_SETTINGS
from itrpipe.training.optimizers import (
    WeightAverage,
    depths,
    learning_rate,
    limit_training,
    merge_adapters,
    optimizer_of,
)
from itrpipe.training.settings import TrainSettings

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
PIXELS = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
IMAGES = ImageBatch(torch.empty(3, 0, 0), pixels=PIXELS)
TEXTS = TextBatch(torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0], [2, 8, 9, 3]]), torch.tensor([4, 3, 4]))
KINDS = pytest.mark.parametrize(("vision", "text"), [("clip", "clip"), ("siglip", "siglip"), ("vit", "bert")])
LAYER = "sides.encoder.network.vision_model.encoder.layers.0.self_attn.q_proj"


def opened(root: Path, vision: str = "clip", text: str = "clip", **values: Any) -> TransformerDualEncoder:
    torch.manual_seed(0)
    settings = DualEncoder(vision=str(root / vision), text=str(root / text), **values)
    return build(settings, 0, 0, open_encoders(settings))


def limited(model: TransformerDualEncoder, **values: Any) -> TransformerDualEncoder:
    usual = {name: field.default for name, field in TrainSettings.model_fields.items()}
    limit_training(model, TrainSettings.model_construct(**(usual | values)))
    return model


def decaying(optimizer: str, weight_decay: float, **values: Any) -> Any:
    """Settings of an optimiser."""
    own = {"optimizer": optimizer, "weight_decay": weight_decay, "learning_rate": 0.1}
    return LOOP_SETTINGS.model_copy(update=own | values)


def scores(model: Any) -> torch.Tensor:
    return model.score_matrix(model.encode_images(IMAGES), model.encode_texts(TEXTS))


def step(model: TransformerDualEncoder) -> Any:
    """Three updates."""
    optimizer = optimizer_of(decaying("adamw", 0.1), model)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        (-torch.log_softmax(5 * scores(model), dim=1).diagonal().mean()).backward()
        optimizer.step()
    return optimizer


@KINDS
@pytest.mark.parametrize("targets", [(), ("fc1", "dense")])
def test_only_adapters_move_and_merged_they_leave_a_plain_model_of_the_same_scores(
    saved_encoders: Path, vision: str, text: str, targets: tuple[str, ...]
) -> None:
    model, plain = (opened(saved_encoders, vision, text, embed_dim=8).eval() for _ in range(2))
    targets = targets if text == "bert" else targets[:1]
    limited(model, adapter="lora", lora_rank=2, lora_alpha=6.0, lora_targets=targets)
    torch.testing.assert_close(scores(model), scores(plain), rtol=0, atol=1e-6)
    before = copy.deepcopy(model.state_dict())
    optimizer = step(model)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    trained = {name for name in before if ".lora_" in name or name.startswith("project_")}
    assert moved == {name for name in trained if not name.startswith("sides.text.network.pooler")}  # has no use
    states = sum(value["exp_avg"].numel() for value in optimizer.state.values())
    everything = sum(each.numel() for each in model.parameters())
    reached = [each for name, each in model.named_parameters() if name in moved]
    assert states == sum(each.numel() for each in reached) < everything / 4
    found = scores(model.eval()).detach()
    assert (found - scores(plain)).abs().max() > 1e-3
    merge_adapters(model)
    torch.testing.assert_close(scores(model), found, rtol=0, atol=2e-6)
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):  # torch's own attention rounds otherwise where weights could need a gradient
        each.requires_grad_(False)
    assert torch.equal(scores(model), scores(plain))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_merged_layer_is_the_formula_and_what_adapters_add_is_interpolated_as_a_whole(
    saved_encoders: Path, share: float
) -> None:
    """W + (alpha / r) B A, and (1 - a) W + a (W + B A) = W + a B A."""
    plain = opened(saved_encoders)
    model = limited(opened(saved_encoders), adapter="lora", lora_targets=("q_proj",), lora_alpha=6.0, lora_rank=4)
    average = WeightAverage(f"wise-ft:{share}", model)
    step(model)
    layer: Any = model.get_submodule(LAYER)
    into, out = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()
    added, weight = 6.0 / 4 * out @ into, plain.get_parameter(f"{LAYER}.weight")
    assert (len(into), added.abs().max() > 1e-3) == (4, True)
    with average.applied(lambda: None):
        between = layer.get_base_layer().weight + layer.get_delta_weight("default")
        torch.testing.assert_close(between, weight + share * added)
    merge_adapters(model)
    torch.testing.assert_close(model.get_parameter(f"{LAYER}.weight"), weight + added)


@pytest.mark.parametrize("frozen", ["vision", "text"])
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_frozen_encoder_stays_as_it_is_without_gradient_state_or_dropout(
    saved_encoders: Path, frozen: str, adapter: str
) -> None:
    model = limited(opened(saved_encoders, "vit", "bert"), freeze=frozen, adapter=adapter)
    kept, other = model.encoders()[frozen], model.encoders()[{"vision": "text", "text": "vision"}[frozen]]
    before = copy.deepcopy(kept.state_dict())
    optimizer = step(model)
    assert all(torch.equal(value, before[name]) for name, value in kept.state_dict().items())
    given = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert given == {id(each) for each in model.parameters() if each.requires_grad}
    assert not given & {id(each) for each in kept.parameters()}
    assert any(each.grad is not None for each in other.parameters())
    states = [{layer.training for part in side.children() for layer in part.modules()} for side in (kept, other)]
    assert states == [{False}, {True}]
    once, again = (
        (model.encode_images(IMAGES) if frozen == "vision" else model.encode_texts(TEXTS)).embedding for _ in range(2)
    )
    assert not once.requires_grad  # so nothing is kept for a backward pass
    assert torch.equal(once, again)
    assert MomentumTwin(model, 0.5, evaluate=False).model.frozen == {frozen}


def test_layers_that_no_encoder_has_are_refused_and_those_inside_the_attention_of_torch_left_alone(
    saved_encoders: Path,
) -> None:
    """SigLIP's pooling reads the weights of such a layer and never calls it: an adapter would have no effect."""
    with pytest.raises(UsageError, match=r"lora_targets names q_projj, .*known: fc1, fc2"):
        limited(opened(saved_encoders), adapter="lora", lora_targets=("q_projj", "v_proj"))
    with pytest.raises(UsageError, match=r"no layer to adapt in the vision encoder.*--set train.freeze=vision"):
        limited(opened(saved_encoders, "vit", "bert"), adapter="lora", lora_targets=("query",))
    model = limited(opened(saved_encoders, "siglip", "siglip"), adapter="lora", lora_targets=("out_proj",))
    adapted = {name.rpartition(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}
    assert adapted
    assert all("self_attn" in name for name in adapted)


EXPECTED = CASES["depths"]


@pytest.mark.parametrize("name", ["adam", "adamw"])
@KINDS
def test_rates_fall_by_the_layer_and_decay_spares_what_is_no_matrix(
    saved_encoders: Path, vision: str, text: str, name: str
) -> None:
    model, decay = opened(saved_encoders, vision, text, embed_dim=8), 0.5
    groups = optimizer_of(decaying(name, 0.2, layer_decay=decay), model).param_groups
    scale = {id(each): group["scale"] for group in groups for each in group["params"]}
    assert scale.keys() == {id(each) for each in model.parameters()}
    assert {*scale.values()} == {1.0, 0.5, 0.25, 0.125}
    for place, depth in {**EXPECTED[text], "project_images.weight": 0}.items():
        assert scale[id(model.get_parameter(place))] == decay**depth, place
    assert [group["scale"] for group in groups] == sorted((group["scale"] for group in groups), reverse=True)
    if name != "adam":
        assert {(group["weight_decay"], group["lr"]) for group in groups} == {(0.2, 0.1), (0.0, 0.1)}
        spared = {id(each) for group in groups if group["weight_decay"] == 0 for each in group["params"]}
        assert spared == {id(each) for key, each in model.named_parameters() if each.ndim < 2 or "bias" in key}
        found = depths(limited(model, adapter="lora"))  # adapters have the depth of their layer
        deep = {found[id(each)] for key, each in model.named_parameters() if ".lora_" in key and "0." in key}
        assert deep == {2}


@pytest.mark.parametrize(("schedule", "places", "expected"), CASES["rates"])
def test_rates_of_places_in_the_training(schedule: dict[str, Any], places: list[Any], expected: list[float]) -> None:
    """Epoch and update, of 20 updates of twice 16 pairs."""
    settings = LOOP_SETTINGS.model_copy(update={"learning_rate": 1.0, "batch_size": 16, "accumulate": 2, **schedule})
    found = [learning_rate(settings, epoch, update, 20) for epoch, update in places]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


WITHOUT_COMPILER = """
import sys, torch
from itrpipe.training.optimizers import Adam
weights = torch.nn.Parameter(torch.arange(4.0))
optimizer = Adam([weights], lr=0.1, weight_decay=0.1, decoupled_weight_decay=True, fused=True)
for _ in range(3):
    optimizer.zero_grad()
    weights.square().sum().backward()
    optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules, *weights.tolist())
"""


def test_updates_are_those_of_torch_and_do_not_load_its_compiler() -> None:
    """Which takes longer than all else that is loaded before the first step."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, check=True)
    loaded, *found = done.stdout.split()
    weights = torch.nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.AdamW([weights], lr=0.1, weight_decay=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        weights.square().sum().backward()
        optimizer.step()
    assert (loaded, [float(value) for value in found]) == ("False", weights.tolist())
