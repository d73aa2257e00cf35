"""Mining 20,000 images and 100,000 captions against faiss, a bare product and the exact answer. Run with `make bench`.

Times are measured in a process of its own, `python tests/benchmarks/bench_mining.py FOLDER`. Torch and faiss each bring
threads that spin while they wait for work; there they sleep, as they would otherwise take the cores from one another.
Memory is measured in `bench_engine`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from measure import apart

from itrpipe.engine.work import Part
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.lists import DIRECTIONS, HeldRows, Searched
from itrpipe.mining.searcher import faster_products, product_seconds

IMAGES, CAPTIONS_PER_IMAGE, DIM = 20_000, 5, 1_024
NUM_TEXTS, NUM_IMAGES = 300, 60
SAMPLE = 500
PRODUCT_ROWS = 500
QUERIES = 500
CAPTION_IMAGE = np.repeat(np.arange(IMAGES), CAPTIONS_PER_IMAGE)


def embeddings() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors as a trained model gives them: few directions carry most of a score, captions near their image."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(64, DIM, generator=generator) / 8
    meaning = torch.randn(IMAGES, 64, generator=generator)
    wording = torch.randn(IMAGES * CAPTIONS_PER_IMAGE, 64, generator=generator)
    both = []
    for points in (meaning, meaning.repeat_interleave(CAPTIONS_PER_IMAGE, dim=0) + 0.7 * wording):
        vectors = points @ directions
        vectors += 0.5 * torch.randn(vectors.shape, generator=generator)
        both.append(torch.nn.functional.normalize(vectors, dim=1).numpy())
    return both[0], both[1]


class Mining:
    """Mining of embeddings in memory, part by part; its files lie in a folder.

    Attributes:
        parts: all of them.
    """

    def __init__(self, images: np.ndarray, texts: np.ndarray, folder: Path) -> None:
        searched = Searched((HeldRows(images), HeldRows(texts)), CAPTION_IMAGE, (NUM_TEXTS, NUM_IMAGES))
        self._work = ExactMining(searched)
        self._folder, self._worker, self.parts = folder, self._work.open(), self._work.parts()

    def make(self, part: Part) -> None:
        """Mines one part."""
        self._work.make(self._worker, part, self._path(part))

    def lists(self) -> dict[str, np.ndarray]:
        """Rows of the lists of all parts, by direction."""
        paths = [self._path(part) for part in self.parts]
        found = {}
        for name in DIRECTIONS:
            found[name] = np.concatenate([lists.candidates for _, lists in self._work.lists(paths, name)])
        return found

    def _path(self, part: Part) -> Path:
        return self._folder / f"{part.name}{self._work.suffix}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("embeddings")
    for name, part in zip(("images", "texts"), embeddings(), strict=True):
        np.save(found / f"{name}.npy", part)
    return found


@pytest.fixture(scope="module")
def times(folder: Path) -> dict[str, float]:
    pytest.importorskip("faiss")
    (found,) = apart(__file__, folder, OMP_WAIT_POLICY="passive")
    return found


class Competitors:
    """The same work done otherwise, a slice at a time: a product of the faster type, and both searches of faiss."""

    def __init__(self, images: np.ndarray, texts: np.ndarray) -> None:
        import faiss

        kind = faster_products("cpu")
        self._left, self._right = torch.from_numpy(images).to(kind), torch.from_numpy(texts).to(kind)
        self._out = torch.empty(PRODUCT_ROWS, len(texts), dtype=kind)
        self._searches = []
        for searched, queries, own in ((texts, images, CAPTIONS_PER_IMAGE), (images, texts, 1)):
            index = faiss.IndexFlatIP(DIM)
            index.add(searched)
            wanted = NUM_TEXTS if searched is texts else NUM_IMAGES
            self._searches.append((index, queries, wanted + own))

    def product(self) -> float:
        """Seconds of the whole product, from one slice of it."""
        start = time.perf_counter()
        torch.mm(self._left[:PRODUCT_ROWS], self._right.T, out=self._out)
        return (time.perf_counter() - start) * len(self._left) / PRODUCT_ROWS

    def searches(self, turn: int) -> float:
        """Seconds of both whole searches, from some queries of each."""
        seconds = 0.0
        for index, queries, fetch in self._searches:
            first = turn * QUERIES % (len(queries) - QUERIES)
            start = time.perf_counter()
            index.search(queries[first : first + QUERIES], fetch)
            seconds += (time.perf_counter() - start) * len(queries) / QUERIES
        return seconds


def measured_times(folder: Path) -> dict[str, float]:
    """Our seconds, and those of the product and of faiss, taken in turn with our parts; saves the lists.

    The searches of faiss take minutes: `QUERIES` of each side are measured every few parts, and scaled. Taken in
    turn, a noisy machine slows all three alike.
    """
    vectors = np.load(folder / "images.npy"), np.load(folder / "texts.npy")
    others = Competitors(*vectors)
    others.product()
    others.searches(0)
    product, searches = [], []
    with TemporaryDirectory() as name:
        start = time.perf_counter()
        mining = Mining(*vectors, Path(name))
        ours = time.perf_counter() - start
        for turn, part in enumerate(mining.parts):
            start = time.perf_counter()
            mining.make(part)
            ours += time.perf_counter() - start
            product.append(others.product())
            if turn % 4 == 0:
                searches.append(others.searches(turn))
        start = time.perf_counter()
        lists = mining.lists()
        ours += time.perf_counter() - start
    np.savez(folder / "lists.npz", **lists)  # pyright: ignore[reportArgumentType]
    return {"ours": ours, "product": statistics.mean(product), "searches": statistics.mean(searches)}


def test_time_against_a_bare_product_and_faiss(times):
    ours, product, searches = times["ours"], times["product"], times["searches"]
    taken, probed = faster_products("cpu"), product_seconds()
    (other,) = probed.keys() - {taken}
    print(
        f"\n  mining takes products in {taken}; those in {other} are {probed[taken] / probed[other]:.2f} times as fast"
        f"\n  mining in {ours:.1f} s: {ours / product:.2f} times a bare product of the same size; "
        f"{searches / ours:.2f} times as fast as two searches of faiss ({searches:.0f} s, scaled from a sample)"
    )
    assert ours < searches


@pytest.mark.usefixtures("times")
def test_recall_of_the_float32_answer(folder):
    images, texts = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("images", "texts"))
    lists, generator = np.load(folder / "lists.npz", allow_pickle=False), np.random.default_rng(0)
    owner = torch.from_numpy(CAPTION_IMAGE)
    for anchors, others, found in (
        (images, texts, lists["texts_for_images"]),
        (texts, images, lists["images_for_texts"]),
    ):
        rows = torch.from_numpy(generator.choice(len(anchors), SAMPLE, replace=False))
        scores = anchors[rows] @ others.T
        own = owner == rows[:, None] if anchors is images else torch.arange(len(others)) == owner[rows][:, None]
        best = scores.masked_fill(own, float("-inf")).topk(found.shape[1], dim=1).indices.numpy()
        common = [len(np.intersect1d(a, b)) for a, b in zip(best, found[rows.numpy()], strict=True)]
        recall = sum(common) / best.size
        print(f"\n  recall of the float32 top {best.shape[1]}: {recall:.5f}")
        assert recall >= 0.999


if __name__ == "__main__":
    print(json.dumps(measured_times(Path(sys.argv[1]))))
