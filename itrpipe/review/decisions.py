"""`decisions.parquet`: what people decided about pairs of an image and a caption, one row for each judgement.

Rows are added and never changed. Pairs are named by their ids, so that decisions outlive the models and lists that
they were made over. Columns:

    at          timestamp, microseconds of UTC
    reviewer    name of who judged
    image_id, caption_id
    answer      fits, differs, unsure, or undone, which takes the reviewer's last answer on the pair back
    model       whose list the pair stood in
    source      artifact that holds the list
    drawn       how the pair was chosen: see `itrpipe.review.queue`
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from itrpipe.errors import DataError, MissingInputError
from itrpipe.review.agreement import Agreement, agreement_of
from itrpipe.storage.disk import make_folder, on_disk, unavailable, write_bytes

FILE = "decisions.parquet"
FITS, DIFFERS, UNSURE, UNDONE = ANSWERS = ("fits", "differs", "unsure", "undone")
DISPUTED = "disputed"
EVALUATED = "evaluate/"
"""How the source of judgements on the rankings of an evaluation begins."""
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in ("reviewer", "image_id", "caption_id", "answer", "model", "source", "drawn")),
    ]
)


@dataclass(frozen=True)
class Judgement:
    """One row; see the module."""

    reviewer: str
    image_id: str
    caption_id: str
    answer: str
    model: str = ""
    source: str = ""
    drawn: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class Verdicts:
    """What all reviewers together say of P pairs.

    Attributes:
        image_ids, caption_ids: text [P].
        verdict: text [P]: `fits` or `differs` where all who were sure agree, `disputed` where they do not, and `unsure`
            where nobody was sure.
    """

    image_ids: np.ndarray
    caption_ids: np.ndarray
    verdict: np.ndarray

    def of(self, *verdicts: str) -> Verdicts:
        """Those pairs alone."""
        kept = np.isin(self.verdict, verdicts)
        return Verdicts(self.image_ids[kept], self.caption_ids[kept], self.verdict[kept])

    def digest(self) -> str:
        """Of the pairs that are decided, `fits` or `differs`: nothing else changes what is made with them."""
        sure = self.of(FITS, DIFFERS)
        lines = sorted(zip(sure.image_ids.tolist(), sure.caption_ids.tolist(), sure.verdict.tolist(), strict=True))
        return hashlib.sha256(repr(lines).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.verdict)


class Decisions:
    """Judgements in the order in which they were made.

    Args:
        rows: with the columns of `SCHEMA`.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    @cached_property
    def of_training(self) -> Decisions:
        """Those that were not made on the rankings of an evaluation: nothing is trained on its images and captions."""
        kept = [not source.startswith(EVALUATED) for source in self.rows["source"].to_pylist()]
        return Decisions(self.rows.filter(pa.array(kept, pa.bool_())))

    @cached_property
    def answers(self) -> pa.Table:
        """The last answer of every reviewer on every pair; those that were undone are left out."""
        code = np.zeros(len(self.rows), dtype=np.int64)
        for name in ("reviewer", "image_id", "caption_id"):
            kinds, place = np.unique(np.asarray(self.rows[name].to_pylist(), dtype=str), return_inverse=True)
            code = np.unique(code * max(len(kinds), 1) + place, return_inverse=True)[1]
        _, from_the_end = np.unique(code[::-1], return_index=True)
        last = self.rows.take(np.sort(len(code) - 1 - from_the_end))
        return last.filter(pc.field("answer") != UNDONE)

    @cached_property
    def verdicts(self) -> Verdicts:
        """Of all pairs that somebody judged."""
        found: dict[tuple[str, str], set[str]] = {}
        names = ("image_id", "caption_id", "answer")
        for image_id, caption_id, answer in zip(*(self.answers[name].to_pylist() for name in names), strict=True):
            found.setdefault((image_id, caption_id), set()).add(answer)
        sure = [answers - {UNSURE} for answers in found.values()]
        verdict = [DISPUTED if len(each) > 1 else min(each, default=UNSURE) for each in sure]
        ids = np.array(list(found), dtype=str).reshape(-1, 2)
        return Verdicts(ids[:, 0], ids[:, 1], np.array(verdict, dtype=str))

    @cached_property
    def reviewers(self) -> list[str]:
        """Who judged, by name."""
        return sorted(set(self.answers["reviewer"].to_pylist()))

    def of(self, reviewer: str) -> dict[tuple[str, str], str]:
        """Image and caption -> the last answer of a reviewer."""
        own = self.answers.filter(pc.field("reviewer") == reviewer)
        pairs = zip(own["image_id"].to_pylist(), own["caption_id"].to_pylist(), strict=True)
        return dict(zip(pairs, own["answer"].to_pylist(), strict=True))

    def agreements(self) -> dict[tuple[str, str], Agreement]:
        """Of every two reviewers, on the pairs that both were sure of; those without any are left out."""
        given = {name: self.of(name).items() for name in self.reviewers}
        sure = {name: {pair: answer for pair, answer in own if answer != UNSURE} for name, own in given.items()}
        found = {}
        for one, other in combinations(self.reviewers, 2):
            both = sorted(sure[one].keys() & sure[other].keys())
            if both:
                first, second = (np.array([sure[name][pair] == FITS for pair in both]) for name in (one, other))
                found[one, other] = agreement_of(first, second)
        return found

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
        """That of a dataset, beside its artifacts."""
        return cls(root / dataset / FILE)

    def read(self) -> Decisions:
        """All judgements; none where there is no file yet.

        Raises:
            DataError: it is damaged, or no such file.
        """
        return read_decisions(self.path) if self.path.exists() else Decisions(SCHEMA.empty_table())

    def add(self, judgements: Sequence[Judgement]) -> None:
        """Adds rows: once this returns, they outlive a crash of the machine, and a crash before leaves the old file.

        Raises:
            DataError: what is there is damaged.
            DiskFullError, UnavailableError: nothing could be written.
        """
        self._change(pa.Table.from_pylist([asdict(each) for each in judgements], schema=SCHEMA))

    def merge(self, others: Iterable[Decisions]) -> int:
        """Adds the judgements of other files that are not here yet, in the order of their times.

        Returns:
            How many were added.
        """
        return self._change(pa.concat_tables([SCHEMA.empty_table(), *(each.rows for each in others)]), merging=True)

    def _change(self, rows: pa.Table, *, merging: bool = False) -> int:
        make_folder(self.path.parent)
        with on_disk(self.path), FileLock(self.path.with_name(f".{self.path.name}.lock")):
            known = self.read().rows
            whole = pa.concat_tables([known, rows])
            if merging:
                # A row is one judgement: who, when and about what. Files that were merged before share some.
                whole = whole.group_by(whole.column_names, use_threads=False).aggregate([]).select(SCHEMA.names)
                whole = whole.sort_by([("at", "ascending"), ("reviewer", "ascending")])
            if len(whole) > len(known):
                buffer = io.BytesIO()
                pq.write_table(whole.combine_chunks(), buffer, compression="zstd", write_page_checksum=True)
                write_bytes(self.path, buffer.getvalue())
            return len(whole) - len(known)


def decisions_digest(path: str, *, training: bool = False) -> str:
    """What a step that reads decisions is made from: what was decided, and nothing else of the file.

    Args:
        path: as users name it.
        training: leave out what was decided on rankings of an evaluation, see `Decisions.of_training`.

    Raises:
        MissingInputError, DataError: see `read_decisions`.
    """
    decisions = read_decisions(Path(path).expanduser())
    return (decisions.of_training if training else decisions).verdicts.digest()


def read_decisions(path: Path) -> Decisions:
    """Reads a file of decisions.

    Raises:
        MissingInputError: there is none.
        DataError: it is damaged, or none of decisions.
    """
    if not path.is_file():
        raise MissingInputError(f"{path}: there is no such file of decisions; make one with `itrpipe serve`")
    try:
        # By a stream: of a path pyarrow would take folder names for columns.
        with path.open("rb") as stream:
            rows = pq.read_table(stream, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        damage = DataError(f"{path}: is truncated or damaged ({' '.join(str(error).split())}); restore it from a copy")
        raise unavailable(error, path) or damage from error
    if not rows.schema.equals(SCHEMA):
        columns = ", ".join(f"{each.name} {each.type}" for each in rows.schema)
        raise DataError(f"{path}: has the columns {columns}, and decisions have {', '.join(SCHEMA.names)}")
    if empty := [name for name in SCHEMA.names if rows[name].null_count]:
        raise DataError(f"{path}: {empty[0]} is empty in {rows[empty[0]].null_count:,} rows; restore it from a copy")
    if unknown := set(rows["answer"].to_pylist()) - set(ANSWERS):
        raise DataError(f"{path}: has the answer {min(unknown, key=str)!r}; known are {', '.join(ANSWERS)}")
    return Decisions(rows)
