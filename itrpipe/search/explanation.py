"""Explain a caption beside an image by a model that learned which words are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.analysis.words import WordReader, match_probability
from itrpipe.datasets.prepared import given_split
from itrpipe.errors import UsageError
from itrpipe.search.photos import find_image
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model


def explain(trained: Path, label: str, image: str, caption: str, device: str) -> dict[str, Any]:
    """Explain which words of a caption do not belong to an image, ready for JSON.

    `score` and `corrected_score` are the probabilities that the caption, and the corrected one, match the image. What
    is corrected is None of a model that was not trained to correct words.

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
    captions, longest = reader.captions, reader.max_tokens
    if captions.lengths[0] > longest or captions.words[0].max() + 1 < len(captions.spans[0]):
        raise UsageError(f"--caption has more than the {longest} tokens that {label} reads; shorten it")
    row = np.zeros(1, dtype=np.int64)
    assert shown.features is not None  # what learns which words are wrong reads regions
    images = reader.embed(open_split(pair, shown.features, saved.tokens, saved.settings).images(row))
    read = reader.read(images, row, row, captions.tokens)
    (found,) = reader.corrected(row, captions.tokens, read)
    again = reader.read(images, row, row, found.corrected_tokens[None])

    unknown = set(captions.words[captions.tokens == reader.unknown_id].tolist())
    words = []
    for number, chance in enumerate(found.mismatch.tolist()):
        start, end = found.sentence.spans[number]
        first, last = found.corrected.spans[number]
        flagged = bool(found.flagged[number])
        words.append(
            {
                "text": found.sentence.text[start:end],
                "start": start,
                "end": end,
                "mismatch": chance,
                "flagged": flagged,
                "known": number not in unknown,
                "correction": found.corrected.text[first:last] if flagged and reader.corrects else None,
            }
        )
    return {
        "run": label,
        "image_id": shown.image_id,
        "split": shown.split,
        "caption": caption,
        "score": found.score,
        "words": words,
        "corrected": found.corrected.text if reader.corrects else None,
        "corrected_score": match_probability(float(again.scores[0])) if reader.corrects else None,
    }
