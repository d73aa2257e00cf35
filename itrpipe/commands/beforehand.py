"""What can be told of a question before a model is trained for it: whether its image, words and split are there."""

from __future__ import annotations

import os
from pathlib import Path

from itrpipe.commands.photographs import named_image, no_image, refuse_imported
from itrpipe.commands.trained import train_settings
from itrpipe.errors import DataError, UsageError
from itrpipe.plan.pipeline import run
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages.extract import passes_of

SPLITS = ("test", "val", "train")


def check_split(split: str | None) -> None:
    """Refuses what is no split; None leaves the choice to the declaration.

    Raises:
        UsageError: likewise.
    """
    if split not in (None, *SPLITS):
        raise UsageError(f"--split {split}: there is no such split; give {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")


def check_words(step: Step, caption: str, what: str) -> None:
    """Refuses a sentence without a word, or without one that a caption of the training split has.

    What stands in no caption is known to a model only if its text encoder was trained before.

    Args:
        step: the planned training.
        caption: the sentence.
        what: the option that it was given by, for the message.

    Raises:
        UsageError: likewise.
    """
    from itrpipe.datasets.prepared import PreparedDataset, given_split, no_known_word

    words = given_split([caption], what=what).tokens.flatten().to_pylist()
    prepare, settings = step.inputs["prepare"].finished, train_settings(step)
    if prepare is None or settings.model.pretrained() or settings.model.published_weights():
        return
    prepared = PreparedDataset.open(prepare)
    if "train" not in prepared.splits:
        return
    known = prepared.split("train").tokens.flatten().unique().to_pylist()
    if not set(words) & set(known):
        raise no_known_word(step.location.label, words)


def check_image(step: Step, image: str, reporter: Reporter, *, make: bool) -> None:
    """Refuses an image that is neither in the dataset nor a photograph that the model can read.

    A dataset that is not prepared yet is prepared for that, if anything may be made.

    Args:
        step: the planned training.
        image: id, file name, or path of a file.
        reporter: shows how the dataset is prepared.
        make: whether anything may be made.

    Raises:
        MissingInputError: there is no such image.
        UsageError: several images have this name, or the features of the dataset were imported.
        DataError: the photograph cannot be read.
    """
    from itrpipe.datasets.pictures import read_rgb
    from itrpipe.datasets.prepared import PreparedDataset

    prepare = step.inputs["prepare"]
    if prepare.finished is None and not os.path.isfile(image) and make:
        run([prepare], reporter)
    if prepare.location.folder.exists():
        prepared = PreparedDataset.open(prepare.location.folder)
        if named_image(prepared, image) is not None:
            return
        if not os.path.isfile(image):
            raise no_image(prepared, step.location.dataset, image)
    if not os.path.isfile(image):
        return
    extract = step.inputs["extract"]
    refuse_imported(passes_of(extract.need.conf, extract.settings), image)
    try:
        read_rgb(Path(image))
    except DataError as error:
        raise DataError(f"--image {image} {error}; give another photograph") from None
