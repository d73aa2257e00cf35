"""Mining as a function: lists of hard negatives out of vectors, by one call.

`mine_split` is all of mining: search, the order of a second model, what leaves the lists again, and figures on them.
The stage `mine-negatives` and a training that mines again write its lists to files; `mine` keeps them in memory.

Shapes: N images, T captions, D width of a vector, A anchors with lists, K candidates of each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from itrpipe.engine.work import Runner
from itrpipe.errors import UsageError
from itrpipe.mining.exact import SAMPLED_ANCHORS, ExactMining
from itrpipe.mining.filters import (
    DuplicateCaptions,
    better_than_another,
    drop,
    lowest_positives,
    outside,
    positive_scores,
)
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    HeldRows,
    JoinedRows,
    ListFiles,
    ListWork,
    MinedLists,
    Searched,
    matching,
    write_lists,
)
from itrpipe.mining.searcher import Precision
from itrpipe.mining.statistics import DATASET, ListFigures, mining_statistics
from itrpipe.storage.arrays import Rows, check_captions, given_vectors

if TYPE_CHECKING:
    from itrpipe.datasets.truth import PairSet
    from itrpipe.mining.rescoring import SecondModel
    from itrpipe.mining.settings import MiningSettings

MINED = "mined.arrays"
"""File of all lists, of which a second model gets its own; without one there is none."""
HELD_BYTES = 1 << 30
"""Vectors of both sides of up to so many bytes are read once and stay in memory; more are read as they are needed."""
FAISS_BLOCK = 4_096
BARELY = 0.6
"""Share of captions that fit their own image better than another one, below which something is wrong."""
EXPECTED_RECALL = 0.99
"""Share of the exact candidates below which an index is called bad."""

WriteLists = Callable[[str, slice, CandidateLists], None]
"""Takes the lists of some consecutive anchors: their direction, the rows of the anchors, and the lists."""


def mine_split(
    images: Rows,
    texts: Rows,
    owners: np.ndarray,
    settings: MiningSettings,
    runner: Runner,
    write: WriteLists,
    *,
    device: str = "auto",
    block: int = 0,
    memory: int = 0,
    further: tuple[str, Rows] | None = None,
    captions: Iterable[str] | None = None,
    truth: PairSet | None = None,
    second: SecondModel | None = None,
) -> dict[str, Any]:
    """Mine the hardest captions of every image and the hardest images of every caption, own pairs left out.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] row of the image of each caption, -1 for none.
        settings: how candidates are searched, and which are kept.
        runner: makes the parts.
        write: takes the lists, some anchors at a time.
        device: `auto`, `cpu` or `cuda`.
        block: images of a part, for faiss images or captions; 0 chooses it.
        memory: bytes that a tile of products takes; 0 chooses it.
        further: `image` or `caption`, and [M, D] candidates that belong to nobody and get no lists; their rows follow.
        captions: T texts, read once; those of candidates that say what the positive's say are counted.
        truth: all correct pairs, where they are known.
        second: model that puts the hardest candidates in its own order.

    Returns:
        Figures ready for JSON: those of `mining_statistics`, `judge`, and `duplicates`, `search` and `rescored` where
        there are captions, an index and a second model.

    Raises:
        DataError: vectors and owners do not fit each other, or values are not finite.
        UsageError: there are no candidates.
        MissingInputError: faiss is asked for and not installed.
        DiskFullError: no space is left.
        OthersMissing: this job makes a share of the parts, and has made it.
    """
    widths = settings.num_texts, settings.num_images
    searched = _open_sides(images, texts, owners, widths, further)
    if searched.widths != widths:
        runner.warn(
            f"lists hold {searched.widths[0]:,} captions and {searched.widths[1]:,} images: there are no more "
            "candidates"
        )

    # Search.
    work, paths, facts = _search(searched, settings, device, block, memory, runner, more=second is not None)

    # Order by a second model, whose scores are the lists' then.
    if second is not None:
        from itrpipe.mining.rescoring import Rescoring

        work = Rescoring(
            second,
            _join(work, paths, runner),
            searched.shapes,
            owners,
            device,
        )
        paths = runner.made(work, "rescored").paths
        positives = work.positives(paths)
        facts["rescored"] = work.facts
    else:
        positives = positive_scores(*searched.sides, owners)
        share_better = better_than_another(*searched.sides, owners, positives)
        if share_better < BARELY:
            runner.warn(
                f"only {100 * share_better:.0f} % of the captions fit their own image better than another one, chance "
                "being 50 %: the model has learned little, or embeddings and owners are in different orders"
            )

    # Filter, count and write, some anchors at a time.
    repeats = None if captions is None else DuplicateCaptions(captions, owners)
    anchor_positives = lowest_positives(positives, owners, images.shape[0]), positives
    limits = settings.window.model_dump(exclude_defaults=True)
    figures: dict[str, ListFigures] = {}
    duplicates = dict.fromkeys(DIRECTIONS, 0)
    for side, direction in enumerate(DIRECTIONS):
        anchors, width, _ = work.shapes[direction]
        figures[direction] = ListFigures(anchors, width)
        with runner.task(f"writing {direction.replace('_', ' ')}", anchors, "lists") as task:
            for part, lists in work.lists(paths, direction):
                reasons = {}
                if repeats is not None:
                    repeated = matching(repeats.has, direction, part, lists)
                    duplicates[direction] += int(repeated.sum())
                    if settings.drop_duplicates:
                        reasons["duplicates"] = repeated
                reasons |= outside(limits, lists, anchor_positives[side][part])
                lists, dropped = drop(lists, reasons)
                if truth is not None:
                    others = searched.anchors[1 - side]
                    is_judged = (lists.candidates >= 0) & (lists.candidates < others)
                    is_right = matching(truth.has, direction, part, lists)
                    figures[direction].judge(is_judged, is_right)
                figures[direction].add(part, lists, dropped)
                write(direction, part, lists)
                task.advance(part.stop - part.start)

    # Sum up.
    statistics = mining_statistics(figures, positives, owners)
    statistics["judge"] = None if truth is None else DATASET
    if repeats is not None:
        share = {}
        for direction, counts in figures.items():
            total = counts.candidates + counts.dropped.total()
            share[direction] = duplicates[direction] / max(1, total)
        statistics["duplicates"] = {
            **repeats.report(),
            "candidates": duplicates,
            "share": share,
        }
    return statistics | facts


def _open_sides(
    images: Rows,
    texts: Rows,
    owners: np.ndarray,
    widths: tuple[int, int],
    further: tuple[str, Rows] | None,
) -> Searched:
    """Put further candidates behind the vectors of their side, and hold both sides in memory if they are small."""
    anchors = images.shape[0], texts.shape[0]
    sides: dict[str, Rows] = {"image": images, "caption": texts}
    if further is not None:
        kind, rows = further
        sides[kind] = JoinedRows((sides[kind], rows))
        if kind == "caption":
            nobody = np.full(rows.shape[0], -1)
            owners = np.append(owners, nobody)
    size = 0
    for rows in sides.values():
        size += math.prod(rows.shape) * rows.dtype.itemsize
    if size <= HELD_BYTES:
        for kind, rows in sides.items():
            sides[kind] = HeldRows(rows.read(0, rows.shape[0]), rows)
    both = sides["image"], sides["caption"]
    return Searched(both, owners, widths, anchors)


def _search(
    searched: Searched,
    settings: MiningSettings,
    device: str,
    block: int,
    memory: int,
    runner: Runner,
    *,
    more: bool,
) -> tuple[ExactMining | ListWork, list[Path], dict[str, Any]]:
    """Search both directions, exactly or by faiss.

    Returns:
        The map that reads lists from its files, those files, and facts under `search` about an index, if one was built.
    """
    if settings.library != "faiss":
        work = ExactMining(
            searched,
            block=block,
            precision=settings.precision,
            device=device,
            memory=memory,
        )
        return work, runner.made(work, "mined", more=more).paths, {}

    from itrpipe.mining.faiss_engine import Indexing, Searching

    kind = settings.index
    block = block or FAISS_BLOCK
    if kind == "flat":
        work = Searching(searched, block=block, device=device)
        return work, runner.made(work, "mined", more=more).paths, {}

    indexing = Indexing(searched, kind, settings.num_lists, settings.num_probes)
    indexes = indexing.of_sides(runner.made(indexing, "index", more=True).paths)
    work = Searching(
        searched,
        indexes,
        again=kind == "ivf-pq",
        block=block,
        device=device,
    )
    paths = runner.made(work, "mined", more=more).paths
    recall = ExactMining(searched).recall(ListFiles(paths))
    num_lists = {}
    num_probes = {}
    for direction, sizes in zip(DIRECTIONS, indexing.sizes, strict=True):
        num_lists[direction], num_probes[direction] = sizes
    worst = min(DIRECTIONS, key=lambda name: recall[name])
    if recall[worst] < EXPECTED_RECALL:
        runner.warn(
            f"the index found {100 * recall[worst]:.1f}% of the {worst.replace('_', ' ')} that exact search finds with "
            f"num_probes = {num_probes[worst]:,}; raise --set num_probes=… or search exactly with --set index=flat"
        )
    facts = {
        "num_lists": num_lists,
        "num_probes": num_probes,
        "recall": {name: round(share, 4) for name, share in recall.items()},
        "sampled_anchors": SAMPLED_ANCHORS,
    }
    return work, paths, {"search": facts}


def _join(work: ExactMining | ListWork, paths: Sequence[Path], runner: Runner) -> Path:
    """Write all lists to one file, in which parts of another map find theirs, and return it."""
    joined = runner.folder.absolute() / MINED

    def blocks() -> Iterator[tuple[str, int, CandidateLists]]:
        for direction in DIRECTIONS:
            for part, lists in work.lists(paths, direction):
                yield direction, part.start, lists
                task.advance(part.stop - part.start)

    total = sum(anchors for anchors, _, _ in work.shapes.values())
    with runner.task("joining", total, "lists") as task:
        write_lists(joined, work.shapes, blocks())
    return joined


def mine(
    images: ArrayLike,
    texts: ArrayLike,
    owners: ArrayLike,
    *,
    num_texts: int = 300,
    num_images: int = 60,
    range_min: int = 0,
    range_max: int | None = None,
    min_score: float | None = None,
    max_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    captions: Sequence[str] | None = None,
    precision: Precision = "bf16+fp32",
    device: str = "auto",
    memory: int = 0,
    progress: bool = False,
) -> MinedLists:
    """Mine the hardest texts of every image and the hardest images of every text, own pairs left out, exactly.

    The score of a pair is the inner product of its vectors: normalise them for cosines. Equal scores come in the order
    of their rows. What a limit drops makes a list shorter, and the rest moves up.

    Args:
        images: [N, D] vectors of any model.
        texts: [T, D].
        owners: [T] row of the image that each text belongs to, -1 for none.
        num_texts: texts mined for each image, all where there are fewer; 300 and 60 are those of AOQ, section 4.2.
        num_images: images mined for each text.
        range_min, range_max, min_score, max_score, absolute_margin, relative_margin: see `WindowSettings`.
            The positive of an image is its own text with the lowest score.
        captions: T texts; candidates that say what one of the positive's says are dropped, see `plain_text`.
        precision: of the products; `bf16+fp32` finds the lists of `fp32` in bfloat16 and checks them in single
            precision; `bf16` rounds the vectors themselves.
        device: `auto` takes CUDA where there is one.
        memory: bytes that products take at a time, see `Searcher`; the lists come on top, through files in the
            temporary folder.
        progress: show it on standard error.

    Returns:
        Rows of candidates and their scores, hardest first; -1 and minus infinity behind the last of a shorter list.

    Warns:
        UserWarning: there are fewer candidates than a list should hold, or the vectors seem to be in another order
            than `owners`.

    Raises:
        DataError: the arrays do not fit each other, or hold values that are not finite; or products are less exact on
            this machine than they have to be.
        UsageError: there are no candidates, or the limits leave nothing; a limit is out of its range; the precision or
            the device is not known, or there is no such device.
        DiskFullError: the temporary folder has no space left.

    Example:
        >>> images, texts = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
        >>> mine(images, texts, [0, 1, 2, 0], num_texts=2, num_images=1).images_for_texts.tolist()
        [[1], [0], [0], [1]]

    Source: AOQ (Chen et al., ECCV 2020), section 3.1.
    """
    from itrpipe.config import Resolved, bind
    from itrpipe.mining.settings import MiningSettings, WindowSettings

    limits = {
        "range_min": range_min,
        "range_max": range_max,
        "min_score": min_score,
        "max_score": max_score,
        "absolute_margin": absolute_margin,
        "relative_margin": relative_margin,
    }
    sources = dict.fromkeys(limits, "its caller")
    window = bind(WindowSettings, Resolved(limits, sources), "mine")
    settings = MiningSettings.model_construct(
        num_texts=num_texts,
        num_images=num_images,
        library="torch",
        precision=precision,
        drop_duplicates=True,
        window=window,
    )
    if precision not in get_args(Precision):
        raise UsageError(f"precision {precision!r} is none of {', '.join(get_args(Precision))}; choose one")
    image_vectors, text_vectors, rows = given_vectors(images, texts, owners)
    if captions is not None:
        check_captions(captions, rows)
    reporter = None
    if progress:
        from itrpipe.progress import Reporter, SafeConsole

        reporter = Reporter(SafeConsole(stderr=True))
    warn = partial(warnings.warn, stacklevel=3)  # shown with the caller's line
    mined: dict[str, list[CandidateLists]] = {name: [] for name in DIRECTIONS}
    with TemporaryDirectory(prefix="itrpipe-") as folder:
        statistics = mine_split(
            HeldRows(image_vectors),
            HeldRows(text_vectors),
            rows,
            settings,
            Runner(Path(folder), reporter, warn),
            lambda direction, part, lists: mined[direction].append(lists),
            device=device,
            memory=memory,
            captions=captions,
        )
    if not any(statistics["candidates"].values()):
        of_images, of_texts = statistics["dropped"].values()
        counts = [f"{name} {count + of_texts[name]:,}" for name, count in of_images.items()]
        raise UsageError(f"no candidates are left, which were dropped by {', '.join(counts)}; widen the limits")
    arrays = []
    for blocks in mined.values():
        candidates = [lists.candidates for lists in blocks]
        scores = [lists.scores for lists in blocks]
        arrays.append(np.concatenate(candidates))
        arrays.append(np.concatenate(scores))
    return MinedLists(*arrays)
