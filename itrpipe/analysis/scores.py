"""Scores of the models that are evaluated, on one split: read, computed, or the mean of those of several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from itrpipe.analysis.settings import SCORED, EvaluateSettings
from itrpipe.datasets.prepared import LEAKED, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import PROTOCOLS
from itrpipe.features.declaration import model_inputs
from itrpipe.features.embeddings import (
    EMBEDDINGS,
    SCORES,
    SplitScores,
    read_embeddings,
    read_scores,
    write_split_scores,
)
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.models.declaration import settings_of
from itrpipe.storage.artifact import open_input
from itrpipe.training.data import Sources
from itrpipe.training.encoding import Scoring


def evaluated_scores(job: Any) -> SplitScores:
    """Return the scores of the evaluated model, or the mean over several models, in single precision.

    Args:
        job: the `itrpipe.stages.base.Job` of the evaluation.

    Raises:
        DataError: a file is damaged, or the models were trained on different images or captions of the split.
        MissingInputError: a file has no such split, or what a model without embeddings was trained on was removed.
    """
    first, *others = model_inputs(job.inputs)
    mean = _model_scores(job, first)
    for name in others:
        other = _model_scores(job, name)
        for rows in ("image_ids", "caption_ids", "caption_image"):
            if getattr(mean, rows).tolist() == getattr(other, rows).tolist():
                continue
            raise DataError(
                f"{job.inputs[name].folder}: its {rows.replace('_', ' ')} of split {job.settings.split} are not "
                f"those of {job.inputs[first].folder}, so their scores cannot be averaged; train both on the same "
                "dataset"
            )
        mean.matrix[:] += other.matrix
    mean.matrix[:] /= 1 + len(others)
    return mean


def _model_scores(job: Any, name: str) -> SplitScores:
    """Return the scores of one model: from its own evaluation, from its embeddings, or computed."""
    split = job.settings.split
    evaluated = job.inputs.get(f"{SCORED}{name}")
    if evaluated is not None:
        return read_scores(evaluated.folder / SCORES, split)
    model = job.inputs[name]
    manifest = model.manifest
    if EMBEDDINGS in manifest.outputs:
        embeddings = read_embeddings(model.folder / EMBEDDINGS, split)
        return SplitScores(
            embeddings.scores(),
            embeddings.image_ids,
            embeddings.caption_ids,
            embeddings.caption_image,
        )
    names = [name for name in ("prepare", "extract") if name in manifest.inputs]
    if settings_of(job.settings.backbone).reads_phrases:
        names.append("parse")  # other models may have been trained on sentences that it helped to write
    folders = {}
    for source in names:
        folders[source] = open_input(model.folder, manifest, source).absolute()
    sources = Sources(**folders, train_share=manifest.settings["train_share"])
    execution = job.execution
    work = Scoring(
        model.folder.absolute(),
        sources,
        execution.encode_block,
        execution.device,
        split,
    )
    scores = work.join(job.made(work).paths)
    path = job.folder / SCORES
    path.unlink(missing_ok=True)  # of an interrupted run
    write_split_scores(path, split, scores)
    return scores


def caveats(
    prepared: Any,
    settings: EvaluateSettings,
    truth_is_known: bool,
) -> Iterator[str]:
    """Yield warnings about scores on a split: repeated captions, leaks, and protocols that do not apply.

    Args:
        prepared: the `itrpipe.stages.base.Artifact` of the dataset.
        settings: of the evaluation.
        truth_is_known: whether the dataset knows all correct matches, those of repeated captions too.

    Raises:
        DataError: a file of the dataset is damaged.
    """
    split = PreparedDataset.open(prepared.folder, tokens=False).split(settings.split)
    duplicates = DuplicateCaptions(split.texts, split.caption_image).report()
    repeated = duplicates["captions_of_other_images"]
    if repeated and not truth_is_known:
        yield (
            f"{repeated:,} of {len(split.texts):,} captions are also those of another image, where they count as "
            "wrong, and ties do, too: no model reaches 100 %"
        )
    leaks = prepared.manifest.metrics.get("leaks")
    if leaks:
        yield LEAKED.format(leaks)
    images = len(split.image_ids)
    for name in settings.protocols:
        least = PROTOCOLS[name].images
        if least > images:
            yield f"{name} needs {least:,} images, {settings.split} has {images:,}"
