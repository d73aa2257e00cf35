"""What the engine costs: parts against bare loops, two processes against one, and the memory of mining at three sizes.

Run with `make bench`; the sizes of `python tests/benchmarks/bench_engine.py IMAGES CAPTIONS FOLDER` are free.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure import apart, most_memory, paired, show
from rich.console import Console

from itrpipe.engine.run import MapExecution, make_parts, usable_cores
from itrpipe.engine.work import Made, Work
from itrpipe.progress import Reporter
from itrpipe.scene_graph.build import Parsing, RulesParser
from itrpipe.scene_graph.graph import Item
from itrpipe.scenes.build import Painting, generate, write_images
from itrpipe.scenes.paint import paint
from itrpipe.storage.arrays import StoredRows

DIM = 64
SIZES = ((3_000, 15_000), (10_000, 50_000), (30_000, 150_000))


def run(work: Work, folder: Path, workers: int = 1) -> Made:
    shutil.rmtree(folder, ignore_errors=True)
    return make_parts(work, folder, MapExecution(workers=workers), Reporter(Console(quiet=True)), print)


@pytest.fixture(scope="module")
def parsing() -> Parsing:
    from itrpipe.scene_graph.settings import ParseSettings

    captions = generate(4_000, 4, 4, seed=5).captions
    texts = dict.fromkeys(caption.text for five in captions for caption in five)
    values = {"tagger": "hanta", "file": ""}
    return Parsing([Item(text) for text in texts], partial(RulesParser, ParseSettings.model_validate(values).tagger))


def test_parsing_in_parts_against_a_bare_loop(parsing: Parsing, tmp_path: Path) -> None:
    parser = parsing.open()
    items = [item for part in parsing.parts() for item in part.content]
    ours, limit = paired(
        lambda: run(parsing, tmp_path / "parts"), lambda: [parser.parse(item) for item in items], rounds=3
    )
    show("parsing, one worker", ours, limit, "a bare loop", f"{len(items) / ours:.0f} captions/s")
    assert ours < 1.5 * limit


def test_two_processes_against_one(parsing: Parsing, tmp_path: Path) -> None:
    if usable_cores() < 2:
        pytest.skip("needs two cores")
    one, two = paired(lambda: run(parsing, tmp_path / "one", 1), lambda: run(parsing, tmp_path / "two", 2), rounds=3)
    print(f"\n  parsing: two workers are {one / two:.2f} times as fast as one, their start included")


def test_drawing_against_painting_alone(tmp_path: Path) -> None:
    drawings = generate(256, 4, 4, seed=5).of_split("train").scenes

    def draw() -> None:
        write_images(run(Painting(drawings), tmp_path / "drawn").paths, tmp_path)

    def paint_and_encode() -> None:
        for scene in drawings:
            paint(scene).save(io.BytesIO(), "JPEG", quality=88)

    ours, limit = paired(draw, paint_and_encode, rounds=3)
    show("drawing scenes to files, one process", ours, limit, "painting and encoding", f"{256 / ours:.0f} images/s")
    assert ours < 2 * limit


def stored(path: Path, shape: tuple[int, ...]) -> StoredRows:
    """Random unit vectors on the disk, written a slice at a time."""
    generator = np.random.default_rng(len(path.name))
    with path.open("wb") as file:
        for start in range(0, shape[0], 1 << 15):
            vectors = generator.standard_normal((min(1 << 15, shape[0] - start), *shape[1:]), dtype=np.float32)
            file.write((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tobytes())
    return StoredRows(path, 0, np.dtype("<f4"), shape)


def measured_memory(images: int, captions: int, folder: Path) -> dict[str, Any]:
    """MiB that this process had resident at most when parts were mined and joined, and how long the mining took."""
    from itrpipe.mining.exact import ExactMining
    from itrpipe.mining.lists import DIRECTIONS, Searched

    owners = np.arange(captions) * images // captions
    sides = stored(folder / "images", (images, DIM)), stored(folder / "texts", (captions, DIM))
    work = ExactMining(Searched(sides, owners, (300, 60)))
    made = run(work, folder / "parts")
    for name in DIRECTIONS:
        for _ in work.lists(made.paths, name):
            pass
    return {"peak": most_memory() >> 20, "seconds": round(made.seconds, 1)}


def test_memory_of_mining_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    peaks = []
    for images, captions in SIZES:
        folder = tmp_path / str(images)
        folder.mkdir()
        (found,) = apart(__file__, images, captions, folder)
        peaks.append(found["peak"])
        print(f"\n  mining {images:,} x {captions:,}: peak {found['peak']} MiB, {found['seconds']} s")
    assert max(peaks[1:]) < 1.15 * min(peaks[1:])  # the smallest is smaller than a tile


if __name__ == "__main__":
    _, images, captions, folder = sys.argv
    print(json.dumps(measured_memory(int(images), int(captions), Path(folder))))
