"""What is left to train: adapters that merge into plain weights, frozen encoders, and rates that fall by the layer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.methods.base import MomentumTwin
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, build, open_encoders
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsepp.network import build as build_vsepp
from itrpipe.training.optimizers import OPTIMIZERS, Trained, depths, limit_training, merge_adapters, trained_weights
from itrpipe.training.settings import TrainSettings

PIXELS = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
IMAGES = ImageBatch(torch.empty(3, 0, 0), pixels=PIXELS)
TEXTS = TextBatch(torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0], [2, 8, 9, 3]]), torch.tensor([4, 3, 4]))
KINDS = [("clip", "clip"), ("siglip", "siglip"), ("vit", "bert")]


def opened(root: Path, vision: str = "clip", text: str = "clip", **values: Any) -> TransformerDualEncoder:
    torch.manual_seed(0)
    settings = DualEncoder(vision=str(root / vision), text=str(root / text), **values)
    return build(settings, 0, 0, open_encoders(settings))


def limited(model: TransformerDualEncoder, **values: Any) -> TransformerDualEncoder:
    usual = {name: field.default for name, field in TrainSettings.model_fields.items()}
    limit_training(model, TrainSettings.model_construct(**(usual | values)))
    return model


def scores(model: Any) -> torch.Tensor:
    return model.score_matrix(model.encode_images(IMAGES), model.encode_texts(TEXTS))


def step(model: TransformerDualEncoder, name: str = "adamw", rate: float = 0.1, updates: int = 3) -> Any:
    optimizer = OPTIMIZERS[name](Trained(model), rate, 0.1)
    model.train()
    for _ in range(updates):
        optimizer.zero_grad()
        (-torch.log_softmax(5 * scores(model), dim=1).diagonal().mean()).backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(("vision", "text"), KINDS)
@pytest.mark.parametrize("targets", [(), ("fc1",)])
def test_merged_adapters_give_the_scores_of_unmerged_ones_and_a_plain_model(
    saved_encoders: Path, vision: str, text: str, targets: tuple[str, ...]
) -> None:
    if text == "bert" and targets:
        targets = ("fc1", "dense")
    model, plain = (opened(saved_encoders, vision, text) for _ in range(2))
    limited(model, adapter="lora", lora_rank=2, lora_alpha=6.0, lora_targets=targets)
    for each in (model, plain):
        each.eval()
    torch.testing.assert_close(scores(model), scores(plain), rtol=0, atol=1e-6)
    step(model)
    trained = scores(model.eval()).detach()
    assert (trained - scores(plain)).abs().max() > 1e-3
    merge_adapters(model)
    torch.testing.assert_close(scores(model), trained, rtol=0, atol=2e-6)
    assert model.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):  # torch's own attention rounds otherwise where weights could need a gradient
        each.requires_grad_(False)
    assert torch.equal(scores(model), scores(plain))


def test_a_merged_layer_is_the_formula(saved_encoders: Path) -> None:
    model, plain = (opened(saved_encoders) for _ in range(2))
    limited(model, adapter="lora", lora_rank=4, lora_alpha=6.0, lora_targets=("v_proj",))
    step(model)
    place = "text.network.text_model.encoder.layers.1.self_attn.v_proj"
    layer: Any = model.get_submodule(place)
    into, out = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert into.shape[0] == out.shape[1] == 4
    expected = plain.get_parameter(f"{place}.weight") + 6.0 / 4 * out @ into
    merge_adapters(model)
    torch.testing.assert_close(model.get_parameter(f"{place}.weight"), expected)


@pytest.mark.parametrize(("vision", "text"), KINDS)
def test_only_adapters_and_projections_move(saved_encoders: Path, vision: str, text: str) -> None:
    model = limited(opened(saved_encoders, vision, text, embed_dim=8), adapter="lora")
    before = copy.deepcopy(model.state_dict())
    optimizer = step(model)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if ".lora_" in name or name.startswith("project_")}
    states = sum(value["exp_avg"].numel() for value in optimizer.state.values())
    assert states == trained_weights(model)[0] < trained_weights(model)[1] / 4


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
    own = {id(each) for each in kept.parameters()}
    assert not own & {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert all(each.grad is None for each in kept.parameters())
    assert any(each.grad is not None for each in other.parameters())
    assert not any(part.training for part in kept.modules())
    assert other.training
    encoded = model.encode_images(IMAGES) if frozen == "vision" else model.encode_texts(TEXTS)
    assert not encoded.embedding.requires_grad  # so nothing is kept for a backward pass
    again = model.encode_images(IMAGES) if frozen == "vision" else model.encode_texts(TEXTS)
    assert torch.equal(encoded.embedding, again.embedding)
    assert MomentumTwin(model, 0.5, evaluate=False).model.frozen == {frozen}


def test_layers_that_no_encoder_has_are_refused(saved_encoders: Path) -> None:
    with pytest.raises(UsageError, match=r"lora_targets names q_projj, .*known: fc1, fc2"):
        limited(opened(saved_encoders), adapter="lora", lora_targets=("q_projj", "v_proj"))
    with pytest.raises(UsageError, match=r"no layer to adapt in the vision encoder.*--set train.freeze=vision"):
        limited(opened(saved_encoders, "vit", "bert"), adapter="lora", lora_targets=("query",))


def test_layers_inside_the_attention_of_torch_are_left_alone(saved_encoders: Path) -> None:
    """SigLIP's pooling reads the weights of such a layer and never calls it: an adapter would have no effect."""
    model = limited(opened(saved_encoders, "siglip", "siglip"), adapter="lora", lora_targets=("out_proj",))
    adapted = {name.rpartition(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}
    assert adapted
    assert all("self_attn" in name for name in adapted)


EXPECTED = {
    "clip": {
        "vision.network.vision_model.embeddings.class_embedding": 3,
        "vision.network.vision_model.pre_layrnorm.weight": 3,
        "vision.network.vision_model.encoder.layers.0.mlp.fc1.weight": 2,
        "vision.network.vision_model.encoder.layers.1.layer_norm1.bias": 1,
        "vision.network.vision_model.post_layernorm.weight": 0,
        "vision.network.visual_projection.weight": 0,
        "text.network.text_model.embeddings.token_embedding.weight": 3,
        "text.network.text_model.encoder.layers.0.self_attn.q_proj.weight": 2,
        "text.network.text_projection.weight": 0,
    },
    "siglip": {"vision.network.embeddings.patch_embedding.weight": 3, "vision.network.head.probe": 0},
    "bert": {"text.network.embeddings.word_embeddings.weight": 3, "text.network.encoder.layer.1.output.dense.bias": 1},
}


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize(("vision", "text"), KINDS)
def test_rates_fall_by_the_layer_and_decay_spares_what_is_no_matrix(
    saved_encoders: Path, vision: str, text: str, name: str
) -> None:
    model, decay = opened(saved_encoders, vision, text, embed_dim=8), 0.5
    groups = OPTIMIZERS[name](Trained(model, layer_decay=decay), 0.1, 0.2).param_groups
    scale = {id(each): group["scale"] for group in groups for each in group["params"]}
    assert scale.keys() == {id(each) for each in model.parameters()}
    assert {*scale.values()} == {1.0, 0.5, 0.25, 0.125}
    for place, depth in EXPECTED[text].items():
        assert scale[id(model.get_parameter(place))] == decay**depth, place
    assert scale[id(model.get_parameter("project_images.weight"))] == 1.0
    assert [group["scale"] for group in groups] == sorted((group["scale"] for group in groups), reverse=True)
    if name != "adam":
        spared = {id(each) for group in groups if group["weight_decay"] == 0 for each in group["params"]}
        assert spared == {id(each) for key, each in model.named_parameters() if each.ndim < 2 or "bias" in key}


def test_adapters_have_the_depth_of_their_layer(saved_encoders: Path) -> None:
    model = limited(opened(saved_encoders), adapter="lora")
    found = depths(model)
    for name, each in model.named_parameters():
        if ".lora_" in name:
            assert found[id(each)] == (2 if ".layers.0." in name else 1), name


def test_models_without_encoders_have_no_layers() -> None:
    with pytest.raises(UsageError, match="layer_decay needs encoders"):
        depths(build_vsepp(Vsepp(embed_dim=4, word_dim=4), 4, 10))
