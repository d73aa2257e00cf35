"""Training in chunks and in two processes: the memory of large batches, and what is spent on exchanging.

Run with `make bench`. Steps run in processes of their own: `python tests/benchmarks/bench_spread.py memory PAIRS CHUNK`
and, under torchrun, `python tests/benchmarks/bench_spread.py exchange`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from measure import apart, most_memory, paired
from torch import nn

from itrpipe.learning.losses import triplet_loss
from itrpipe.models.base import ImageBatch, Matcher, TextBatch
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.vsrn import network as vsrn
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.training.distributed import Processes, SharedModel

WORDS, LENGTH, REGIONS, WIDTH = 1_000, 16, 36, 2_048
SIZE = (96, 128)
CHUNK, STEPS = 64, 5


def encoders() -> Matcher[Any, Any]:
    """A small dual encoder of pixels: four layers, width 192."""
    settings = DualEncoder(
        vision="random", text="random", image_size=SIZE, patch_size=16, width=192, heads=3, vision_layers=4
    )
    torch.manual_seed(0)
    return dual_encoder.build(settings, 3, WORDS, dual_encoder.open_encoders(settings))


def batch(pairs: int, *, pixels: bool) -> tuple[ImageBatch, TextBatch]:
    draw = torch.Generator().manual_seed(0)
    shown = torch.randint(0, 256, (pairs, 3, *SIZE), generator=draw, dtype=torch.uint8) if pixels else None
    regions = torch.randn((pairs, 0 if pixels else REGIONS, WIDTH), generator=draw)
    tokens = torch.randint(4, WORDS, (pairs, LENGTH), generator=draw)
    return ImageBatch(regions, pixels=shown), TextBatch(tokens, torch.full((pairs,), LENGTH))


class Loss(nn.Module):
    """The loss of a batch."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: ImageBatch, texts: TextBatch) -> torch.Tensor:
        scores = self.model.score_matrix(self.model.encode_images(images), self.model.encode_texts(texts))
        return triplet_loss(scores, 0.2, True, None)


def step_of(loss: nn.Module, images: ImageBatch, texts: TextBatch) -> Callable[[], None]:
    def step() -> None:
        loss.zero_grad()
        loss(images, texts).backward()

    return step


def measured_memory(pairs: int, chunk: int) -> float:
    """MiB that a process had resident at most, which trains one step."""
    model = SharedModel(encoders(), chunk=chunk)
    step_of(Loss(model), *batch(pairs, pixels=True))()
    return most_memory() / 2**20


def measured_exchange() -> dict[str, float]:
    """Seconds of a step, of one that sums no gradients, and those that it waits for rows of others in.

    VSRN on 36 regions of width 2,048, 128 pairs.
    """
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, spent = vsrn.build(Vsrn(embed_dim=1_024, word_dim=300, captioner=False), WIDTH, WORDS), [0.0]
    processes = Processes.joined()
    shared = SharedModel(model, processes)
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, _timed(getattr(dist, name), spent))
    summing = processes.averaging_gradients(Loss(shared))
    step, seconds = step_of(summing, *batch(128, pixels=False)), {}
    for name in ("warm up", "step", "apart"):
        dist.barrier()
        spent[0], start = 0.0, time.perf_counter()
        with summing.no_sync() if name == "apart" else nullcontext():
            for _ in range(1 if name == "warm up" else STEPS):
                step()
        seconds[name] = (time.perf_counter() - start) / STEPS
        if name == "step":
            seconds["exchange"] = spent[0] / STEPS
    return {"rank": processes.rank, **seconds}


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **options)
        spent[0] += time.perf_counter() - start
        return result

    return run


def test_memory_of_a_large_batch_in_chunks() -> None:
    small, large = (apart(__file__, "memory", pairs, CHUNK)[0] for pairs in (128, 2_048))
    (plain,) = apart(__file__, "memory", 128, 0)
    print(f"\n  128 pairs: {plain:.0f} MiB; in chunks of {CHUNK} {small:.0f} MiB, 2,048 pairs {large:.0f} MiB")
    assert large < 1.2 * small


def test_time_of_chunks() -> None:
    plain, chunked = encoders(), SharedModel(encoders(), chunk=CHUNK)
    pair = batch(256, pixels=True)
    slow, fast = paired(step_of(Loss(chunked), *pair), step_of(Loss(plain), *pair), rounds=3)
    print(f"\n  a step of 256 pairs in chunks of {CHUNK} takes {slow / fast:.2f} times as long as without")
    assert slow < 2.5 * fast


def test_exchange_of_two_processes() -> None:
    if not dist.is_gloo_available():
        pytest.skip("needs gloo")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    for found in apart(__file__, "exchange", launcher=launcher):
        share, sums = found["exchange"] / found["step"], 1 - found["apart"] / found["step"]
        print(
            f"\n  process {found['rank']}: a step of {found['step']:.2f} s, {share:.1%} of it for rows of others; "
            f"summing gradients beside the backward pass makes {sums:.1%}"
        )


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        print(json.dumps(measured_memory(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(json.dumps(measured_exchange()), flush=True)
