"""What holds for every extractor: rows as its spec says, the same alone and in a batch, the same values as ever."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from itrpipe.features.declaration import EXTRACTORS
from itrpipe.features.extraction import plan_batches, stack
from itrpipe.scenes.build import generate
from itrpipe.scenes.paint import paint
from itrpipe.scenes.world import KINDS
from tests.encoders import zoo

GOLDEN = Path(__file__).with_name("golden_extractors.json")
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
SIZES = ((30, 50), (50, 30), (48, 48))

NETWORKS = ("vit", "dinov2_with_registers", "clip", "resnet", "timm_wrapper")
"""Vision networks of the zoo."""
OTHERS: dict[str, dict[str, Any]] = CASES["others"]
NAMES = (*NETWORKS, *OTHERS)


def save(name: str, folder: Path) -> Path:
    """Save the network of a case as transformers does it, if it has one."""
    return zoo.save(name, folder) if name in NETWORKS else folder


def settings_of(kind: str, **changes: Any) -> Any:
    return EXTRACTORS.classes[kind].model_validate({"kind": kind, **OTHERS.get(kind, {}), **changes})


def built(name: str, model: Path | str = "", **changes: Any) -> Any:
    """The extractor of a case, its network in a folder or of the hub."""
    kind, values = name.partition("_")[0], OTHERS.get(name)
    if values is None:
        kind, values = "vision", {"weights": "pretrained", "precision": "fp32"}
        values |= {"model": str(model), "revision": "main"}
    return EXTRACTORS.module(kind).build(settings_of(kind, **{**values, **changes}), torch.device("cpu"))


_OPEN: dict[str, Any] = {}


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Opens the extractor of a case once, with a small detector of photographs, one thread and no network."""
    for name, value in {"SHORT_SIDE": 64, "LONG_SIDE": 120, "PROPOSALS": 8}.items():
        monkeypatch.setattr(f"itrpipe.features.extractors.butd.extractor.{name}", value)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("asked the network"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    torch.set_num_threads(1)

    def open_once(name: str) -> Any:
        if name not in _OPEN:
            _OPEN[name] = built(name, save(name, tmp_path_factory.mktemp(name)))
        return _OPEN[name]

    return open_once


@cache
def pictures(name: str) -> list[np.ndarray]:
    if name == "scenes":
        return [np.array(paint(scene)) for scene in generate(0, 0, 3, seed=31).scenes]
    waves = [np.add.outer(np.arange(h) / 5, np.arange(w) / 7)[..., None] * [1, 1.7, 2.3] for h, w in SIZES]
    return [(127.5 + 127.5 * np.sin(wave + number)).astype(np.uint8) for number, wave in enumerate(waves)]


def rows_of(extractor: Any, images: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of images, batch by batch of equal groups."""
    sizes = np.array([image.shape[:2] for image in images])
    batches = plan_batches(sizes, extractor.group, len(images))
    parts = [extractor(stack([extractor.transform(images[row]) for row in rows]), sizes[rows]) for rows in batches]
    order = np.argsort(np.concatenate(batches))
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def summary(rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """A few numbers of each array, and how large its numbers are."""
    found = {}
    for name, values in sorted(rows.items()):
        flat = values.astype(np.float64).ravel()
        some = flat[np.linspace(0, len(flat) - 1, 9).astype(int)]
        found[name] = [str(values.dtype), [*some.round(5).tolist(), float(np.abs(flat).mean().round(5))]]
    return found


def assert_near(found: Any, expected: Any, tolerance: float = 2e-3) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1e-6))


@pytest.mark.parametrize("name", NAMES)
def test_every_extractor(name: str, opened: Callable[[str], Any]) -> None:
    extractor, images = opened(name), pictures(name)
    transform = pickle.loads(pickle.dumps(extractor.transform))
    frame = transform(images[0])
    assert (frame.dtype, frame.shape[0], frame.flags.c_contiguous) == (np.uint8, 3, True)
    rows, again = rows_of(extractor, images), rows_of(extractor, images)
    assert {each: values.shape[1:] for each, values in rows.items()} == extractor.spec
    for each, values in rows.items():
        assert np.array_equal(values, again[each])
        assert np.isfinite(values).all()
        if each not in ("count", "global"):
            real = np.arange(extractor.spec.regions) < rows["count"][:, None]
            assert not values[~real].any()
    for row, image in enumerate(images):
        alone = rows_of(extractor, [image])
        for each, values in alone.items():
            # Rounding depends on the size of the batch, and can exchange regions that only fill up a drawing's.
            few = slice(3) if name == "scenes" and each != "count" else ...
            assert_near(rows[each][row][few], values[0][few], 2e-2 if name == "scenes" else 2e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_are_those_recorded(name: str, opened: Callable[[str], Any]) -> None:
    recorded = json.loads(GOLDEN.read_text())[name]
    found = summary(rows_of(opened(name), pictures(name)))
    assert {each: value[0] for each, value in found.items()} == {each: value[0] for each, value in recorded.items()}
    for each, (kind, numbers) in recorded.items():
        assert_near(found[each][1], numbers, 0 if "int" in kind else 2e-3)


def test_the_shipped_detector_finds_and_names_what_is_drawn(opened: Callable[[str], Any]) -> None:
    rows = rows_of(opened("scenes"), pictures("scenes"))
    for row, scene in enumerate(generate(0, 0, 3, seed=31).scenes):
        objects = torch.tensor([item.box for item in scene.objects])
        overlap, region = box_iou(objects, torch.tensor(rows["boxes"][row, 1:])).max(dim=1)
        assert (overlap > 0.5).all()
        assert rows["labels"][row, 1:][region].tolist() == [KINDS.index(item.kind) for item in scene.objects]


def test_only_settings_with_a_revision_name_models_of_the_hub() -> None:
    assert settings_of("frcnn", weights="COCO_V1").from_hub() == {}
    assert settings_of("butd", weights="someone/model").from_hub() == {"someone/model": "main"}
