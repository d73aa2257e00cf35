"""Speed of framing photographs and of reading features against resizing and a memory map; memory of an import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from extraction import PHOTOGRAPH
from measure import apart, most_memory, paired, show
from PIL import Image

from itrpipe.encoders.encoder import open_images
from itrpipe.features.extractors.vision.frames import Framing
from itrpipe.features.importers.precomp import importer as precomp
from itrpipe.features.importers.precomp.declaration import Precomp
from itrpipe.features.store import FeatureFile, FeatureSpec, stored_rows, write_features

GIB = 2**30


@pytest.mark.parametrize(
    "processor",
    [
        transformers.ViTImageProcessor(),
        transformers.CLIPImageProcessor(),
        transformers.SiglipImageProcessor(),
        transformers.BitImageProcessor(size={"shortest_edge": 256}, resample=3),
        transformers.ConvNextImageProcessor(size={"shortest_edge": 224}),
    ],
    ids=lambda processor: type(processor).__name__,
)
def test_the_transform_against_resizing_alone(processor: Any, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    transform = Framing(open_images(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (*PHOTOGRAPH, 3), dtype=np.uint8)
    _, height, width = transform(pixels).shape

    def limit() -> None:
        np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))

    seconds, bare = paired(lambda: transform(pixels), limit, rounds=20)
    show(type(processor).__name__, seconds, bare, "Pillow's resizing", f"{seconds * 1e3:.1f} ms")
    assert seconds < 6 * bare


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A feature file of 4 GiB: 27,000 images, 36 regions, 2,048 wide."""
    path = tmp_path_factory.mktemp("big") / "features.h5"
    spec = FeatureSpec(36, 2048)
    count = 4 * GIB // (36 * 2048 * 2)
    block = np.random.default_rng(0).standard_normal((256, 36, 2048)).astype(np.float16)
    rows = (np.arange(start, min(start + 256, count)) for start in range(0, count, 256))
    pieces = ((own, {"regions": block[: len(own)], "count": np.full(len(own), 36, dtype=np.int16)}) for own in rows)
    write_features(path, [str(row) for row in range(count)], spec, "bench", pieces)
    yield path
    path.unlink()


def test_random_batches_against_a_plain_memory_map(big_file: Path) -> None:
    file = FeatureFile.open(big_file)
    regions = file.arrays["regions"]
    assert isinstance(regions, np.memmap)
    plain = np.memmap(big_file, "<f2", "r", regions.offset, regions.shape)
    random = np.random.default_rng(0)
    order = [random.choice(len(file), 128, replace=False) for _ in range(40)]
    names = [[str(row) for row in rows] for rows in order]

    def ours() -> None:
        for each in names:
            torch.from_numpy(regions[file.rows(each)])

    def limit() -> None:
        for rows in order:
            plain[rows]

    seconds, bare = paired(ours, limit)
    gigabytes = len(order) * 128 * 36 * 2048 * 2 / 1e9
    show("reading random batches", seconds, bare, "a plain memory map", f"{gigabytes / seconds:.1f} GB/s")
    assert seconds < 3 * bare


def imported(folder: Path) -> tuple[float, float]:
    """GiB that a process had resident at most: when it has imported arrays, and before."""
    before = most_memory()
    source = precomp.open_source(folder, Precomp(kind="precomp"))
    count = len(source.names)
    blocks = (np.arange(start, min(start + 32, count)) for start in range(0, count, 32))
    sizes = np.ones((32, 2), dtype=np.int64)
    pieces = ((rows, stored_rows(source.spec, source.read(rows, sizes[: len(rows)]))[0]) for rows in blocks)
    write_features(folder / "features.h5", [str(row) for row in range(count)], source.spec, "precomp", pieces)
    return most_memory() / GIB, before / GIB


def test_memory_of_importing_two_gigabytes(tmp_path: Path) -> None:
    count = 2 * GIB // (36 * 2048 * 4)
    array = np.lib.format.open_memmap(tmp_path / "train_ims.npy", "w+", "<f4", (count, 36, 2048))
    array[:] = 1.5
    del array
    (tmp_path / "train_ids.txt").write_text("".join(f"{row}\n" for row in range(count)))
    ((peak, before),) = apart(__file__, tmp_path)
    print(f"\n  importing a .npy of 2 GiB: at most {peak:.2f} GiB resident ({before:.2f} GiB before it begins)")
    assert peak < 1.5


if __name__ == "__main__":
    print(json.dumps(imported(Path(sys.argv[1]))))
