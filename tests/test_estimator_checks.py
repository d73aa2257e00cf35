"""Every declared backbone, and every method with every backbone that it trains, against the checks of plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.config import Override
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.errors import UsageError
from itrpipe.methods.base import Batch, Method
from itrpipe.methods.declaration import AuxiliaryLoss, method_module, methods
from itrpipe.models.base import ImageEncoding, Matcher, inner_products
from itrpipe.models.declaration import RANDOM, backbone_family, backbone_names, network_module, settings_of
from itrpipe.models.declaration import backbones as backbone_classes
from itrpipe.pipeline.planning import Planner
from itrpipe.stages import train
from itrpipe.stages.base import Need
from itrpipe.testing import (
    BACKBONE_CHECKS,
    FRAME,
    GLOBAL_DIM,
    IMAGE_DIM,
    VOCABULARY,
    ToyPairs,
    check_backbone,
    check_method,
)
from itrpipe.training.saved import build_model
from itrpipe.training.settings import TrainSettings
from tests.methods.toys import built

SMALL = {
    **dict.fromkeys(("embed_dim", "word_dim", "feed_forward_dim", "caption_dim", "caption_word_dim"), 8),
    **dict.fromkeys(("layers", "vision_layers", "text_layers", "graph_layers"), 1),
    **dict.fromkeys(("heads", "text_heads"), 2),
    **dict.fromkeys(("width", "text_width"), 8),
    **dict.fromkeys(("vision", "text"), RANDOM),
    "image_size": list(FRAME),
    "max_words": 32,
}
LOSS = {"top_texts": 5, "top_images": 3, "sampled_negatives": 5, "hard_negatives": 2, "copies": 2, "draws": 2}
LOSS |= {"keep": 2, "memory_size": 12, "warm_epochs": 0, "min_count": 0}
COMBINED = {
    "aoq, judged": {"judged": "weigh"},
    "contrastive, all sources": {"negatives": ["mined", "synthetic"], "weigh": "fne", "objective": "sigmoid"},
    "contrastive, judged": {"negatives": ["mined", "synthetic"], "judged": "weigh", "batches": "neighbours"},
    "contrastive, soft": {"negatives": ["mined", "synthetic"], "judged": "soft", "weigh": "fne"},
    "contrastive, triplets": {"negatives": ["mined"], "judged": "weigh", "objective": "hardest", "shared": False},
    "contrastive, all triplets": {"negatives": ["mined"], "weigh": "positive-aware", "objective": "sum"},
    "contrastive, hardest": {"negatives": ["synthetic"], "weigh": "hardest", "shared": False},
}


def settings(conf: str, backbone: str) -> TrainSettings:
    """The declared settings, made small where they have such names."""
    combined = {f"loss.{name}": value for name, value in COMBINED.get(conf, {}).items()}
    conf = conf.partition(",")[0]
    model = settings_of(backbone).model_fields
    loss = methods()[planner(backbone).configure(Need("train", conf))[0].method].model_fields  # pyright: ignore
    given = {f"model.{name}": value for name, value in SMALL.items() if name in model}
    given |= {f"loss.{name}": value for name, value in LOSS.items() if name in loss} | combined
    return planner(backbone, given).configure(Need("train", conf))[0]  # pyright: ignore


def planner(backbone: str, given: dict[str, Any] | None = None) -> Planner:
    chosen = {"backbone": backbone, **(given or {})}
    features = {"toy": StageDefinition(conf="arrays", source="toy.npz")}
    defined = DatasetDefinition(prepare=StageDefinition(conf="files", source="toy"), features=features)
    return Planner(Path("nowhere"), "checks", [Override(None, key, value) for key, value in chosen.items()], defined)


def builder(chosen: TrainSettings) -> Callable[[], Matcher[Any, Any]]:
    values = chosen.model_dump(mode="json")

    def build() -> Matcher[Any, Any]:
        if not chosen.model.opens_encoders:
            return build_model(values, IMAGE_DIM, VOCABULARY)
        encoders = network_module(chosen.backbone).open_encoders(chosen.model, GLOBAL_DIM)
        return build_model(values, IMAGE_DIM, VOCABULARY, encoders)

    return build


def method_builder(chosen: TrainSettings) -> Callable[[ToyPairs], Any]:
    module = method_module(chosen.method)

    def build(data: ToyPairs) -> Any:
        if getattr(chosen.loss, "generator", "") == "static":
            torch.manual_seed(3)
            data.writer = builder(chosen)().requires_grad_(False).eval()  # pyright: ignore
        return built(module.build, chosen.loss, data)

    return build


def trains(conf: str, backbone: str) -> bool:
    """Whether a configuration trains a backbone."""
    try:
        train.TrainStage().needs(settings(conf, backbone), planner(backbone).definition)
    except UsageError:
        return False
    return True


def test_sentences_by_rules_are_written_once_for_all_seeds() -> None:
    for conf, seed in (("twins-triplet", None), ("synthetic-triplet", 3)):
        chosen = settings(conf, "vsrn").model_copy(update={"seed": 3})
        needs = train.TrainStage().needs(chosen, planner("vsrn").definition)
        assert needs["synthesize"].settings.get("seed") == seed


VARIANTS = ("synthetic-triplet", "positives-triplet", "twins-triplet", *COMBINED)
"""Of methods for any backbone: one that embeds, with a loss of its own, and one that scores pairs are enough."""
SPECIAL = ("ssamt-intra", "tags-static", "tags-synthetic", "fne-only", "ascl-triplet")
CONFS = (*sorted(methods(), key="triplet".__ne__), *SPECIAL, *VARIANTS)
FIRST = {name: next(conf for conf in CONFS if trains(conf, name)) for name in backbone_names()}
PAIRS = [
    (conf, name)
    for conf in CONFS
    for name in sorted(backbone_names())
    if (name in ("vsrn", "scan") if conf in VARIANTS else name == backbone_family(name) or conf == FIRST[name])
    and trains(conf, name)
]
"""Variants of a backbone differ from it in how they score, for which one method is enough."""


def without_fusion() -> Callable[[], Matcher[Any, Any]]:
    chosen = settings("ascl", "ascl")
    return builder(chosen.model_copy(update={"model": chosen.model.model_copy(update={"fusion": "none"})}))


def of_region_tokens(pool: str, boxes: bool) -> Callable[[], Matcher[Any, Any]]:
    given = {"images": "region-tokens", "image_pool": pool, "vision": RANDOM, "text": RANDOM}
    model: Any = backbone_classes()["dual-encoder"](**given, width=8, heads=2, vision_layers=2, text_layers=1)  # pyright: ignore
    network = network_module("dual-encoder")
    encoders = network.open_encoders(model, GLOBAL_DIM, boxes)
    return lambda: network.build(model, IMAGE_DIM, VOCABULARY, encoders)


BACKBONES: dict[str, Callable[[], Callable[[], Matcher[Any, Any]]]] = {
    **{name: partial(lambda name: builder(settings(FIRST[name], name)), name) for name in sorted(backbone_names())},
    "ssamt, first phase": lambda: builder(settings("ssamt-intra", "ssamt")),
    "ascl, no fusion": without_fusion,
    "dual-encoder, mean of region tokens": lambda: of_region_tokens("mean", True),
    "dual-encoder, region tokens without boxes": lambda: of_region_tokens("cls", False),
}


@pytest.mark.parametrize("check", BACKBONE_CHECKS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_backbones(backbone: str, check: str) -> None:
    BACKBONE_CHECKS[check](BACKBONES[backbone]())


@pytest.mark.parametrize(("conf", "backbone"), PAIRS, ids=lambda name: name)
def test_methods(conf: str, backbone: str) -> None:
    chosen = settings(conf, backbone)
    check_method(method_builder(chosen), builder(chosen))


@pytest.mark.parametrize("conf", sorted({conf for conf, backbone in PAIRS if backbone == "vsrn"}))
def test_methods_train_the_loss_of_the_backbone_or_refuse_its_weight(conf: str) -> None:
    chosen = settings(conf, "vsrn")
    data = ToyPairs(uneven=False)
    method = method_builder(chosen)(data)
    model = builder(chosen)().train()
    method.attach(model)
    method.start_epoch(0)
    losses = method.losses(model, method.collate(np.arange(8), np.random.default_rng(0)), 1_000)
    assert ("auxiliary" in losses) is isinstance(chosen.loss, AuxiliaryLoss)


def held_by(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """All tensors inside a batch, by the path to them."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, dict | list | tuple):
        value = value if isinstance(value, dict) else dict(enumerate(value))
    parts = getattr(value, "__dict__", value if isinstance(value, dict) else {})
    return {name: each for key, part in parts.items() for name, each in held_by(part, f"{path}/{key}").items()}


@pytest.mark.parametrize(("conf", "backbone"), dict(PAIRS).items())
def test_batches_move_with_all_that_they_hold(conf: str, backbone: str) -> None:
    batch = method_builder(settings(conf, backbone))(ToyPairs()).collate(np.arange(8), np.random.default_rng(0))
    moved = held_by(batch.to("meta"))
    assert moved.keys() >= held_by(batch).keys()
    here = {path for path, each in moved.items() if each.device.type == "cpu"}
    assert all(path.startswith("/rows") or "host" in path for path in here), here


def test_every_method_is_checked() -> None:
    trained = {name for name, declared in methods().items() if declared.trains}
    assert {settings(conf, name).method for conf, name in PAIRS} == trained
    assert {name for _, name in PAIRS} == set(backbone_names())


# The checks notice what they are for


class Toy(Matcher[Any, Any]):
    """A small model whose matrix of scores is as given."""

    def __init__(self, score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = torch.nn.Linear(IMAGE_DIM, 4), torch.nn.EmbeddingBag(VOCABULARY + 1, 4)
        self.score = score

    def encode_images(self, images: Any) -> ImageEncoding:
        return ImageEncoding(self.image(images.regions.mean(dim=1)))

    def encode_texts(self, texts: Any) -> Any:
        return ImageEncoding(self.text(texts.tokens[:, :5]))

    def score_matrix(self, images: Any, texts: Any) -> torch.Tensor:
        return self.score(images.embedding, texts.embedding)

    def score_pairs(self, images: Any, texts: Any) -> torch.Tensor:
        return (images.embedding * texts.embedding).sum(dim=1)


def plain(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    return inner_products(images, texts)


BROKEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "score_pairs differs from score_matrix": lambda images, texts: 2 * inner_products(images, texts),
    "the order of images or captions changes scores": lambda images, texts: (
        inner_products(images, texts) + torch.arange(len(texts))
    ),
    "blocks of 1 change scores": lambda images, texts: inner_products(images - images.mean(dim=0), texts),
    "recall comes from noise": lambda images, texts: (
        inner_products(images, texts) + 9.0 * (torch.arange(len(images))[:, None] == torch.arange(len(texts)) // 2)
    ),
    "scores of an image whose features are NaN are finite": lambda images, texts: inner_products(
        images, texts
    ).nan_to_num(),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_backbone_is_told_what_is_wrong(message: str) -> None:
    told = []
    for check in BACKBONE_CHECKS.values():
        try:
            check(lambda: Toy(BROKEN[message]))
        except AssertionError as error:
            told.append(str(error))
    assert any(message in each for each in told), told
    with pytest.raises(AssertionError):
        check_backbone(lambda: Toy(BROKEN[message]))


WRONG: dict[str, Callable[..., torch.Tensor]] = {
    "has shape": lambda loss, scores, state, epoch: scores.diagonal(),
    "a model of NaN has losses": lambda loss, scores, state, epoch: loss if epoch else loss.nan_to_num(),
    "is torch.bfloat16": lambda loss, scores, state, epoch: loss.bfloat16(),
    "no parameter has a gradient": lambda loss, scores, state, epoch: loss.detach() + 0 * scores.sum(),
    "differs after going on": lambda loss, scores, state, epoch: loss * state,
    "losses of a single pair are": lambda loss, scores, state, epoch: loss / (len(scores) - 1),
}


class Plain(Method[Any]):
    """A method whose loss is then changed."""

    def __init__(self, data: ToyPairs, changed: Callable[..., torch.Tensor]) -> None:
        super().__init__(None, data)
        self.changed, self.state = changed, 0

    def losses(self, model: Any, batch: Batch, epoch: int) -> dict[str, torch.Tensor]:
        images, texts = batch.pairs["positive"]
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        self.state += 1
        return {"plain": self.changed((scores - scores.diagonal()).clamp(min=-0.5).mean(), scores, self.state, epoch)}


@pytest.mark.parametrize("message", WRONG)
def test_a_broken_method_is_told_what_is_wrong(message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_method(lambda data: Plain(data, WRONG[message]), lambda: Toy(inner_products))  # pyright: ignore


def test_a_method_that_is_right_passes() -> None:
    check_method(lambda data: Plain(data, lambda loss, scores, state, epoch: loss), lambda: Toy(inner_products))  # pyright: ignore
