"""Mines the training set once more while a model trains."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.truth import Decided, known_pairs
from itrpipe.engine.run import MapExecution, Maps
from itrpipe.features.declaration import read_model
from itrpipe.judging.calibration import Calibration
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.opened import Scale, open_judge
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.mining.judged import CALIBRATION, SCALE, rows_of_pairs, without_decided
from itrpipe.mining.lists import NO_ROW, CandidateLists, HeldRows
from itrpipe.mining.mine import mine_split
from itrpipe.mining.statistics import summary
from itrpipe.storage.disk import read_json
from itrpipe.training.material import open_material
from itrpipe.training.settings import JUDGE_INPUT, MineSettings


def mine_again(images: np.ndarray, texts: np.ndarray, split: Split, job: Any, folder: Path) -> dict[str, np.ndarray]:
    """Mine other vectors of a training set as lists were mined before, and print the figures on the new lists.

    Args:
        images: [N, D] vectors as they are now.
        texts: [T, D].
        split: training set.
        job: of the training, see `itrpipe.stages.base.Job`; its lists are the artifact `mine_negatives`.
        folder: for the files of parts, which are gone afterwards; is made.

    Returns:
        Lists of both directions as methods read them, see `itrpipe.learning.mined.Lists`.

    Raises:
        MissingInputError: what a judge reads was removed.
        UsageError: see `open_judge` and `mine_split`.
    """
    mined = job.inputs["mine_negatives"]
    settings = MineSettings.model_validate(mined.manifest.settings)
    vectors = HeldRows(images), HeldRows(texts)
    ids = split.image_ids, split.caption_ids
    decided = Decided.read(mined.folder, *ids)
    probability_of = None
    if settings.judges:
        probability_of = _asked_again(settings.judges, mined, vectors, job.execution.device)
    pieces: dict[str, list[np.ndarray]] = {}

    def keep(direction: str, part: slice, found: CandidateLists) -> None:
        lists, probability = without_decided(direction, part, found, decided, probability_of)
        pieces.setdefault(direction, []).append(lists.candidates)
        if probability is not None:
            pieces.setdefault(f"{PROBABILITY_OF}{direction}", []).append(probability.astype(np.float16))

    job.reporter.say("  mining again with the weights as they are")
    parts = folder / "mining"
    parts.mkdir(parents=True)
    statistics = mine_split(
        *vectors,
        split.caption_image,
        settings,
        Maps(parts, job.reporter, job.warn, MapExecution()),
        keep,
        device=job.execution.device,
        captions=split.texts,
        truth=known_pairs(job.inputs["prepare"].folder, *ids),
    )
    for line in summary(statistics):
        job.reporter.say(line)
    shutil.rmtree(parts)
    return {name: np.concatenate(found) for name, found in pieces.items()}


def _asked_again(
    judges: tuple[str, ...], mined: Any, vectors: tuple[HeldRows, HeldRows], device: str
) -> Callable[[str, slice, CandidateLists], np.ndarray]:
    """Open the judges of mined lists, and return what tells the probabilities of other lists.

    They read what they have read before, but for the vectors of the model, and are calibrated as they were.
    """
    calibration = Calibration.from_json(read_json(mined.folder / CALIBRATION))
    opened = []
    for number, text in enumerate(judges, 1):
        name = judge_name(text)
        judged = mined.input(JUDGE_INPUT.format(number))
        folders = {key: judged.input(key).folder for key in judged.manifest.inputs}
        material = open_material({**folders, "model": read_model(folders)}, looks=name.looks)
        revision = judged.manifest.settings["revision"]
        judge = open_judge(name, replace(material, vectors=vectors), device, revision)
        opened.append((judge, Scale(**read_json(judged.folder / SCALE))))

    def probability_of(direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
        is_candidate = lists.candidates != NO_ROW
        images, captions = rows_of_pairs(direction, part, lists)
        pairs = images[is_candidate], captions[is_candidate]
        log_odds = [scale.log_odds(judge(*pairs)) for judge, scale in opened]
        probability = np.zeros(lists.candidates.shape, np.float32)
        probability[is_candidate] = calibration.probabilities(np.stack(log_odds, axis=1))
        return probability

    return probability_of
