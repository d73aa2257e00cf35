"""Speed of the stages against what the machine can do at best. Run with `make bench`; prints, asserts nothing slow."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
import torch
from bench_features import compare
from measure import paired, show
from rich.console import Console

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.evaluation.intervals import fold_intervals
from itrpipe.evaluation.metrics import ranks
from itrpipe.features.extraction import ImageFiles
from itrpipe.features.extractors.scenes import extractor as scenes
from itrpipe.features.extractors.scenes.declaration import Scenes
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.lists import HeldRows, MinedFile, Searched
from itrpipe.progress import Reporter
from itrpipe.scenes import generate, paint
from itrpipe.scenes.build import Painting, file_name, write_images
from itrpipe.scenes.layout import HEIGHT, WIDTH

IMAGES = 256


@pytest.fixture(scope="module")
def drawings():
    return generate(IMAGES, 4, 4, seed=5).of_split("train").scenes


def write_drawings(drawings, folder):
    made = make_parts(
        Painting(drawings), folder / "drawn", MapExecution(workers=1), Reporter(Console(quiet=True)), print
    )
    write_images(made.paths, folder)


def test_drawing_against_painting_alone(drawings, tmp_path):
    def draw():
        shutil.rmtree(tmp_path)
        write_drawings(drawings, tmp_path)

    def paint_and_encode():
        for scene in drawings:
            paint(scene).save(io.BytesIO(), "JPEG", quality=88)

    ours, limit = paired(draw, paint_and_encode, rounds=3)
    show("drawing scenes to files, one process", ours, limit, "painting and encoding", f"{IMAGES / ours:.0f} images/s")


def test_extraction_against_a_bare_forward_pass(drawings, tmp_path):
    write_drawings(drawings, tmp_path)
    sizes = np.array([(HEIGHT, WIDTH)] * IMAGES)
    images = ImageFiles(tmp_path, [file_name(scene) for scene in drawings], sizes)
    compare("scenes", images, scenes.build(Scenes(kind="scenes"), torch.device("cpu")), 64, tmp_path)


@pytest.mark.parametrize(("images", "dim"), [(1_000, 1_024), (4_000, 256)])
def test_mining_against_one_matrix_product(images, dim, tmp_path):
    rng = np.random.default_rng(0)
    caption_image = np.repeat(np.arange(images), 5)
    image_vectors = rng.standard_normal((images, dim), dtype=np.float32)
    text_vectors = rng.standard_normal((5 * images, dim), dtype=np.float32)

    def mine():
        sides = HeldRows(image_vectors), HeldRows(text_vectors)
        work = ExactMining(Searched(sides, caption_image, (300, 60)), precision="fp32")
        worker, parts = work.open(), work.parts()
        paths = [tmp_path / f"{part.name}{work.suffix}" for part in parts]
        for part, path in zip(parts, paths, strict=True):
            path.unlink(missing_ok=True)
            work.make(worker, part, path)
        work.join(paths, tmp_path / "mined.arrays")
        return MinedFile(tmp_path / "mined.arrays").lists()

    left, right = torch.from_numpy(image_vectors), torch.from_numpy(text_vectors)
    ours, limit = paired(mine, lambda: left @ right.T, rounds=3)
    pairs = images * 5 * images
    show(
        f"mining {images:,} images, width {dim}", ours, limit, "the bare product", f"{pairs / ours / 1e6:.0f} M pairs/s"
    )


def test_metrics_against_one_pass_over_the_scores():
    scores = np.random.default_rng(0).standard_normal((500, 2_500), dtype=np.float32)
    caption_image = np.repeat(np.arange(500), 5)

    def measure():
        return fold_intervals([(ranks(scores, caption_image), caption_image)])

    ours, limit = paired(measure, lambda: np.sort(scores, axis=1))
    show(
        "metrics and 1,000 bootstrap samples, 500 x 2,500", ours, limit, "one sort of the rows", f"{ours * 1000:.0f} ms"
    )
