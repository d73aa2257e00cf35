"""The table that NegCLIP trains with, which open_clip reads as well: `train.tsv`, one row a caption.

Columns are separated by tabs: `filepath` (of the image), `title` (the caption), `neg_caption` (a list of hard captions
of the image) and `neg_image` (a list of rows of this table, counted from 0, whose images are hard for the caption).
NegCLIP draws one of each list, so both have an entry in every row. Both lists are Python literals.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.exporting.folder import FinishedFiles
from itrpipe.exporting.negatives.base import Format, Shard, Table, pieces
from itrpipe.exporting.negatives.strings import content, in_csv, joined, lists_of, quoted
from itrpipe.mining.lists import NO_ROW

TABLE = "train.tsv"
_HEADER = b"filepath\ttitle\tneg_caption\tneg_image\n"
_COPIED = 1 << 22


class Negclip(Format):
    """See above."""

    joined = TABLE

    @property
    def tables(self) -> list[Table]:
        """One table of all captions."""
        about = "filepath, title, neg_caption (list of captions), neg_image (list of rows of the table)"
        left_out = len(self.mined.texts) - len(self._rows)
        return [Table("default", TABLE, len(self._rows), left_out, about, (("sep", '"\\t"'),))]

    def shards(self) -> list[Shard]:
        """Parts of the table, which `finish` joins."""
        return self.cut("parts", "tsv", self._rows, self._write)

    def finish(self, files: FinishedFiles) -> None:
        """Joins the parts."""
        parts = [shard.name for shard in self.shards()]

        def join(path: Path) -> None:
            with path.open("wb") as stream:
                stream.write(_HEADER)
                for name in parts:
                    with (files.folder / name).open("rb") as part:
                        while block := part.read(_COPIED):
                            stream.write(block)

        files.make(TABLE, join)
        files.remove(parts)

    @cached_property
    def _rows(self) -> np.ndarray:
        """Captions that have a hard caption, and a hard image that has such a caption, too."""
        mined = self.mined
        kept, others = np.zeros(len(mined.texts), dtype=bool), self._neighbours != NO_ROW
        kept[mined.any_of("i2t")] = True
        while True:
            images = np.zeros(len(mined.image_ids), dtype=bool)
            images[mined.owners[kept]] = True
            rest = kept & (others & images[self._neighbours]).any(axis=1)
            if rest.sum() == kept.sum():
                return np.flatnonzero(rest)
            kept = rest

    @property
    def _neighbours(self) -> np.ndarray:
        return self.mined.lists["t2i"].candidates[:, : self.mined.negatives]

    @cached_property
    def _first_rows(self) -> np.ndarray:
        """int64 [N + 1]: the rows of image i in the table are those from its number to the next."""
        return np.searchsorted(self.mined.owners[self._rows], np.arange(len(self.mined.image_ids) + 1))

    @cached_property
    def _titles(self) -> pa.Array:
        return joined('"', in_csv(self.mined.texts), '"')

    @cached_property
    def _hard(self) -> pa.Array:
        """Captions and sentences as entries of a list in a field."""
        return in_csv(quoted(self.mined.all_texts))

    @cached_property
    def _files(self) -> pa.Array:
        return joined('"', in_csv(self.paths), '"')

    def _write(self, rows: np.ndarray, path: Path) -> None:
        with path.open("wb") as stream:
            for part in pieces(rows, self.chunk):
                stream.write(content(self._lines(part)))

    def _lines(self, captions: np.ndarray) -> pa.Array:
        images = self.mined.owners[captions]
        files, titles = self._files.take(pa.array(images)), self._titles.take(pa.array(captions))
        picks = self.mined.captions(captions)
        hard = lists_of(self._hard.take(pa.array(picks.rows[picks.found])), picks.found.sum(axis=1), ", ")
        numbers, counts = self._neighbour_rows(captions, images)
        neighbours = lists_of(pa.array(numbers).cast(pa.string()), counts, ", ")
        return joined(files, "\t", titles, '\t"[', hard, ']"\t"[', neighbours, ']"\n')

    def _neighbour_rows(self, captions: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the table that stand for hard images, those of a caption together, and how many each has.

        The captions of an image point to different captions of the same hard image.
        """
        others = self._neighbours[captions]
        counts = np.diff(self._first_rows)
        found = (others != NO_ROW) & (counts[others] > 0)
        place = captions - self.mined.starts[images]
        rows = self._first_rows[others] + place[:, None] % np.maximum(counts[others], 1)
        return rows[found], found.sum(axis=1)
