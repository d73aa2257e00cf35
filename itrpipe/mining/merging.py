"""Joins the parts of exact mining into the lists of all images and captions, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from itrpipe.errors import DataError
from itrpipe.mining.exact import COUNTS, FLOORS, IMAGE_KEYS, KEYS, ExactMining
from itrpipe.mining.lists import CandidateLists
from itrpipe.mining.mined import DIRECTIONS, layout, row_type, write_slice
from itrpipe.mining.top_k import NO_CANDIDATE, keep_largest, matrix_of_keys, unpack
from itrpipe.mining.vectors import slices
from itrpipe.storage.parts import ArrayFile, ArrayWriter, array_writer

_PLACES = 1 << 18
"""Candidates in memory at a time, about."""


def join_mined(
    work: ExactMining, paths: Sequence[Path], target: Path, advance: Callable[[int], object] = lambda count: None
) -> None:
    """Writes the lists of both directions as a file of arrays, see `itrpipe.mining.mined`.

    The few lists whose floor was guessed too high are made here, from all their candidates.

    Args:
        work: whose parts these are.
        paths: of all parts.
        target: the file.
        advance: called with numbers of lists.

    Raises:
        DataError: products are off by more than floating-point arithmetic allows.
        DiskFullError: no space is left.
    """
    images, texts = work.images.shape[0], work.texts.shape[0]
    shapes = {
        DIRECTIONS[0]: (work.anchors[0], work.num_texts, texts),
        DIRECTIONS[1]: (work.anchors[1], work.num_images, images),
    }
    files = [ArrayFile(path) for path in paths]
    with array_writer(target, layout(shapes)) as writer:
        again = {DIRECTIONS[0]: _join_images(work, files, writer, advance)}
        again[DIRECTIONS[1]] = _join_texts(work, files, writer, advance)
        _make_again(work, again, writer)


def _join_images(work: ExactMining, files: Sequence[ArrayFile], writer: ArrayWriter, advance: Callable) -> np.ndarray:
    """Writes the lists of images, which parts hold whole; returns the rows of those that are not."""
    unproven = []
    for part in slices(work.anchors[0], max(1, _PLACES // work.num_texts)):
        rows = np.arange(part.start, part.stop)
        stripe, place = work.stripes.place(rows)
        keys = np.empty((len(rows), work.num_texts), dtype=np.int64)
        for number in np.unique(stripe).tolist():
            own = stripe == number
            first = int(place[own][0])
            keys[own] = files[number][IMAGE_KEYS].read(first, first + int(own.sum()))
        unproven.append(rows[keys[:, -1] == NO_CANDIDATE])
        write_slice(writer, DIRECTIONS[0], part.start, _lists(keys, work.texts.shape[0]))
        advance(len(rows))
    return np.concatenate(unproven)


def _join_texts(work: ExactMining, files: Sequence[ArrayFile], writer: ArrayWriter, advance: Callable) -> np.ndarray:
    """Merges the candidates of captions; returns the rows of those that may lack some."""
    unproven, read = [], np.zeros(len(files), dtype=np.int64)
    for part in slices(work.anchors[1], max(1, _PLACES // (2 * work.num_images))):
        best = torch.full((part.stop - part.start, work.num_images), NO_CANDIDATE)
        floors = np.full(len(best), -np.inf, dtype=np.float32)
        pieces = [best]
        for number, file in enumerate(files):
            counts = torch.from_numpy(file[COUNTS].read(part.start, part.stop)).long()
            stop = int(read[number] + counts.sum())
            pieces.append(matrix_of_keys(torch.from_numpy(file[KEYS].read(int(read[number]), stop)), counts))
            floors = np.maximum(floors, file[FLOORS].read(part.start, part.stop))
            read[number] = stop
            if number == len(files) - 1 or sum(map(torch.numel, pieces)) > 2 * _PLACES:
                pieces = [keep_largest(torch.cat(pieces, dim=1), work.num_images)]
        (best,) = pieces
        keys = best.sort(dim=1, descending=True).values
        # A candidate that a floor has kept out belongs to the list if it is better than the last one there.
        lacking = ~(unpack(keys[:, -1])[0].numpy() >= floors) | (keys[:, -1] == NO_CANDIDATE).numpy()
        unproven.append(np.flatnonzero(lacking) + part.start)
        write_slice(writer, DIRECTIONS[1], part.start, _lists(keys.numpy(), work.images.shape[0]))
        advance(len(keys))
    return np.concatenate(unproven)


def _make_again(work: ExactMining, again: dict[str, np.ndarray], writer: ArrayWriter) -> None:
    worker, makers = None, {DIRECTIONS[0]: work.images_again, DIRECTIONS[1]: work.texts_again}
    sides = {DIRECTIONS[0]: work.texts.shape[0], DIRECTIONS[1]: work.images.shape[0]}
    at_once = {DIRECTIONS[0]: work.block, DIRECTIONS[1]: work.tile_texts}
    for direction, rows in again.items():
        candidates = sides[direction]
        for part in slices(len(rows), at_once[direction]):
            worker = worker or work.open()
            keys = makers[direction](worker, rows[part])
            short = int((keys[:, -1] == NO_CANDIDATE).sum())
            if short:
                raise DataError(
                    f"{short} lists lack candidates that exist: products in {worker.precision} are less exact on this "
                    "machine than they have to be; mine with precision fp32"
                )
            for row, own in zip(rows[part].tolist(), np.split(keys, len(keys)), strict=True):
                write_slice(writer, direction, row, _lists(own, candidates))


def _lists(keys: np.ndarray, candidates: int) -> CandidateLists:
    scores, rows = unpack(torch.from_numpy(np.ascontiguousarray(keys)))
    return CandidateLists(rows.numpy().astype(row_type(candidates)), scores.numpy())
