"""What a GPU reaches of its own limits, part by part: `make bench-gpu`, or `python -m tests.benchmarks.gpu`.

Every line gives the seconds of itrpipe, those of a limit measured in turn on the same device (a bare product of
matrices, or the encoders alone), and how many times the limit it takes; of steps and encoders also TFLOP/s and their
share of what a large product in bfloat16 reaches on this card. Steps of training run under bfloat16 autocast with Adam;
how often one of them waits for the device is counted by PyTorch's own check. `--tiny` shows on any machine that all of
it runs, but for the detector `butd`, which scales every image to 600 pixels.

It runs from a bare checkout with torch, transformers, h5py, pyarrow, rich and pydantic; extraction also takes
torchvision and pillow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

import itrpipe
from itrpipe.datasets import pictures
from itrpipe.encoders.encoder import Encoder
from itrpipe.encoders.images import ImageReader
from itrpipe.encoders.texts import TextReader
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.frcnn.declaration import Frcnn
from itrpipe.features.extractors.vision.declaration import Vision
from itrpipe.methods.aoq import method as aoq
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.base import Batch, Method
from itrpipe.methods.contrastive import method as contrastive
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.lists import DIRECTIONS, HeldRows, Searched
from itrpipe.models.base import ImageBatch, PhraseBatch, RegionEncoding, TextBatch, WordEncoding
from itrpipe.models.bfan import network as bfan
from itrpipe.models.bfan.declaration import Bfan
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.scan.network import Attention, CrossAttention, CrossAttentionModel
from itrpipe.models.ssamt import network as ssamt
from itrpipe.models.ssamt.declaration import Ssamt
from itrpipe.models.uniter import network as uniter
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.vsrn import network as vsrn
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.storage.arrays import Rows, StoredRows
from itrpipe.training.assembly import compile_encoders
from itrpipe.training.batches import feed
from itrpipe.training.encoding import SplitEncoder
from itrpipe.training.encoding import embeddings as embedded

_PACKAGE = os.path.join(os.path.dirname(itrpipe.__file__), "")
COCO_PAIRS = 5_000 * 25_000
_ROWS_AT_ONCE = 100_000
SCORINGS = {
    "SCAN t2i": CrossAttention(Attention(9.0, aggregation="LogSumExp", lambda_lse=6.0), None),
    "BFAN": CrossAttention(Attention(20.0, focal="equal"), Attention(20.0, focal="equal")),
}


LARGE_VISION = {"hidden_size": 1_024, "intermediate_size": 4_096, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE_VISION |= {"image_size": 336, "patch_size": 14, "projection_dim": 768}
LARGE_TEXT = {"hidden_size": 768, "intermediate_size": 3_072, "num_attention_heads": 12, "projection_dim": 768}


@dataclass(frozen=True)
class Scale:
    """How large everything is; the defaults are those of the papers.

    Attributes:
        train_images, train_texts, dim: of the mined training set, COCO's.
        large_images, large_texts: of a set whose embeddings are memory maps.
        num_texts, num_images: lengths of its lists.
        images, texts, pairs: scored by cross-attention over regions and words; pair by pair through a Transformer.
        regions, region_dim, words, phrases, vocabulary: of an image and a caption.
        batch, fne_batch: pairs of a training step.
        clip_batches: pairs of a training step of CLIP ViT-B/32, with 77 tokens and a text encoder of width 512.
        embedded: images that CLIP ViT-L/14 at 336 pixels embeds.
        product: side of the matrices whose product is the limit of the card.
        memory: pairs that FNE keeps.
        side, patch: of the pixels of FNE.
        clip, large: configurations of CLIP's encoders: what differs from ViT-B/32.
        layers, width: of vision and text encoders and of UNITER.
        joint: width of the joint space.
        detected, encoded: photographs that detectors and a vision transformer extract features of.
        decoders: threads that decode these, one after the other for the vision transformer.
        photograph, short_side: height and width of one, and what detectors scale it to.
        rounds: of every measurement.
    """

    train_images: int = 113_287
    train_texts: int = 566_435
    large_images: int = 1_000_000
    large_texts: int = 5_000_000
    dim: int = 1_024
    num_texts: int = 300
    num_images: int = 60
    images: int = 1_000
    texts: int = 5_000
    pairs: int = 4_096
    regions: int = 36
    region_dim: int = 2_048
    words: int = 16
    phrases: int = 6
    vocabulary: int = 10_000
    batch: int = 128
    fne_batch: int = 32
    clip_batches: tuple[int, ...] = (256, 1_024)
    embedded: int = 1_024
    product: int = 8_192
    memory: int = 8_192
    side: int = 384
    patch: int = 16
    clip: dict[str, Any] = field(default_factory=lambda: {"vision": {}, "text": {}})
    large: dict[str, Any] = field(default_factory=lambda: {"vision": LARGE_VISION, "text": LARGE_TEXT})
    layers: int = 12
    width: int = 768
    joint: int = 1_024
    detected: int = 128
    encoded: int = 2_048
    decoders: tuple[int, ...] = (2, 8, 16)
    photograph: tuple[int, int] = (375, 500)
    short_side: int = 600
    rounds: int = 5


_SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_SMALL_CLIP = {"vision": {**_SMALL, "image_size": 32, "patch_size": 16}, "text": {**_SMALL, "vocab_size": 50, **_ENDS}}
TINY = Scale(
    **{"train_images": 60, "train_texts": 300, "large_images": 80, "large_texts": 400, "dim": 16, "num_texts": 20},
    **{"num_images": 5, "images": 6, "texts": 10, "pairs": 16, "regions": 4, "region_dim": 8, "words": 6, "phrases": 2},
    **{"vocabulary": 50, "batch": 6, "fne_batch": 4, "memory": 16, "side": 32, "patch": 16},
    **{"layers": 1, "width": 16, "joint": 16, "detected": 2, "encoded": 2, "embedded": 4, "product": 64},
    clip_batches=(4,),
    decoders=(2,),
    clip=_SMALL_CLIP,
    large=_SMALL_CLIP,
    photograph=(48, 64),
    **{"short_side": 48, "rounds": 1},
)


@dataclass(frozen=True)
class Line:
    """One measurement.

    Attributes:
        name: what was done.
        seconds, limit: medians of ours and of the limit.
        limited_by: what the limit is.
        amount: the same as a rate, for orientation.
        waits: lines of code where a step waits for the device; None where nobody looked.
        teraflops: of its products a second; None where nobody counted.
        share: of what a large product in bfloat16 reaches.
    """

    name: str
    seconds: float
    limit: float
    limited_by: str
    amount: str
    waits: tuple[str, ...] | None = None
    teraflops: float | None = None
    share: float | None = None

    def __str__(self) -> str:
        waits = "" if self.waits is None else f"; {len(self.waits)} waits {' '.join(self.waits)}"
        rate = "" if self.teraflops is None else f"; {self.teraflops:.4g} TFLOP/s, {self.share:.1%} of a product"
        times = f"{self.seconds:9.4f} s, {self.seconds / self.limit:5.2f} x {self.limited_by} ({self.limit:.4f} s)"
        return f"{self.name:<34} {times}: {self.amount}{rate}{waits}"


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
        self._phrase = torch.arange(scale.words) % scale.phrases == torch.arange(scale.phrases)[:, None]  # [P, W]

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Regions, boxes and pixels of image rows."""
        pixels = None if self._pixels is None else self._pixels[rows]
        return ImageBatch(self._regions[rows], None, None, pixels, self._boxes[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens of caption rows."""
        kinds = (torch.arange(len(self._phrase)) % 3).expand(len(rows), -1)
        phrases = PhraseBatch(kinds, self._phrase.expand(len(rows), -1, -1))
        return TextBatch(self._tokens[rows], self._lengths[rows], phrases)

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches."""
        return self.images(images), self.texts(captions)

    def lists(self) -> dict[str, np.ndarray]:
        """Mined lists: the images that follow, and their first captions."""
        others = (np.arange(self.num_images)[:, None] + np.arange(1, self.num_images)) % self.num_images
        return {"texts_for_images": 5 * others, "images_for_texts": others[self.caption_image]}


@dataclass(frozen=True)
class Clock:
    """Measures on one device.

    Attributes:
        device: that is waited for.
        rounds: of every measurement.
        product: side of the matrices whose product is the limit of the card.
    """

    device: torch.device
    rounds: int
    product: int = 64

    @cached_property
    def peak(self) -> float:
        """TFLOP/s of a product of square matrices in bfloat16."""
        square = torch.randn(self.product, self.product, device=self.device, dtype=torch.bfloat16)
        seconds, _ = self.in_turn(lambda: square @ square, lambda: None)
        return 2e-12 * self.product**3 / seconds

    def counted(self, line: Line, function: Callable[[], object]) -> Line:
        """The line with the rate of the products that a call computes, forward and backward."""
        with FlopCounterMode(display=False) as counter:
            function()
        rate = 1e-12 * counter.get_total_flops() / line.seconds
        return replace(line, teraflops=rate, share=rate / self.peak)

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

    def waits(self, function: Callable[[], object]) -> tuple[str, ...] | None:
        """Where a call waits for a GPU, for every time the innermost line of itrpipe or of this file."""
        if self.device.type != "cuda":
            return None
        found: list[str] = []

        def note(message: Warning | str, *rest: object) -> None:
            if "called a synchronizing" in str(message):
                found.append(line_of_ours(traceback.extract_stack()[:-1]))

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            warnings.showwarning = note
            try:
                function()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return tuple(found)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def line_of_ours(stack: Sequence[traceback.FrameSummary]) -> str:
    """`file:line` of the innermost frame in itrpipe or in this file; what libraries do is told by who calls them."""
    ours = [each for each in stack if each.filename == __file__ or each.filename.startswith(_PACKAGE)]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def mining(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Lists of both directions over a whole training set, against one bfloat16 product of all its embeddings."""
    counts = scale.train_images, scale.train_texts
    images, texts = (np.empty((count, scale.dim), dtype=np.float32) for count in counts)
    owners = _fill(images, texts, clock.device)
    mine, product = _mine_and_multiply(scale, clock, images, texts, owners)
    seconds, limit = clock.in_turn(mine, product)
    yield Line("mining", seconds, limit, "a bare bf16 product", _lists(scale, images, texts))


def large_mining(scale: Scale, clock: Clock) -> Iterator[Line]:
    """The same of embeddings that lie in files, once."""
    with tempfile.TemporaryDirectory() as folder:
        images, texts = (
            np.memmap(f"{folder}/{name}", np.float32, "w+", shape=(count, scale.dim))
            for name, count in (("images", scale.large_images), ("texts", scale.large_texts))
        )
        owners = _fill(images, texts, clock.device)
        mine, product = _mine_and_multiply(scale, clock, images, texts, owners)
        seconds, limit = clock.once(mine), clock.once(product)
        yield Line("mining of memory maps", seconds, limit, "a bare bf16 product", _lists(scale, images, texts))


def _fill(images: np.ndarray, texts: np.ndarray, device: torch.device) -> np.ndarray:
    """Unit vectors [N, D] and [T, D] in which a caption is near its image; returns the rows [T] of these."""
    owners = np.arange(len(texts)) % len(images)
    for start in range(0, len(images), _ROWS_AT_ONCE):
        part = images[start : start + _ROWS_AT_ONCE]
        part[:] = F.normalize(torch.randn(part.shape, device=device), dim=1).cpu().numpy()
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        part = texts[start : start + _ROWS_AT_ONCE]
        meaning = torch.from_numpy(images[owners[start : start + _ROWS_AT_ONCE]]).to(device)
        wording = torch.randn(part.shape, device=device) * part.shape[1] ** -0.5
        part[:] = F.normalize(meaning + wording, dim=1).cpu().numpy()
    return owners


def _rows(values: np.ndarray) -> Rows:
    """An array as mining reads it: a memory map from its file."""
    if isinstance(values, np.memmap):
        return StoredRows(Path(str(values.filename)), 0, values.dtype, values.shape)
    return HeldRows(values)


def _mine_and_multiply(
    scale: Scale, clock: Clock, images: np.ndarray, texts: np.ndarray, owners: np.ndarray
) -> tuple[Callable[[], None], Callable[[], None]]:
    left, right = (torch.from_numpy(each).to(clock.device, torch.bfloat16) for each in (images, texts))

    def mine() -> None:
        sides, widths = (_rows(images), _rows(texts)), (scale.num_texts, scale.num_images)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            work = ExactMining(Searched(sides, owners, widths), device=clock.device.type)
            worker, parts = work.open(), work.parts()
            paths = [folder / f"{part.name}{work.suffix}" for part in parts]
            for part, path in zip(parts, paths, strict=True):
                work.make(worker, part, path)
            for direction in DIRECTIONS:
                for _ in work.lists(paths, direction):
                    pass

    def product() -> None:
        for part in right.split(8_192):
            torch.mm(part, left.T)

    return mine, product


def _lists(scale: Scale, images: np.ndarray, texts: np.ndarray) -> str:
    return f"{len(images):,} x {len(texts):,}, {scale.num_images} and {scale.num_texts}"


def scores(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Scores of SCAN and BFAN, against the bare products of all regions with all words."""
    regions = F.normalize(torch.randn(scale.images, scale.regions, scale.joint, device=clock.device), dim=-1)
    words = F.normalize(torch.randn(scale.texts, scale.words, scale.joint, device=clock.device), dim=-1)
    lengths = torch.full((scale.texts,), scale.words, device=clock.device)
    share = COCO_PAIRS / (scale.images * scale.texts)

    def scored(scoring: CrossAttention, products: Any) -> Tensor:
        with torch.inference_mode(), torch.autocast(clock.device.type, torch.bfloat16, enabled=products == "bf16"):
            model = CrossAttentionModel(Scan(), scoring, 1, 1)
            return model.score_matrix(RegionEncoding(regions), WordEncoding(words, lengths))

    for name, scoring in SCORINGS.items():
        for products, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            left, right = (each.flatten(0, 1).to(kind) for each in (regions, words))

            def product(left: Tensor = left, right: Tensor = right) -> None:
                for part in left.split(4_096):
                    torch.mm(part, right.T)

            seconds, limit = clock.in_turn(partial(scored, scoring, products), product)
            told = f"COCO 5K in {share * seconds:.1f} s"
            yield Line(f"scores, {name}, {products}", seconds, limit, "a bare product", told)


def transformer_scores(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Scores of UNITER and SSAMT pair by pair, against as many bare layers of the same size on the same tokens."""
    sizes = {"embed_dim": scale.width, "layers": scale.layers, "feed_forward_dim": 4 * scale.width}
    base = Uniter.model_validate({**sizes, "heads": max(1, scale.width // 64)})
    tokens = scale.regions + scale.words
    yield _by_pairs("UNITER", uniter.build(base, scale.region_dim, scale.vocabulary), base, tokens, scale, clock)
    sizes = {"embed_dim": scale.joint, "feed_forward_dim": 2 * scale.joint, "heads": max(1, scale.joint // 64)}
    inter = Ssamt.model_validate(sizes)
    tokens += scale.phrases + 2
    yield _by_pairs("SSAMT", ssamt.build(inter, scale.region_dim, scale.vocabulary), inter, tokens, scale, clock)


def _by_pairs(name: str, model: Any, settings: Uniter | Ssamt, tokens: int, scale: Scale, clock: Clock) -> Line:
    width, side = settings.embed_dim, max(2, round(scale.pairs**0.5))
    data, rows = Sized(scale, side), np.arange(side)
    seen, read = data.images(rows).to(clock.device), data.texts(rows).to(clock.device)
    layer = nn.TransformerEncoderLayer(width, settings.heads, settings.feed_forward_dim, batch_first=True)
    bare = nn.TransformerEncoder(layer, settings.layers, enable_nested_tensor=False).to(clock.device).eval()
    states = torch.randn(side * side, tokens, width, device=clock.device)
    model = model.to(clock.device).eval()

    def under_autocast(function: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            with torch.inference_mode(), torch.autocast(clock.device.type, torch.bfloat16):
                function()

        return run

    ours = under_autocast(lambda: model.score_matrix(model.encode_images(seen), model.encode_texts(read)))
    limit = under_autocast(lambda: [bare(part) for part in states.split(512)])
    seconds, bound = clock.in_turn(ours, limit)
    told = f"COCO 5K in {COCO_PAIRS / side**2 * seconds / 3600:.2f} h"
    return Line(f"scores, {name}", seconds, bound, "bare layers", told)


def extraction(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Features of photographs in files, against bare forward passes over the decoded batches."""
    from transformers import ViTConfig, ViTImageProcessor

    from itrpipe.features.extractors.butd import extractor as butd
    from itrpipe.features.extractors.frcnn import extractor as frcnn
    from itrpipe.features.extractors.vision import extractor as vision
    from tests.benchmarks.extraction import whole_and_forward, write_photographs

    # Processors without bfloat16 units take a minute for a detector's convolutions.
    precision = "bf16" if clock.device.type == "cuda" else "fp32"
    regions = {"min_regions": scale.regions, "max_regions": scale.regions, "min_score": 0.2, "precision": precision}
    sides = {"short_side": scale.short_side, "long_side": 2 * scale.short_side, "nms": 0.3, "proposals": 300}
    detector = Frcnn.model_validate({"kind": "frcnn", "weights": "random", **regions, **sides})
    published = Butd.model_validate({"kind": "butd", "weights": "random", "revision": "main", **regions})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        heads = max(1, scale.width // 64)
        side = 64 if scale.layers == 1 else 224
        config = ViTConfig(
            hidden_size=scale.width,
            num_hidden_layers=scale.layers,
            num_attention_heads=heads,
            intermediate_size=4 * scale.width,
            image_size=side,
        )
        config.save_pretrained(folder)
        ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
        encoder = Vision(kind="vision", model=str(folder), revision="main", weights="random", precision=precision)
        kinds = [("vit", vision.build, encoder, scale.encoded, 64), ("frcnn", frcnn.build, detector, scale.detected, 8)]
        kinds += [("butd", butd.build, published, scale.detected, 8)] if scale.short_side >= 600 else []
        for kind, build, settings, count, batch in kinds:
            images = write_photographs(folder, count, scale.photograph)
            extractor: Any = build(settings, clock.device)  # pyright: ignore
            for decoders in scale.decoders if kind == "vit" else scale.decoders[-1:]:
                both = whole_and_forward(images, extractor, batch, folder, decoders, clock.device)
                seconds, bound = replace(clock, rounds=min(2, clock.rounds)).in_turn(*both)
                told = f"{count / seconds:.1f} images/s, {decoders} decoders of {_decoder()}"
                yield Line(f"extraction, {kind}, {decoders} decoders", seconds, bound, "bare forward passes", told)


def _decoder() -> str:
    return "Pillow" if pictures._jpeg_decoder() is None else "TorchCodec"


def clip(scale: dict[str, Any], data_dim: int = 0) -> Any:
    """A dual encoder as large as a CLIP, with random weights."""
    config = CLIPConfig(vision_config=scale["vision"], text_config=scale["text"])
    side = config.vision_config.image_size
    reader = ImageReader(CLIPImageProcessor(size={"height": side, "width": side}, do_center_crop=False))
    texts = TextReader(None, "own", config.text_config.max_position_embeddings, [])
    encoder = Encoder(CLIPModel(config), reader, texts)
    settings = DualEncoder(vision="clip", text="clip")
    return dual_encoder.build(settings, data_dim, 0, dual_encoder.Encoders(encoder, encoder))


def embeddings(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Images that a CLIP ViT-L/14 at 336 pixels embeds, in two precisions, against its bare forward passes."""
    model = clip(scale.large).to(clock.device).eval()
    data = Sized(replace(scale, regions=1, region_dim=1), scale.embedded, model.vision.images.frame[0])
    rows, block = np.arange(scale.embedded), 256
    texts: list[Tensor] = []
    for precision in ("fp32", "bf16"):
        encoder = SplitEncoder(model, clock.device, block, embed_precision=precision)

        def ours(encoder: SplitEncoder = encoder) -> np.ndarray:
            return np.concatenate(list(embedded(encoder.images(data, rows))))

        def forward(precision: str = precision) -> None:
            pixels = data.images(rows[:block]).to(clock.device)
            with torch.autocast(clock.device.type, torch.bfloat16, enabled=precision == "bf16"), torch.inference_mode():
                for _ in range(-(-scale.embedded // block)):
                    model.encode_images(pixels)

        seconds, limit = clock.in_turn(ours, forward)
        texts.append(torch.from_numpy(ours()))
        apart = (texts[-1] @ texts[-1].T - texts[0] @ texts[0].T).abs().max()
        told = f"{scale.embedded / seconds:,.0f} images/s, scores at most {apart:.1e} apart from fp32"
        line = Line(f"embeddings, CLIP ViT-L/14, {precision}", seconds, limit, "bare forward passes", told)
        yield clock.counted(line, ours)


def copies(scale: Scale, clock: Clock) -> Iterator[Line]:
    """Steps of AOQ whose batches come from memory as in training, against steps on one that lies on the device."""
    data = Sized(scale, 2 * scale.batch)
    model = vsrn.build(Vsrn(embed_dim=2 * scale.joint, graph_layers=4), scale.region_dim, scale.vocabulary)
    drawn = Aoq(sum_epochs=0, top_texts=scale.batch, top_images=scale.batch)
    method: Any = aoq.build(drawn, data, data.lists())  # pyright: ignore
    update = _updates(model.to(clock.device).train())
    rng = np.random.default_rng(0)
    batches = [rng.permutation(data.num_captions)[: scale.batch] for _ in range(8)]
    there = method.collate(batches[0], rng).to(clock.device)

    def fed() -> None:
        for batch in feed(lambda rows: method.collate(rows, rng), batches, 2, clock.device):
            update(_loss(model, method, batch))

    def resident() -> None:
        for _ in batches:
            update(_loss(model, method, there))

    seconds, limit = clock.in_turn(fed, resident)
    rate = f"{len(batches) * scale.batch / seconds:,.0f} pairs/s"
    yield Line("steps with their copies, AOQ, VSRN", seconds, limit, "steps without", rate)


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
    data = Sized(scale, 2 * scale.fne_batch, scale.side)
    chosen = DualEncoder.model_validate({**encoders, "image_size": (scale.side,) * 2, "patch_size": scale.patch})
    opened = dual_encoder.open_encoders(chosen)
    model = dual_encoder.build(chosen, scale.region_dim, scale.vocabulary, opened)
    method: Any = fne.build(Fne(memory_size=scale.memory, warm_epochs=0, sum_epochs=0), data)  # pyright: ignore
    yield _step("FNE, ViT-B/16 at 384", model, method, data, scale.fne_batch, clock)
    for batch in scale.clip_batches:
        for way in ("eager", "compiled"):
            model = clip(scale.clip)
            sizes = {
                "words": 77,
                "regions": 1,
                "region_dim": 1,
                "vocabulary": model.text.network.config.text_config.vocab_size,
            }
            data = Sized(replace(scale, **sizes), batch, model.vision.images.frame[0])
            method = contrastive.build(Contrastive(), data)  # pyright: ignore
            if way == "compiled" and clock.device.type == "cuda":
                compile_encoders(model, clock.device)
            yield _step(f"InfoNCE, CLIP ViT-B/32, {batch}, {way}", model, method, data, batch, clock)


def _step(name: str, model: Any, method: Method, data: Sized, size: int, clock: Clock) -> Line:
    model.to(clock.device).train()
    method.attach(model).to(clock.device)
    method.start_epoch(1)
    update = _updates(model)
    rng = np.random.default_rng(0)
    batch: Batch = method.collate(rng.permutation(data.num_captions)[:size], rng).to(clock.device)
    seen: list[tuple[Callable[[Any], Any], Any]] = []

    def ours() -> None:
        update(_loss(model, method, batch))

    def encoders_alone() -> None:
        with _autocast(clock.device):
            found = [tensor for encode, read in seen for tensor in vars(encode(read)).values()]
        update(sum(each.float().mean() for each in found if isinstance(each, Tensor) and each.requires_grad))  # pyright: ignore

    _listen(model, seen, ours)
    seconds, limit = clock.in_turn(ours, encoders_alone)
    rate = f"{size / seconds:,.0f} pairs/s"
    line = Line(f"step, {name}", seconds, limit, "the encoders alone", rate, clock.waits(ours))
    return clock.counted(line, ours)


def _updates(model: Any) -> Callable[[Tensor], None]:
    """A function that takes a step of Adam down a loss."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-6, fused=next(model.parameters()).is_cuda)

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def _autocast(device: torch.device) -> torch.autocast:
    """bfloat16 as training takes it on a GPU; processors keep single precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _loss(model: Any, method: Method, batch: Batch) -> Tensor:
    with _autocast(batch.images.device):
        losses = method.losses(model, batch, 1)
    return torch.stack(list(losses.values())).sum()


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
    "large-mining": large_mining,
    "scores": scores,
    "transformer": transformer_scores,
    "steps": steps,
    "copies": copies,
    "embeddings": embeddings,
    "extraction": extraction,
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
    clock, found = Clock(device, scale.rounds, scale.product), []
    for part in chosen.only or PARTS:
        torch.manual_seed(0)
        for line in PARTS[part](scale, clock):
            print(line, flush=True)
            found.append(line)
    if chosen.json:
        known = {"device": name, "torch": torch.__version__, "lines": [asdict(line) for line in found]}
        chosen.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
