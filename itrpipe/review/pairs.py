"""What was decided about the pairs of a training set, as mining and training look it up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.datasets.truth import PairSet
from itrpipe.errors import DataError
from itrpipe.mining.lists import DIRECTIONS, CandidateLists
from itrpipe.review.decisions import DIFFERS, FITS, Verdicts
from itrpipe.storage.disk import unavailable
from itrpipe.storage.integrity import checked

FILE = "decided.parquet"
"""Beside mined lists: the pairs of the training set that were decided when they were mined."""


@dataclass(frozen=True)
class Decided:
    """Pairs of rows of a training set.

    Attributes:
        fits: captions that fit an image of others.
        differs: captions that do not.
    """

    fits: PairSet
    differs: PairSet

    @classmethod
    def of(cls, verdicts: Verdicts, image_ids: np.ndarray, caption_ids: np.ndarray) -> Decided:
        """The decided pairs of these images and captions; disputed and doubtful ones are left out."""
        chosen = [verdicts.of(name) for name in (FITS, DIFFERS)]
        return cls(*(PairSet.of_ids((each.image_ids, each.caption_ids), image_ids, caption_ids) for each in chosen))

    @classmethod
    def read(cls, folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> Decided | None:
        """Those that stand beside mined lists; None where mining read no decisions.

        Raises:
            DataError: the file is damaged.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            table = pq.read_table(checked(path))
            columns = (np.asarray(table[name].to_pylist(), dtype=str) for name in ("image_id", "caption_id", "verdict"))
            return cls.of(Verdicts(*columns), image_ids, caption_ids)
        except (OSError, KeyError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            damage = DataError(f"{path} is damaged ({reason}); run `itrpipe mine-negatives` again")
            raise unavailable(error, path) or damage from None

    def write(self, folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> None:
        """Writes them beside mined lists, by their ids."""
        columns: dict[str, list[str]] = {"image_id": [], "caption_id": [], "verdict": []}
        for name, pairs in ((FITS, self.fits), (DIFFERS, self.differs)):
            columns["image_id"] += image_ids[pairs.image_rows].tolist()
            columns["caption_id"] += caption_ids[pairs.caption_rows].tolist()
            columns["verdict"] += [name] * len(pairs)
        kinds = dict.fromkeys(columns, pa.string())
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        pq.write_table(table, folder / FILE, compression="zstd", write_page_checksum=True)

    def fit(self, direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
        """Which candidates of consecutive anchors fit them, bool [A, K]."""
        return _marked(self.fits, direction, part, lists)

    def differ(self, direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
        """Which of them do not, bool [A, K]."""
        return _marked(self.differs, direction, part, lists)


def _marked(pairs: PairSet, direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
    anchors = np.arange(part.start, part.start + len(lists.candidates))[:, None]
    captions, images = (lists.candidates, anchors) if direction == DIRECTIONS[0] else (anchors, lists.candidates)
    return pairs.has(captions, images) & (lists.candidates >= 0)
