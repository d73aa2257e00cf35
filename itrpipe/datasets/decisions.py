"""Decisions of people about pairs of an image and a caption of another image: their file, and the verdicts.

`decisions.parquet` has one row for each judgement. Rows are added and never changed. Pairs are named by their ids, so
that decisions outlive the models and lists that they were made over. Columns:

    at          timestamp, microseconds of UTC
    reviewer    name of who judged
    image_id, caption_id
    answer      fits, differs, unsure, or undone, which takes the reviewer's last answer on the pair back
    model       model whose list held the pair
    source      artifact that holds the list
    drawn       the order in which the pair came

Decisions that were made elsewhere come as .csv or .tsv, with the columns image_id, caption_id and answer, and
optionally reviewer, else the file's name.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, TypeAdapter

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.source_files import rows as table_rows
from itrpipe.datasets.truth import DIFFERS, DISPUTED, FITS, UNSURE
from itrpipe.errors import DataError
from itrpipe.storage.disk import make_folder, write_bytes
from itrpipe.storage.locks import changing
from itrpipe.storage.tables import read_table

FILE = "decisions.parquet"
UNDONE = "undone"
ANSWERS = (FITS, DIFFERS, UNSURE, UNDONE)
_EVALUATED = "evaluate/"
"""Beginning of the source of judgements on the rankings of an evaluation."""
_MINED = "mine_negatives/"
"""Beginning of the source of judgements on mined lists."""
SCHEMA = pa.schema(
    {
        "at": pa.timestamp("us", tz="UTC"),
        "reviewer": pa.string(),
        "image_id": pa.string(),
        "caption_id": pa.string(),
        "answer": pa.string(),
        "model": pa.string(),
        "source": pa.string(),
        "drawn": pa.string(),
    }
)
_ANSWERS = {FITS: FITS, "yes": FITS, "1": FITS, DIFFERS: DIFFERS, "no": DIFFERS, "0": DIFFERS, UNSURE: UNSURE}
"""Word in a table -> the answer that it stands for."""


@dataclass(frozen=True)
class Decision:
    """One answer of a reviewer about a pair: a row of the file, whose columns the module describes."""

    reviewer: str
    image_id: str
    caption_id: str
    answer: str
    model: str = ""
    source: str = ""
    drawn: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class Decisions:
    """Judgements in the order in which they were made.

    Attributes:
        rows: with the columns of `SCHEMA`.
    """

    rows: pa.Table

    @cached_property
    def of_training(self) -> Decisions:
        """Return the judgements without those on rankings of an evaluation, on whose pairs nothing may be trained."""
        is_evaluated = pc.starts_with(pc.field("source"), _EVALUATED)  # pyright: ignore[reportAttributeAccessIssue]
        return Decisions(self.rows.filter(~is_evaluated))

    @cached_property
    def of_evaluation(self) -> Decisions:
        """Return the judgements without those on mined lists, which are of training pairs alone."""
        is_mined = pc.starts_with(pc.field("source"), _MINED)  # pyright: ignore[reportAttributeAccessIssue]
        return Decisions(self.rows.filter(~is_mined))

    @cached_property
    def answers(self) -> dict[str, dict[tuple[str, str], str]]:
        """Return reviewer -> ids of image and caption -> the last answer, the latest last, without undone ones."""
        answers = {}
        for row in self.rows.to_pylist():
            answers_of_reviewer = answers.setdefault(row["reviewer"], {})
            pair = row["image_id"], row["caption_id"]
            answers_of_reviewer.pop(pair, None)
            if row["answer"] != UNDONE:
                answers_of_reviewer[pair] = row["answer"]
        return {reviewer: answers[reviewer] for reviewer in sorted(answers) if answers[reviewer]}

    @cached_property
    def verdicts(self) -> dict[tuple[str, str], str]:
        """Return ids of image and caption -> the verdict of all reviewers together.

        It is `fits` or `differs` where all who were sure agree, `disputed` where they do not, and `unsure` where
        nobody was sure.
        """
        verdicts = {}
        for answers_of_reviewer in self.answers.values():
            for pair, answer in answers_of_reviewer.items():
                earlier = verdicts.setdefault(pair, answer)
                if earlier == UNSURE:
                    verdicts[pair] = answer
                elif answer not in (UNSURE, earlier):
                    verdicts[pair] = DISPUTED
        return verdicts

    def digest(self) -> str:
        """Return the digest of the verdicts on pairs; nothing else matters to the steps that read them."""
        verdicts = []
        for (image, caption), verdict in sorted(self.verdicts.items()):
            verdicts.append((image, caption, verdict))
        return hashlib.sha256(repr(verdicts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class DecisionFile:
    """The file of a dataset, which several processes may add to.

    Attributes:
        path: where it is, or will be with the first judgement.
    """

    path: Path

    @classmethod
    def of(cls, root: Path, dataset: str) -> DecisionFile:
        """Return the file of a dataset, beside its artifacts."""
        return cls(root / dataset / FILE)

    def read(self) -> Decisions:
        """Read all judgements; none where there is no file yet.

        Raises:
            DataError: it is damaged, or no such file.
        """
        if not self.path.exists():
            return Decisions(SCHEMA.empty_table())
        return read_decisions(self.path)

    def add(self, decisions: Sequence[Decision]) -> None:
        """Add rows: once this returns, they outlive a crash of the machine, and a crash before leaves the old file.

        Raises:
            DataError: the file is damaged.
            DiskFullError, UnavailableError: nothing could be written.
        """
        self._change(pa.Table.from_pylist(list(map(asdict, decisions)), schema=SCHEMA))

    def merge(self, others: Iterable[Decisions]) -> int:
        """Add the judgements of other files that are not here yet, in the order of their times.

        Returns:
            How many were added.
        """
        tables = [SCHEMA.empty_table()]
        for other in others:
            tables.append(other.rows)
        return self._change(pa.concat_tables(tables), merging=True)

    def _change(self, rows: pa.Table, *, merging: bool = False) -> int:
        make_folder(self.path.parent)
        with changing(self.path):
            before = self.read().rows
            after = pa.concat_tables([before, rows])
            if merging:
                # A row is one judgement: who, when and about what. Files that were merged before share some.
                after = after.group_by(SCHEMA.names, use_threads=False).aggregate([])
                after = after.sort_by([("at", "ascending"), ("reviewer", "ascending")])
            added = len(after) - len(before)
            if added:
                buffer = io.BytesIO()
                pq.write_table(after.combine_chunks(), buffer, compression="zstd", write_page_checksum=True)
                write_bytes(self.path, buffer.getvalue())
            return added


def unknown_pairs(decisions: Decisions, prepared: Path) -> int:
    """Count the judged pairs whose image or caption the dataset of an artifact of `prepare` does not have."""
    dataset = PreparedDataset.open(prepared, tokens=False)
    images = set(dataset.column("image_id"))
    captions: set[str] = set()
    for split in dataset.splits.values():
        captions.update(split.caption_ids.tolist())
    unknown = 0
    for image, caption in decisions.verdicts:
        if image not in images or caption not in captions:
            unknown += 1
    return unknown


def decisions_digest(path: str, *, training: bool = False) -> str:
    """Return the digest of a file of decisions for a step that reads them; only the verdicts count.

    Args:
        path: as users name it.
        training: leave out decisions on rankings of an evaluation, see `Decisions.of_training`; else those on mined
            lists, see `Decisions.of_evaluation`.

    Raises:
        MissingInputError, DataError: see `read_decisions`.
    """
    decisions = read_decisions(Path(path).expanduser())
    if training:
        return decisions.of_training.digest()
    return decisions.of_evaluation.digest()


def _answer(text: str) -> str:
    """Return the answer that a word in a table stands for.

    Raises:
        ValueError: it means none.
    """
    answer = _ANSWERS.get(text.lower())
    if answer is None:
        raise ValueError(f"one of {', '.join(_ANSWERS)}")
    return answer


class _Row(BaseModel):
    """A row of a table of decisions."""

    image_id: str
    caption_id: str
    answer: Annotated[str, AfterValidator(_answer)]
    reviewer: str = ""


def read_decisions(path: Path) -> Decisions:
    """Read a file of decisions: `decisions.parquet`, or a table of text, whose later rows count as later answers.

    Raises:
        MissingInputError: there is none.
        DataError: it is damaged, or none of decisions.
    """
    if path.suffix.lower() in (".csv", ".tsv"):
        decisions = []
        for number, (_, row) in enumerate(table_rows(path, TypeAdapter(_Row))):
            # Times that come again with the file, so that its rows are merged once.
            at = datetime.fromtimestamp(number, UTC)
            reviewer = row.reviewer or path.stem
            decisions.append(asdict(Decision(reviewer, row.image_id, row.caption_id, row.answer, at=at)))
        return Decisions(pa.Table.from_pylist(decisions, schema=SCHEMA))
    rows = read_table(path, SCHEMA, "restore it from a copy, or make one with `itrpipe serve`")
    for name in SCHEMA.names:
        empty = rows[name].null_count
        if empty:
            raise DataError(f"{path}: {name} is empty in {empty:,} rows; restore it from a copy")
    unknown = set(rows["answer"].to_pylist()).difference(ANSWERS)
    if unknown:
        raise DataError(f"{path}: has the answer {min(unknown)!r}; known are {', '.join(ANSWERS)}")
    return Decisions(rows)
