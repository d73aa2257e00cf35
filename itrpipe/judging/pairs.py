"""Let a judge score pairs of images and captions, each pair once, as a map over them.

Shapes: P pairs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from itrpipe.engine.work import Part, Work, numbered
from itrpipe.errors import DataError
from itrpipe.judging.declaration import JudgeName
from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge, Scale, open_judge, scale_of
from itrpipe.storage.arrays import ArrayFile, write_arrays

SCORES = "scores"
SCALE = "scale"
PAIRS_OF_PART = 65_536
LOOKED_AT_OF_PART = 1_024
"""Pairs of one part of the work, of which a judge looks at the photographs."""


class JudgedPairs(Work[OpenedJudge]):
    """Scores of pairs by one judge; the file of the first part holds the scale, others those of consecutive pairs.

    Args:
        name: of the judge.
        open_material: opens what it reads; it is pickled.
        images, captions: [P] rows of the pairs.
        device: `auto`, `cpu` or `cuda`.
        revision: branch, tag or commit of a hub id.
        block: pairs of a part; 0 chooses it by the judge.
    """

    in_one_thread = True
    untold = ("_order", "_images", "_captions")
    unit = "pairs"

    def __init__(
        self,
        name: JudgeName,
        open_material: Callable[[], Material],
        images: np.ndarray,
        captions: np.ndarray,
        device: str,
        revision: str = "main",
        block: int = 0,
    ) -> None:
        self.title = f"asking {name}"
        self.device = device
        self._name = name
        self._open_material = open_material
        self._order = np.lexsort((captions, images))  # a judge has those of an image together
        self._images = images[self._order]
        self._captions = captions[self._order]
        self._revision = revision
        default = LOOKED_AT_OF_PART if name.looks else PAIRS_OF_PART
        self._block = block or default
        self.key = str(self._block)

    def parts(self) -> list[Part]:
        """Return the scale, for which few pairs are asked, and consecutive pairs."""
        contents = []
        for start in range(0, len(self._images), self._block):
            rows = slice(start, start + self._block)
            images = self._images[rows]
            captions = self._captions[rows]
            contents.append((len(images), (images, captions)))
        return [Part(SCALE, 0), *numbered(contents)]

    def open(self) -> OpenedJudge:
        """Open the judge; errors are those of `open_judge`."""
        return open_judge(self._name, self._open_material(), self.device, self._revision)

    def make(self, worker: OpenedJudge, part: Part, path: Path) -> None:
        """Score some pairs, or find the scale of the scores.

        Raises:
            DataError: the judge returned NaN or infinity.
            UsageError: see `scale_of`.
        """
        if part.content is None:
            write_arrays(path, {SCALE: np.array(scale_of(worker, self._name), np.float64)})
            return
        images, captions = part.content
        scores = worker(images, captions)
        if not np.isfinite(scores).all():
            raise DataError(f"judge {self._name}: scores are NaN or infinite; choose another judge")
        write_arrays(path, {SCORES: scores})

    def join(self, paths: Sequence[Path]) -> tuple[np.ndarray, Scale]:
        """Return the scores [P] float32 of all pairs, and their scale, out of the files of all parts."""
        scale_file, *score_files = (ArrayFile(path) for path in paths)
        scale = Scale(*scale_file[SCALE].read().tolist())
        scores = np.empty(len(self._order), np.float32)
        if score_files:
            scores[self._order] = np.concatenate([file[SCORES].read() for file in score_files])
        return scores, scale
