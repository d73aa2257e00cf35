"""The photographs below a folder, listed by path, size and modification time: nothing of them is read."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.storage.disk import OF_THE_FILE, unavailable

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Of the formats that are decoded, see `itrpipe.datasets.pictures`; in any case of letters."""


class PhotoFile(NamedTuple):
    """One photograph, as it was when the folder was listed.

    Attributes:
        file: path relative to the folder, with forward slashes.
        bytes: size.
        changed: modification time, ns.
    """

    file: str
    bytes: int
    changed: int

    @classmethod
    def of(cls, file: str, status: os.stat_result) -> PhotoFile:
        """As it is now."""
        return cls(file, status.st_size, status.st_mtime_ns)


@dataclass
class PhotoFolder:
    """What lies below a folder.

    Attributes:
        photographs: sorted by path.
        unusable: path -> why it cannot be a photograph, of folders and files that look like some.
        outside: links that lead out of the folder and were left out.
    """

    photographs: list[PhotoFile] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    outside: int = 0

    @property
    def digest(self) -> str:
        """sha256 over paths, sizes and modification times."""
        total = hashlib.sha256()
        for each in self.photographs:
            total.update(f"{each.file}\0{each.bytes}\0{each.changed}\n".encode())
        for name, reason in sorted(self.unusable.items()):
            total.update(f"{name}\0{reason}\n".encode())
        return total.hexdigest()


def list_photographs(folder: Path, apart_from: Path) -> PhotoFolder:
    """Lists all photographs below a folder.

    Hidden files and folders are skipped. Links to folders are not followed, and links to files only where they stay
    inside.

    Args:
        folder: that is listed.
        apart_from: a folder whose content does not count, the data folder.

    Raises:
        MissingInputError: there is no such folder, or no photograph in it.
        UnavailableError: the disk does not answer, or the folder itself cannot be read.
    """
    if not folder.is_dir():
        raise MissingInputError(f"--photos {folder} is not a folder; name one that holds photographs")
    found, root, apart = PhotoFolder(), os.path.realpath(folder), os.path.realpath(apart_from)
    inside = root.rstrip(os.sep) + os.sep

    def unreadable(error: OSError) -> None:
        if error.filename == root:
            raise unavailable(error, Path(root)) or error
        found.unusable[_legible(f"{error.filename.removeprefix(inside)}/")] = _reason(error)

    for place, folders, names in os.walk(root, onerror=unreadable):
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in shown if os.path.join(place, name) != apart]
        for path in (os.path.join(place, name) for name in names if _is_photograph(name)):
            name = path.removeprefix(inside)
            try:
                name.encode()
                if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                    found.outside += 1
                    continue
                status = os.stat(path)
            except UnicodeEncodeError:
                encoding = sys.getfilesystemencoding()
                remedy = "rename it" if encoding == "utf-8" else "set PYTHONUTF8=1"
                found.unusable[_legible(name)] = f"has a name that is no {encoding.upper()}; {remedy}"
            except OSError as error:
                found.unusable[name] = _reason(error)
            else:
                if stat.S_ISREG(status.st_mode):
                    found.photographs.append(PhotoFile.of(name, status))
                else:
                    found.unusable[name] = "is not a regular file"
    if not found.photographs:
        raise MissingInputError(
            f"--photos {folder} holds no photograph ({', '.join(ENDINGS)}), hidden ones and links apart; name another"
        )
    found.photographs.sort()
    return found


def _is_photograph(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _reason(error: OSError) -> str:
    """Why something is left out.

    Raises:
        UnavailableError: the disk does not answer, which says nothing of the file.
    """
    if error.errno not in OF_THE_FILE and (told := unavailable(error)):
        raise told from None
    return "leads to a file that is not there" if isinstance(error, FileNotFoundError) else f"{error.strerror}"


def _legible(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def no_embeddings(label: str) -> UsageError:
    """What is said of a model that cannot index photographs."""
    return UsageError(
        f"{label} scores images and texts together and has no embeddings to index; name a model with embeddings, such "
        "as vsrn or dual-encoder"
    )
