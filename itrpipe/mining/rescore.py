"""Second ranking of mined lists by a model that has to look at every pair, such as one with cross-attention.

An embedding model finds the candidates, the slower model puts the hardest of them in its own order. Candidates behind
these are left out: scores of two models cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, MinedLists, by_score

ScorePairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Image rows [P] and caption rows [P] -> scores [P], higher for a better match."""

PAIRS_PER_BLOCK = 16_384
_NAMES = ("text_scores", "image_scores", "positive_scores")
_ANCHORED_BY_IMAGES = 0


class Rescorer:
    """Scores the hardest candidates of both directions again, and every caption with its own image.

    A block is some anchors with all their candidates; blocks may be done in any order, each once; `state` and
    `restore` carry the work over an interruption. Beside the lists it takes 4 bytes per place of what it scores.

    Args:
        lists: both directions.
        caption_image: [T] row of the image each caption belongs to.
        score_pairs: the second model.
        top_texts: candidates of each image that are scored again, 1..num_texts.
        top_images: candidates of each caption, 1..num_images.
        block_pairs: places of the lists in a block, about.

    Raises:
        UsageError: more candidates are to be scored than the lists hold.
    """

    def __init__(
        self,
        lists: MinedLists,
        caption_image: np.ndarray,
        score_pairs: ScorePairs,
        top_texts: int,
        top_images: int,
        block_pairs: int = PAIRS_PER_BLOCK,
    ) -> None:
        self._score_pairs = score_pairs
        # The last part are lists of one candidate, the positive.
        self._candidates = (
            _top(lists.texts_per_image, top_texts),
            _top(lists.images_per_text, top_images),
            caption_image.astype(np.int32)[:, None],
        )
        self._scores = [np.full(part.shape, -np.inf, dtype=np.float32) for part in self._candidates]
        self._blocks = list(_blocks(self._candidates, block_pairs))
        self._done = np.zeros(len(self._blocks), dtype=bool)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the anchors are cut into."""
        return len(self._blocks)

    def pairs(self, block_index: int) -> int:
        """Number of pairs that a block scores; places without a candidate are none."""
        part, rows = self._blocks[block_index]
        return int((self._candidates[part][rows] != NO_ROW).sum())

    def pending(self) -> list[int]:
        """Blocks that are still to be done, ascending."""
        return np.flatnonzero(~self._done).tolist()

    def step(self, block_index: int) -> None:
        """Score one block.

        Args:
            block_index: 0..num_blocks - 1, not done before.

        Raises:
            UsageError: the block does not exist or was done already.
            DataError: `score_pairs` returned NaN, infinity, or another number of scores than pairs.
        """
        if not 0 <= block_index < self.num_blocks or self._done[block_index]:
            raise UsageError(f"block {block_index} of {self.num_blocks} is done already or does not exist")
        part, rows = self._blocks[block_index]
        row, column = (self._candidates[part][rows] != NO_ROW).nonzero()
        anchors = row + rows.start
        candidates = self._candidates[part][anchors, column]
        pairs = (anchors, candidates) if part == _ANCHORED_BY_IMAGES else (candidates, anchors)
        found = np.asarray(self._score_pairs(*pairs))
        if found.shape != anchors.shape or not np.isfinite(found).all():
            raise DataError(
                f"scores {found.shape} of {len(anchors)} pairs have another number or are NaN or infinite: "
                "check the model that scores the mined lists again"
            )
        self._scores[part][anchors, column] = found
        self._done[block_index] = True

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to go on later: one made with the same arguments takes it in `restore`."""
        return {"done": self._done.copy()} | {
            name: scores.copy() for name, scores in zip(_NAMES, self._scores, strict=True)
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`.

        Raises:
            DataError: the state comes from other lists or blocks.
        """
        expected = {name: array.shape for name, array in self.state().items()}
        found = {name: array.shape for name, array in state.items()}
        if found != expected:
            raise DataError(f"saved rescoring progress has shapes {found}, expected {expected}: start the mining again")
        self._done = state["done"].astype(bool)
        self._scores = [state[name].astype(np.float32) for name in _NAMES]

    def result(self) -> MinedLists:
        """The lists by falling scores of the second model, equal ones by rising row.

        Raises:
            UsageError: blocks are still to be done.
        """
        self._require_done()
        texts, images = (by_score(*part) for part in zip(self._candidates[:2], self._scores[:2], strict=True))
        return MinedLists(texts.candidates, texts.scores, images.candidates, images.scores)

    def positives(self) -> np.ndarray:
        """Scores [T] float32 of every caption with its image.

        Raises:
            UsageError: blocks are still to be done.
        """
        self._require_done()
        return self._scores[2][:, 0]

    def _require_done(self) -> None:
        if self.pending():
            raise UsageError(f"{len(self.pending())} of {self.num_blocks} blocks are not scored yet: step through them")


def _top(candidates: np.ndarray, top: int) -> np.ndarray:
    width = candidates.shape[1]
    if not 1 <= top <= width:
        raise UsageError(f"{top} candidates are to be scored again but the lists hold {width}: give 1..{width}")
    return candidates[:, :top]


def _blocks(parts: tuple[np.ndarray, ...], block_pairs: int) -> Iterator[tuple[int, slice]]:
    """Consecutive anchors of each part, as its number and their rows."""
    for number, candidates in enumerate(parts):
        height = max(1, block_pairs // candidates.shape[1])
        for start in range(0, len(candidates), height):
            yield number, slice(start, min(start + height, len(candidates)))
