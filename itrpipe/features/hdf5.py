"""HDF5 files that are all there is: none may name another file whose bytes would be read in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
from h5py import h5l, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled, without stubs)

from itrpipe.errors import DataError


def open_hdf5(path: Path, **options: Any) -> h5py.File:
    """Opens a file to read, after a look at everything in it that could lead to other files.

    HDF5 follows external storage, virtual datasets and external links without a word, so that a file from elsewhere
    could make any file of this machine part of the features.

    Args:
        path: the file.
        options: of `h5py.File`.

    Raises:
        DataError: something in it lies in another file.
        OSError: it is not HDF5, is damaged, or cannot be read.
    """
    file = h5py.File(path, "r", **options)
    try:
        _refuse_other_files(path, file.id)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:  # what h5py makes of damage
        file.close()
        raise OSError(str(error)) from error
    except BaseException:
        file.close()
        raise
    return file


def _refuse_other_files(path: Path, file: h5py.h5f.FileID) -> None:
    """Looks at every link and dataset by h5py's own functions, none of which follows a link to another file."""
    waiting = [(b"", h5py.h5g.open(file, b"/"))]
    seen = set()
    while waiting:
        above, group = waiting.pop()
        address = h5o.get_info(group).addr
        if address in seen:  # a group may hold itself
            continue
        seen.add(address)
        names: list[bytes] = []
        group.links.iterate(names.append)
        for name in names:
            where = above + name
            kind = group.links.get_info(name).type
            if kind == h5l.TYPE_HARD:
                found = h5o.open(group, name)
                if isinstance(found, h5py.h5g.GroupID):
                    waiting.append((where + b"/", found))
                elif isinstance(found, h5py.h5d.DatasetID):
                    _refuse_storage(path, where, found)
            elif kind == h5l.TYPE_EXTERNAL:
                raise _outside(path, where, f"is a link to the file {_text(group.links.get_val(name)[0])!r}")
            elif kind != h5l.TYPE_SOFT:  # soft links lead to another name in this file, or to nothing
                raise _outside(path, where, "is a link of an unknown kind")


def _refuse_storage(path: Path, where: bytes, dataset: h5py.h5d.DatasetID) -> None:
    made = dataset.get_create_plist()
    if made.get_layout() == h5py.h5d.VIRTUAL:
        raise _outside(path, where, "is a virtual dataset, made of others")
    if made.get_external_count():
        raise _outside(path, where, f"keeps its values in the file {_text(made.get_external(0)[0])!r}")


def _outside(path: Path, where: bytes, reason: str) -> DataError:
    return DataError(
        f"{path}: '{_text(where)}' {reason}, which is never followed; write the values themselves into the file"
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
