"""Two processes that compute the losses of their own anchors have the gradients of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from itrpipe.training.distributed import SharedModel, World
from itrpipe.training.recipe import Losses
from tests.methods.test_contrastive import BATCH, CAPTION_IMAGE, Rows, made

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["local"]


def measured(given: dict[str, Any], world: World) -> dict[str, torch.Tensor]:
    """Losses, statistics and gradients of the second of two batches, of four and of five pairs."""
    rows = Rows()
    foreign = [np.flatnonzero(image != CAPTION_IMAGE)[:3] for image in range(CAPTION_IMAGE[-1] + 1)]
    matches = {
        "texts_for_images": np.stack(foreign),
        "images_for_texts": np.stack([CAPTION_IMAGE[foreign[image]] for image in CAPTION_IMAGE]),
    }
    method, model = made(rows, {"matches": matches}, **given)
    shared = SharedModel(model, world, local=method.local)
    shared.division.seed_step(0)
    trained = Losses(shared, method, method._state)
    losing, found = world.averaging_gradients(trained), {}
    torch.manual_seed(1)
    for captions in (BATCH[:-1], BATCH):
        trained.zero_grad()
        batch = method.collate(captions, np.random.default_rng(0))
        losses = losing(batch, 5)
        torch.stack(list(losses.values())).sum().backward()
        found = {**losses, **batch.statistics}
        (found,) = world.averaged(found) if shared.local else [found]
    gradients = {name: each.grad for name, each in trained.named_parameters() if each.grad is not None}
    return {name: torch.as_tensor(each).detach().float() for name, each in (found | gradients).items()}


def several(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    world = World.joined()
    # What is not finite in one process is not in the other one either, so that both end.
    (told,) = world.averaged({"loss": torch.tensor(float("nan") if rank else 1.0), "count": 2})
    assert (told["loss"].isnan().item(), told["count"].item()) == (True, 2.0)
    torch.save({name: measured(given, world) for name, given in CASES.items()}, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("local")
    torch.multiprocessing.spawn(several, (str(folder),), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_losses_of_own_anchors_have_the_gradients_of_the_whole_batch(both: list[Any], case: str) -> None:
    expected = measured(CASES[case], World())
    assert any(name.endswith("match_share") for name in expected)
    for found in both:
        assert found[case].keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(found[case][name], value, rtol=1e-5, atol=1e-6), name
