"""Features of images: maps over them, whose parts hold the rows of some, and one file that joins the parts.

`Extraction` computes features from image files; `importers.base.Import` copies those that others have published. Which
images share a batch depends on the dataset and the batch size alone, never on what an earlier run or another machine
has done already. So features come out equal, byte for byte, in one go, in parts, and after a kill.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import read_rgb
from itrpipe.datasets.prepared import Split
from itrpipe.engine.work import CUDA, Part, Work, cut, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.declaration import EXTRACTORS, FeatureSettings
from itrpipe.features.extractors.base import Extractor, Images, Transform
from itrpipe.features.importers.base import Import
from itrpipe.features.store import GROUPS, FeatureSpec, stored_rows, write_features
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.disk import on_disk

BATCHES_PER_PART = 8
"""A part holds so many batches of the size that suits the extractor; what is lost in a kill is at most a part."""
MOST_DECODERS = 32
Item = TypeVar("Item")
Result = TypeVar("Result")
Decoded = tuple[list[int], Result, dict[int, str]]
"""Rows of images that can be used, what was made of them, and row -> reason of the others."""


@dataclass(frozen=True)
class ImageFiles:
    """Images to extract.

    Attributes:
        root: folder that no image may leave.
        files: N paths relative to it.
        sizes: [N, 2] int64 height and width in pixels, after EXIF rotation.
        boxes: [N, 4] int64 left, top, right and bottom of the part of each that counts as the image, of the size that
            `sizes` says; what lies beyond the file is black. None: all of it.
    """

    root: Path
    files: list[str]
    sizes: np.ndarray
    boxes: np.ndarray | None = None

    @classmethod
    def of_split(cls, root: Path, split: Split) -> ImageFiles:
        """Return the images of a split, row for row, below the root of its dataset."""
        return cls(root, split.files, split.sizes)

    @cached_property
    def inside(self) -> ImageRoot:
        """Return the finder of files below the root."""
        return ImageRoot(self.root, self.root)

    def read(self, row: int) -> np.ndarray:
        """Read an image, [H, W, 3] uint8 RGB.

        Raises:
            DataError: it cannot be used, or has another size than it had; the message is the reason alone.
            UnavailableError: the disk cannot give it now, whatever it holds.
        """
        file = self.files[row]
        with on_disk(self.root / file):
            image = read_rgb(self.inside.resolve(file, record="image"))
        if self.boxes is not None:
            box = tuple(self.boxes[row].tolist())
            image = np.array(Image.fromarray(image).crop(box))
        height, width, _ = image.shape
        old_height, old_width = self.sizes[row]
        if (height, width) != (old_height, old_width):
            raise DataError(f"has {width} x {height} pixels and had {old_width} x {old_height} when it was prepared")
        return image

    def of(self, rows: np.ndarray) -> ImageFiles:
        """Return the images of some rows."""
        boxes = None
        if self.boxes is not None:
            boxes = self.boxes[rows]
        return ImageFiles(self.root, [self.files[row] for row in rows], self.sizes[rows], boxes)


def plan_batches(sizes: np.ndarray, group: Callable[[int, int], tuple[int, int]], batch: int) -> list[np.ndarray]:
    """Cut the rows into batches of equal groups.

    Args:
        sizes: [N, 2] height and width of every image.
        group: of an extractor.
        batch: images per batch at most.

    Returns:
        Rows [B] int64 of each batch; groups in the order of their keys, rows rising within a group.
    """
    groups = defaultdict[tuple[int, int], list[int]](list)
    group = cache(group)  # many images have one size
    for row, size in enumerate(sizes.tolist()):
        groups[group(*size)].append(row)
    batches = []
    for key in sorted(groups):
        rows = np.array(groups[key])
        for start in range(0, len(rows), batch):
            batches.append(rows[start : start + batch])
    return batches


@dataclass(eq=False)
class Extraction(Work["Decoders"]):
    """Features of images by one extractor.

    A part has `rows` [n] int64 of the images that could be decoded, and for each a row of every dataset; its facts name
    the rows of images that cannot be used, and why. Some of these may be among `rows`.

    Attributes:
        title: what is being done, for people.
        images: all images of the dataset.
        build: makes the extractor on a device; it is pickled.
        device: `auto`, `cpu` or `cuda`.
        batch: images per forward pass, at most those of a part; 0 for what suits the extractor.
        decoders: threads of a worker that decode images; 0 for as many as it has cores.
        strict: stop at the first image that cannot be used.
    """

    unit = "images"
    overlap = 2
    in_one_thread = True
    untold = ("extractor", "images")

    title: str
    images: ImageFiles
    build: Callable[[torch.device], Extractor]
    device: str = "cpu"
    batch: int = 0
    decoders: int = 0
    strict: bool = False

    @cached_property
    def extractor(self) -> Extractor:
        """Open the extractor, once in every process."""
        return self.build(torch.device(resolve_device(self.device)))

    @cached_property
    def spec(self) -> FeatureSpec:
        """Return the datasets that are written; set to fewer where other extractors write some of them."""
        return self.extractor.spec

    @property
    def notes(self) -> Sequence[str]:
        """Notes of the extractor for the user."""
        return self.extractor.notes

    @property
    def _on_gpu(self) -> bool:
        return resolve_device(self.device) == CUDA

    def parts(self) -> list[Part]:
        """Return images of equal groups beside each other, some at a time."""
        sizes = self.images.sizes
        order = np.concatenate(plan_batches(sizes, self.extractor.group, len(sizes)))
        parts = []
        for part in cut(order, BATCHES_PER_PART * self.extractor.batch):
            rows = part.content
            parts.append(replace(part, content=(rows, self.images.of(rows))))
        return parts

    def open(self) -> Decoders:
        """Start the threads that decode images for the extractor; open it, too, before several threads make parts."""
        _ = self.extractor
        turns = 1 if self._on_gpu else self.cores
        return Decoders(self.decoders or min(MOST_DECODERS, self.cores), turns)

    def make(self, worker: Decoders, part: Part, path: Path) -> None:
        """Extract the images of a part.

        Raises:
            DataError: `strict`, and an image cannot be used; or one that an artifact holds is damaged.
            UnavailableError: the disk cannot give an image now, whatever it holds.
        """
        rows, images = part.content
        extractor = self.extractor
        batches = plan_batches(images.sizes, extractor.group, self.batch or extractor.batch)
        decode = partial(decode_image, images, transform=extractor.transform)
        gather = partial(stack, pinned=self._on_gpu)
        batches_ahead = 1 + worker.count // len(batches[0])
        decoded = worker.ahead([batch.tolist() for batch in batches], decode, gather, batches_ahead)
        first = next(decoded)  # decoded before the turn begins, while another part is computed
        pieces = defaultdict[str, list[np.ndarray]](list)
        failed: dict[str, str] = {}
        with worker.turn:
            for usable, pixels, refused in chain([first], decoded):
                if usable:
                    arrays, unfit = stored_rows(self.spec, extractor(pixels, images.sizes[usable]))
                    pieces["rows"].append(rows[usable])
                    for name, values in arrays.items():
                        pieces[name].append(values)
                    for place, reason in unfit.items():
                        refused[usable[place]] = reason
                for row, reason in refused.items():
                    if self.strict:
                        file = images.root / images.files[row]
                        raise DataError(f"{file}: {reason}; correct the file, or leave --strict")
                    failed[str(rows[row])] = reason
        write_arrays(path, {name: np.concatenate(values) for name, values in pieces.items()}, failed)

    def keeps(self, path: Path) -> bool:
        """Return whether a part is as it was written and no image of it failed, since files may have been restored."""
        return super().keeps(path) and not ArrayFile(path).facts


class Decoders:
    """Threads that decode the next images while others compute.

    Each computes alone: a picture is too small for several threads of torch.

    Args:
        count: threads.
        turns: parts that are computed at the same time, while the images of the next are decoded and the rows of the
            last are written.

    Attributes:
        count: as given.
        turn: is held by a part that is being computed.
    """

    def __init__(self, count: int, turns: int = 1) -> None:
        self.count = count
        self.turn = threading.Semaphore(turns)
        self._pool = ThreadPoolExecutor(count, "decode", initializer=torch.set_num_threads, initargs=(1,))

    def ahead(
        self,
        batches: Iterable[Sequence[int]],
        decode: Callable[[int], Item | str],
        gather: Callable[[list[Item]], Result],
        count: int = 1,
    ) -> Iterator[Decoded[Result]]:
        """Decode batches and yield them in their order, while so many of the next are under way.

        Images, not batches, are the tasks, so that one batch feeds all threads. The last task waits for those before
        it, each of which is done or has a thread.

        Args:
            batches: rows of images.
            decode: gives an image, or why it cannot be used.
            gather: joins the images of a batch that can be used.
            count: batches that are under way.

        Raises:
            Exception: as `decode` does.
        """

        def gathered(rows: Sequence[int], tasks: list[Future[Item | str]]) -> Decoded[Result]:
            usable = []
            images = []
            refused = {}
            for row, task in zip(rows, tasks, strict=True):
                image = task.result()
                if isinstance(image, str):
                    refused[row] = image
                else:
                    usable.append(row)
                    images.append(image)
            return usable, gather(images), refused

        waiting = deque[Future[Decoded[Result]]]()
        for rows in batches:
            tasks = [self._pool.submit(decode, row) for row in rows]
            waiting.append(self._pool.submit(gathered, rows, tasks))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def stop(self) -> None:
        """Let parts that are being made end, unfinished."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def decode_image(images: ImageFiles, row: int, transform: Transform) -> np.ndarray | str:
    """Read and transform an image.

    Returns:
        Its pixels [3, h, w] uint8, or why it cannot be used.

    Raises:
        DataError: an artifact that holds it is damaged.
        UnavailableError: the disk cannot give it now, whatever it holds.
    """
    try:
        return transform(images.read(row))
    except DataError as error:
        return " ".join(str(error).split())


def stack(pixels: Sequence[np.ndarray], *, pinned: bool = False) -> Images:
    """Return transformed images [3, h, w] as an extractor takes them, for a GPU in pinned memory."""
    images = [torch.from_numpy(image) for image in pixels]
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        return images
    # Torch keeps pinned memory that was freed, so that only the first batches wait for it.
    batch = torch.empty((len(images), *images[0].shape), dtype=images[0].dtype, pin_memory=pinned)
    return torch.stack(images, out=batch)


# One feature file from several extractors, each of which goes over the images once, or from one importer.


def divide(specs: Mapping[str, FeatureSpec]) -> dict[str, FeatureSpec]:
    """Decide what each of several extractors contributes: a group of datasets comes from the first that has it.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    taken: set[str] = set()
    parts: dict[str, FeatureSpec] = {}
    for name, spec in specs.items():
        groups = GROUPS & spec.keys()
        if groups <= taken:
            raise UsageError(
                f"{'+'.join(specs)}: {name} has {' and '.join(sorted(groups))} only, which another one gives "
                "already; leave it out or name it first"
            )
        parts[name] = spec.only(groups - taken)
        taken |= groups
    return parts


def extractions(parts: Mapping[str, FeatureSettings], images: ImageFiles, **options: Any) -> dict[str, Extraction]:
    """Open extractors; the `spec` of each holds the datasets that no extractor before it has.

    Args:
        parts: of `itrpipe.features.declaration.passes_of`.
        images: what they read.
        options: of `Extraction`.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    works = {}
    for name, part in parts.items():
        build = partial(EXTRACTORS.module(part.kind).build, part)
        works[name] = Extraction(f"extracting {name}", images, build, **options)
    specs = divide({name: work.spec for name, work in works.items()})
    for name, work in works.items():
        work.spec = specs[name]
    return works


def notes_of(works: Mapping[str, Extraction | Import]) -> list[str]:
    """Return what a user should know of the extractors or of the import, each with its name."""
    notes = []
    for name, work in works.items():
        notes += [f"{name}: {note}" for note in work.notes]
    return notes


def join_features(
    path: Path,
    ids: Sequence[str],
    parts: Sequence[Path],
    extractor: str,
    on_joined: Callable[[int], None] = lambda count: None,
) -> dict[int, str]:
    """Write one feature file from the parts of one or several extractors.

    Args:
        path: the file; what an interrupted run has left there is replaced.
        ids: N, of all images.
        parts: of all extractors, which have no dataset in common.
        extractor: name of all of them, kept in the file.
        on_joined: called with numbers of rows.

    Returns:
        Row -> why its image has no features; these have no row in the file.

    Raises:
        DataError: no image has features.
        DiskFullError: the disk cannot hold the file.
    """
    files = [ArrayFile(part) for part in parts]
    failed: dict[int, str] = {}
    for file in files:
        for row, reason in file.facts.items():
            failed[int(row)] = reason
    if len(failed) == len(ids):
        raise DataError(f"none of the {len(ids):,} images could be used; the first {failed[0]}")
    usable = [row for row in range(len(ids)) if row not in failed]
    places = np.full(len(ids), -1)  # row of an image in the file
    places[usable] = np.arange(len(usable))
    files = [file for file in files if file]  # all images of the others have failed
    shapes = {}
    for file in files:
        for name, rows in file.items():
            shapes[name] = rows.shape[1:]

    def pieces() -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        for file in files:
            rows = places[file.pop("rows").read()]
            is_kept = rows >= 0
            yield rows[is_kept], {name: values.mapped("r")[is_kept] for name, values in file.items()}
            on_joined(len(rows))

    write_features(path, [ids[row] for row in usable], FeatureSpec.of(shapes), extractor, pieces())
    return failed
