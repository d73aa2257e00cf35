"""Features of images: maps over them, whose parts hold the rows of some, and one file that joins the parts.

`Extraction` computes features from image files; `importers.base.Import` copies those that others have published. Which
images share a batch depends on the dataset and the batch size alone, never on what an earlier run or another machine
has done already. So features come out equal, byte for byte, in one go, in parts, and after a kill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import read_rgb
from itrpipe.engine.work import Part, Work, cut, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.declaration import FeatureSettings, extractor_module
from itrpipe.features.extractors.base import Extractor, Images, Transform
from itrpipe.features.importers.base import Import
from itrpipe.features.store import FeatureSpec, stored_rows, write_features
from itrpipe.storage.disk import unavailable
from itrpipe.storage.integrity import checked
from itrpipe.storage.parts import ArrayFile, write_arrays

BATCHES_PER_PART = 8
"""A part holds so many batches of the size that suits the extractor; what is lost in a kill is at most a part."""
MOST_DECODERS = 32
Item = TypeVar("Item")
Result = TypeVar("Result")
Refused = list[tuple[int, str]]
"""Rows of images that cannot be used, and why."""


@dataclass(frozen=True)
class ImageFiles:
    """Images to extract.

    Attributes:
        root: folder that no image may leave.
        files: N paths relative to it.
        sizes: [N, 2] int64 height and width in pixels, after EXIF rotation.
        drawn: whether they are files of an artifact, which must be as it says.
        boxes: [N, 4] int64 left, top, right and bottom of the part of each that counts as the image, of the size that
            `sizes` says; what lies beyond the file is black. None: all of it.
    """

    root: Path
    files: list[str]
    sizes: np.ndarray
    drawn: bool = False
    boxes: np.ndarray | None = None

    @cached_property
    def inside(self) -> ImageRoot:
        """Finds files below the root."""
        return ImageRoot(self.root, self.root)

    def of(self, rows: np.ndarray) -> ImageFiles:
        """Some of them."""
        boxes = None if self.boxes is None else self.boxes[rows]
        return ImageFiles(self.root, [self.files[row] for row in rows.tolist()], self.sizes[rows], self.drawn, boxes)


def plan_batches(sizes: np.ndarray, group: Callable[[int, int], tuple[int, int]], batch: int) -> list[np.ndarray]:
    """Cuts the rows into batches of equal groups.

    Args:
        sizes: [N, 2] height and width of every image.
        group: of an extractor.
        batch: images per batch at most.

    Returns:
        Rows [B] int64 of each batch; groups in the order of their keys, rows rising within a group.
    """
    distinct, index = np.unique(sizes, axis=0, return_inverse=True)
    keys = np.array([group(int(height), int(width)) for height, width in distinct], dtype=np.int64).reshape(-1, 2)
    _, group_of = np.unique(keys, axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)[index.reshape(-1)]
    order = np.argsort(group_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)
    return [rows[start : start + batch] for rows in groups for start in range(0, len(rows), batch)]


class Extraction(Work["_Extracting"]):
    """Features of images by one extractor; a part has `rows` [n] int64 and a row of every dataset for each of these.

    Args:
        name: of the extractor, for people.
        images: all images of the dataset.
        build: makes the extractor on a device; it is pickled.
        device: `auto`, `cpu` or `cuda`.
        batch: images per forward pass, at most those of a part; 0 for what suits the extractor.
        decoders: threads of a worker that decode images; 0 for as many as it has cores.
        strict: stop at the first image that cannot be used.
    """

    unit, overlap, in_one_thread = "images", 2, True

    def __init__(
        self,
        name: str,
        images: ImageFiles,
        build: Callable[[torch.device], Extractor],
        *,
        device: str = "cpu",
        batch: int = 0,
        decoders: int = 0,
        strict: bool = False,
    ) -> None:
        self.title = f"extracting {name}"
        self._images, self._build, self.device = images, build, device
        self._batch, self._decoders, self._strict = batch, decoders, strict

    def __getstate__(self) -> dict[str, Any]:
        """Each worker opens its own, and is told of the images of each part alone."""
        return {name: value for name, value in self.__dict__.items() if name not in ("extractor", "_images")}

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor, opened once in every process."""
        return self._build(torch.device(resolve_device(self.device)))

    @cached_property
    def spec(self) -> FeatureSpec:
        """Which datasets are written; where other extractors write some of this one's, it is set to the others."""
        return self.extractor.spec

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of the extractor."""
        return self.extractor.notes

    def parts(self) -> list[Part]:
        """Images of equal groups beside each other, some at a time."""
        order = np.concatenate(plan_batches(self._images.sizes, self.extractor.group, len(self._images.sizes)))
        parts = cut(order, BATCHES_PER_PART * self.extractor.batch)
        return [replace(part, content=(part.content, self._images.of(part.content))) for part in parts]

    def open(self) -> _Extracting:
        """The extractor with threads that decode images for it."""
        decoders = self._decoders or min(MOST_DECODERS, self.cores)
        return _Extracting(self.extractor, decoders, self.slots, pinned=resolve_device(self.device) == "cuda")

    def make(self, worker: _Extracting, part: Part, path: Path) -> None:
        """Extracts the images of a part.

        Raises:
            DataError: `strict`, and an image cannot be used; or one that an artifact holds is damaged.
            UnavailableError: the disk cannot give an image now, whatever it holds.
        """
        rows, images = part.content
        extractor = worker.extractor
        batches = plan_batches(images.sizes, extractor.group, self._batch or extractor.batch)
        found: list[dict[str, np.ndarray]] = []
        failed: dict[str, str] = {}
        for usable, pixels, refused in worker.decoded(images, batches):
            if pixels is not None:
                usable, arrays, more = compute(extractor, usable, pixels, images.sizes, self.spec)
                refused += more
                if len(usable):
                    found.append({"rows": rows[usable], **arrays})
            if self._strict and refused:
                row, reason = refused[0]
                raise DataError(f"{images.root / images.files[row]}: {reason}; restore the file, or leave --strict")
            failed |= {str(rows[row]): reason for row, reason in refused}
        joined = {name: np.concatenate([each[name] for each in found]) for name in found[0]} if found else {}
        write_arrays(path, joined, failed)

    def keeps(self, path: Path) -> bool:
        """Whether a part is as it was written, and no image of it failed: the file may have been restored since."""
        return super().keeps(path) and not ArrayFile(path).facts


class _Extracting:
    """An extractor, and threads that decode the next images while it computes.

    Parts take turns: while some are computed, the images of the next are decoded and the rows of the last are written.

    Args:
        extractor: computes.
        decoders: threads.
        turns: parts that are computed at the same time.
        pinned: batches are for a GPU.
    """

    def __init__(self, extractor: Extractor, decoders: int, turns: int, *, pinned: bool) -> None:
        self.extractor = extractor
        self._decoders, self._pinned = decoders, pinned
        self._pool = decoding_pool(decoders)
        self._turn = threading.Semaphore(turns)

    def decoded(
        self, images: ImageFiles, batches: Sequence[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, Images | None, Refused]]:
        """Yields batches in their order; from the first on it is the turn of the one who asks.

        Yields:
            Rows [B] int64 of the images that could be decoded; their transformed pixels, None where there are none;
            and the others.

        Raises:
            ItrpipeError: all extraction has to stop.
        """
        transform = self.extractor.transform

        def gather(rows: list[int], found: list[np.ndarray | str]) -> tuple[np.ndarray, Images | None, Refused]:
            both = list(zip(rows, found, strict=True))
            usable = np.array([row for row, each in both if not isinstance(each, str)], dtype=np.int64)
            pixels = [each for each in found if not isinstance(each, str)]
            images = stack(pixels, pinned=self._pinned) if pixels else None
            return usable, images, [(row, each) for row, each in both if isinstance(each, str)]

        rows = (each.tolist() for each in batches)
        waiting = 1 + self._decoders // len(batches[0])
        found = ahead(self._pool, lambda row: decode_image(images, row, transform), gather, rows, waiting)
        first = next(found)
        with self._turn:
            yield first
            yield from found

    def stop(self) -> None:
        """Lets parts that are being made end, unfinished."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def decoding_pool(decoders: int) -> ThreadPoolExecutor:
    """Threads that decode images. Each computes alone: a picture is too small for several threads of torch."""
    return ThreadPoolExecutor(decoders, "decode", initializer=torch.set_num_threads, initargs=(1,))


def ahead(
    pool: ThreadPoolExecutor,
    decode: Callable[[int], Item],
    gather: Callable[[Any, list[Item]], Result],
    batches: Iterable[Sequence[int]],
    count: int,
) -> Iterator[Result]:
    """Yields what `gather` makes of the rows of each batch and of their decoded images, in the order of the batches.

    So many of the next batches are under way meanwhile. Images, not batches, are the tasks, so that one batch feeds all
    threads. The last task waits for those before it, each of which is done or has a thread.
    """
    waiting = deque[Future[Result]]()
    for rows in batches:
        decoding = [pool.submit(decode, row) for row in rows]
        waiting.append(pool.submit(lambda own, each: gather(own, [one.result() for one in each]), rows, decoding))
        if len(waiting) > count:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def decode_image(images: ImageFiles, row: int, transform: Transform) -> np.ndarray | str:
    """Reads and transforms an image.

    Returns:
        Its pixels [3, h, w] uint8, or why it cannot be used.

    Raises:
        DataError: an artifact that holds it is damaged.
        UnavailableError: the disk cannot give it now, whatever it holds.
    """
    if images.drawn:
        checked(images.root / images.files[row])
    try:
        image = read_rgb(images.inside.resolve(images.files[row], record="image"))
        if images.boxes is not None:
            image = np.array(Image.fromarray(image).crop(tuple(images.boxes[row].tolist())))
        (height, width), (old_height, old_width) = image.shape[:2], images.sizes[row].tolist()
        if (height, width) != (old_height, old_width):
            return f"has {width} x {height} pixels and had {old_width} x {old_height} when it was prepared"
        return transform(image)
    except DataError as error:
        return " ".join(str(error).split())
    except OSError as error:
        path = images.root / images.files[row]
        raise unavailable(error, path) or DataError(f"{path} cannot be read ({error})") from error


def compute(
    extractor: Extractor, rows: np.ndarray, images: Images, sizes: np.ndarray, spec: FeatureSpec
) -> tuple[np.ndarray, dict[str, np.ndarray], Refused]:
    """Runs an extractor on a batch.

    Args:
        extractor: any.
        rows: [B] int64 of some of N images.
        images: their transformed pixels.
        sizes: [N, 2] height and width of all of them.
        spec: the extractor's, or the part of it that is wanted.

    Returns:
        Rows of the images with features; their features in the types of the file; row and reason of each that has none.
    """
    arrays, refused = stored_rows(spec, extractor(images, sizes[rows]))
    if not refused:
        return rows, arrays, []
    usable = np.setdiff1d(np.arange(len(rows)), list(refused))
    reasons = [(int(rows[position]), reason) for position, reason in sorted(refused.items())]
    return rows[usable], {name: values[usable] for name, values in arrays.items()}, reasons


def stack(pixels: Sequence[np.ndarray], *, pinned: bool = False) -> Images:
    """Transformed images [3, h, w] as an extractor takes them, for a GPU in pinned memory."""
    images = [torch.from_numpy(np.ascontiguousarray(image)) for image in pixels]
    if any(image.shape != images[0].shape for image in images):
        return images
    # Torch keeps pinned memory that was freed, so that only the first batches wait for it.
    whole = torch.empty((len(images), *images[0].shape), dtype=images[0].dtype, pin_memory=pinned)
    return torch.stack(images, out=whole)


# One feature file from several extractors, each of which goes over the images once, or from one importer.


def divide(specs: Mapping[str, FeatureSpec]) -> dict[str, FeatureSpec]:
    """Decides what each of several extractors contributes: a group of datasets comes from the first that has it.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    taken: set[str] = set()
    parts: dict[str, FeatureSpec] = {}
    for name, spec in specs.items():
        groups = spec.groups() - taken
        if not groups:
            raise UsageError(
                f"{'+'.join(specs)}: {name} has {' and '.join(sorted(spec.groups()))} only, which another one gives "
                "already; leave it out or name it first"
            )
        taken |= groups
        parts[name] = spec.only(groups)
    return parts


def extractions(parts: Mapping[str, FeatureSettings], images: ImageFiles, **options: Any) -> dict[str, Extraction]:
    """Opens extractors; the `spec` of each holds the datasets that no extractor before it has.

    Args:
        parts: of `itrpipe.features.declaration.passes_of`.
        images: what they read.
        options: of `Extraction`.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    works = {name: Extraction(name, images, partial(_build, part), **options) for name, part in parts.items()}
    for name, spec in divide({name: work.spec for name, work in works.items()}).items():
        works[name].spec = spec
    return works


def _build(settings: FeatureSettings, device: str | torch.device) -> Extractor:
    return extractor_module(settings.kind).build(settings, device)


def notes_of(works: Mapping[str, Extraction | Import]) -> list[str]:
    """What a user should know of the extractors or of the import, each with its name."""
    return [f"{name}: {note}" for name, work in works.items() for note in work.notes]


def merge(parts: Mapping[str, FeatureSpec]) -> FeatureSpec:
    """The datasets of a file that holds all parts of `divide`."""
    return FeatureSpec.of({name: shape for spec in parts.values() for name, shape in spec.shapes().items()})


def join_features(
    path: Path,
    ids: Sequence[str],
    passes: Mapping[str, tuple[FeatureSpec, Sequence[Path]]],
    extractor: str,
    on_joined: Callable[[int], None] = lambda count: None,
) -> dict[int, str]:
    """Writes one feature file from the parts of one or several extractors.

    Args:
        path: the file; what an interrupted run has left there is replaced.
        ids: N, of all images.
        passes: name of an extractor -> what it contributes, and its parts.
        extractor: name of all of them, kept in the file.
        on_joined: called with numbers of rows.

    Returns:
        Row -> why its image has no features; these have no row in the file.

    Raises:
        DataError: no image has features.
        DiskFullError: the disk cannot hold the file.
    """
    parts = [ArrayFile(path) for _, paths in passes.values() for path in paths]
    failed = {int(row): why for part in parts for row, why in part.facts.items()}
    if len(failed) == len(ids):
        raise DataError(f"none of the {len(ids):,} images could be used; the first {failed[0]}")
    usable = np.setdiff1d(np.arange(len(ids)), np.fromiter(failed, dtype=np.int64))
    place = np.full(len(ids), -1, dtype=np.int64)
    place[usable] = np.arange(len(usable))
    spec = merge({name: own for name, (own, _) in passes.items()})

    def pieces() -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        for part in (part for part in parts if part.shapes):
            rows = place[part.read("rows")]
            places = {name: part.stored(name) for name in part.shapes if name != "rows"}
            arrays = {name: np.memmap(at.path, at.dtype, "r", at.offset, at.shape) for name, at in places.items()}
            known = rows >= 0  # another extractor may have refused the image
            if known.all():
                yield rows, arrays
            else:
                yield rows[known], {name: values[known] for name, values in arrays.items()}
            on_joined(len(rows))

    write_features(path, [name for row, name in enumerate(ids) if row not in failed], spec, extractor, pieces())
    return failed
