"""The base of judges that are open: scores of pairs, and the scale that makes them comparable.

Shapes: P pairs, n captions.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import NamedTuple

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.judging.calibration import area_under_curve
from itrpipe.judging.declaration import JudgeName
from itrpipe.judging.material import Material


class Curve(NamedTuple):
    """The default log-odds of a judge, fitted to what a crowd said of Flickr8k's photographs.

    Attributes:
        slope, middle: see `Scale`.
        own: score of a caption with the only other caption of its image, where random pairs are 0 and equal captions 1.
    """

    slope: float
    middle: float
    own: float


CURVES = {
    "captions": Curve(7.6, 0.93, 0.64),
    "captions:tfidf": Curve(3.1, 1.43, 0.27),
    "graphs": Curve(2.0, 2.02, 0.12),
    "dual": Curve(7.6, 0.93, 1.0),
}
"""Judge or kind -> its curve. Scores of other kinds are log-odds already."""
MOST_LOG_ODDS = 10.0
LEAST_AREA = 0.6
"""Share of captions with their own images that score above random pairs; below, a judge is refused."""


class OpenedJudge(ABC):
    """A judge that is ready. It is opened by `build(model, material, device, revision)` in the module of its kind.

    Attributes:
        material: what it reads.
    """

    material: Material

    @abstractmethod
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P], higher for likelier matches."""

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return scores [n] float32 of captions [n] with their own images.

        A judge that compares captions leaves each itself out of its image's; NaN where it is the only one.
        """
        return self(self.material.owners[captions], captions)


class Scale(NamedTuple):
    """The units of a judge's scores, and its default curve.

    Attributes:
        mismatch, match: medians of random pairs and of captions with their own images.
        slope, middle: of the log-odds, where `mismatch` is 0 and `match` is 1.
    """

    mismatch: float
    match: float
    slope: float
    middle: float

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Return the log-odds of a match, of the shape of the scores, within ±`MOST_LOG_ODDS`."""
        placed = (scores - self.mismatch) / (self.match - self.mismatch)
        log_odds = self.slope * (placed - self.middle)
        return np.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)


def open_judge(name: JudgeName, material: Material, device: str, revision: str = "main") -> OpenedJudge:
    """Open a judge.

    Args:
        name: see `itrpipe.judging.declaration.judge_name`.
        material: what it reads.
        device: `auto`, `cpu` or `cuda`.
        revision: branch, tag or commit of a hub id.

    Raises:
        UsageError: the material lacks what this judge reads.
        MissingInputError, DataError: see `itrpipe.encoders.encoder.open_encoder`.
    """
    encodes_images = name.kind == "dual" and "vision" not in material.encoded
    if (name.looks or encodes_images) and material.photographs is None:
        raise UsageError(f"judge {name} looks at photographs, and there are none; name a judge that reads captions")
    module = import_module(f"itrpipe.judging.{name.kind}")
    return module.build(name.model, material, device, revision)


def scale_of(judge: OpenedJudge, name: JudgeName) -> Scale:
    """Return the scale of a judge, from 2,000 captions with their own and 2,000 with other images; seed 0.

    Where no image has a second caption to compare with, a match is where `Curve.own` puts it.

    Raises:
        UsageError: captions score hardly higher with their own images, so that the judge knows nothing.
    """
    curve = CURVES.get(str(name), CURVES.get(name.kind))
    if curve is None:
        return Scale(mismatch=0.0, match=1.0, slope=1.0, middle=0.0)

    rng = np.random.default_rng(0)
    sample_size = 2_000
    owners = judge.material.owners
    with_owner = np.flatnonzero(owners >= 0)
    sample = rng.choice(with_owner, min(sample_size, len(with_owner)), replace=False)
    matches = judge.own(sample)
    matches = matches[~np.isnan(matches)]

    images = owners[rng.choice(with_owner, sample_size)]
    captions = rng.choice(with_owner, sample_size)
    is_other = images != owners[captions]
    mismatches = judge(images[is_other], captions[is_other])
    mismatch = float(np.median(mismatches))

    if not len(matches):
        match = mismatch + curve.own * (1 - mismatch)
        return Scale(mismatch, match, curve.slope, curve.middle)
    scores = np.append(matches, mismatches)
    area, _ = area_under_curve(scores, np.arange(len(scores)) < len(matches))
    match = float(np.median(matches))
    if area < LEAST_AREA or match <= mismatch:
        raise UsageError(
            f"judge {name}: a caption scores higher with its own image than a random pair in {100 * area:.0f} % of the "
            f"cases (medians {match:.3f} and {mismatch:.3f}), where chance is 50; it is no help here, choose another"
        )
    return Scale(mismatch, match, curve.slope, curve.middle)
