"""Shares of wrong words that a model finds and corrects, where it learned to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.evaluation.tables import Cells, Content, Measured
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import WORDS

_COLUMNS = {
    ("Rightly judged", "all words"): "all",
    ("Rightly judged", "own words"): "matching",
    ("Rightly judged", "wrong words"): "mismatching",
    ("Corrected", "wrong words"): "correction",
    ("Corrected", "masked words"): "correction_masked",
    ("Below caption", "sentences"): "below_caption",
}


def _cells(content: Content) -> Cells:
    figures = {**content, **content["discrimination"]}
    cells = {}
    for key, name in _COLUMNS.items():
        share = figures[name] or {}
        cells[key] = share.get("percent")
    return cells


def _perplexities(content: Content) -> Cells:
    fluency = content.get("fluency")
    if fluency is None:
        return {}
    name = fluency["name"]
    return {
        (name, "captions"): fluency["captions"],
        (name, "with wrong words"): fluency["written"],
        (name, "corrected"): fluency["corrected"],
    }


SHOWN = (
    Measured(
        "Wrong words in sentences that the model wrote",
        WORDS,
        _cells,
        "In percent. The model masked test captions as in its training and refilled them. Rightly judged: own words "
        "of the caption that it accepts, and written ones that it finds wrong. Corrected: wrong words, and masked "
        "ones whether wrong or not, in whose place it gives the word of the caption. Below caption: sentences that "
        "score below theirs.",
    ),
    Measured("Perplexity", WORDS, _perplexities, "Lower is more fluent."),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model whose backbone can judge words, where it was trained for it.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    if not (evaluation.is_single and "words" in evaluation.backbone.answers):
        return None
    from itrpipe.analysis.words import WordTest, has_word_heads
    from itrpipe.synthesis.language_model import LanguageModel

    name = evaluation.settings.language_model
    saved = evaluation.saved
    if not has_word_heads(saved):
        if name:
            evaluation.warn("the tokenizer does not map pieces to characters: no perplexity was measured")
        return None
    graphs = None
    if saved.config["loss"]["mask"] == "phrases":
        graphs = evaluation.existing("parse")
    data = evaluation.data()
    model = None
    if name:
        model = LanguageModel(name, evaluation.place, evaluation.warn)
    figures = WordTest(saved, data, evaluation.place, graphs).run(language_model=model)
    if model is not None:
        figures["fluency"]["name"] = Path(name).name
    return figures
