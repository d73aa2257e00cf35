"""Content digests of files outside the data folder, remembered by size and modification time.

Hashing 30 GB of features or 100,000 images takes minutes; looking at their sizes and times takes
a second. So a digest is computed once and reused while neither has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from itrpipe.disk import file_digest, make_folder, read_json, write_json
from itrpipe.errors import DataError, MissingInputError
from itrpipe.progress import Reporter

ABSENT = "absent"
QUIET_FILES = 2000


class DigestCache:
    """Digests of source files, kept in one JSON file per dataset.

    Args:
        path: the JSON file; created on `save`.
        reporter: shows progress when many files have to be hashed.
    """

    def __init__(self, path: Path, reporter: Reporter | None = None) -> None:
        self.path = path
        self._reporter = reporter
        self._entries: dict[str, list] = _read_entries(path) if path.exists() else {}
        self._changed = False

    def digest(self, path: Path) -> str:
        """sha256 of one file, from the cache while size and modification time are unchanged.

        Raises:
            MissingInputError: there is no such file.
            DataError: it cannot be read.
        """
        try:
            status = path.stat()
            key = str(path.absolute())
            known = self._entries.get(key)
            if known and known[:2] == [status.st_size, status.st_mtime_ns]:
                return known[2]
            value = file_digest(path)
        except FileNotFoundError:
            raise MissingInputError(f"source file {path} does not exist; restore it or name another") from None
        except (PermissionError, IsADirectoryError) as error:
            raise DataError(
                f"source file {path} cannot be read ({error.strerror}); correct it or name another"
            ) from None
        self._entries[key] = [status.st_size, status.st_mtime_ns, value]
        self._changed = True
        return value

    def combined(self, paths: Sequence[Path], root: Path, what: str) -> str:
        """One digest over many files: their paths relative to `root` and their contents.

        What is not there, no file or not readable counts as absent instead of failing: the stage that reads it lists
        all of them.

        Args:
            paths: the files.
            root: folder the recorded names are relative to, so that moving it changes nothing.
            what: name of the progress shown while many files are new.
        """
        total = hashlib.sha256()
        reporter = self._reporter if len(paths) - len(self._entries) > QUIET_FILES else None
        with reporter.task(what, len(paths), "files") if reporter else nullcontext() as task:
            for path in sorted(paths):
                name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
                total.update(f"{name}\0{self._digest_of_any(path)}\n".encode())
                if task:
                    task.advance()
        return total.hexdigest()

    def _digest_of_any(self, path: Path) -> str:
        # Opening a pipe would wait for a writer for ever.
        readable = path.is_file() and os.access(path, os.R_OK)
        return self.digest(path) if readable else ABSENT

    def save(self) -> None:
        """Writes the cache back if anything was hashed."""
        if self._changed:
            make_folder(self.path.parent)
            write_json(self.path, self._entries)
            self._changed = False


def _read_entries(path: Path) -> dict[str, list]:
    entries = read_json(path)
    if not isinstance(entries, dict) or not all(isinstance(each, list) and len(each) == 3 for each in entries.values()):
        raise DataError(f"{path} does not hold digests; remove it and rerun")
    return entries
