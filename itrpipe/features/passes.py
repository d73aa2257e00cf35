"""One feature file from several extractors, one pass over the images each; and a file from its shards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from itrpipe.artifacts.artifact import partial_of
from itrpipe.artifacts.disk import file_digest, make_folder, read_stamped_json, write_stamped_json
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.journal import RowJournal
from itrpipe.features.layout import structure_digest
from itrpipe.features.shard import Shard
from itrpipe.features.store import FEATURES, FeatureFile, FeatureSpec, FeatureWriter, create_features
from itrpipe.progress import Reporter

SHARDS = "shards"
_SHARD_FOLDER = re.compile(r"(\d+)-of-(\d+)")
_COPIED_ROWS = 256


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


def merge(parts: Mapping[str, FeatureSpec]) -> FeatureSpec:
    """The datasets of a file that holds all parts of `divide`."""
    regions = next((spec for spec in parts.values() if spec.regions), FeatureSpec(0, 0))
    pixels = next((spec.pixels for spec in parts.values() if spec.pixels[0]), (0, 0))
    return replace(regions, global_dim=max(spec.global_dim for spec in parts.values()), pixels=pixels)


@dataclass(frozen=True)
class Target:
    """A feature file that one pass fills, with its journal.

    Attributes:
        path: the file.
        journal: where its journal lies.
        rows: [n] int64, the rows of the dataset that it holds, rising.
    """

    path: Path
    journal: Path
    rows: np.ndarray

    def slots(self, images: int) -> np.ndarray:
        """Returns for each row [N] of the dataset its row in the file, -1 where it has none."""
        slots = np.full(images, -1, dtype=np.int64)
        slots[self.rows] = np.arange(len(self.rows))
        return slots

    def create(self, ids: list[str], spec: FeatureSpec, extractor: str) -> None:
        """Creates the file unless an earlier run or pass did.

        Raises:
            DataError: the earlier run's file is of other images or datasets.
        """
        if self.path.exists():
            self.check(ids, spec)
            return
        make_folder(self.path.parent)
        self.journal.unlink(missing_ok=True)
        create_features(self.path, [ids[row] for row in self.rows.tolist()], spec, extractor)
        with FeatureWriter(self.path) as writer:  # from now on damage of the structure is seen
            self.read_journal().save(writer)

    def check(self, ids: list[str], spec: FeatureSpec) -> FeatureFile:
        """Opens the file.

        Raises:
            DataError: it is of other images, in which case a shard was made with another batch size, or it has other
                datasets than this extractor fills.
        """
        file = FeatureFile.open(self.path)
        if file.image_id.tolist() != [ids[row] for row in self.rows.tolist()]:
            raise DataError(
                f"{self.path} holds other images than it should: the shard was made with another batch size; "
                f"give the same --set batch here, or remove {partial_of(self.path)} and run the same command again"
            )
        if file.spec != spec:
            raise DataError(f"{self.path} was begun by another version of the extractor; remove {self.path.parent}")
        return file

    def read_journal(self) -> RowJournal:
        """The journal as it is on the disk.

        Raises:
            DataError: it is damaged, or the structure of the feature file.
        """
        journal, structure = RowJournal(self.journal, len(self.rows)), structure_digest(self.path)
        if journal.structure not in ("", structure):
            raise DataError(f"{self.path} is damaged; remove {partial_of(self.path)} and run the same command again")
        journal.structure = structure
        return journal

    def checked_journal(self, datasets: Set[str], reporter: Reporter, warn: Callable[[str], None]) -> RowJournal:
        """The journal without the rows of these datasets that were damaged since they were written; warns of them.

        Raises:
            DataError: the journal is damaged, or the structure of the feature file.
        """
        journal = self.read_journal()
        done = int(journal.done.sum())
        if done:
            arrays = {name: each for name, each in FeatureFile.open(self.path).arrays().items() if name in datasets}
            with reporter.task("checking what is done", done, "images") as task:
                damaged = journal.forget_damaged(arrays, task.advance)
            if damaged:
                warn(f"{damaged:,} of {done:,} rows in {self.path} were damaged; they are made again")
        return journal


def shard_target(work: Path, shard: Shard, name: str, batches: Sequence[np.ndarray]) -> tuple[Target, list[np.ndarray]]:
    """Where a shard of one pass is written, and its batches: every n-th of the whole dataset's."""
    own = list(batches[shard.number - 1 :: shard.count])
    rows = np.sort(np.concatenate(own)) if own else np.empty(0, dtype=np.int64)
    folder = work / SHARDS / shard.name
    return Target(folder / f"{name}.h5", folder / f"{name}.json", rows), own


def find_shards(work: Path) -> list[Shard]:
    """The shards that were begun, all of one division.

    Raises:
        DataError: shards of different divisions lie side by side.
        MissingInputError: some of the division were never begun.
    """
    found = sorted(
        (Shard(int(match[1]), int(match[2])) for path in (work / SHARDS).glob("*") if (match := _named(path))),
        key=lambda shard: shard.number,
    )
    if not found:
        return []
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        raise DataError(f"{work / SHARDS} holds shards of {' and of '.join(map(str, counts))}; remove those of one")
    missing = sorted(set(range(1, counts[0] + 1)) - {shard.number for shard in found})
    if missing:
        raise _unfinished(work, [Shard(number, counts[0]) for number in missing])
    return found


@dataclass(frozen=True)
class FinishedShard:
    """One pass of a shard that is whole.

    Attributes:
        file: its features.
        rows: [n] int64, rows of the dataset.
        failed: row of the dataset -> why its image has no features.
        sums: [n] uint32, `row_sums` of what was written for each row; 0 where the image has no features.
    """

    file: FeatureFile
    rows: np.ndarray
    failed: dict[int, str]
    sums: np.ndarray

    def copy(self, writer: FeatureWriter, on_copied: Callable[[int], None]) -> None:
        """Copies the features into the whole file; calls `on_copied` with numbers of rows.

        Raises:
            DataError: a row is not as it was written.
        """
        arrays = self.file.arrays()
        for start in range(0, len(self.rows), _COPIED_ROWS):
            part = slice(start, start + _COPIED_ROWS)
            rows = self.rows[part]
            sums = writer.write(rows, {name: values[part] for name, values in arrays.items()})
            bad = rows[(sums != self.sums[part]) & ~np.isin(rows, list(self.failed))]
            if len(bad):
                raise DataError(
                    f"{self.file.path} does not match its checksums from row {bad[0]} of the dataset on; remove "
                    f"{self.file.path.parent} and extract that shard again"
                )
            on_copied(len(rows))


def open_shards(
    work: Path, shards: Sequence[Shard], name: str, ids: list[str], spec: FeatureSpec, batches: Sequence[np.ndarray]
) -> list[FinishedShard]:
    """Opens one pass of every shard.

    Args:
        work: folder of the artifact's unfinished work.
        shards: of `find_shards`.
        name: of the pass.
        ids: of all images of the dataset.
        spec: what the pass contributes.
        batches: of the whole dataset.

    Raises:
        MissingInputError: a shard is not finished.
        DataError: a shard was made with another batch size or is damaged.
    """
    finished = []
    for shard in shards:
        target, _ = shard_target(work, shard, name, batches)
        if not len(target.rows):
            continue
        if not (target.path.exists() and target.journal.exists()):
            raise _unfinished(work, [shard])
        file, journal = target.check(ids, spec), target.read_journal()
        if not journal.done.all():
            raise _unfinished(work, [shard])
        failed = {int(target.rows[slot]): reason for slot, reason in journal.failed.items()}
        finished.append(FinishedShard(file, target.rows, failed, journal.sums))
    return finished


def without_failed(path: Path, failed: Mapping[int, str]) -> Path:
    """The file without the rows of images that have no features: itself, or a copy beside it.

    Args:
        path: the file with all rows.
        failed: row and reason.

    Raises:
        DataError: no image has features.
        DiskFullError: the disk cannot hold the copy.
    """
    if not failed:
        return path
    file = FeatureFile.open(path)
    kept = np.setdiff1d(np.arange(len(file)), np.fromiter(failed, dtype=np.int64))
    if not len(kept):
        raise DataError(f"none of the {len(file):,} images could be used; the first {next(iter(failed.values()))}")
    copy = path.with_name(f"kept-{FEATURES}")
    create_features(copy, file.image_id[kept].tolist(), file.spec, file.extractor)
    with FeatureWriter(copy) as writer:
        for start in range(0, len(kept), _COPIED_ROWS):
            rows = kept[start : start + _COPIED_ROWS]
            writer.write(start, {name: values[rows] for name, values in file.arrays().items()})
    return copy


def put_in_place(whole: Path, finished: Path, digest: Path) -> None:
    """Moves a feature file to its place; its digest is kept first, for `check_in_place` after a kill."""
    write_stamped_json(digest, {"sha256": file_digest(whole)})
    os.replace(whole, finished)


def check_in_place(finished: Path, digest: Path) -> None:
    """Compares a feature file with the digest that `put_in_place` kept.

    Raises:
        DataError: they differ, or the digest is damaged.
    """
    remedy = f"remove {partial_of(finished)} and run the same command again"
    if read_stamped_json(digest, remedy)["sha256"] != file_digest(finished):
        raise DataError(f"{finished} is damaged; {remedy}")


def _named(path: Path) -> re.Match[str] | None:
    return _SHARD_FOLDER.fullmatch(path.name)


def _unfinished(work: Path, shards: Sequence[Shard]) -> MissingInputError:
    names = ", ".join(map(str, shards))
    return MissingInputError(
        f"shard {names} is not finished; run the same command with --shard {shards[0]}, "
        f"or remove {work / SHARDS} to extract everything here"
    )
