"""Where a trained dual encoder finds the words of some captions: in their own image, and in the best wrong one.

Source: FNE (Li et al., ACM MM 2023), Fig. 3 and 7. What the paper's maps are it does not say; these are the exact parts
of a score, see `TransformerDualEncoder.word_maps`.

Shapes: B captions shown, n tokens of an image, W tokens of a caption.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from itrpipe.config import leaves
from itrpipe.datasets.prepared import PreparedDataset, Split, given_split
from itrpipe.datasets.vocabulary import spans
from itrpipe.features.embeddings import SplitScores
from itrpipe.features.extractors.pixels.extractor import Resize
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.captions import PieceIds, WordIds
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import Sources, open_split
from itrpipe.training.saved import SavedModel

EXAMPLES = 12
WORD_MAP_SCHEMA = pa.schema(
    {
        "example": pa.int32(),
        "caption_id": pa.string(),
        "image_id": pa.string(),
        "matched": pa.bool_(),
        "text": pa.string(),
        "start": pa.int32(),
        "end": pa.int32(),
        "rows": pa.int16(),
        "columns": pa.int16(),
        "area": pa.list_(pa.float32()),
        "values": pa.list_(pa.float32()),
        "word_score": pa.float32(),
        "score": pa.float32(),
    }
)


_SPACED = re.compile(r"\S+")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
Located = tuple[str, list[tuple[int, int, tuple[int, ...]]]]
"""A caption as it is read, and its words: the first character of each, one more than its last, and the places of its
tokens among those of the caption, counted from 0."""


def has_word_maps(saved: SavedModel) -> bool:
    """Whether `word_maps` is defined for a model: its scores are means over words and places, and words have places."""
    tokens = saved.tokens
    # Few tokenizers, written in Python, do not tell which characters a piece is of.
    located = not isinstance(tokens, PieceIds) or tokens.tokenizer.is_fast
    return located and "word-maps" in saved.settings.answers and saved.model.has_word_maps


def word_maps(saved: SavedModel, sources: Sources, split: str, scores: SplitScores) -> pa.Table:
    """Map of every word of some captions, with their own image and with the wrong one that scores highest.

    Args:
        saved: a model for which `has_word_maps` holds, on the device where it computes.
        sources: what it was trained on.
        split: name.
        scores: of the split by this model.

    Returns:
        Rows of `WORD_MAP_SCHEMA`, a word each: `text` is the caption as the model reads it and `start` to `end` the
        characters of the word; `values` is its map, `rows` times `columns` patches row by row, of a word in pieces the
        mean of their maps; `area` is what the patches cover of the photograph, x0, y0, x1, y1 as fractions;
        `word_score` the mean of the map over all tokens of the image, a class token too; `score` that of the pair.
    """
    captions = np.sort(np.random.default_rng(0).permutation(len(scores.caption_ids))[:EXAMPLES])
    own, wrong = scores.caption_image[captions], scores.matrix[:, captions].astype(np.float32)
    wrong[own, np.arange(len(captions))] = -np.inf
    images = {True: own, False: wrong.argmax(axis=0)} if len(wrong) > 1 else {True: own}
    shown = np.unique(np.concatenate(list(images.values())))
    whole = PreparedDataset.open(sources.prepare).split(split)
    # Rows of the scores rise as those of the split do.
    named = {"image_id": scores.image_ids[shown], "caption_id": scores.caption_ids[captions]}
    kept = [pc.field(name).isin(pa.array(ids.tolist(), pa.string())) for name, ids in named.items()]
    part = Split(whole.name, whole.images.filter(kept[0]), whole.captions.filter(kept[1]))
    rows = _rows(saved, sources, part, {matched: np.searchsorted(shown, each) for matched, each in images.items()})
    return pa.Table.from_pylist(sorted(rows, key=lambda row: (row["example"], not row["matched"])), WORD_MAP_SCHEMA)


def located_words(tokens: WordIds | PieceIds, split: Split) -> list[Located]:
    """The words of the captions of a split, T of them, and where each stands.

    Pieces belong to the word that they end in; what is read of a caption beside words, such as its ends, is in none.
    """
    reading = tokens.reading
    if isinstance(tokens, WordIds):
        texts = reading.texts(split) if reading.cleaned else split.texts
        found = [[each.span() for each in _SPACED.finditer(text)] if reading.cleaned else spans(text) for text in texts]
        words = [[(*span, (at,)) for at, span in enumerate(own[: reading.max_words], 1)] for own in found]
        return list(zip(texts, words, strict=True))
    texts = reading.texts(split)
    read = tokens.tokenizer(texts, truncation=True, max_length=tokens.max_tokens, return_offsets_mapping=True)
    words = []
    for text, pieces in zip(texts, read["offset_mapping"], strict=True):
        located = []
        for start, end in (each.span() for each in _WORD.finditer(text)):
            # Some pieces begin with the space before them.
            places = tuple(at for at, (first, last) in enumerate(pieces) if first < last and start < last <= end)
            located += [(start, end, places)] if places else []
        words.append(located)
    return list(zip(texts, words, strict=True))


def pair_map(saved: SavedModel, sources: Sources, split: str, image_id: str, sentence: str) -> list[dict[str, Any]]:
    """Map of every word of a sentence with an image of a split: rows as those of `word_maps`.

    Args:
        saved: a model for which `has_word_maps` holds, on the device where it computes.
        sources: what it was trained on.
        split: of the image.
        image_id: of the image.
        sentence: any.
    """
    images = PreparedDataset.open(sources.prepare, tokens=False).split(split).images
    shown = images.filter(pc.field("image_id") == image_id)
    pair = Split(split, shown, given_split([sentence], [image_id], split, "the sentence").captions)
    return list(_rows(saved, sources, pair, {False: np.zeros(1, dtype=np.int64)}))


@torch.inference_mode()
def _rows(
    saved: SavedModel, sources: Sources, split: Split, pairs: Mapping[bool, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Rows of the words of all captions of a split, each with the image at its row [T] of `pairs`, matched or not."""
    features = FeatureFile.open(sources.extract / FEATURES)
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    model, tokens = saved.model, cast(Any, saved.tokens)
    words = located_words(tokens, split)
    grid, frame, device = model.vision.grid(), model.vision.frame, next(model.parameters()).device
    # How photographs became pixels; of pixels that were imported nobody knows, and they count as whole.
    given = {key.rpartition(".")[2]: value for key, value in leaves(read_manifest(sources.extract).settings)}
    _, stored_height, stored_width, *_ = features.arrays["pixels"].shape
    resize = Resize(stored_height, stored_width, given.get("fit", "stretch"))
    sizes = [split.images[side].to_pylist() for side in ("height", "width")]
    texts = data.texts(np.arange(len(words))).to(device)
    for matched, images in pairs.items():
        maps = model.word_maps(data.images(images).to(device), texts)  # [T, n, W]
        scores = maps.mean(dim=1).sum(dim=1) / texts.lengths
        for example, (image, (text, located)) in enumerate(zip(images.tolist(), words, strict=True)):
            height, width = (side[image] for side in sizes)
            left, top, right, bottom = resize.part(height, width)
            down = (bottom - top) * grid.rows * grid.cell_height / frame[0]
            across = (right - left) * grid.columns * grid.cell_width / frame[1]
            for start, end, places in located:
                found = maps[example][:, list(places)].mean(dim=1)  # [n]
                yield {
                    "example": example,
                    "caption_id": str(split.caption_ids[example]),
                    "image_id": str(split.image_ids[image]),
                    "matched": matched,
                    "text": text,
                    "start": start,
                    "end": end,
                    "rows": grid.rows,
                    "columns": grid.columns,
                    "area": [left / width, top / height, (left + across) / width, (top + down) / height],
                    "values": found[-grid.rows * grid.columns :].tolist(),
                    "word_score": float(found.mean()),
                    "score": float(scores[example]),
                }
