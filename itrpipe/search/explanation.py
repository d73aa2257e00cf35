"""Explain a caption beside an image by a model that learned which words are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.analysis.words import WordReader, itm_probability
from itrpipe.datasets.prepared import given_split
from itrpipe.errors import UsageError
from itrpipe.search.photos import find_image
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model


def explain(trained: Path, label: str, image: str, caption: str, device: str) -> dict[str, Any]:
    """Explain which words of a caption do not belong to an image, ready for JSON.

    `score` and `corrected_score` are the probabilities that the caption, and the corrected one, match the image.
    Corrections are None of a model that was not trained to correct words.

    Args:
        trained: folder of the model.
        label: its name.
        image: id or file of an image of the dataset, or a photograph.
        caption: any sentence.
        device: where it is computed: `cpu` or `cuda`.

    Raises:
        UsageError: the caption has more tokens than the model reads.
        MissingInputError: there is no such image.
    """
    saved = load_model(trained)
    shown = find_image(trained, image, device)
    pair = given_split([caption], [shown.image_id], shown.split, "--caption")
    reader = WordReader(saved, pair, device)
    captions = reader.captions
    is_cut = captions.words[0].max() + 1 < len(captions.spans[0])
    if is_cut or captions.lengths[0] > reader.max_tokens:
        raise UsageError(f"--caption has more than the {reader.max_tokens} tokens that {label} reads; shorten it")
    row = np.zeros(1, dtype=np.int64)
    assert shown.features is not None  # what learns which words are wrong reads regions
    data = open_split(pair, shown.features, saved.tokens, saved.settings)
    images = reader.embed(data.images(row))
    read = reader.read(images, row, row, captions.tokens)
    (result,) = reader.corrected(row, captions.tokens, read)
    corrected = reader.read(images, row, row, result.corrected_tokens[None])

    unknown = set(captions.words[captions.tokens == reader.unknown_id].tolist())
    words = []
    for number, mismatch in enumerate(result.mismatch.tolist()):
        start, end = result.sentence.spans[number]
        flagged = bool(result.flagged[number])
        correction = None
        if flagged and reader.corrects:
            first, last = result.corrected.spans[number]
            correction = result.corrected.text[first:last]
        words.append(
            {
                "text": result.sentence.text[start:end],
                "start": start,
                "end": end,
                "mismatch": mismatch,
                "flagged": flagged,
                "known": number not in unknown,
                "correction": correction,
            }
        )
    corrected_text = None
    corrected_score = None
    if reader.corrects:
        corrected_text = result.corrected.text
        corrected_score = itm_probability(float(corrected.scores[0]))
    return {
        "run": label,
        "image_id": shown.image_id,
        "split": shown.split,
        "caption": caption,
        "score": result.score,
        "words": words,
        "corrected": corrected_text,
        "corrected_score": corrected_score,
    }
