"""How often a model finds wrong words and corrects them, where it learned to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import WORD_CORRECTIONS, WORDS
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import read_checked_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores

_FIGURES = {
    "matching": "right words are accepted",
    "mismatching": "wrong words, which the model itself wrote into captions, are found",
    "correction": "wrong words are corrected",
    "below_caption": "sentences with wrong words score below their caption",
}


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models whose backbone can judge words."""
    return evaluation.is_single and "words" in evaluation.backbone.answers


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes words.json and word_corrections.parquet, where the model was trained for it."""
    import pyarrow.parquet as pq

    from itrpipe.analysis.word_accuracy import WordTest
    from itrpipe.analysis.word_corrections import has_word_heads
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FEATURES, FeatureFile
    from itrpipe.synthesis.language_model import LanguageModel
    from itrpipe.training.saved import load_model

    name, saved = evaluation.settings.language_model, load_model(evaluation.trained)
    if not has_word_heads(saved):
        if name:
            evaluation.warn("the tokenizer does not tell which characters a piece is of: no perplexity was measured")
        return
    sources = evaluation.sources_for(WORDS, graphs=saved.config["loss"]["mask"] == "phrases")
    if sources is None:
        return
    captions = PreparedDataset.open(sources.prepare).split(evaluation.settings.split)
    features = FeatureFile.open(sources.extract / FEATURES)
    model = LanguageModel(name, evaluation.place, evaluation.warn) if name else None
    test = WordTest(saved, captions, features, evaluation.place, sources.parse)
    figures, corrections = test.run(language_model=model)
    if model is not None:
        figures["fluency"] = {"name": Path(name).name, **figures["fluency"]}
    write_json(evaluation.folder / WORDS, figures)
    pq.write_table(corrections, evaluation.folder / WORD_CORRECTIONS)


def say(folder: Path, reporter: Reporter) -> None:
    """Prints every figure of words.json, where there is one, with what it counts."""
    path = folder / WORDS
    words = read_checked_json(path) if path.is_file() else {}
    found = words.get("discrimination", {}) | words
    for key, what in _FIGURES.items():
        if found.get(key) and found[key]["percent"] is not None:
            count = found[key].get("words", found[key].get("sentences"))
            reporter.say(f"  {found[key]['percent']:.1f} % of {count:,} {what}")
    if read := words.get("fluency"):
        corrected = "" if read["corrected"] is None else f", of these corrected {read['corrected']}"
        reporter.say(
            f"  perplexity by {read['name']}: of {read['sentences']:,} captions {read['captions']}, of a sentence with "
            f"wrong words made of each {read['written']}{corrected}"
        )
