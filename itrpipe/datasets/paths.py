"""Image paths out of data files: they name files below one root folder and never anything else."""

import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.tars import path_parts
from itrpipe.errors import DataError, MissingInputError, UsageError

# Bytes that a file name and a path may have on the file systems in use.
_LONGEST_NAME = 255
_LONGEST_PATH = 4095
_INSIDE = "write a path relative to the images' folder"
_RENAME = "rename the file and correct the path"
_REFUSED = {
    r"\A(?:/|[A-Za-z]:)": f"is absolute; {_INSIDE}",
    r"\A(?:\s*|(?:\.?/)*\.?)\Z": f"names no file; {_INSIDE}",
    r"\\": f"contains a backslash; {_INSIDE}",
    "[\0\ud800-\udfff]": f"contains a character that no file name can hold; {_INSIDE}",
    r"(?:\A|/)\.\.(?:/|\Z)": f"contains '..'; {_INSIDE}",
    "[\x01-\x1f\x7f-\x9f\u2028\u2029]": f"contains a line end or another control character; {_RENAME}",
}
"""Pattern that a path must not hold -> the reason why it is refused."""
# A copy of a dataset may lack some images, so their folder is looked for with the first few of them.
_PROBED_IMAGES = 50
_SHOWN = 200
"""Characters of a path in a message."""


@lru_cache(maxsize=65_536)  # captions of an image follow each other
def image_key(name: str) -> str:
    """Return one path for all spellings: without `.`, doubled slashes and spaces around it, in Unicode's form NFC."""
    name = unicodedata.normalize("NFC", name.strip())
    path = "/".join(path_parts(name))
    return f"/{path}" if name.startswith("/") else path


def locate_images(
    root: Path, source: Path, layouts: Sequence[Sequence[str]], records: Sequence[str], folders: Sequence[str]
) -> list[str]:
    """Find where the images of a data file lie, and return their paths relative to the root.

    Args:
        root: folder that everything is relative to and that no image may leave.
        source: the data file, for errors.
        layouts: the image paths as the data file may mean them, in the order of the data file; the first
            layout of which a file exists is taken.
        records: where in the data file each image stands, such as `image 17` or `line 5`.
        folders: folders below the root to look in; `""` stands for the root itself.

    Returns:
        One path per image, with forward slashes, in the order of the data file; as the disk spells it, which may be in
        another Unicode form than the data file.

    Raises:
        DataError: there is no image, or a path leaves the root (see `ImageRoot.resolve`).
        UsageError: a path has letters that Python cannot name files by in this locale.
        MissingInputError: none of the first 50 images is in any of the folders.
    """
    if not records:
        raise DataError(f"{source}: holds no images; a dataset needs at least one")
    image_root = ImageRoot(root, source)
    encoding = sys.getfilesystemencoding()
    layouts = [list(map(image_key, layout)) for layout in layouts]
    for layout in layouts:
        for file, record in zip(layout, records, strict=True):
            image_root.refuse_outside(file, record)
            if not file.isascii() and encoding != "utf-8":
                raise UsageError(f"{source}: {record}: Python reads file names as {encoding} here; set PYTHONUTF8=1")
    for layout in layouts:
        for folder in folders:
            for probe in layout[:_PROBED_IMAGES]:
                path = root / image_root.as_stored(f"{folder}/{probe}")
                if path.is_file() or in_archive(path):
                    files = [image_root.as_stored(f"{folder}/{file}") for file in layout]
                    image_root.refuse_links_out(files, records)
                    return files
    first = layouts[0][0]
    for folder in folders:
        place = (root / folder / first).parent
        if not place.is_dir():
            continue
        for path in place.iterdir():
            if Path(first).name.lower() in (path.name.lower(), path.stem.lower()):
                raise MissingInputError(
                    f"{source}: no image {first} in {root / folder}, but {path.name}; write names of files as they "
                    "are, with their ending"
                )
    places = ", ".join(str(root / folder) for folder in folders)
    raise MissingInputError(f"{source}: no image such as {first} in {places}; put the images into one of these")


def locate_all_images(root: Path, files: Sequence[str], records: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Find where the images of a benchmark lie; all of them have to be there.

    Args:
        root, records, folders: see `locate_images`.
        files: paths as the benchmark writes them.

    Raises:
        MissingInputError: some are not there.
        DataError, UsageError: see `locate_images`.
    """
    located = locate_images(root, root, [files], records, folders)
    missing = [file for file in located if not (root / file).is_file()]
    if missing:
        raise MissingInputError(
            f"{root}: {len(missing):,} of {len(located):,} images are not there, such as {root / missing[0]}; "
            "a benchmark needs all of them"
        )
    return located


class ImageRoot:
    """One root folder and the data file whose image paths are checked against it.

    Folders are resolved once each, so that 100,000 images in one folder cost one look at that folder
    and one `lstat` per image.

    Args:
        root: the folder.
        source: the data file, for errors.
    """

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        self._source = source
        self._real_root = os.path.realpath(root)
        self._real_folders: dict[str, str] = {}
        self._stored_names: dict[str, dict[str, str]] = {}

    def as_stored(self, relative: str) -> str:
        """Return a path with each name as its folder spells it, which may be in another Unicode form."""
        stored = ""
        for name in path_parts(relative):
            if not name.isascii():
                name = self._names(stored).get(image_key(name), name)
            stored += f"/{name}"
        return stored[1:]

    def refuse_outside(self, relative: str, record: str) -> None:
        """Raise the errors of `resolve` that the text of the path alone settles, without a look at the disk."""
        reason = ""
        for pattern, refusal in _REFUSED.items():
            if re.search(pattern, relative):
                reason = refusal
                break
        encoded = relative.encode(errors="replace")
        if not reason and (len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME):
            reason = f"has more bytes than a name ({_LONGEST_NAME}) or path ({_LONGEST_PATH:,}) can have; {_RENAME}"
        if reason:
            excerpt = relative if len(relative) <= _SHOWN else f"{relative[:_SHOWN]}…"
            raise DataError(f"{self._source}: {record}: image path {excerpt!r} {reason}")

    def resolve(self, relative: str, record: str) -> Path:
        """Return the real path of the image.

        Args:
            relative: path as the disk spells it.
            record: where in the data file it is written, such as `image 17` or `line 5`.

        Raises:
            DataError: the path is empty, absolute or too long, contains `..`, a backslash or a character that no file
                name can hold, or passes a symbolic link whose target lies outside the root; the message names the
                data file and the record.
        """
        self.refuse_outside(relative, record)
        self.refuse_links_out([relative], [record])
        return Path(self._follow(relative))

    def refuse_links_out(self, relatives: Sequence[str], records: Sequence[str]) -> None:
        """Raise a `DataError` that counts the paths whose links lead out of the root, and names the first."""
        outside = []
        for relative, record in zip(relatives, records, strict=True):
            real = self._follow(relative)
            if not real.startswith(self._real_root.rstrip(os.sep) + os.sep):
                outside.append(f"{record}: image path {relative!r} leads to {real}")
        if outside:
            raise DataError(
                f"{self._source}: {len(outside):,} of {len(relatives):,} images are symbolic links that lead out of "
                f"{self.root}; the first: {outside[0]}; replace links by copies, as `cp -rL` does"
            )

    def _follow(self, relative: str) -> str:
        """Return the path of a file without links."""
        *folders, name = path_parts(relative)
        folder = "/".join(folders)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(os.path.join(self._real_root, folder))
        path = os.path.join(self._real_folders[folder], name)
        return os.path.realpath(path) if os.path.islink(path) else path

    def _names(self, folder: str) -> dict[str, str]:
        """Return the names in a folder below the root by their keys; of names with one key, the one that equals it."""
        if folder not in self._stored_names:
            names = {}
            with contextlib.suppress(OSError):  # no such folder, or none to be read, which resolving tells
                for name in os.listdir(f"{self._real_root}{folder}"):
                    key = image_key(name)
                    if name == key or key not in names:
                        names[key] = name
            self._stored_names[folder] = names
        return self._stored_names[folder]
