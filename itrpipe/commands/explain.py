"""`itrpipe explain`: which words of a caption do not belong to an image, and what should stand there instead."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from itrpipe.commands.photographs import find_image
from itrpipe.commands.trained import TrainedRun, make_missing, train_settings, trained_run
from itrpipe.datasets.definition import check_name
from itrpipe.errors import UsageError
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need

if TYPE_CHECKING:
    from itrpipe.analysis.words import CorrectedSentence, WordReader

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


def explain(
    root: Path,
    dataset: str,
    image: str,
    caption: str,
    method: str,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints which words of a caption do not belong to an image; a missing model is made first, unless `no_deps`.

    Args:
        root: the data folder.
        dataset: dataset name.
        image: id or file name of one of its images, or path of a photograph.
        caption: any sentence.
        method: configuration of `train`.
        overrides: values given by the user.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and explain nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the run never learns which words are wrong, or the caption is empty or too long.
        MissingInputError: there is no such image, or what the model was trained on was removed.
    """
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    _refuse_without_word_heads(step)
    if not make_missing(f"explain {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    found = _explanation(trained_run(step), dataset, image, caption)
    if as_json:
        Reporter().say_json({"dataset": dataset, **asdict(found)})
    else:
        _show(found, reporter)


def _refuse_without_word_heads(step: Step) -> None:
    from itrpipe.analysis.words import trains_word_heads

    if not trains_word_heads(train_settings(step).model_dump()):
        raise UsageError(
            f"{step.location.label} does not learn which words are wrong: its loss has no weight_discrimination above "
            "0; explain a run of --method tags-dc"
        )


def _explanation(trained: TrainedRun, dataset: str, image: str, caption: str) -> Explanation:
    import numpy as np

    from itrpipe.analysis.words import WordReader, match_probability
    from itrpipe.datasets.prepared import given_split
    from itrpipe.training.data import open_split
    from itrpipe.training.saved import load_model

    saved = load_model(trained.folder)
    shown = find_image(trained, dataset, image)
    pair = given_split([caption], [shown.image_id], shown.split, "--caption")
    reader = WordReader(saved, pair, trained.device)
    _refuse_unread(reader, trained.label)
    row = np.zeros(1, dtype=np.int64)
    images = reader.embed(open_split(pair, shown.features, saved.tokens, saved.settings).images(row))
    tokens = reader.captions.tokens
    read = reader.read(images, row, row, tokens)
    (found,) = reader.corrected(row, tokens, read)
    again = reader.read(images, row, row, found.corrected_tokens[None])
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
