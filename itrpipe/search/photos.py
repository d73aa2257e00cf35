"""The photographs below a folder, and their index: paths, bytes, times and embeddings.

Shapes: N photographs, D embedding width.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.datasets.archives import ARCHIVES, ENDINGS, TAR, UNREAD, in_archive, members
from itrpipe.datasets.pictures import refusal
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.engine.work import Part, Work, cut, resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import FeatureSettings, recorded_passes
from itrpipe.features.photographs import open_extractors, read_photographs
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.printable import printable
from itrpipe.search.model import RetrievalModel, load
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.artifact import open_artifact, open_input, read_manifest
from itrpipe.storage.disk import OF_THE_FILE, on_disk, require_space, unavailable
from itrpipe.storage.tables import read_table, write_table

PHOTOS = "photos.parquet"
EMBEDDINGS = "embeddings.npy"
_COLUMNS = pa.schema({"file": pa.string(), "bytes": pa.int64(), "changed": pa.int64()})
"""Columns of `PHOTOS`, the fields of `PhotoFile`."""
_ROWS_AT_ONCE = 4_096


class PhotoFile(NamedTuple):
    """One photograph, as it was when the folder was listed.

    Attributes:
        file: path relative to the folder, with forward slashes.
        bytes: size; of a photograph in an archive that of the archive.
        changed: modification time, ns; of a photograph in an archive that of the archive.
    """

    file: str
    bytes: int
    changed: int

    @classmethod
    def of(cls, file: str, path: Path) -> PhotoFile:
        """Return a photograph as it is now."""
        archive = in_archive(path)
        status = archive[0].stat() if archive else path.stat()
        return cls(file, status.st_size, status.st_mtime_ns)

    @property
    def digest(self) -> str:
        """Return a digest that tells it from another photograph, or from one of another size or time."""
        return hashlib.sha256("\0".join(map(str, self)).encode()).hexdigest()


@dataclass
class PhotoFolder:
    """The photographs below a folder.

    Attributes:
        photographs: sorted by path.
        unusable: path -> why it cannot be a photograph, of folders and files that look like some.
        left_out: how many links lead out of the folder, and how many photographs have an ending that is not read.
    """

    photographs: list[PhotoFile] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def reads(self, name: str) -> bool:
        """Tell whether a file has the ending of a photograph that is read; counts those of other formats."""
        ending = PurePosixPath(name).suffix.lower()
        if ending in UNREAD:
            self.left_out[ending] += 1
        return ending in ENDINGS

    @property
    def note(self) -> str:
        """Return what was left out, in one line; empty for nothing."""
        if not self.left_out:
            return ""
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.left_out.items()))
        return f"{counts} left out; convert pictures to JPEG, and replace links by copies"

    @property
    def digest(self) -> str:
        """Return the sha256 over paths, sizes and modification times."""
        sha256 = hashlib.sha256()
        for photograph in self.photographs:
            sha256.update(f"{photograph.file}\0{photograph.bytes}\0{photograph.changed}\n".encode())
        for name, reason in sorted(self.unusable.items()):
            sha256.update(f"{name}\0{reason}\n".encode())
        return sha256.hexdigest()


def list_photographs(folder: Path, apart_from: Path) -> PhotoFolder:
    """List all photographs below a folder, those in tar files, Parquet and Arrow too.

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
    listing = PhotoFolder()
    root = os.path.realpath(folder)
    apart = os.path.realpath(apart_from)
    inside = root.rstrip(os.sep) + os.sep

    def unreadable(error: OSError) -> None:
        if error.filename == root:
            raise unavailable(error, Path(root)) or error
        listing.unusable[printable(f"{error.filename.removeprefix(inside)}/")] = _reason(error)

    for place, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if name[0] != "." and os.path.join(place, name) != apart]
        for base in names:
            is_archive = base.lower().endswith(ARCHIVES)
            if base.startswith(".") or not (is_archive or listing.reads(base)):
                continue
            path = os.path.join(place, base)
            name = path.removeprefix(inside)
            try:
                name.encode()
                if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                    listing.left_out["links out of the folder"] += 1
                    continue
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):
                    listing.unusable[name] = "is not a regular file"
                    continue
                if not is_archive:
                    listing.photographs.append(PhotoFile(name, status.st_size, status.st_mtime_ns))
                    continue
                is_tar = base.lower().endswith(TAR)
                for member in members(Path(path)):
                    if not is_tar or listing.reads(member):
                        photograph = PhotoFile(f"{name}/{member}", status.st_size, status.st_mtime_ns)
                        listing.photographs.append(photograph)
            except UnicodeEncodeError:
                listing.unusable[printable(name)] = "has a name that is not valid UTF-8; rename it, or set PYTHONUTF8=1"
            except (DataError, OSError) as error:
                listing.unusable[name] = _reason(error)
    if not listing.photographs:
        note = listing.note or "name another folder"
        raise MissingInputError(f"--photos {folder} holds no photograph ({', '.join(ENDINGS)}); {note}")
    listing.photographs.sort()
    return listing


def _reason(error: OSError | DataError) -> str:
    """Return why something is left out.

    Raises:
        UnavailableError: the disk does not answer, which says nothing of the file.
    """
    if isinstance(error, OSError) and error.errno not in OF_THE_FILE:
        disk_error = unavailable(error)
        if disk_error:
            raise disk_error from None
    return refusal(error)


def no_embeddings(label: str) -> UsageError:
    """Return the error about a model that cannot index photographs."""
    return UsageError(
        f"{label} scores images and texts together and has no embeddings to index; name a model with embeddings, such "
        "as vsrn or dual-encoder"
    )


# The index


def read_index(folder: Path) -> tuple[list[PhotoFile], np.ndarray]:
    """Return the photographs of an index and their embeddings [N, D] float32, mapped.

    Raises:
        DataError: a file of it is damaged.
    """
    open_artifact(folder)
    table = read_table(folder / PHOTOS, PhotoFile._fields, "run `itrpipe index` again")
    photographs = [PhotoFile(**row) for row in table.to_pylist()]
    vectors = np.load(folder / EMBEDDINGS, mmap_mode="r", allow_pickle=False)
    return photographs, np.asarray(vectors)


def encoded_part(path: Path) -> tuple[dict[PhotoFile, np.ndarray], dict[str, str]]:
    """Return the photographs of a part with their embeddings, and path -> reason of those that could not be used."""
    file = ArrayFile(path)
    vectors = np.asarray(file["vectors"].mapped("r"))
    vector_of = {}
    for fields, vector in zip(file.facts["photographs"], vectors, strict=True):
        vector_of[PhotoFile(*fields)] = vector
    return vector_of, file.facts["failed"]


@dataclass(eq=False)
class EncodePhotographs(Work["RetrievalModel"]):
    """Embeds photographs; a part is some of them in the order of their paths.

    Attributes:
        folder: of the photographs.
        photographs: which are encoded.
        model: folder of the model.
        batch: photographs per forward pass.
        block: photographs per part.
        device: where it computes.
        key: what the parts depend on.
    """

    title = "encoding"
    unit = "photographs"
    untold = ("photographs",)

    folder: Path
    photographs: Sequence[PhotoFile]
    model: Path
    batch: int
    block: int
    device: str = "cpu"
    key: str = ""

    def parts(self) -> list[Part]:
        """Return some photographs at a time."""
        return cut(self.photographs, self.block)

    def open(self) -> RetrievalModel:
        """Open the model.

        Raises:
            UsageError: it has no embeddings.
        """
        model = load(self.model, device=resolve_device(self.device))
        if not model.embeds:
            raise no_embeddings(model.label)
        return model

    def make(self, worker: RetrievalModel, part: Part, path: Path) -> None:
        """Encode some photographs; those that cannot be used are listed with the reason.

        Raises:
            UsageError: the model reads features that were imported.
            UnavailableError: the disk does not answer.
            DataError: an embedding is not finite.
        """
        photographs: Sequence[PhotoFile] = part.content
        files = [self.folder / photograph.file for photograph in photographs]
        reasons: dict[int, str] = {}
        vectors = worker.encode_images(files, self.batch, refused=reasons.__setitem__)
        usable = [photograph for row, photograph in enumerate(photographs) if row not in reasons]
        failed = {photographs[row].file: reason for row, reason in reasons.items()}
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            file = self.folder / usable[bad[0]].file
            raise DataError(f"{worker.label} embeds {file} as NaN or infinity; name another model")
        write_arrays(path, {"vectors": vectors}, {"photographs": usable, "failed": failed})


def write_index(
    folder: Path,
    photographs: Sequence[PhotoFile],
    vectors: Mapping[PhotoFile, np.ndarray],
    advance: Callable[[int], object],
) -> int:
    """Write `photos.parquet` and `embeddings.npy`, some rows at a time.

    Args:
        folder: exists.
        photographs: N, the rows.
        vectors: their embeddings [D]; one that has another size or time is another photograph.
        advance: called with the number of rows done.

    Returns:
        D.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    count = len(photographs)
    width = len(vectors[photographs[0]])
    require_space(folder, count * width * 4, "the embeddings")
    with on_disk(folder), (folder / EMBEDDINGS).open("wb") as stream:
        header: Mapping[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, count, _ROWS_AT_ONCE):
            rows = [vectors[photograph] for photograph in photographs[start : start + _ROWS_AT_ONCE]]
            stream.write(np.stack(rows).astype("<f4").tobytes())
            advance(len(rows))
    table = pa.Table.from_pylist([photograph._asdict() for photograph in photographs], schema=_COLUMNS)
    write_table(folder / PHOTOS, table)
    return width


PHOTOGRAPH = "photograph"
"""Stands for the split of an image that is in none."""


class QueryImage(NamedTuple):
    """An image that a model is asked about.

    Attributes:
        image_id: of the dataset, or the path of a photograph.
        file: relative to the root of the dataset; of a photograph the absolute path.
        split: of the image, or `photograph`.
        features: hold a row of this id; None where the model reads the photograph itself.
    """

    image_id: str
    file: str
    split: str
    features: FeatureFile | None


def find_image(trained: Path, image: str, device: str) -> QueryImage:
    """Find the image that a user names: of the dataset by id, path or file name, else the photograph at this path.

    Args:
        trained: artifact whose dataset and features are meant.
        image: id, path or file name.
        device: `cpu` or `cuda`, where the features of a photograph are made.

    Raises:
        MissingInputError: there is neither, or the image has no features.
        UsageError: several images have this file name, or a photograph cannot be read as the dataset's images were.
        DataError: the photograph cannot be used.
    """
    manifest = read_manifest(trained)
    dataset = PreparedDataset.open(open_input(trained, manifest, "prepare"))
    extracted = None
    if "extract" in manifest.inputs:
        extracted = open_input(trained, manifest, "extract")
    columns = dataset.column("image_id"), dataset.column("file"), dataset.column("split")
    images = []
    for image_id, file, split in zip(*columns, strict=True):
        images.append(QueryImage(image_id, file, split, None))
    by_id = [candidate for candidate in images if candidate.image_id == image]
    by_path = [candidate for candidate in images if candidate.file == image]
    by_name = [candidate for candidate in images if PurePosixPath(candidate.file).name == image]
    matches = by_id or by_path or by_name
    if len(matches) > 1:
        raise UsageError(f"--image {image}: {len(matches):,} images have this file name; name one by its id")
    features = None
    if matches:
        (match,) = matches
        if extracted is not None:
            features = FeatureFile.open(extracted / FEATURES)
            features.rows([match.image_id])  # an image without features is told here, and not in the midst of a batch
        return match._replace(features=features)
    # Unlike Path.is_file, this raises no error for what cannot be a path.
    if os.path.isfile(image) or in_archive(Path(image)):
        path = Path(image)
        if extracted is not None:
            features = photograph_features(path, extracted, device)
        return QueryImage(str(path), str(path.absolute()), PHOTOGRAPH, features)
    raise MissingInputError(
        f"--image {image}: neither an image of the dataset nor a file; name an image by its id or file, such as "
        f"{images[-1].image_id}, or any photograph"
    )


def photograph_features(path: Path, folder: Path, device: str) -> FeatureFile:
    """Extract the features of a photograph in memory, by the extractors that made those of the dataset.

    Args:
        path: the photograph; also its id.
        folder: artifact of `extract`.
        device: `cpu` or `cuda`.

    Raises:
        UsageError: the features of the dataset were imported.
        DataError: the photograph cannot be used.
    """
    manifest = read_manifest(folder)
    parts = recorded_passes(manifest.conf, manifest.settings)
    refuse_imported(parts, f"--image {path}")
    try:
        (features,) = read_photographs(open_extractors(parts, device), [path], batch=1)
    except DataError as error:
        raise DataError(f"--image {error}") from None
    return replace(features, image_id=np.array([str(path)]))


def refuse_imported(parts: Mapping[str, FeatureSettings], what: str) -> None:
    """Refuse features of which nothing here can make those of a photograph.

    Raises:
        UsageError: they were imported.
    """
    for part in parts.values():
        if part.imported:
            raise UsageError(
                f"{what}: the features of the dataset were imported ({part.kind}); those of a photograph cannot be "
                "made alike"
            )
