"""Trains the detector of `scenes` and writes its weights.

    python -m itrpipe.features.extractors.scenes.train \\
        --images 20000 --seed 1000 --steps 10000 --out weights.safetensors

The scenes are generated with a seed of their own, so that no dataset made with another seed shares a picture with the
training set. The steps are counted and not timed: the same command on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from itrpipe.datasets.scenes import Scene, generate, paint
from itrpipe.datasets.scenes.build import JPEG_QUALITY
from itrpipe.datasets.scenes.layout import HEIGHT, WIDTH
from itrpipe.features.extractors.scenes.boxes import overlaps
from itrpipe.features.extractors.scenes.detector import ATTRIBUTES, ScenesDetector
from itrpipe.features.extractors.scenes.detector_loss import Objects, losses, objects_of

_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 1e-4
_WARM_UP_STEPS = 100
_GRADIENT_NORM = 5.0
_BATCH = 16
_BRIGHTNESS = 0.05
_FOUND_OVERLAP = 0.5
_REPORT_STEPS = 100
_MEASURE_BATCH = 50


@dataclass(frozen=True)
class Quality:
    """How good a detector is on scenes it was not trained on, all in 0..1.

    Attributes:
        recall: share of the objects that a region overlaps by more than half.
        kind, colour, pattern, size: share of the objects found of which this is told rightly.
    """

    recall: float
    kind: float
    colour: float
    pattern: float
    size: float


def paint_all(scenes: Sequence[Scene]) -> Tensor:
    """Returns the pictures [N, 3, 144, 192] uint8 as they come out of the dataset's JPEG files."""
    pixels = np.empty((len(scenes), HEIGHT, WIDTH, 3), dtype=np.uint8)
    for row, scene in enumerate(scenes):
        buffer = io.BytesIO()
        paint(scene).save(buffer, "JPEG", quality=JPEG_QUALITY)
        pixels[row] = np.asarray(Image.open(buffer))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def train(model: ScenesDetector, images: Tensor, objects: Objects, steps: int, seed: int, report: bool) -> list[float]:
    """Trains `model` in place for `steps` steps with a cosine schedule.

    Args:
        model: the detector.
        images: [N, 3, 144, 192] uint8.
        objects: of the same N images.
        steps: number of batches of 16.
        seed: of the order of the images and of the sampling.
        report: whether to print the losses every hundred steps.

    Returns:
        The loss of each step.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate_factor(step, steps))
    model.train()
    history: list[float] = []
    started = time.monotonic()
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if len(order) < _BATCH:
            order = torch.cat([order, torch.randperm(len(images))])
        batch, order = order[:_BATCH], order[_BATCH:]
        terms = losses(model, *_augment(images[batch], objects.select(batch)), _has_bfloat16())
        loss = torch.stack(list(terms.values())).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        history.append(loss.item())
        if report and (step + 1) % _REPORT_STEPS == 0:
            _print_progress(step + 1, time.monotonic() - started, history, terms)
    return history


def _learning_rate_factor(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def _has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself; where it does not, bfloat16 is slower than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _augment(images: Tensor, objects: Objects) -> tuple[Tensor, Objects]:
    """Mirrors half of the images and changes the brightness of each channel by up to 5 %."""
    flip = torch.rand(len(images)) < 0.5
    gain = 1 + _BRIGHTNESS * (2 * torch.rand(len(images), 3, 1, 1) - 1)
    pixels = torch.where(flip[:, None, None, None], images.flip(-1), images).float() * gain
    return pixels, objects.mirrored(flip)


def _print_progress(step: int, seconds: float, history: Sequence[float], terms: dict[str, Tensor]) -> None:
    mean = sum(history[-_REPORT_STEPS:]) / _REPORT_STEPS
    details = " ".join(f"{name} {value.item():.3f}" for name, value in terms.items())
    print(f"step {step}  {seconds:.0f} s  loss {mean:.3f}  {details}", flush=True)


def measure(model: ScenesDetector, images: Tensor, objects: Objects) -> Quality:
    """Returns how well `model` finds and names the objects of images [N, 3, 144, 192]."""
    model.eval()
    found, right = 0, dict.fromkeys(("kind", *ATTRIBUTES), 0)
    size = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
    for rows in torch.arange(len(images)).split(_MEASURE_BATCH):
        truth, detected = objects.select(rows), model(images[rows])
        overlap, region = overlaps(truth.boxes, detected.boxes[:, 1:] * size).max(dim=2)  # [b, 5]
        hit = (overlap > _FOUND_OVERLAP) & truth.real
        found += int(hit.sum())
        expected = {"kind": truth.kinds} | truth.attributes
        for name, values in ({"kind": detected.labels} | detected.attributes).items():
            right[name] += int((values[:, 1:].gather(1, region) == expected[name])[hit].sum())
    shares = {name: round(count / max(found, 1), 4) for name, count in right.items()}
    return Quality(recall=round(found / int(objects.real.sum()), 4), **shares)


def write_weights(model: ScenesDetector, path: Path, record: dict[str, object]) -> None:
    """Writes the weights as float16, whole or not at all, with `record` as JSON under the metadata key `training`."""
    state = {name: value for name, value in model.state_dict().items() if "num_batches_tracked" not in name}
    halves = {name: value.half().contiguous() for name, value in state.items()}
    temporary = path.with_name(path.name + ".partial")
    temporary.write_bytes(save(halves, {"training": json.dumps(record, sort_keys=True)}))
    os.replace(temporary, path)


def round_weights(model: ScenesDetector) -> None:
    """Rounds the weights in place to what float16 stores, so that they are measured as they are shipped."""
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.half())


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of this module."""
    options = _parse(arguments)
    command = (
        f"python -m itrpipe.features.extractors.scenes.train --images {options.images} "
        f"--held-out {options.held_out} --seed {options.seed} --steps {options.steps} --out {options.out.name}"
    )
    started = time.monotonic()
    dataset = generate(options.images, 0, options.held_out, options.seed)
    images, objects = paint_all(dataset.scenes), objects_of(dataset.scenes)
    print(f"{len(images)} images painted in {time.monotonic() - started:.0f} s", flush=True)
    torch.manual_seed(options.seed)
    model = ScenesDetector()
    learned, held_out = torch.arange(options.images), torch.arange(options.images, len(images))
    train(model, images[: options.images], objects.select(learned), options.steps, options.seed, report=True)
    round_weights(model)
    quality = asdict(measure(model, images[options.images :], objects.select(held_out)))
    print("held-out:", " ".join(f"{name} {value:.4f}" for name, value in quality.items()), flush=True)
    record = {"command": command, "seed": options.seed, "steps": options.steps, "quality": quality}
    write_weights(model, options.out, record)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes", flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the region detector of the scenes dataset.")
    parser.add_argument("--images", type=_positive, default=20_000, help="scenes to train on")
    parser.add_argument("--held-out", type=_positive, default=1_000, help="scenes to measure the result on")
    parser.add_argument("--seed", type=int, default=1000, help="of the scenes, the start and the sampling")
    parser.add_argument("--steps", type=_positive, default=10_000, help="batches of 16 images")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    options = parser.parse_args(arguments)
    if not options.out.parent.is_dir():
        parser.error(f"folder {options.out.parent} does not exist")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


if __name__ == "__main__":
    main()
