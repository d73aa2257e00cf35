"""Second ranking of mined lists by a model that has to look at every pair, such as one with cross-attention.

An embedding model finds the candidates, the slower model puts the hardest of them in its own order. Candidates behind
these are left out: scores of two models cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from itrpipe.engine.work import Part, Work, numbered
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, by_score
from itrpipe.mining.mined import DIRECTIONS, POSITIVES, MinedFile, layout, write_slice
from itrpipe.mining.vectors import Rows, slices
from itrpipe.storage.parts import ArrayFile, array_writer, write_arrays

ScorePairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Image rows [P] and caption rows [P] -> scores [P], higher for a better match."""

PAIRS_PER_BLOCK = 65_536
_SCORES = "scores"


class Rescoring(Work[ScorePairs]):
    """Scores the hardest candidates of both directions again, and every caption with its own image.

    A part is some anchors with all their candidates; its file holds `scores` [a, K], minus infinity where a list is
    shorter. The positives are lists of one candidate.

    Args:
        name: of the second model, for people.
        lists: file of both directions.
        owners: [T] row of the image each caption belongs to, -1 for none.
        open_scorer: opens the second model; it is pickled.
        top_texts: candidates of each image that are scored again, 1..num_texts.
        top_images: candidates of each caption, 1..num_images.
        device: where pairs are scored.
        block_pairs: places of the lists in a part, about.

    Raises:
        UsageError: more candidates are to be scored than the lists hold.
    """

    unit = "pairs"

    def __init__(
        self,
        name: str,
        lists: Path,
        owners: Rows,
        open_scorer: Callable[[], ScorePairs],
        top_texts: int,
        top_images: int,
        device: str = "cpu",
        block_pairs: int = PAIRS_PER_BLOCK,
    ) -> None:
        self.title, self.device = f"scoring by {name}", device
        self._lists, self._owners, self._open_scorer = lists, owners, open_scorer
        self._block_pairs = block_pairs
        self.key = str(block_pairs)
        shapes = MinedFile(lists).shapes
        self.tops = {DIRECTIONS[0]: top_texts, DIRECTIONS[1]: top_images, POSITIVES: 1}
        self._anchors = {name: shapes[name][0] for name in DIRECTIONS} | {POSITIVES: owners.shape[0]}
        for name in DIRECTIONS:
            if not 1 <= self.tops[name] <= shapes[name][1]:
                raise UsageError(
                    f"{self.tops[name]} candidates are to be scored again but the lists hold {shapes[name][1]}: give "
                    f"1..{shapes[name][1]}"
                )

    def parts(self) -> list[Part]:
        """Consecutive anchors of each direction, and of the positives."""
        contents = [
            (name, part)
            for name, anchors in self._anchors.items()
            for part in slices(anchors, max(1, self._block_pairs // self.tops[name]))
        ]
        return numbered(
            (self.tops[name] * (part.stop - part.start), (name, part.start, part.stop)) for name, part in contents
        )

    def open(self) -> ScorePairs:
        """The second model with the encodings of everything."""
        return self._open_scorer()

    def make(self, worker: ScorePairs, part: Part, path: Path) -> None:
        """Scores the candidates of some anchors.

        Raises:
            DataError: the model returned NaN, infinity, or another number of scores than pairs.
        """
        name, start, stop = part.content
        candidates = self.candidates(name, start, stop)
        row, column = (candidates != NO_ROW).nonzero()
        anchors, others = row + start, candidates[row, column]
        found = np.asarray(worker(*((anchors, others) if name == DIRECTIONS[0] else (others, anchors))))
        if found.shape != anchors.shape or not np.isfinite(found).all():
            raise DataError(
                f"scores {found.shape} of {len(anchors)} pairs have another number or are NaN or infinite: "
                "check the model that scores the mined lists again"
            )
        scores = np.full(candidates.shape, -np.inf, dtype=np.float32)
        scores[row, column] = found
        write_arrays(path, {_SCORES: scores})

    def candidates(self, name: str, start: int, stop: int) -> np.ndarray:
        """[a, K] rows that are scored with anchors start..stop of a direction, or with captions as positives."""
        if name == POSITIVES:
            return self._owners.read(start, stop)[:, None]
        return MinedFile(self._lists).read(name, start, stop).candidates[:, : self.tops[name]]

    def join(self, paths: Sequence[Path], target: Path) -> np.ndarray:
        """Writes the lists by falling scores of the second model, equal ones by rising row.

        Args:
            paths: of all parts.
            target: file of lists.

        Returns:
            [T] float32, its score of every caption with its image; NaN for a caption of none.
        """
        others = {DIRECTIONS[0]: self._anchors[DIRECTIONS[1]], DIRECTIONS[1]: self._anchors[DIRECTIONS[0]]}
        shapes = {name: (self._anchors[name], self.tops[name], others[name]) for name in DIRECTIONS}
        positives = np.full(self._anchors[POSITIVES], np.nan, dtype=np.float32)
        with array_writer(target, layout(shapes)) as writer:
            for part, path in zip(self.parts(), paths, strict=True):
                name, start, stop = part.content
                scores, candidates = ArrayFile(path)[_SCORES].read(), self.candidates(name, start, stop)
                if name == POSITIVES:
                    positives[start:stop] = np.where(candidates[:, 0] == NO_ROW, np.nan, scores[:, 0])
                else:
                    write_slice(writer, name, start, by_score(candidates, scores))
        return positives
