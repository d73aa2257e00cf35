"""People's judgements of captions, mostly of other photographs: does this one describe this photograph?

Three experts rated each pair from 1 (unrelated) to 4 (describes it), a crowd said yes or no. The published text files
are read, and tables with a header and the same columns. A photograph's own captions are no pairs here.

Shapes: N photographs, T captions, P pairs.

Source: Hodosh, Young and Hockenmaier, "Framing image description as a ranking task", JAIR 2013; own captions are left
out as in Hessel et al., "CLIPScore", EMNLP 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from itrpipe.datasets.paths import locate_all_images
from itrpipe.datasets.source_files import data_files
from itrpipe.errors import DataError
from itrpipe.printable import printable
from itrpipe.storage.artifact import DigestCache

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

JUDGEMENTS = "flickr8k-judgements"
FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "images")
"""Folders in which the photographs may lie; the first is spelled as it was published."""
_CAPTIONS = ("captions.tsv", "Flickr8k.token.txt")
_TEXTS = ("image", "caption_id", "caption")


class AnswerFile(NamedTuple):
    """File of one kind of answers.

    Attributes:
        names: names that the file may have.
        columns: names of the columns behind image and caption.
        answers: number of columns that hold answers; they are the first of `columns`.
        low, high: bounds of an answer.
        fits: mean answer from which on a caption counts as right.
    """

    names: tuple[str, str]
    columns: tuple[str, str, str]
    answers: int
    low: int
    high: int
    fits: float


ANSWER_FILES = {
    "experts": AnswerFile(("expert.tsv", "ExpertAnnotations.txt"), ("rating_1", "rating_2", "rating_3"), 3, 1, 4, 3.0),
    "crowd": AnswerFile(("crowd.tsv", "CrowdFlowerAnnotations.txt"), ("share_yes", "yes", "no"), 1, 0, 1, 0.5),
}


class AnsweredPairs(NamedTuple):
    """Pairs with people's answers about them.

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
        answers: by the names of `ANSWER_FILES`.
    """

    root: Path
    files: list[str]
    captions: list[str]
    owners: np.ndarray
    answers: dict[str, AnsweredPairs]

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and captions of all pairs, kind after kind."""
        import numpy as np

        images = []
        captions = []
        for pairs in self.answers.values():
            images.append(pairs.images)
            captions.append(pairs.captions)
        return np.concatenate(images), np.concatenate(captions)

    def photographs(self) -> list[str]:
        """Return the path of each photograph relative to the root; none where the folder has none of `FOLDERS`.

        Raises:
            MissingInputError, DataError: see `locate_all_images`.
        """
        folders = [folder for folder in FOLDERS if (self.root / folder).is_dir()]
        if not folders:
            return []
        return locate_all_images(self.root, self.files, self.files, folders)

    def digests(self, cache: DigestCache) -> dict[str, str]:
        """Return the digest of all files of the folder; it is the same in another place."""
        files = data_files(self.root, _CAPTIONS)
        for source in ANSWER_FILES.values():
            files += data_files(self.root, source.names)
        for file in self.photographs():
            files.append(self.root / file)
        return {f"benchmark {JUDGEMENTS}": cache.combined(files, self.root, f"hashing {JUDGEMENTS}")}


def read_judgements(folder: str) -> Judgements:
    """Read a folder of judgements.

    Raises:
        MissingInputError: the folder or a file is not there.
        DataError: a file is malformed, or names a photograph or a caption without a text; all answers of a kind are the
            same.
    """
    import numpy as np  # not with the module, which is read when an evaluation is planned

    from itrpipe.storage.tables import rows_of

    root = Path(folder).expanduser()
    captions = _read_table(root, _CAPTIONS, ("caption_id", "caption"))
    owners = np.char.rpartition(captions["caption_id"].to_pylist(), "#")[:, 0]
    pairs = {}
    for kind, source in ANSWER_FILES.items():
        table = _read_table(root, source.names, ("image", "caption_id", *source.columns))
        images = np.array(table["image"].to_pylist())
        rows = rows_of(table["caption_id"], captions["caption_id"])
        columns = source.columns[: source.answers]
        values = np.stack([table[name] for name in columns], axis=1)
        is_valid = ((values >= source.low) & (values <= source.high)).all(axis=1)
        is_valid &= (rows >= 0) & np.isin(images, owners)
        if not is_valid.all():
            [wrong] = table.slice(int(is_valid.argmin()), 1).to_pylist()
            row = ", ".join(map(str, wrong.values()))
            raise DataError(
                f"{root}: {source.names[1]} has {printable(row)}: an answer is no number from {source.low} to "
                f"{source.high}, or {_CAPTIONS[1]} lacks the caption or captions of the photograph; get the files again"
            )
        is_other = images != owners[rows]
        pairs[kind] = images[is_other], rows[is_other], values[is_other]

    photographs = []  # those in pairs, and those whose captions are in pairs
    for images, rows, _ in pairs.values():
        photographs += [images, owners[rows]]
    files = np.unique(np.concatenate(photographs))
    kept = np.flatnonzero(np.isin(owners, files))
    answers = {}
    for kind, (images, rows, values) in pairs.items():
        fits = values.mean(axis=1) >= ANSWER_FILES[kind].fits
        if len(set(fits.tolist())) < 2:
            raise DataError(f"{root}: by {ANSWER_FILES[kind].names[1]} all pairs fit, or none does; get the file again")
        image_rows = np.searchsorted(files, images)
        caption_rows = np.searchsorted(kept, rows)
        answers[kind] = AnsweredPairs(image_rows, caption_rows, values, fits)
    texts = captions["caption"].take(kept).to_pylist()
    owner_rows = np.searchsorted(files, owners[kept])
    return Judgements(root, files.tolist(), texts, owner_rows, answers)


def _read_table(root: Path, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Read columns of a file of tabs; a `.tsv` has a header, a published file has exactly these columns.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is malformed.
    """
    import pyarrow as pa
    from pyarrow import csv

    [path] = data_files(root, names)
    types = dict.fromkeys(columns, pa.float64()) | dict.fromkeys(_TEXTS, pa.string())
    header = None if path.suffix == ".tsv" else columns
    try:
        return csv.read_csv(
            path,
            csv.ReadOptions(column_names=header),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(include_columns=columns, column_types=types),
        )
    except pa.ArrowException as error:
        raise DataError(f"{path}: {printable(str(error))}; get the file again") from None
