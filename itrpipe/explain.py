"""`itrpipe explain`: which words of a caption do not belong to an image, and what should stand there instead."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from itrpipe.artifacts import existing_input, read_manifest
from itrpipe.config import did_you_mean
from itrpipe.datasets.definition import check_name
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.settings import IMPORTERS
from itrpipe.pipeline import run
from itrpipe.planning import Override, Planner, Step
from itrpipe.progress import Reporter
from itrpipe.stages import extract
from itrpipe.stages.base import Need

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset, Split
    from itrpipe.models.base import ImageBatch
    from itrpipe.training.word_corrections import CorrectedSentence, WordReader

PHOTOGRAPH = "photograph"
_TONES = ("", "black on #fbe8d6", "black on #f9d3ad", "black on #f6bd84", "bold black on #f2a65a")
"""From a word that belongs to the image to one that does not: one hue, from light to dark."""


@dataclass(frozen=True)
class Word:
    """A word of the caption.

    Attributes:
        text: as the caption writes it.
        start, end: its characters, end exclusive.
        mismatch: probability that it does not belong to the image, 0..1.
        flagged: whether that is above one half.
        known: whether it is among the words that the model knows.
        correction: what should stand there; None where it is not flagged or the model was not trained to correct.
    """

    text: str
    start: int
    end: int
    mismatch: float
    flagged: bool
    known: bool
    correction: str | None


@dataclass(frozen=True)
class Explanation:
    """What a model says of a caption beside an image.

    Attributes:
        run: the trained model's name.
        image_id: of the dataset, or the path of a photograph.
        split: of the image, or `photograph`.
        caption: as given.
        score: probability that the two match, 0..1.
        words: of the caption.
        corrected: the caption with what should stand at its flagged words; None where the model was not trained to
            correct words.
        corrected_score: as `score`, of that sentence.
    """

    run: str
    image_id: str
    split: str
    caption: str
    score: float
    words: list[Word]
    corrected: str | None
    corrected_score: float | None


@dataclass(frozen=True)
class _Shown:
    """An image: its name, where it is from, and its features."""

    image_id: str
    split: str
    features: ImageBatch


@dataclass(frozen=True)
class _Run:
    """A trained model and what it was trained on."""

    label: str
    train: Path
    prepare: Path
    extract: Path
    device: str


def explain(
    root: Path,
    dataset: str,
    image: str,
    caption: str,
    method: str,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    as_json: bool = False,
) -> None:
    """Prints which words of a caption do not belong to an image; what is missing of the model is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        image: id or file name of one of its images, or path of a photograph.
        caption: any sentence.
        method: configuration of `train`.
        overrides: values given by the user.
        no_deps: fail when the model is not trained.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the run never learns which words are wrong, or the caption is empty or too long.
        MissingInputError: there is no such image, or what the model was trained on was removed.
    """
    reporter = Reporter(Console(highlight=False, soft_wrap=True, stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    trained = _trained(step, dataset, reporter, no_deps=no_deps)
    found = _explanation(trained, dataset, image, caption)
    if as_json:
        print(json.dumps({"dataset": dataset, **asdict(found)}, ensure_ascii=False, indent=2))
    else:
        _show(found, reporter)


def _trained(step: Step, dataset: str, reporter: Reporter, *, no_deps: bool) -> _Run:
    from itrpipe.stages.train import resolve_device
    from itrpipe.training.settings import TrainExecution, TrainSettings
    from itrpipe.training.word_corrections import trains_word_heads

    settings, execution, location = step.settings, step.execution, step.location
    assert isinstance(settings, TrainSettings)
    assert isinstance(execution, TrainExecution)
    if not trains_word_heads(settings.model_dump()):
        raise UsageError(
            f"{location.label} does not learn which words are wrong: its loss has no weight_discrimination above 0; "
            "explain a run of --method tags-dc"
        )
    if step.state != "up to date":
        if no_deps:
            command = f"itrpipe train --dataset {dataset} --method {step.need.conf} --backbone {settings.backbone}"
            raise UsageError(
                f"train/{location.name} is {step.state} and --no-deps was given; run `{command}` with the same settings"
            )
        run([step], reporter)
    manifest = read_manifest(location.folder)
    prepare, extracted = (existing_input(location.folder, manifest, name) for name in ("prepare", "extract"))
    return _Run(location.label, location.folder, prepare, extracted, resolve_device(execution.device))


def _explanation(trained: _Run, dataset: str, image: str, caption: str) -> Explanation:
    import numpy as np

    from itrpipe.training.saved import load_model
    from itrpipe.training.word_corrections import WordReader, match_probability

    saved = load_model(trained.train)
    shown = _find(trained, dataset, image)
    reader = WordReader(saved, _split_of(shown, caption), trained.device)
    _refuse_unread(reader, trained.label)
    images, row = reader.embed(shown.features), np.zeros(1, dtype=np.int64)
    tokens = reader.captions.tokens
    read = reader.read(images, row, row, tokens, np.zeros(tokens.shape, bool))
    (found,) = reader.corrected(row, tokens, read)
    again = reader.read(images, row, row, found.corrected_tokens[None], np.zeros(tokens.shape, bool))
    return Explanation(
        run=trained.label,
        image_id=shown.image_id,
        split=shown.split,
        caption=caption,
        score=found.score,
        words=_words(reader, found),
        corrected=found.corrected.text if reader.corrects else None,
        corrected_score=match_probability(float(again.scores[0])) if reader.corrects else None,
    )


def _words(reader: WordReader, found: CorrectedSentence) -> list[Word]:
    (tokens,), (owners,) = reader.captions.tokens, reader.captions.words
    unknown = set(owners[tokens == reader.unknown_id].tolist())
    words = []
    for number, chance in enumerate(found.mismatch.tolist()):
        flagged = bool(found.flagged[number])
        (start, end), corrected = found.sentence.spans[number], slice(*found.corrected.spans[number])
        correction = found.corrected.text[corrected] if flagged and reader.corrects else None
        words.append(
            Word(found.sentence.text[start:end], start, end, chance, flagged, number not in unknown, correction)
        )
    return words


def _find(trained: _Run, dataset: str, image: str) -> _Shown:
    """The image of the dataset with this id or file name, else the photograph at this path.

    Raises:
        MissingInputError: there is neither, or the image has no features.
        UsageError: several images have this file name.
    """
    from itrpipe.datasets.prepared import PreparedDataset

    prepared = PreparedDataset.open(trained.prepare)
    found = _named(prepared, image)
    if found is not None:
        return _Shown(*found, _stored(trained.extract, found[0]))
    if Path(image).is_file():
        return _Shown(image, PHOTOGRAPH, _photograph(Path(image), trained.extract, trained.device))
    known = prepared.image_ids()
    hint = did_you_mean(image, known) or f"; name an image by its id or file, such as {known[-1]}"
    raise MissingInputError(
        f"dataset {dataset!r} has no image {image!r} and there is no such file{hint}; new images come in by "
        "`itrpipe prepare` and `itrpipe extract`"
    )


def _named(prepared: PreparedDataset, image: str) -> tuple[str, str] | None:
    """Id and split of an image: that of this id, else of this path in the source, else of this file name."""
    rows = [
        (image_id, file, name)
        for name in prepared.splits
        for image_id, file in zip(prepared.split(name).image_ids.tolist(), prepared.split(name).files, strict=True)
    ]
    for matches in (
        [row for row in rows if row[0] == image],
        [row for row in rows if row[1] == image],
        [row for row in rows if PurePosixPath(row[1]).name == image],
    ):
        if len(matches) > 1:
            raise UsageError(
                f"--image {image}: {len(matches):,} images have this file name, {matches[0][0]} and {matches[1][0]} "
                "among them; name one by its id"
            )
        if matches:
            return matches[0][0], matches[0][2]
    return None


def _stored(folder: Path, image_id: str) -> ImageBatch:
    """The features of an image of the dataset."""
    import torch

    from itrpipe.features.store import FEATURES, FeatureFile
    from itrpipe.models.base import ImageBatch

    file = FeatureFile.open(folder / FEATURES)
    rows = file.rows([image_id])
    if file.regions is None or file.count is None:
        raise DataError(f"{file.path} holds no regions, which UNITER reads; extract others")
    boxes = None if file.boxes is None else torch.from_numpy(file.boxes[rows])
    count = torch.from_numpy(file.count[rows].astype("int64"))
    return ImageBatch(torch.from_numpy(file.regions[rows]), count, boxes=boxes)


def _photograph(path: Path, folder: Path, device: str) -> ImageBatch:
    """The features of a photograph, by the extractor that made those of the dataset.

    Raises:
        UsageError: they were imported, or several extractors made them.
        DataError: the photograph cannot be used.
    """
    import numpy as np
    import torch

    from itrpipe.datasets.pictures import read_rgb
    from itrpipe.models.base import ImageBatch

    manifest = read_manifest(folder)
    settings = extract.settings_class(manifest.settings).model_validate(manifest.settings)
    parts = list(extract.passes_of(manifest.conf, settings).values())
    if len(parts) > 1 or parts[0].kind in IMPORTERS:
        how = "are made by several extractors" if len(parts) > 1 else f"were imported ({parts[0].kind})"
        raise UsageError(
            f"--image {path}: the features of this dataset {how}, so those of a photograph cannot be made "
            "alike; name an image of the dataset"
        )
    extractor = importlib.import_module(f"itrpipe.features.extractors.{parts[0].kind}").build(
        parts[0], torch.device(device)
    )
    try:
        pixels = read_rgb(path)
    except DataError as error:
        raise DataError(f"--image {path} {error}; give another photograph") from None
    rows = extractor(torch.from_numpy(extractor.transform(pixels))[None], np.array([pixels.shape[:2]]))
    count = torch.from_numpy(rows["count"].astype("int64"))
    return ImageBatch(torch.from_numpy(rows["regions"]), count, boxes=torch.from_numpy(rows["boxes"]))


def _split_of(shown: _Shown, caption: str) -> Split:
    """A dataset of this image and this caption alone.

    Raises:
        UsageError: the caption has no word.
    """
    import pyarrow as pa

    from itrpipe.datasets.prepared import Split
    from itrpipe.datasets.tokens import tokenize

    words = tokenize(caption)
    if not words:
        raise UsageError("--caption has no word; give a sentence")
    columns = {"caption_id": ["given"], "image_id": [shown.image_id], "text": [caption]}
    tokens = pa.array([words], pa.list_(pa.string()))
    return Split(shown.split, pa.table({"image_id": [shown.image_id]}), pa.table({**columns, "tokens": tokens}))


def _refuse_unread(reader: WordReader, label: str) -> None:
    captions, longest = reader.captions, reader.max_tokens
    if captions.lengths[0] > longest or captions.words[0].max() + 1 < len(captions.spans[0]):
        raise UsageError(f"--caption has more than the {longest} tokens that {label} reads; shorten it")


def _show(found: Explanation, reporter: Reporter) -> None:
    reporter.say(f"{found.image_id} ({found.split}), {found.run}", style="bold")
    reporter.console.print(Text("  caption    ").append_text(coloured(found.caption, found.words)))
    match = f"  match      {found.score:.2f}"
    if not any(word.flagged for word in found.words):
        reporter.say("  corrected  nothing: no word is more likely wrong than right")
    elif found.corrected_score is not None:
        reporter.say(f"  corrected  {found.corrected}")
        match += f", corrected {found.corrected_score:.2f}"
    reporter.say(match)
    if unknown := [word.text for word in found.words if not word.known]:
        reporter.say(f"  unknown    {', '.join(unknown)}: not among the words that the model knows", style="yellow")


def coloured(caption: str, words: list[Word]) -> Text:
    """A caption whose words are coloured by their probability of a mismatch, with the number behind flagged ones."""
    text, done = Text(), 0
    for word in words:
        text.append(caption[done : word.start])
        tone = _TONES[min(len(_TONES) - 1, int(word.mismatch * len(_TONES)))]
        text.append(word.text, style=tone)
        text.append(f" ({word.mismatch:.2f})" if word.flagged else "")
        done = word.end
    return text.append(caption[done:])
