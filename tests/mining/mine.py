"""Mining in a folder of its own, without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from itrpipe.engine.work import Part, Work
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.faiss_engine import Indexing, Searching, required_clusters
from itrpipe.mining.lists import MinedLists
from itrpipe.mining.merging import join_mined
from itrpipe.mining.mined import DIRECTIONS, MinedFile, layout, write_slice
from itrpipe.mining.products import Norms, measured_norms
from itrpipe.mining.vectors import HeldRows
from itrpipe.storage.parts import array_writer
from tests.maps import made

FIELDS = tuple(MinedLists.__dataclass_fields__)


def held(*arrays: np.ndarray) -> tuple[HeldRows, ...]:
    """Arrays as mining takes them."""
    return tuple(HeldRows(array) for array in arrays)


def norms_of(images: np.ndarray, texts: np.ndarray, folder: Path) -> Norms:
    """Norms of both sides, kept in a folder."""
    return measured_norms(HeldRows(images), HeldRows(texts), folder / "norms.arrays")


def exact_work(
    folder: Path, images: np.ndarray, texts: np.ndarray, owners: np.ndarray, *wanted: int, **options: Any
) -> ExactMining:
    """Exact mining of arrays, with the precision that was asked for on every machine.

    Args:
        folder: for the norms.
        images, texts, owners: embeddings, and the image of each caption.
        wanted: num_texts and num_images.
        options: of `ExactMining`.
    """
    norms = norms_of(images, texts, folder)
    rows: Any = held(images, texts, owners)
    return ExactMining(*rows, norms, *wanted, **{"as_given": True, **options})


def joined(work: ExactMining | Searching, paths: list[Path], folder: Path) -> MinedLists:
    """The lists of all parts."""
    target = folder / "mined.arrays"
    join_mined(work, paths, target) if isinstance(work, ExactMining) else work.join(paths, target)
    return MinedFile(target).lists()


def made_in_order(work: Work, parts: Iterable[Part], folder: Path) -> list[Path]:
    """Makes parts one after the other in this process, and returns the files of all in their own order."""
    folder.mkdir(exist_ok=True)
    worker = work.open()
    for part in parts:
        work.make(worker, part, folder / f"{part.name}{work.suffix}")
    return [folder / f"{part.name}{work.suffix}" for part in work.parts()]


def mine(
    *arguments: Any, workers: int = 1, order: Callable[[list[Part]], Iterable[Part]] | None = None, **options: Any
) -> MinedLists:
    """Exact lists of arrays.

    Args:
        arguments: images, texts, owners, num_texts and num_images.
        workers: processes.
        order: puts the parts in the order in which they are made, instead.
        options: of `ExactMining`.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        work = exact_work(folder, *arguments, **options)
        if order is not None:
            paths = made_in_order(work, order(work.parts()), folder / "parts")
        else:
            paths = made(work, folder / "parts", workers).paths
        return joined(work, paths, folder)


def search_work(
    folder: Path, images: np.ndarray, texts: np.ndarray, owners: np.ndarray, *wanted: int, **options: Any
) -> Searching:
    """Search by faiss, with an index of clusters where `clusters` names their number and the probes."""
    rows: Any = held(images, texts, owners)
    clusters, indexes = options.pop("clusters", None), None
    if clusters is not None:
        sizes = required_clusters([len(texts), len(images)], *clusters)
        indexes = made(Indexing(rows[1], rows[0], sizes), folder / "index").paths
    return Searching(*rows, *wanted, indexes, **options)


def search(*arguments: Any, **options: Any) -> MinedLists:
    """Lists of arrays by faiss, as `mine` gives them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        work = search_work(folder, *arguments, **options)
        return joined(work, made(work, folder / "parts").paths, folder)


def write_lists(path: Path, lists: MinedLists) -> MinedFile:
    """Lists as a file."""
    both = dict(zip(DIRECTIONS, (lists.texts_for_images, lists.images_for_texts), strict=True))
    others = {DIRECTIONS[0]: len(lists.images_per_text), DIRECTIONS[1]: len(lists.texts_per_image)}
    shapes = {name: (*each.candidates.shape, others[name]) for name, each in both.items()}
    with array_writer(path, layout(shapes)) as writer:
        for name, each in both.items():
            write_slice(writer, name, 0, each)
    return MinedFile(path)


def assert_same(first: MinedLists, second: MinedLists) -> None:
    """Compares rows and scores of both directions."""
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
