"""Synthetic sentences: what makes them, the edits that they consist of, and their file, joined from those of parts.

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
    kind                     dictionary    the rule that made it, empty of those of a model
    twin_image_id            string        a training image of which the edit is true and the caption is not: the own
                                           one, mirrored, or another; null where none is known
    detail, twin_detail      string        what is true of the image alone, and what of the twin alone

The files of parts also say how many sentences were drawn, by what became of them: see `REASONS` of
`itrpipe.learning.sentences`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import Split
from itrpipe.engine.work import AGAIN, Part, Work, cut
from itrpipe.storage.disk import check_stamp, reading
from itrpipe.storage.tables import TableFile, read_arrow, table_writer, write_arrow

SENTENCES_FILE = "sentences.parquet"
EDIT = pa.struct({"position": pa.int16(), "old": pa.string(), "new": pa.string()})
SCHEMA = pa.schema(
    {
        "caption_id": pa.string(),
        "image_id": pa.string(),
        "text": pa.string(),
        "edits": pa.list_(EDIT),
        "score": pa.float32(),
        "positive_score": pa.float32(),
        "log_probability": pa.float32(),
        "caption_log_probability": pa.float32(),
        "kind": pa.dictionary(pa.int8(), pa.string()),
        "twin_image_id": pa.string(),
        "detail": pa.string(),
        "twin_detail": pa.string(),
    }
)
_DRAWN = "drawn"


@dataclass(frozen=True, order=True)
class Edit:
    """A replaced run of words of a caption.

    Attributes:
        position: number of its first word in the caption, as whoever made the edit counts words: models by their own
            tokens, rules as `itrpipe.scene_graph.words` does.
        old: the caption's characters from the first of these words to the last; never empty.
        new: what stands there instead.
    """

    position: int
    old: str
    new: str


def apply_edits(
    text: str,
    starts: Sequence[int],
    edits: Iterable[Edit],
) -> str:
    """Return the sentence that edits make of a caption.

    Args:
        text: the caption.
        starts: first character of each of its words.
        edits: in order, no two of the same words.
    """
    sentence = ""
    done = 0
    for edit in edits:
        start = starts[edit.position]
        sentence += text[done:start] + edit.new
        done = start + len(edit.old)
    return sentence + text[done:]


class Sentence(NamedTuple):
    """A row of the file."""

    caption_id: str
    image_id: str
    text: str
    edits: Sequence[Edit]
    score: float | None = None
    positive_score: float | None = None
    log_probability: float | None = None
    caption_log_probability: float | None = None
    kind: str = ""
    twin_image_id: str | None = None
    detail: str | None = None
    twin_detail: str | None = None


MakeSentences = Callable[[range, int], tuple[Sequence[Sentence], Mapping[str, int]]]
"""Makes the sentences of some captions: their rows, and the number of the block, which everything random depends on
beside the seed, to the rows of the file in the order of the captions, and how many sentences were drawn, by what became
of them."""


class Opened(NamedTuple):
    """A maker of sentences whose sources are read.

    Attributes:
        make: makes the sentences.
        split: the captions that sentences are made of, T of them.
        num_tokens: V, token ids that a model chooses from; None for rules.
        guessed: tells of files of `write_part` which sentences can be told without the image, bool of each; None: none
            is asked.
    """

    make: MakeSentences
    split: Split
    num_tokens: int | None
    guessed: Callable[[Sequence[Path]], np.ndarray] | None = None


class Writing(Work[Opened]):
    """Sentences of captions: a map over blocks of them, each a file of Arrow.

    Args:
        open_maker: reads what makes them; it is pickled.
        block_size: captions of a block.
        device: `cpu`, `cuda` or `auto`.
    """

    title = "writing sentences"
    unit = "captions"
    suffix = ".arrow"
    in_one_thread = True
    untold = ("opened",)

    def __init__(
        self,
        open_maker: Callable[[], Opened],
        block_size: int,
        device: str = "cpu",
    ) -> None:
        self._open_maker = open_maker
        self._block_size = block_size
        self.device = device

    @cached_property
    def opened(self) -> Opened:
        """Open what makes the sentences, once in every process."""
        return self._open_maker()

    def parts(self) -> list[Part]:
        """Return blocks of captions."""
        return cut(range(len(self.opened.split.captions)), self._block_size)

    def open(self) -> Opened:
        """Return the maker."""
        return self.opened

    def make(
        self,
        worker: Opened,
        part: Part,
        path: Path,
    ) -> None:
        """Writes the sentences of a block."""
        sentences, drawn = worker.make(part.content, int(part.name))
        write_part(path, sentences, drawn)


def write_part(
    path: Path,
    sentences: Sequence[Sentence],
    drawn: Mapping[str, int],
) -> None:
    """Writes the sentences of some captions.

    Args:
        path: the file.
        sentences: of these captions, in their order.
        drawn: `kept`, or the reason that sentences were rejected for -> how many were drawn.

    Raises:
        DiskFullError: no space is left.
    """
    rows = []
    for sentence in sentences:
        row = sentence._asdict()
        row["edits"] = [vars(edit) for edit in sentence.edits]
        rows.append(row)
    schema = SCHEMA.with_metadata({_DRAWN: json.dumps(dict(drawn))})
    write_arrow(path, pa.Table.from_pylist(rows, schema))


def read_parts(paths: Sequence[Path]) -> Iterator[tuple[pa.Table, dict[str, int]]]:
    """Read the sentences of files of `write_part`, and how many were drawn by what became of them.

    Raises:
        DataError: a file is damaged.
    """
    for path in paths:
        with reading(path, "sentences", AGAIN):
            check_stamp(path, AGAIN)
            table = read_arrow(path)
            drawn = json.loads(table.schema.metadata[_DRAWN.encode()])
        yield table.replace_schema_metadata(None), drawn


def join_parts(
    paths: Sequence[Path],
    folder: Path,
    guessed: np.ndarray | None = None,
) -> dict[str, int]:
    """Writes `sentences.parquet` into a folder from files of `write_part`; each becomes a row group.

    Args:
        paths: of the files.
        folder: exists.
        guessed: bool of every sentence, those that are left out because they can be told without the image.

    Returns:
        `kept`, or the reason that sentences were rejected for -> how many were drawn.

    Raises:
        DataError: a file is damaged.
        DiskFullError: no space is left.
    """
    drawn: Counter[str] = Counter()
    start = 0
    with table_writer(folder / SENTENCES_FILE, SCHEMA) as out:
        for table, counts in read_parts(paths):
            drawn.update(counts)
            if guessed is not None:
                dropped = guessed[start : start + len(table)]
                start += len(table)
                table = table.filter(pa.array(~dropped))
                count = int(dropped.sum())
                drawn.update(guessed=count, kept=-count)
            if table.num_rows:
                out.write_table(table, row_group_size=table.num_rows)
    return dict(sorted(drawn.items()))


class SentenceFile(TableFile):
    """Reads `sentences.parquet` a row group at a time; see `TableFile`.

    Args:
        folder: holds it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / SENTENCES_FILE, SCHEMA, "run `itrpipe synthesize` again")
