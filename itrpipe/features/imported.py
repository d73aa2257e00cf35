"""The feature file that an import fills, row by row, and the journal that lets an interrupted one go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from itrpipe.errors import DataError
from itrpipe.features.journal import RowJournal
from itrpipe.features.layout import structure_digest
from itrpipe.features.store import FeatureFile, FeatureSpec, FeatureWriter, create_features
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import make_folder


@dataclass(frozen=True)
class ImportedFile:
    """A feature file that is filled, with its journal.

    Attributes:
        path: the file.
        journal: where its journal lies.
        ids: N, of its rows.
    """

    path: Path
    journal: Path
    ids: list[str]

    def create(self, spec: FeatureSpec, extractor: str) -> None:
        """Creates the file unless an earlier run did.

        Raises:
            DataError: the earlier run's file has other datasets.
        """
        if self.path.exists():
            if FeatureFile.open(self.path).spec != spec:
                raise DataError(f"{self.path} was begun by another version of the importer; remove {self.path.parent}")
            return
        make_folder(self.path.parent)
        self.journal.unlink(missing_ok=True)
        create_features(self.path, self.ids, spec, extractor)
        with FeatureWriter(self.path) as writer:  # from now on damage of the structure is seen
            self.read_journal().save(writer)

    def read_journal(self) -> RowJournal:
        """The journal as it is on the disk.

        Raises:
            DataError: it is damaged, or the structure of the feature file.
        """
        journal, structure = RowJournal(self.journal, len(self.ids)), structure_digest(self.path)
        if journal.structure not in ("", structure):
            raise DataError(f"{self.path} is damaged; remove {partial_of(self.path)} and run the same command again")
        journal.structure = structure
        return journal

    def checked_journal(self, reporter: Reporter, warn: Callable[[str], None]) -> RowJournal:
        """The journal without the rows that were damaged since they were written; warns of them.

        Raises:
            DataError: the journal is damaged, or the structure of the feature file.
        """
        journal = self.read_journal()
        done = int(journal.done.sum())
        if done:
            with reporter.task("checking what is done", done, "images") as task:
                damaged = journal.forget_damaged(FeatureFile.open(self.path).arrays(), task.advance)
            if damaged:
                warn(f"{damaged:,} of {done:,} rows in {self.path} were damaged; they are made again")
        return journal
