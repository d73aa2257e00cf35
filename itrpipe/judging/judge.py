"""Judging as a function: which pairs of images and captions are right, by one call.

Shapes: P pairs, J judges, N images, T captions, D width of a vector.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.photographs import GivenPhotographs, Photograph
from itrpipe.judging.calibration import Calibration, calibrate
from itrpipe.judging.declaration import DEFAULT, judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import open_judge, scale_of
from itrpipe.judging.shares import Share, share_right, strata_of
from itrpipe.storage.arrays import HeldRows, check_captions, check_fit, check_numbers, given_array, given_vectors

NOT_ASKED = -1
"""Answer of a pair that nobody was asked about."""


class Judged(NamedTuple):
    """The verdict of judges on pairs.

    Attributes:
        scores: float32 [P], or [P, J] of several judges, each in its own unit.
        probabilities: float32 [P], how likely each pair is right.
        calibration: from scores to probabilities, and how much it knows.
        share: of right pairs among all; None without answers.
    """

    scores: np.ndarray
    probabilities: np.ndarray
    calibration: Calibration
    share: Share | None

    def __repr__(self) -> str:
        right = (self.probabilities > 0.5).sum()
        return f"Judged: {right:,} of {len(self.probabilities):,} pairs likelier right than not"


def judge(
    pairs: ArrayLike,
    captions: Sequence[str],
    owners: ArrayLike,
    by: str | Sequence[str] = DEFAULT,
    *,
    answers: ArrayLike | None = None,
    photographs: Sequence[Photograph] | None = None,
    vectors: tuple[ArrayLike, ArrayLike] | None = None,
    device: str = "auto",
    revision: str = "main",
) -> Judged:
    """Tell how likely pairs of images and captions are right, though the captions were written for other images.

    Args:
        pairs: [P, 2] row of the image and row of the caption, such as mined negatives.
        captions: T texts.
        owners: [T] row of the image that each was written for, -1 for nobody's.
        by: one judge or several: `captions:ID`, `captions:tfidf`, `graphs`, `dual:ID`, `itm:ID`, `vlm:ID` or `fne`,
            where ID is a hub id or a folder.
        answers: [P] of people: 1 the caption fits, 0 it does not, -1 nobody was asked. From 50 answers on, they
            calibrate the probabilities; pairs should be drawn at random to be asked.
        photographs: N files, images of Pillow or arrays [H, W, 3] uint8 RGB, for judges that look at them.
        vectors: [N, D] of images and [T, D] of captions by the mining model, for `fne`.
        device: `auto` takes CUDA where there is one.
        revision: branch, tag or commit of hub ids.

    Raises:
        DataError: arrays do not fit each other or hold other values; a photograph or a file of a model is damaged.
        UsageError: there is no such judge, it lacks what it reads, or it cannot tell an image's captions from others.
        MissingInputError: there is no such model.

    Example:
        >>> captions = ["a dog runs", "a brown dog", "a red bus", "the bus stops", "a dog runs", "the brown dog"]
        >>> judged = judge([[0, 4], [0, 2]], captions, [0, 0, 1, 1, 2, 2], by="captions:tfidf")
        >>> (judged.probabilities > 0.5).tolist()
        [True, False]
    """
    texts = [by] if isinstance(by, str) else by
    try:
        names = [judge_name(text) for text in texts]
    except ValueError as error:
        raise UsageError(str(error)) from None
    rows = given_array("pairs", pairs, 2, "iu", "rows [P, 2], of an image and of a caption", np.int64)
    if rows.shape[1] != 2:
        raise DataError(f"pairs are {list(rows.shape)} and not [P, 2]; give the row of an image and that of a caption")
    image_of = given_array("owners", owners, 1, "iu", "one row of an image for each caption", np.int64)
    check_captions(captions, image_of)
    num_images = int(max(image_of.max(), rows[:, 0].max())) + 1
    mining_vectors = None
    if vectors is not None:
        image_vectors, text_vectors, _ = given_vectors(*vectors, image_of)
        check_fit(image_vectors.shape, text_vectors.shape, image_of)
        check_numbers([image_vectors], [text_vectors])
        mining_vectors = HeldRows(image_vectors), HeldRows(text_vectors)
        num_images = len(image_vectors)
    files = None
    if photographs is not None:
        files = GivenPhotographs(photographs)
        num_images = len(photographs)
    _check_rows("images of pairs", rows[:, 0], 0, num_images)
    _check_rows("captions of pairs", rows[:, 1], 0, len(captions))
    _check_rows("owners", image_of, -1, num_images)
    replies = np.full(len(rows), NOT_ASKED)
    if answers is not None:
        replies = _check_answers(answers, len(rows))

    material = Material(captions, image_of, num_images, files, vectors=mining_vectors)
    scores = np.empty((len(rows), len(names)), np.float32)
    log_odds = np.empty(scores.shape)
    for column, name in enumerate(names):
        try:
            opened = open_judge(name, material, device, revision)
        except MissingInputError as error:
            raise MissingInputError(f'{error}: by="{name.kind}:FOLDER"') from None
        scores[:, column] = opened(rows[:, 0], rows[:, 1])
        scale = scale_of(opened, name)
        log_odds[:, column] = scale.log_odds(scores[:, column])

    asked = np.flatnonzero(replies != NOT_ASKED)
    fits = replies[asked] == 1
    calibration = calibrate(log_odds[asked], fits, rows[asked, 0])
    probabilities = calibration.probabilities(log_odds)
    share = None
    if len(asked):
        unseen = probabilities.copy()
        unseen[asked] = calibration.held_out
        strata = strata_of(log_odds.mean(axis=1))
        share = share_right(unseen, asked, fits, strata)
    if isinstance(by, str):
        scores = scores[:, 0]
    return Judged(scores, probabilities, calibration, share)


def _check_answers(answers: ArrayLike, count: int) -> np.ndarray:
    """Return answers of people, int64 [P].

    Raises:
        DataError: there is not one for each pair, or one has another value.
    """
    replies = given_array("answers", answers, 1, "iu", "1, 0 or -1 for each pair", np.int64)
    _check_rows("answers", replies, NOT_ASKED, 2)
    if len(replies) != count:
        raise DataError(f"there are {len(replies):,} answers and {count:,} pairs; give one for each pair")
    return replies


def _check_rows(name: str, values: np.ndarray, first: int, stop: int) -> None:
    """Refuse values outside of first..stop - 1.

    Raises:
        DataError: there is one.
    """
    outside = values[(values < first) | (values >= stop)]
    if len(outside):
        raise DataError(f"{name} hold {outside[0]}, which is none of {first}..{stop - 1}; correct it")
