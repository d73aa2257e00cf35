"""A second model's order of mined candidates.

An embedding model finds the candidates, a slower one, such as one with cross-attention, looks at every pair and puts
the hardest of them in its own order. Candidates behind these are left out: scores of two models cannot be compared.

Shapes: T captions, A anchors, K candidates of each, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.engine.work import Part
from itrpipe.errors import DataError
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, ListFiles, ListWork, Shapes, by_score

ScorePairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Image rows [P] and caption rows [P] -> scores [P], higher for a better match."""
PAIRS_PER_BLOCK = 65_536
_POSITIVES = "positives"


class SecondModel(NamedTuple):
    """A model that orders the candidates of another one.

    Attributes:
        name: for people.
        open: opens it; it is pickled.
        tops: candidates of each image and of each caption that are scored again, at most; 0 for all.
    """

    name: str
    open: Callable[[], ScorePairs]
    tops: tuple[int, int]


class Rescoring(ListWork[ScorePairs]):
    """Scores the hardest candidates of both directions again, and every caption with its own image.

    A part is some anchors with all their candidates; the positives are a third direction, with lists of one candidate.
    Lists are joined by falling scores of the second model, equal ones by rising row.

    Args:
        second: model.
        lists: file of both directions.
        shapes: of these lists.
        owners: [T] row of the image each caption belongs to, -1 for none.
        device: where pairs are scored.
        block_pairs: places of the lists in a part, about.

    Attributes:
        facts: the model, and how many candidates are scored again.
    """

    def __init__(
        self,
        second: SecondModel,
        lists: Path,
        shapes: Shapes,
        owners: np.ndarray,
        device: str = "cpu",
        block_pairs: int = PAIRS_PER_BLOCK,
    ) -> None:
        self.title = f"scoring by {second.name}"
        self.device = device
        self.key = str(block_pairs)
        self._second = second
        self._lists = lists
        self._owners = owners
        self.facts: dict[str, Any] = {"model": second.name}
        rescored = {}
        for direction, unit, top in zip(
            DIRECTIONS,
            ("texts", "images"),
            second.tops,
            strict=True,
        ):
            anchors, width, candidates = shapes[direction]
            self.facts[unit] = min(top or width, width)
            rescored[direction] = anchors, self.facts[unit], candidates
        _, _, num_images = shapes[DIRECTIONS[1]]
        rescored[_POSITIVES] = len(owners), 1, num_images
        blocks = {}
        for direction, (_, width, _) in rescored.items():
            blocks[direction] = max(1, block_pairs // width)
        super().__init__(rescored, blocks)

    def open(self) -> ScorePairs:
        """Open the second model with the encodings of everything."""
        return self._second.open()

    def make(self, worker: ScorePairs, part: Part, path: Path) -> None:
        """Score the candidates of some anchors.

        Raises:
            DataError: the model returned NaN, infinity, or another number of scores than pairs.
        """
        direction, start, stop = part.content
        if direction == _POSITIVES:
            candidates = self._owners[start:stop, None]
        else:
            _, width, _ = self.shapes[direction]
            lists = ListFiles([self._lists]).read(direction, start, stop)
            candidates = lists.candidates[:, :width]
        row, column = (candidates != NO_ROW).nonzero()
        anchors = row + start
        others = candidates[row, column]
        if direction == DIRECTIONS[0]:
            pair_scores = np.asarray(worker(anchors, others))
        else:
            pair_scores = np.asarray(worker(others, anchors))
        if pair_scores.shape != anchors.shape or not np.isfinite(pair_scores).all():
            raise DataError(
                f"scores {pair_scores.shape} of {len(anchors)} pairs have another number or are NaN or infinite: "
                "check the model that scores the mined lists again"
            )
        scores = np.full(candidates.shape, np.nan, dtype=np.float32)
        scores[row, column] = pair_scores
        self.write(path, direction, by_score(candidates, scores))

    def positives(self, paths: Sequence[Path]) -> np.ndarray:
        """Read the scores of captions with their image, [T] float32, from the files of all parts; NaN without one."""
        lists = ListFiles(paths).read(_POSITIVES)
        is_missing = lists.candidates == NO_ROW
        return np.where(is_missing, np.nan, lists.scores)[:, 0]
