"""Mining in a folder of its own, without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

from itrpipe.engine.work import Part
from itrpipe.mining import searcher
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.faiss_engine import Indexing, Searching
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    HeldRows,
    ListFiles,
    ListWork,
    MinedLists,
    Searched,
    write_lists,
)
from itrpipe.mining.searcher import BYTES_PER_PAIR
from tests.maps import made

FIELDS = tuple(MinedLists.__dataclass_fields__)


def searched(
    images: np.ndarray, texts: np.ndarray, owners: np.ndarray, *widths: int, first: tuple[int, int] | None = None
) -> Searched:
    """Arrays as mining takes them."""
    return Searched((HeldRows(images), HeldRows(texts)), owners, (widths[0], widths[1]), first)


def exact_work(
    *arguments: Any, text_block: int = 0, first: tuple[int, int] | None = None, **options: Any
) -> ExactMining:
    """Exact mining of arrays.

    Args:
        arguments: images, texts, owners, num_texts and num_images.
        text_block: captions of a tile.
        first: see `Searched`.
        options: of `ExactMining`.
    """
    images = len(arguments[0])
    memory = BYTES_PER_PAIR * text_block * min(options.get("block") or images, images)
    return ExactMining(searched(*arguments, first=first), **{"memory": memory, **options})


def joined(work: ExactMining | ListWork, paths: list[Path]) -> MinedLists:
    """The lists of all parts."""
    arrays = []
    for name in DIRECTIONS:
        slices = [lists for _, lists in work.lists(paths, name)]
        arrays.append(np.concatenate([lists.candidates for lists in slices]))
        arrays.append(np.concatenate([lists.scores for lists in slices]))
    return MinedLists(*arrays)


def directions(lists: MinedLists) -> dict[str, CandidateLists]:
    """The lists of each direction."""
    texts = CandidateLists(lists.texts_for_images, lists.texts_for_images_scores)
    images = CandidateLists(lists.images_for_texts, lists.images_for_texts_scores)
    return dict(zip(DIRECTIONS, (texts, images), strict=True))


def mine(
    *arguments: Any, order: Callable[[list[Part]], Iterable[Part]] = list, gpu: bool = False, **options: Any
) -> MinedLists:
    """Exact lists of arrays, with products in bfloat16 on every machine where that may be.

    Args:
        arguments: images, texts, owners, num_texts and num_images.
        order: puts the parts in the order in which they are made.
        gpu: take the ways of a GPU with a little memory, on a processor.
        options: of `ExactMining`.
    """
    half = mock.patch.object(searcher, "faster_products", return_value=torch.bfloat16)
    with TemporaryDirectory() as name, half, as_gpu(gpu):
        work, folder = exact_work(*arguments, **options), Path(name)
        worker, paths = work.open(), {part.name: folder / part.name for part in work.parts()}
        for part in order(work.parts()):
            work.make(worker, part, paths[part.name])
        return joined(work, [*paths.values()])


@contextmanager
def as_gpu(yes: bool = True) -> Iterator[None]:
    """Has a processor take the ways of a GPU, whose memory is soon full."""
    if not yes:
        yield
        return
    ways = {"on_gpu": lambda values: True, "free_memory": lambda device: 1 << 15, "_GATHERED_PAIRS": 64}
    lists_on_gpu = mock.patch.object(searcher, "on_gpu", ways["on_gpu"])
    with mock.patch.multiple(searcher, **ways), lists_on_gpu:
        yield


def search(*arguments: Any, **options: Any) -> MinedLists:
    """Lists of arrays by faiss, with an index of clusters where `clusters` names their number and the probes."""
    sides, numbers, indexes, kind = (
        searched(*arguments),
        options.pop("clusters", None),
        None,
        options.pop("kind", "ivf"),
    )
    with TemporaryDirectory() as name:
        folder = Path(name)
        if numbers is not None:
            indexing = Indexing(sides, kind, *numbers)
            indexes = indexing.of_sides(made(indexing, folder / "index").paths)
            options["again"] = kind == "ivf-pq"
        work = Searching(sides, indexes, **options)
        return joined(work, made(work, folder / "parts").paths)


def write_file(path: Path, lists: MinedLists) -> ListFiles:
    """Lists as a file."""
    both = directions(lists)
    shapes = {name: (*each.candidates.shape, 2**31 - 1) for name, each in both.items()}
    write_lists(path, shapes, [(name, 0, each) for name, each in both.items()])
    return ListFiles([path])


def assert_same(first: MinedLists, second: MinedLists) -> None:
    """Compares rows and scores of both directions."""
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
