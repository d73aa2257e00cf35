"""Synthetic sentences on disk: one Parquet file, joined from those of its parts.

`sentences.parquet` has a row per sentence, those of a caption together and in the order of the captions:

    caption_id               string        the caption that it was made of
    image_id                 string        its image, for which the sentence is a negative
    text                     string
    edits                    list<struct<position: int16, old: string, new: string>>   see `Edit`
    score                    float         of the image with the sentence; null where no model scored it
    positive_score           float         of the image with the caption; null where no model scored it
    log_probability          float         mean logarithm of the probability of the written words, by the model that
                                           wrote them, at temperature 1; null where rules did
    caption_log_probability  float         the same of the caption's words in their places
    kept                     bool
    reason                   dictionary    `kept`, or why it was rejected, see `itrpipe.negatives.synthetic.REASONS`

How many sentences were drawn in all, by what became of them, stands in the file's metadata.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.engine.work import AGAIN
from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.disk import (
    CHECKSUM,
    STAMP_HERE,
    check_stamp,
    full_disk_as_error,
    reading_error,
    stamped,
    write_bytes,
)
from itrpipe.storage.integrity import checked
from itrpipe.synthesis.edits import Edit

SENTENCES_FILE = "sentences.parquet"
EDIT = pa.struct([("position", pa.int16()), ("old", pa.string()), ("new", pa.string())])
SCHEMA = pa.schema(
    [
        ("caption_id", pa.string()),
        ("image_id", pa.string()),
        ("text", pa.string()),
        ("edits", pa.list_(EDIT)),
        ("score", pa.float32()),
        ("positive_score", pa.float32()),
        ("log_probability", pa.float32()),
        ("caption_log_probability", pa.float32()),
        ("kept", pa.bool_()),
        ("reason", pa.dictionary(pa.int8(), pa.string())),
    ]
)
_DRAWN = b"drawn"


class Sentence(NamedTuple):
    """A row of the file."""

    caption_id: str
    image_id: str
    text: str
    edits: Sequence[Edit]
    score: float | None
    positive_score: float | None
    log_probability: float | None
    caption_log_probability: float | None
    kept: bool
    reason: str


def write_part(path: Path, sentences: Sequence[Sentence], drawn: Mapping[str, int]) -> None:
    """Writes the sentences of some captions.

    Args:
        path: the file.
        sentences: of these captions, in their order.
        drawn: reason -> how many sentences it was that became of, those without a row included.

    Raises:
        DiskFullError: no space is left.
    """
    known = {_DRAWN: json.dumps(dict(drawn)).encode(), CHECKSUM.encode(): STAMP_HERE.encode()}
    table = _table(sentences).replace_schema_metadata(known)
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    write_bytes(path, stamped(stream.getvalue()))


def join_parts(paths: Sequence[Path], folder: Path) -> None:
    """Writes `sentences.parquet` into a folder from files of `write_part`; each becomes a row group.

    Raises:
        DataError: a file is damaged.
        DiskFullError: no space is left.
    """
    path = folder / SENTENCES_FILE
    drawn: Counter[str] = Counter()
    with (
        full_disk_as_error(path),
        pq.ParquetWriter(path, SCHEMA, compression="zstd", write_page_checksum=True) as out,
    ):
        for each in paths:
            table, counts = read_part(each)
            drawn.update(counts)
            if table.num_rows:
                out.write_table(table.replace_schema_metadata(None), row_group_size=table.num_rows)
        out.add_key_value_metadata({_DRAWN: json.dumps(dict(sorted(drawn.items()))).encode()})


class SentenceFile:
    """Reads `sentences.parquet` a row group at a time.

    Args:
        folder: holds it.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged or has other columns.

    Attributes:
        drawn: reason -> number of sentences drawn, those without a row included.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / SENTENCES_FILE
        if not self.path.is_file():
            raise MissingInputError(f"{self.path} is not there; run `itrpipe synthesize`")
        try:
            self._file = pq.ParquetFile(checked(self.path), page_checksum_verification=True)
            self.drawn = _drawn(self._file)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise reading_error(error, self.path, _damage(self.path, error, _AGAIN)) from None
        if not self._file.schema_arrow.equals(SCHEMA, check_metadata=False):
            found = ", ".join(f"{field.name} {field.type}" for field in self._file.schema_arrow)
            raise DataError(f"{self.path} has other columns than this version writes ({found}); {_AGAIN}")

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def row_groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields tables in order, of all columns unless some are named.

        Raises:
            DataError: a page is damaged.
        """
        for number in range(self._file.num_row_groups):
            try:
                yield self._file.read_row_group(number, columns=list(columns) if columns else None)
            except (OSError, pa.ArrowException) as error:
                raise reading_error(error, self.path, _damage(self.path, error, _AGAIN)) from None

    def kept(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all sentences that were kept, in order.

        Raises:
            DataError: a page is damaged.
        """
        parts = [table.filter(table["kept"]) for table in self.row_groups([*columns, "kept"])]
        chosen = pa.schema([SCHEMA.field(name) for name in columns])
        return pa.concat_tables(parts).select(columns) if parts else chosen.empty_table()


_AGAIN = "run `itrpipe synthesize` again"


def _table(sentences: Sequence[Sentence]) -> pa.Table:
    columns = dict(zip(Sentence._fields, zip(*sentences, strict=True), strict=True)) if sentences else {}
    arrays = []
    for field in SCHEMA:
        values = list(columns.get(field.name, ()))
        if field.name == "edits":
            values = [[edit.__dict__ for edit in edits] for edits in values]
        is_reason = field.name == "reason"
        plain = pa.array(values, pa.string() if is_reason else field.type)
        arrays.append(plain.dictionary_encode().cast(field.type) if is_reason else plain)
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def read_part(path: Path) -> tuple[pa.Table, dict[str, int]]:
    """Sentences of a file of `write_part`, and what became of all that were drawn.

    Raises:
        DataError: it is not as it was written.
    """
    try:
        content = path.read_bytes()
        check_stamp(path, AGAIN, content)
        file = pq.ParquetFile(pa.BufferReader(content))
        return file.read(), _drawn(file)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise reading_error(error, path, _damage(path, error, AGAIN)) from None


def _drawn(file: pq.ParquetFile) -> dict[str, int]:
    counts = json.loads((file.metadata.metadata or {})[_DRAWN])
    return {str(reason): int(count) for reason, count in counts.items()}


def _damage(path: Path, error: Exception, remedy: str) -> DataError:
    reason = " ".join(str(error).split())
    return DataError(f"{path} is damaged ({reason}); {remedy}")
