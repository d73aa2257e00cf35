"""Sentences that belong to no dataset, as a trained model reads captions."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import UsageError
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.training.captions import WordIds
from itrpipe.training.data import PhraseTexts, TokenTexts
from itrpipe.training.saved import SavedModel, max_tokens_of


def read_captions(
    saved: SavedModel, captions: Split, label: str, graphs: Sequence[SceneGraph] | None = None
) -> TokenTexts | PhraseTexts:
    """Captions as batches for a model.

    Args:
        saved: the model.
        captions: T of them.
        label: of the model, for messages.
        graphs: T scene graphs, for models that read phrases.

    Raises:
        UsageError: a caption is longer than the model reads, or has no word for a model of words alone.
    """
    settings: Any = saved.settings
    if not settings.reads_phrases:
        texts = TokenTexts.of(captions, saved.tokens)
    else:
        assert graphs is not None
        phrases = _phrases(graphs, captions, settings.max_words)
        texts = PhraseTexts(phrases, captions.caption_ids.tolist(), saved.vocabulary, settings.phrases)
    longest = max_tokens_of(saved.model)
    if (long := texts.lengths > longest).any():
        text = captions.texts[int(np.argmax(long))]
        raise UsageError(f"{text[:60]!r} has more than the {longest} tokens that {label} reads; shorten it")
    if not texts.lengths.all():
        text = captions.texts[int(np.argmin(texts.lengths))]
        raise UsageError(f"{text[:60]!r} has no word; give a sentence")
    return texts


def known_words(saved: SavedModel, captions: Split) -> dict[str, bool]:
    """Words of captions, without punctuation, and whether a model knows them.

    It is empty where its tokenizer spells every word.
    """
    tokens = saved.tokens
    vocabulary = tokens.vocabulary if isinstance(tokens, WordIds) else tokens
    if not isinstance(vocabulary, Vocabulary):
        return {}
    read = tokens.reading.words(captions) if isinstance(tokens, WordIds) else captions.tokens
    words = (word for word in read.flatten().to_pylist() if any(map(str.isalnum, word)))
    return {word: word in vocabulary.ids for word in words}


def _phrases(graphs: Sequence[SceneGraph], captions: Split, max_words: int) -> CaptionPhrases:
    """Graphs as the artifact of `itrpipe parse` gives them, through a file of its own."""
    table = with_ids(captions.captions, graphs_table(graphs, "given"))
    with tempfile.TemporaryDirectory() as folder:
        write_graphs(Path(folder) / SCENE_GRAPHS_FILE, [table])
        return CaptionPhrases.read(Path(folder), max_words)
