"""Which words are wrong: synthetic sentences whose words a model judged and corrected, and how often it is right.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 4, Table 4 and section 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itrpipe.errors import DataError
from itrpipe.reporting.collect import Run, of_different_methods
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.sections.words.section import TONES, pieces
from itrpipe.reporting.tables import DASH, Cell, Row, Table
from itrpipe.reporting.thumbnails import Picture
from itrpipe.storage.artifact import WORD_CORRECTIONS, WORDS

TITLE, ORDER = "Wrong words", 150
READS = (WORDS, WORD_CORRECTIONS)
STEPS = TONES // 2 + 1
"""Steps of colour, from none to full."""
COLUMNS = {
    "all": "all words",
    "matching": "own words",
    "mismatching": "wrong words",
    "correction": "wrong words",
    "correction_masked": "masked words",
    "below_caption": "sentences",
}
HEADINGS = {
    "all": "judged: all words",
    "matching": "judged: own words",
    "mismatching": "judged: wrong words",
    "correction": "corrected: wrong words",
    "correction_masked": "corrected: masked words",
    "below_caption": "sentences below caption",
}
"""What a column is called where nothing stands above it."""
SPANS = [("Rightly judged", 3), ("Corrected", 2), ("Below caption", 1)]
_CAPTION = (
    "In percent, below it of how many. The model masked test captions as in its training, phrase by phrase or word by "
    "word, and refilled them; sentences that are the caption itself, or say nothing but what other captions of the "
    "image say, are left out. Rightly judged: own words of the caption that it does not find wrong, and written ones "
    "that it does. Corrected: wrong words for which it gives the word of the caption, and masked words, wrong or not, "
    "for which it does. Below caption: sentences that score below their caption."
)


@dataclass(frozen=True)
class JudgedWord:
    """A word of a sentence.

    Attributes:
        text: as it stands there.
        own: whether it is the caption's word.
        mismatch: probability that it does not belong to the image; None in a corrected sentence.
        tone: step of the colour scale of `phrase_view`, whose middle has no colour.
        flagged: whether it counts as wrong; in a corrected sentence, whether it was replaced.
    """

    text: str
    own: bool
    mismatch: float | None
    tone: int
    flagged: bool


@dataclass(frozen=True)
class Judged:
    """A sentence: its words and what stands between them, and the probability that it matches the image."""

    parts: list[JudgedWord | str]
    score: float


@dataclass(frozen=True)
class WrongExample:
    """A caption, and a sentence that was made of it.

    Attributes:
        picture: the image.
        caption: as given.
        caption_score: probability that it matches the image.
        sentence: made of it.
        corrected: None where the model does not correct.
    """

    picture: Picture
    caption: str
    caption_score: float
    sentence: Judged
    corrected: Judged | None


@dataclass(frozen=True)
class WrongWords:
    """The section.

    Attributes:
        run: whose examples are shown.
        examples: captions with sentences.
        table: of all runs.
    """

    run: Run
    examples: list[WrongExample]
    table: Table


def view(source: Source) -> WrongWords | None:
    """Shows the first group with a run that judged words."""
    return source.first_view(wrong_words_view)


def wrong_words_view(runs: Sequence[Run], count: int, picture_of: Callable[[Run, str], Picture]) -> WrongWords | None:
    """Shows what evaluations found out about words.

    Args:
        runs: on one test set.
        count: examples at most.
        picture_of: makes the picture of an image of a run's dataset.

    Returns:
        None when no run judged words.

    Raises:
        DataError: an evaluation's words do not lie in their sentence one after the other.
    """
    judged = [run for run in runs if run.figures(WORDS) is not None]
    if not judged:
        return None
    shown = of_different_methods(judged, 1)[0]
    examples = [_example(shown, row, picture_of) for row in shown.rows(WORD_CORRECTIONS)[:count]]
    return WrongWords(shown, examples, _table(judged))


def _table(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        assert run.figures(WORDS) is not None
        cells = [_cell(name, figure_of(run.figures(WORDS), name)) for name in COLUMNS]
        # Older evaluations do not say what was masked; it was single words.
        rows.append(
            Row(
                run.name,
                cells,
                f"{run.label}, {run.figures(WORDS).get('mask', 'words')} masked{_fluency(run.figures(WORDS))}",
            )
        )
    return Table("Wrong words in sentences that the model wrote", list(COLUMNS.values()), rows, _CAPTION)


def _fluency(words: Mapping[str, Any]) -> str:
    """Perplexities before and after the correction, where a language model was given."""
    found = words.get("fluency")
    if not found or not found["sentences"]:
        return ""
    corrected = f", {found['corrected']} corrected" if found["corrected"] is not None else ""
    return f"; perplexity by {found['name']}: captions {found['captions']}, written {found['written']}{corrected}"


def figure_of(words: Mapping[str, Any], name: str) -> tuple[float | None, int] | None:
    """Percent and count of a column; None where it was not measured, no percent where nothing was counted."""
    found = words["discrimination"].get(name) or words.get(name)
    if found is None:
        return None
    count = found["sentences"] if "sentences" in found else found["words"]
    return found["percent"], count


def _cell(name: str, figure: tuple[float | None, int] | None) -> Cell:
    if figure is None or figure[0] is None:
        return Cell(HEADINGS[name], DASH)
    return Cell(HEADINGS[name], f"{figure[0]:.1f}", f"of {figure[1]:,}")


def _example(run: Run, row: Mapping[str, Any], picture_of: Callable[[Run, str], Picture]) -> WrongExample:
    words = row["words"]
    sentence = [
        (word["start"], word["end"], _judged(row["sentence"][word["start"] : word["end"]], word)) for word in words
    ]
    try:
        corrected = None
        if row["corrected"] is not None:
            replaced = [_corrected(row["corrected"], word) for word in words]
            corrected = Judged(pieces(row["corrected"], replaced), row["corrected_score"])
        judged = Judged(pieces(row["sentence"], sentence), row["sentence_score"])
    except ValueError as error:
        where = f"{run.evaluation.folder / WORD_CORRECTIONS}: words of caption {row['caption_id']}"
        raise DataError(f"{where} do not lie in their sentence one after the other ({error}); evaluate again") from None
    return WrongExample(picture_of(run, row["image_id"]), row["caption"], row["caption_score"], judged, corrected)


def _judged(text: str, word: Mapping[str, Any]) -> JudgedWord:
    step = min(STEPS - 1, int(word["mismatch"] * STEPS))
    return JudgedWord(text, not word["wrong"], word["mismatch"], TONES // 2 - step, word["flagged"])


def _corrected(text: str, word: Mapping[str, Any]) -> tuple[int, int, JudgedWord]:
    start, end = word["corrected_start"], word["corrected_end"]
    return start, end, JudgedWord(text[start:end], word["restored"], None, TONES // 2, word["flagged"])
