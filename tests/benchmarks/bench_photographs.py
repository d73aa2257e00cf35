"""Training on photographs that are read when they are needed, beside the bare work: decode, crop, forward, backward.

Run with `make bench`; `python tests/benchmarks/bench_photographs.py FOLDER` takes the JPEG files of a folder instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from extraction import write_photographs
from measure import paired, show
from PIL import Image
from torch import Tensor

from itrpipe.datasets.pictures import read_rgb
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.features.extraction import ImageFiles
from itrpipe.methods.base import TokenLimits
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.captions import CaptionPart, WordIds
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import Augment, DualEncoder
from itrpipe.training.batches import feed
from itrpipe.training.data import PixelSplitData, TokenTexts

BATCH = 64
WORDS = ["a", "dog", "on", "the", "road"]
CPU = torch.device("cpu")
CROPS = Augment(scale=0.9, flip=False, randaugment=False)
TINY_VIT = DualEncoder(
    vision="random", text="random", image_size=(224, 224), patch_size=32, width=192, vision_layers=4, text_layers=2
)


class OneByOne(PixelSplitData):
    """Reads, cuts out and resizes one photograph after the other, where a batch is asked for."""

    def _frames(self, rows: np.ndarray, boxes: np.ndarray | None = None) -> Tensor:
        frames = []
        for place, row in enumerate(rows.tolist()):
            image = read_rgb(self._files.root / self._files.files[row])
            if boxes is None:
                frames.append(self._reader.framed(image))
            else:
                frames.append(self._reader.cropped(image, boxes[place]))
        return torch.stack(frames)


class Epoch:
    """An epoch of a tiny ViT over photographs with a caption each.

    Args:
        files: of the photographs.
        kind: of the data.
        ahead: batches that are made ahead.

    Attributes:
        waited: seconds in which steps have waited for data.
    """

    def __init__(self, files: ImageFiles, kind: type[PixelSplitData], ahead: int) -> None:
        names = [str(row) for row in range(len(files.files))]
        words = pa.array([WORDS] * len(names), pa.list_(pa.string()))
        text = [" ".join(WORDS)] * len(names)
        captions = pa.table({"caption_id": names, "image_id": names, "text": text, "tokens": words})
        split = Split("train", pa.table({"image_id": names}), captions)
        tokens = WordIds(Vocabulary((*SPECIALS, *WORDS)), CaptionPart(cleaned=True, max_words=30))
        model: Any = dual_encoder.build(TINY_VIT, 3, len(tokens), dual_encoder.open_encoders(TINY_VIT))
        data = kind(split, files, TokenTexts.of(split, tokens), model.vision.images, CROPS)
        self._model = model.train()
        self._method = triplet.build(Triplet(), data, TokenLimits(1, 1, 32))
        self._method.attach(model)
        self._ahead = ahead
        order = np.random.default_rng(0).permutation(len(names))
        self._batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        self.waited = 0.0

    def __call__(self) -> None:
        batches: Iterator[Any] = (self._made(rows) for rows in self._batches)
        if self._ahead:
            batches = feed(self._made, self._batches, self._ahead, CPU)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            losses = self._method.losses(self._model, batch, 1)
            torch.stack(list(losses.values())).sum().backward()
            self._model.zero_grad(set_to_none=True)

    def _made(self, rows: np.ndarray) -> Any:
        return self._method.collate(rows, np.random.default_rng(0))


def compare(files: ImageFiles, rounds: int = 3) -> None:
    """Measure epochs in turn, by the clock and by what the processors have worked."""
    ours = Epoch(files, PixelSplitData, 4)
    bare = Epoch(files, OneByOne, 0)
    wall, bare_wall = paired(ours, bare, rounds)
    share = ours.waited / (rounds + 1) / wall
    show("an epoch", wall, bare_wall, "the bare work", f"{len(files.files) / wall:.0f} photographs/s")
    print(f"  waited for data: {share:.1%} of the time")
    cpu, bare_cpu = paired(ours, bare, rounds, clock=time.process_time)
    show("an epoch, processor time", cpu, bare_cpu, "the bare work", f"{1e3 * cpu / len(files.files):.1f} ms each")
    assert wall < 1.25 * bare_wall
    assert cpu < 1.25 * bare_cpu
    assert share < 0.1


def test_training_waits_for_no_photographs(tmp_path: Path) -> None:
    compare(write_photographs(tmp_path, 512))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    names = sorted(path.name for path in folder.glob("*.jpg"))[:1024]
    sizes = [Image.open(folder / name).size[::-1] for name in names]
    compare(ImageFiles(folder, names, np.array(sizes)))
