"""What a GPU reaches of its own limits, part by part: `make bench-gpu`, or `python -m tests.benchmarks.gpu`.

Every line gives the seconds of itrpipe, those of a limit measured in turn on the same device (a bare product of
matrices, or the encoders alone), and how many times the limit it takes. Steps of training run under bfloat16 autocast
with Adam; how often one of them waits for the device is counted by PyTorch's own check. `--tiny` shows on any machine
that all of it runs.

It runs from a bare checkout: beside torch, torchvision, transformers, accelerate, h5py, pyarrow, pillow and rich it
needs pydantic alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from itrpipe.methods import aoq, fne, triplet
from itrpipe.methods.base import Batch, Method, StatefulMethod
from itrpipe.methods.settings import Aoq, Fne, Triplet
from itrpipe.mining.exact import ExactMiner
from itrpipe.models import attention_tiles, bfan, dual_encoder, uniter, vsrn
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.cross_attention import Attention, CrossAttention
from itrpipe.models.settings import Bfan, DualEncoder, Uniter, Vsrn

COCO_PAIRS = 5_000 * 25_000
SCORINGS = {
    "SCAN t2i": CrossAttention(Attention(9.0, aggregation="LogSumExp", lambda_lse=6.0), None),
    "BFAN": CrossAttention(Attention(20.0, focal="equal"), Attention(20.0, focal="equal")),
}


@dataclass(frozen=True)
class Scale:
    """How large everything is; the defaults are those of the papers.

    Attributes:
        train_images, train_texts, dim: of the mined training set, COCO's.
        num_texts, num_images: lengths of its lists.
        images, texts, pairs: scored by cross-attention over regions and words; pair by pair through a Transformer.
        regions, region_dim, words, vocabulary: of an image and a caption.
        batch, fne_batch, clip_batch: pairs of a training step.
        memory: pairs that FNE keeps.
        side, patch, clip_patch, clip_side: of the pixels of FNE, and of a model as large as CLIP ViT-B/32.
        layers, width: of vision and text encoders and of UNITER.
        joint: width of the joint space.
        rounds: of every measurement.
    """

    train_images: int = 113_287
    train_texts: int = 566_435
    dim: int = 1_024
    num_texts: int = 300
    num_images: int = 60
    images: int = 1_000
    texts: int = 5_000
    pairs: int = 4_096
    regions: int = 36
    region_dim: int = 2_048
    words: int = 16
    vocabulary: int = 10_000
    batch: int = 128
    fne_batch: int = 32
    clip_batch: int = 256
    memory: int = 8_192
    side: int = 384
    patch: int = 16
    clip_side: int = 224
    clip_patch: int = 32
    layers: int = 12
    width: int = 768
    joint: int = 1_024
    rounds: int = 5


TINY = Scale(
    train_images=60,
    train_texts=300,
    dim=16,
    num_texts=20,
    num_images=5,
    images=6,
    texts=10,
    pairs=16,
    regions=4,
    region_dim=8,
    words=6,
    vocabulary=50,
    batch=6,
    fne_batch=4,
    clip_batch=4,
    memory=16,
    side=32,
    patch=16,
    clip_side=32,
    clip_patch=16,
    layers=1,
    width=16,
    joint=16,
    rounds=1,
)


@dataclass(frozen=True)
class Line:
    """One measurement.

    Attributes:
        name: what was done.
        seconds, limit: medians of ours and of the limit.
        limited_by: what the limit is.
        amount: the same as a rate, for orientation.
        waits: how often a step waits for the device; None where nobody counted.
    """

    name: str
    seconds: float
    limit: float
    limited_by: str
    amount: str
    waits: float | None = None

    def __str__(self) -> str:
        waits = "" if self.waits is None else f"; {self.waits:g} waits"
        times = f"{self.seconds:9.4f} s, {self.seconds / self.limit:5.2f} x {self.limited_by} ({self.limit:.4f} s)"
        return f"{self.name:<34} {times}: {self.amount}{waits}"


class Sized:
    """A training set of random regions or pixels and random words, five captions to an image."""

    def __init__(self, scale: Scale, images: int, pixels: int = 0) -> None:
        rng = np.random.default_rng(0)
        self.num_images, self.num_captions = images, 5 * images
        self.caption_image = np.repeat(np.arange(images), 5)
        self._regions = torch.from_numpy(
            rng.standard_normal((images, scale.regions, scale.region_dim), dtype=np.float32)
        )
        frame = (images, 3, pixels, pixels)
        self._pixels = torch.from_numpy(rng.integers(0, 256, frame, dtype=np.uint8)) if pixels else None
        self._boxes = torch.rand(images, scale.regions, 4)
        self._tokens = torch.from_numpy(rng.integers(4, scale.vocabulary, (5 * images, scale.words)))
        self._lengths = torch.full((5 * images,), scale.words)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Regions, boxes and pixels of image rows."""
        pixels = None if self._pixels is None else self._pixels[rows]
        return ImageBatch(self._regions[rows], None, None, pixels, self._boxes[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens of caption rows."""
        return TextBatch(self._tokens[rows], self._lengths[rows])

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches."""
        return self.images(images), self.texts(captions)

    def lists(self) -> dict[str, np.ndarray]:
        """Mined lists: the images that follow, and their first captions."""
        others = (np.arange(self.num_images)[:, None] + np.arange(1, self.num_images)) % self.num_images
        return {"texts_for_images": 5 * others, "images_for_texts": others[self.caption_image]}


class Clock:
    """Measures on one device."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device, self.rounds = device, rounds

    def once(self, function: Callable[[], object]) -> float:
        """Seconds of one call, until the device is done."""
        self._wait()
        start = time.perf_counter()
        function()
        self._wait()
        return time.perf_counter() - start

    def in_turn(self, ours: Callable[[], object], limit: Callable[[], object]) -> tuple[float, float]:
        """Medians of two callables, each warmed up once."""
        ours()
        limit()
        taken = [(self.once(ours), self.once(limit)) for _ in range(self.rounds)]
        first, second = zip(*taken, strict=True)
        return statistics.median(first), statistics.median(second)

    def waits(self, function: Callable[[], object]) -> float | None:
        """How often a call waits for a GPU."""
        if self.device.type != "cuda":
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                function()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(each.message) for each in caught)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def mining(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Lists of both directions over a whole training set, against one bfloat16 product of all its embeddings."""
    generator = torch.Generator().manual_seed(0)
    meaning = torch.randn(scale.train_images, scale.dim, generator=generator)
    owners = torch.arange(scale.train_texts) % scale.train_images
    wording = torch.randn(scale.train_texts, scale.dim, generator=generator)
    images, texts = F.normalize(meaning, dim=1), F.normalize(meaning[owners] + wording, dim=1)
    left, right = (each.to(clock.device, torch.bfloat16) for each in (images, texts))
    arrays = (images.numpy(), texts.numpy(), owners.numpy(), scale.num_texts, scale.num_images)

    def mine() -> None:
        miner = ExactMiner(*arrays, precision="bf16+fp32", device=clock.device, memory=2**31)
        for block in miner.pending():
            miner.step(block)
        miner.result()

    def product() -> None:
        for part in right.split(8_192):
            torch.mm(part, left.T)

    seconds, limit = clock.in_turn(mine, product)
    size = f"{scale.train_images:,} x {scale.train_texts:,}, {scale.num_images} and {scale.num_texts}"
    yield Line("mining", seconds, limit, "a bare bf16 product", size)


def scores(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Scores of SCAN and BFAN, against the bare products of all regions with all words."""
    regions = F.normalize(torch.randn(scale.images, scale.regions, scale.joint, device=clock.device), dim=-1)
    words = F.normalize(torch.randn(scale.texts, scale.words, scale.joint, device=clock.device), dim=-1)
    lengths = torch.full((scale.texts,), scale.words, device=clock.device)
    share = COCO_PAIRS / (scale.images * scale.texts)
    for name, scoring in SCORINGS.items():
        for products, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            left, right = (each.flatten(0, 1).to(kind) for each in (regions, words))

            def ours(scoring: CrossAttention = scoring, products: Any = products) -> None:
                with torch.inference_mode():
                    attention_tiles.score_matrix(regions, None, words, lengths, scoring, products)

            def product(left: Tensor = left, right: Tensor = right) -> None:
                for part in left.split(4_096):
                    torch.mm(part, right.T)

            seconds, limit = clock.in_turn(ours, product)
            told = f"COCO 5K in {share * seconds:.1f} s"
            yield Line(f"scores, {name}, {products}", seconds, limit, "a bare product", told)


def transformer_scores(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Scores of UNITER pair by pair, against as many bare layers of the same size on the same tokens."""
    sizes = {"embed_dim": scale.width, "layers": scale.layers, "feed_forward_dim": 4 * scale.width}
    settings = Uniter.model_validate({**sizes, "heads": max(1, scale.width // 64)})
    model = uniter.build(settings, scale.region_dim, scale.vocabulary).to(clock.device).eval()
    side = max(2, round(scale.pairs**0.5))
    data, rows = Sized(scale, side), np.arange(side)
    seen, read = data.images(rows).to(clock.device), data.texts(rows).to(clock.device)
    layer = nn.TransformerEncoderLayer(scale.width, settings.heads, 4 * scale.width, batch_first=True)
    bare = nn.TransformerEncoder(layer, scale.layers, enable_nested_tensor=False).to(clock.device).eval()
    states = torch.randn(side * side, scale.regions + scale.words, scale.width, device=clock.device)

    def under_autocast(function: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            with torch.inference_mode(), torch.autocast(clock.device.type, torch.bfloat16):
                function()

        return run

    ours = under_autocast(lambda: model.score_matrix(model.encode_images(seen), model.encode_texts(read)))
    limit = under_autocast(lambda: [bare(part) for part in states.split(512)])
    seconds, bound = clock.in_turn(ours, limit)
    told = f"COCO 5K in {COCO_PAIRS / side**2 * seconds / 3600:.2f} h"
    yield Line("scores, UNITER", seconds, bound, "bare layers", told)


def steps(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Training steps, against the encoders alone on the same batches, forward, backward and update."""
    few = Sized(scale, 2 * scale.batch)
    for name, build, settings in (
        ("AOQ, VSRN", vsrn.build, Vsrn(embed_dim=2 * scale.joint, graph_layers=4)),
        ("AOQ, BFAN", bfan.build, Bfan(embed_dim=scale.joint)),
    ):
        model: Any = build(settings, scale.region_dim, scale.vocabulary)  # pyright: ignore
        drawn = Aoq(sum_epochs=0, top_texts=scale.batch, top_images=scale.batch)
        method = aoq.build(drawn, few, few.lists())  # pyright: ignore
        yield _step(name, model, method, few, scale.batch, clock)
    encoders = {"width": scale.width, "heads": max(1, scale.width // 64), "embed_dim": scale.width}
    encoders |= {"vision_layers": scale.layers, "text_layers": scale.layers, "vision": "random", "text": "random"}
    for name, batch, side, patch in (
        ("FNE, ViT-B/16 at 384", scale.fne_batch, scale.side, scale.patch),
        ("triplet, as large as CLIP", scale.clip_batch, scale.clip_side, scale.clip_patch),
    ):
        data = Sized(scale, 2 * batch, side)
        chosen = DualEncoder.model_validate({**encoders, "image_size": (side, side), "patch_size": patch})
        model = dual_encoder.build(chosen, scale.region_dim, scale.vocabulary)
        method: Any = triplet.build(Triplet(), data, {})  # pyright: ignore
        if name.startswith("FNE"):
            method = fne.build(Fne(memory_size=scale.memory, warm_epochs=0, sum_epochs=0), data, {})  # pyright: ignore
        yield _step(name, model, method, data, batch, clock)


def _step(name: str, model: Any, method: Method, data: Sized, size: int, clock: Clock) -> Line:
    model.to(clock.device).train()
    if isinstance(method, StatefulMethod):
        method.attach(model).to(clock.device)
        method.start_epoch(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-6, fused=clock.device.type == "cuda")
    rng = np.random.default_rng(0)
    batch: Batch = method.collate(rng.permutation(data.num_captions)[:size], rng).to(clock.device)
    seen: list[tuple[Callable[[Any], Any], Any]] = []

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def ours() -> None:
        with torch.autocast(clock.device.type, torch.bfloat16):
            losses = method.losses(model, batch, 1)
        update(torch.stack(list(losses.values())).sum())

    def encoders_alone() -> None:
        with torch.autocast(clock.device.type, torch.bfloat16):
            found = [tensor for encode, read in seen for tensor in vars(encode(read)).values()]
        update(sum(each.float().mean() for each in found if isinstance(each, Tensor) and each.requires_grad))  # pyright: ignore

    _listen(model, seen, ours)
    seconds, limit = clock.in_turn(ours, encoders_alone)
    rate = f"{size / seconds:,.0f} pairs/s"
    return Line(f"step, {name}", seconds, limit, "the encoders alone", rate, clock.waits(ours))


def _listen(model: Any, seen: list[tuple[Callable[[Any], Any], Any]], run: Callable[[], None]) -> None:
    """Notes what a step encodes with gradients."""
    for side in ("encode_images", "encode_texts"):
        encode = getattr(model, side)

        def noting(read: Any, encode: Callable[[Any], Any] = encode) -> Any:
            if torch.is_grad_enabled():
                seen.append((encode, read))
            return encode(read)

        setattr(model, side, noting)
    run()
    for side in ("encode_images", "encode_texts"):
        delattr(model, side)


PARTS: Mapping[str, Callable[[Scale, Clock], Iterator[Line]]] = {
    "mining": mining,
    "scores": scores,
    "transformer": transformer_scores,
    "steps": steps,
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the device, then a line for every measurement."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, on any machine")
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="repeatable")
    parser.add_argument("--json", type=Path, help="file for the same numbers")
    parser.add_argument("--rounds", type=int, help="of every measurement")
    chosen = parser.parse_args(arguments)
    if not chosen.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device is visible; --tiny runs anywhere")
    scale = TINY if chosen.tiny else Scale()
    scale = replace(scale, rounds=chosen.rounds) if chosen.rounds else scale
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}", flush=True)
    found = []
    for part in chosen.only or PARTS:
        torch.manual_seed(0)
        for line in PARTS[part](scale, Clock(device, scale.rounds)):
            print(line, flush=True)
            found.append(line)
    if chosen.json:
        known = {"device": name, "torch": torch.__version__, "lines": [asdict(line) for line in found]}
        chosen.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
