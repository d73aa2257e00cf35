"""Maps of where a trained dual encoder finds the words of a sentence in an image.

Source: FNE (Li et al., ACM MM 2023), Fig. 3 and 7. What the paper's maps are it does not say; these are the exact parts
of a score, see `TransformerDualEncoder.word_maps`.

Shapes: n tokens of an image, W tokens of a caption.
"""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
import torch

from itrpipe.config import leaves
from itrpipe.datasets.prepared import PreparedDataset, Split, given_split
from itrpipe.datasets.vocabulary import spans
from itrpipe.features.extractors.pixels.extractor import Resize
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.captions import PieceIds, WordIds
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import Sources, open_split
from itrpipe.training.saved import SavedModel

_SPACED = re.compile(r"\S+")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
Located = tuple[str, list[tuple[int, int, tuple[int, ...]]]]
"""A caption as it is read, and its words: the first character of each, one more than its last, and the places of its
tokens among those of the caption, counted from 0."""


def has_word_maps(saved: SavedModel) -> bool:
    """Tell whether `pair_map` is defined: scores are means over words and places, and words have places."""
    tokens = saved.tokens
    # Few tokenizers, written in Python, do not tell which characters a piece is of.
    located = not isinstance(tokens, PieceIds) or tokens.tokenizer.is_fast
    return located and "word-maps" in saved.settings.answers and saved.model.has_word_maps


def located_words(tokens: WordIds | PieceIds, split: Split) -> list[Located]:
    """Return the captions of a split, T of them, and where each of their words stands.

    Pieces belong to the word that they end in; what is read of a caption beside words, such as its ends, is in none.
    """
    reading = tokens.reading
    texts = reading.texts(split)
    located: list[Located] = []
    if isinstance(tokens, WordIds):
        if not reading.cleaned:
            texts = split.texts
        for text in texts:
            places = [each.span() for each in _SPACED.finditer(text)] if reading.cleaned else spans(text)
            words = [(start, end, (at,)) for at, (start, end) in enumerate(places[: reading.max_words], 1)]
            located.append((text, words))
        return located
    read = tokens.tokenizer(texts, truncation=True, max_length=tokens.max_tokens, return_offsets_mapping=True)
    for text, pieces in zip(texts, read["offset_mapping"], strict=True):
        words = []
        for word in _WORD.finditer(text):
            start, end = word.span()
            # Some pieces begin with the space before them.
            places = [at for at, (first, last) in enumerate(pieces) if first < last and start < last <= end]
            if places:
                words.append((start, end, tuple(places)))
        located.append((text, words))
    return located


@torch.inference_mode()
def pair_map(saved: SavedModel, sources: Sources, split: str, image_id: str, sentence: str) -> list[dict[str, Any]]:
    """Return the map of every word of a sentence with an image of a split.

    Args:
        saved: a model for which `has_word_maps` holds, on the device where it computes.
        sources: what it was trained on.
        split: of the image.
        image_id: of the image.
        sentence: any.

    Returns:
        Of each word `text`, the sentence as the model reads it, and `start` to `end`, the characters of the word;
        `values`, its map, `rows` times `columns` patches row by row, of a word in pieces the mean of their maps;
        `area`, what the patches cover of the photograph, x0, y0, x1, y1 as fractions; `word_score`, the mean of the
        map over all tokens of the image, a class token too.
    """
    images = PreparedDataset.open(sources.prepare, tokens=False).split(split).images
    shown = images.filter(pc.field("image_id") == image_id)
    pair = Split(split, shown, given_split([sentence], [image_id], split, "the sentence").captions)
    features = FeatureFile.open(sources.extract / FEATURES)
    data = open_split(pair, features, saved.tokens, saved.settings, saved.frame)
    model, tokens = saved.model, cast(Any, saved.tokens)
    grid = model.vision.grid()
    device = next(model.parameters()).device

    # How photographs became pixels; of pixels that were imported nobody knows, and they count as whole.
    made = {key.rpartition(".")[2]: value for key, value in leaves(read_manifest(sources.extract).settings)}
    _, stored_height, stored_width, *_ = features.arrays["pixels"].shape
    height = shown["height"][0].as_py()
    width = shown["width"][0].as_py()
    resize = Resize(stored_height, stored_width, made.get("fit", "stretch"))
    left, top, right, bottom = resize.part(height, width)
    frame_height, frame_width = model.vision.frame
    down = (bottom - top) * grid.rows * grid.cell_height / frame_height
    across = (right - left) * grid.columns * grid.cell_width / frame_width
    area = [left / width, top / height, (left + across) / width, (top + down) / height]

    row = np.zeros(1, dtype=np.int64)
    (maps,) = model.word_maps(data.images(row).to(device), data.texts(row).to(device))  # [n, W]
    ((text, located),) = located_words(tokens, pair)
    words = []
    for start, end, places in located:
        found = maps[:, list(places)].mean(dim=1)  # [n]
        words.append(
            {
                "text": text,
                "start": start,
                "end": end,
                "rows": grid.rows,
                "columns": grid.columns,
                "area": area,
                "values": found[-grid.rows * grid.columns :].tolist(),
                "word_score": float(found.mean()),
            }
        )
    return words
