"""Finds the tables of a source, and the split of each by its name: `find_tables`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.datasets.archives import ARROW, PARQUET, naming
from itrpipe.datasets.formats.splits import split_in_name
from itrpipe.datasets.source_files import OBJECT, files_present, load_json
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.storage.artifact import DEFINITION, PARTIAL

CAPTION_FILES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of the tables of an image folder, as `datasets` reads it."""
_SPLITS, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"
"""Written by `datasets` above the folders of splits, last into a folder that is saved, and into its cache."""
_NUMBERED = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\b.*")


class SourceTable(NamedTuple):
    """One file of a source.

    Attributes:
        path: the file.
        split: split that its name or folder names; None where neither does.
    """

    path: Path
    split: str | None

    @property
    def is_metadata(self) -> bool:
        """Return whether it is the table of an image folder, which names files in its own folder."""
        return self.path.name in _METADATA


def called_tables(source: Path) -> list[Path]:
    """Return the tables of a source whose names are those of tables of captions."""
    paths = files_present(source, CAPTION_FILES)
    if not paths and source.is_dir():
        for depth in ("", "*/", "*/*/"):
            for name in _METADATA:
                paths += files_present(source, [depth + name])
    return paths


def find_tables(source: Path) -> list[SourceTable]:
    """Find the tables of a source: the file itself, or files in the folder.

    Taken are the first of: `captions.csv` and its kind; `metadata.csv` or `.jsonl`, also in folders of splits; Parquet
    and Arrow anywhere below; the only other table, or one for each split.

    Raises:
        UsageError: there are several tables and no splits in their names.
        MissingInputError: files are missing, of several that are numbered.
        DataError: a name has several splits.
    """
    if source.is_file():
        return [_table(source, source.name)]
    paths = called_tables(source)
    if not paths:
        packed = _column_tables(source)
        if packed:
            return packed
        paths = files_present(source, ["*.csv", "*.tsv", "*.jsonl"])
    tables = []
    names = []
    parts = set()  # one for each table, or else nothing tells which split a table is
    for path in paths:
        name = path.relative_to(source).as_posix()
        table = _table(path, name)
        tables.append(table)
        names.append(name)
        part = path.parent if table.is_metadata else table.split
        parts.add(part)
    if len(tables) > 1 and (None in parts or len(parts) < len(tables)):
        raise UsageError(
            f"{source}: holds {len(tables)} data files ({', '.join(names)}); name one of them as the source"
        )
    return tables


def _table(path: Path, name: str) -> SourceTable:
    with naming(path):
        return SourceTable(path, split_in_name(name))


def _column_tables(source: Path) -> list[SourceTable]:
    """Return the Parquet and Arrow files below a folder, without leftovers and caches.

    Raises:
        MissingInputError: some of them are not there, or `datasets` has not saved all splits to their end.
    """
    tables = []
    for folder, folders, names in os.walk(source):
        if DEFINITION in names and "prepare" in folders:
            folders.clear()  # a data folder of this program, which may lie below the photographs
            continue
        kept = [name for name in folders if not name.startswith(".") and not name.endswith(PARTIAL)]
        folders[:] = sorted(kept)
        place = Path(folder)
        if _SPLITS in names:
            for split in load_json(place / _SPLITS, OBJECT).get("splits", []):
                if not (place / str(split) / _STATE).is_file():
                    raise MissingInputError(
                        f"{place}: its split {split} was not saved to its end; save the dataset again"
                    )
        saved = None
        if _STATE in names:
            saved = load_json(place / _STATE, OBJECT).get("_data_files", [])
        packed = []
        for name in sorted(names):
            # In files that begin with `cache-`, `datasets` keeps results of computations beside what it reads.
            is_packed = name.lower().endswith((PARQUET, ARROW)) and not name.startswith((".", "cache-"))
            if is_packed and (saved is None or {"filename": name} in saved):
                packed.append(name)
        _refuse_gaps(place, packed)
        dataset = ""
        if packed and _INFO in names:
            # Files in the cache of `datasets` are called after the dataset and the split.
            dataset = f"{load_json(place / _INFO, OBJECT).get('dataset_name')}-"
        for name in packed:
            short_name = place.relative_to(source) / name.removeprefix(dataset)
            tables.append(_table(place / name, short_name.as_posix()))
    return tables


def _refuse_gaps(folder: Path, names: Sequence[str]) -> None:
    """Refuse files of which some are missing, as their numbers tell.

    Raises:
        MissingInputError: there are such files.
    """
    numbers = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match:
            present = numbers.setdefault((match["name"], match["count"]), set())
            present.add(int(match["number"]))
    for (name, count), present in numbers.items():
        missing = sorted(set(range(int(count))) - present)
        if missing:
            raise MissingInputError(
                f"{folder / name}-{missing[0]:05d}-of-{count}: {len(missing):,} of {int(count):,} such files are not "
                "there; fetch them, or name one file as the source"
            )
