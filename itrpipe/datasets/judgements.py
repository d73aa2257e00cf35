"""People's judgements of captions, mostly of other photographs: does this one describe this photograph?

Three experts rated each pair from 1 (unrelated) to 4 (describes it), a crowd said yes or no. The published text files
are read, and tables with a header and the same columns. A photograph's own captions are no pairs here.

Shapes: N photographs, T captions, P pairs.

Source: Hodosh, Young and Hockenmaier, "Framing image description as a ranking task", JAIR 2013; own captions are left
out as in Hessel et al., "CLIPScore", EMNLP 2021.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from itrpipe.datasets.paths import locate_all_images
from itrpipe.datasets.source_files import data_files, lines_of
from itrpipe.errors import DataError
from itrpipe.printable import printable
from itrpipe.storage.artifact import DigestCache

if TYPE_CHECKING:
    import numpy as np

JUDGEMENTS = "flickr8k-judgements"
FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "images")
"""Folders in which the photographs may lie; the first is spelled as it was published."""
_CAPTION_COLUMNS = {"captions.tsv": 3, "Flickr8k.token.txt": 2}
"""File of captions -> its columns, of which the last are id and caption."""


class Source(NamedTuple):
    """Files of one kind of answers.

    Attributes:
        names: that the file goes by.
        answers: columns that are read, of the three behind image and caption.
        low, high: bounds of a number.
        fits: mean from which on a caption counts as right.
    """

    names: tuple[str, str]
    answers: int
    low: int
    high: int
    fits: float


SOURCES = {
    "experts": Source(("expert.tsv", "ExpertAnnotations.txt"), 3, 1, 4, 3.0),
    "crowd": Source(("crowd.tsv", "CrowdFlowerAnnotations.txt"), 1, 0, 1, 0.5),
}


class Answers(NamedTuple):
    """People's answers about pairs.

    Attributes:
        images, captions: int64 [P] rows.
        values: float64 [P, 3] ratings of experts, or [P, 1] the share of a crowd that said yes.
        fits: bool [P], whether the caption counts as right.
    """

    images: np.ndarray
    captions: np.ndarray
    values: np.ndarray
    fits: np.ndarray


class Judgements(NamedTuple):
    """A folder of judgements.

    Attributes:
        root: the folder.
        files: N names of photographs, which need not be there.
        captions: T texts: all captions of these photographs.
        owners: int64 [T], row of each one's photograph.
        answers: by the names of `SOURCES`.
    """

    root: Path
    files: list[str]
    captions: list[str]
    owners: np.ndarray
    answers: dict[str, Answers]

    def photographs(self) -> list[str]:
        """Return the path of each photograph relative to the root; none where the folder has none of `FOLDERS`.

        Raises:
            MissingInputError, DataError: see `locate_all_images`.
        """
        folders = [folder for folder in FOLDERS if (self.root / folder).is_dir()]
        return locate_all_images(self.root, self.files, self.files, folders) if folders else []

    def digests(self, cache: DigestCache) -> dict[str, str]:
        """Return the digests of all that is read, whose place does not count."""
        content = hashlib.sha256(repr((self.files, self.captions)).encode())
        for answers in self.answers.values():
            for column in answers:
                content.update(column.tobytes())
        paths = [self.root / file for file in self.photographs()]
        return {
            f"benchmark {JUDGEMENTS}": content.hexdigest(),
            f"benchmark {JUDGEMENTS} images": cache.combined(paths, self.root, f"hashing {JUDGEMENTS}"),
        }


def read_judgements(folder: str) -> Judgements:
    """Read a folder of judgements.

    Raises:
        MissingInputError: the folder or a file is not there.
        DataError: a file is malformed, or names a photograph or a caption without a text; all answers of a kind are the
            same.
    """
    import numpy as np  # not with the module, which is read when an evaluation is planned

    root = Path(folder).expanduser()
    path = data_files(root, list(_CAPTION_COLUMNS))[0]
    texts = {}
    for _, (*_, caption_id, caption) in _rows(path, _CAPTION_COLUMNS.get(path.name, 2)):
        texts[caption_id] = caption
    described = set(map(_image_of, texts))
    pairs = {}
    for kind, source in SOURCES.items():
        pairs[kind] = []
        for where, (image, caption_id, *fields) in _rows(data_files(root, source.names)[0], 5):
            if caption_id not in texts or image not in described:
                raise DataError(f"{where}: {path.name} has no caption {caption_id}, or none of {image}; add it")
            if image != _image_of(caption_id):
                pairs[kind].append((image, caption_id, _answers(where, fields, source)))

    named = set()
    for image, caption_id, _ in [*pairs["experts"], *pairs["crowd"]]:
        named |= {image, _image_of(caption_id)}
    caption_ids = [caption_id for caption_id in texts if _image_of(caption_id) in named]
    caption_rows = {caption_id: row for row, caption_id in enumerate(caption_ids)}
    image_rows = {image: row for row, image in enumerate(sorted(named))}
    answers = {}
    for kind, source in SOURCES.items():
        values = np.array([values for _, _, values in pairs[kind]]).reshape(-1, source.answers)
        fits = values.mean(axis=1) >= source.fits
        if len(set(fits.tolist())) < 2:
            raise DataError(f"{root}: by {source.names[0]} all pairs fit, or none does; get the file again")
        images = np.array([image_rows[image] for image, _, _ in pairs[kind]])
        captions = np.array([caption_rows[caption_id] for _, caption_id, _ in pairs[kind]])
        answers[kind] = Answers(images, captions, values, fits)
    owners = np.array([image_rows[_image_of(caption_id)] for caption_id in caption_ids])
    return Judgements(root, list(image_rows), [texts[caption_id] for caption_id in caption_ids], owners, answers)


def _image_of(caption_id: str) -> str:
    return caption_id.rpartition("#")[0]


def _rows(path: Path, columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a file of tabs, each with where it stands; the first line of a `.tsv` is its header."""
    lines = lines_of(path)
    first = 1 if path.suffix == ".tsv" else 0
    for number, line in enumerate(lines[first:], first + 1):
        fields = line.split("\t")
        if len(fields) != columns:
            raise DataError(f"{path}: line {number} has {len(fields)} columns, not {columns}; get the file again")
        yield f"{path}: line {number}", fields


def _answers(where: str, fields: list[str], source: Source) -> list[float]:
    """Return the answers of a row, each within its bounds."""
    try:
        values = [float(field) for field in fields[: source.answers]]
    except ValueError:
        values = [math.nan]
    if not all(source.low <= value <= source.high for value in values):
        shown = printable(" ".join(fields))
        raise DataError(f"{where} answers {shown}, no number from {source.low} to {source.high}; get the file again")
    return values
