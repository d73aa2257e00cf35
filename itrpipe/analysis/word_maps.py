"""Where a trained dual encoder finds the words of some captions: in their own image, and in the best wrong one.

Source: FNE (Li et al., ACM MM 2023), Fig. 3 and 7. What the paper's maps are it does not say; these are the exact parts
of a score, see `TransformerDualEncoder.word_maps`.

Shapes: B captions shown, n tokens of an image, W tokens of a caption.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

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
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, VisionTower
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.captions import PieceIds, WordIds
from itrpipe.training.data import Sources, SplitData, open_split
from itrpipe.training.saved import SavedModel

EXAMPLES = 12
WORD_MAP_SCHEMA = pa.schema(
    [
        ("example", pa.int32()),
        ("caption_id", pa.string()),
        ("image_id", pa.string()),
        ("matched", pa.bool_()),
        ("text", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("rows", pa.int16()),
        ("columns", pa.int16()),
        ("area", pa.list_(pa.float32())),
        ("values", pa.list_(pa.float32())),
        ("word_score", pa.float32()),
        ("score", pa.float32()),
    ]
)


_SPACED = re.compile(r"\S+")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
Located = tuple[str, list[tuple[int, int, tuple[int, ...]]]]
"""A caption as it is read, and its words: the first character of each, one more than its last, and the places of its
tokens among those of the caption, counted from 0."""


@dataclass(frozen=True)
class _Pairs:
    """Captions, each with one image.

    Attributes:
        matched: whether it is their own.
        images: [B] rows of the split's images.
    """

    matched: bool
    images: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """What all maps share.

    Attributes:
        rows, columns: of the patches.
        covered: share of the frame's height and width that the patches cover.
        resize: from a photograph to what is stored of it.
    """

    rows: int
    columns: int
    covered: tuple[float, float]
    resize: Resize

    def area(self, height: int, width: int) -> list[float]:
        """The part x0, y0, x1, y1 of a photograph of this size that the patches cover, as fractions of it."""
        left, top, right, bottom = self.resize.part(height, width)
        down, across = (bottom - top) * self.covered[0], (right - left) * self.covered[1]
        return [left / width, top / height, (left + across) / width, (top + down) / height]


def has_word_maps(saved: SavedModel) -> bool:
    """Whether `word_maps` is defined for a model: its scores are means over words and places, and words have places."""
    tokens = saved.tokens
    # Few tokenizers, written in Python, do not tell which characters a piece is of.
    located = isinstance(tokens, WordIds) or (isinstance(tokens, PieceIds) and tokens.tokenizer.is_fast)
    return located and "word-maps" in saved.settings.answers and cast(Any, saved.model).has_word_maps


@torch.inference_mode()
def word_maps(
    saved: SavedModel,
    sources: Sources,
    split: str,
    scores: SplitScores,
    device: str,
    examples: int = EXAMPLES,
    seed: int = 0,
) -> pa.Table:
    """Map of every word of some captions, with their own image and with the wrong one that scores highest.

    Args:
        saved: a model for which `has_word_maps` holds.
        sources: what it was trained on.
        split: name.
        scores: of the split by this model.
        device: `cpu` or `cuda`.
        examples: captions, chosen by the seed.
        seed: of that choice.

    Returns:
        Rows of `WORD_MAP_SCHEMA`, a word each: `text` is the caption as the model reads it and `start` to `end` the
        characters of the word; `values` is its map, `rows` times `columns` patches row by row, of a word in pieces the
        mean of their maps; `area` is what the patches cover of the photograph, x0, y0, x1, y1 as fractions;
        `word_score` the mean of the map over all tokens of the image, a class token too; `score` that of the pair.
    """
    captions = np.sort(np.random.default_rng(seed).permutation(len(scores.caption_ids))[:examples])
    pairs = _pairs(scores, captions)
    shown = np.unique(np.concatenate([each.images for each in pairs]))
    part = _part(PreparedDataset.open(sources.prepare).split(split), scores, shown, captions)
    features = FeatureFile.open(sources.extract / FEATURES)
    data = open_split(part, features, saved.tokens, saved.settings, saved.frame)
    assert isinstance(saved.tokens, (WordIds, PieceIds))
    model = cast(TransformerDualEncoder, saved.model.to(torch.device(device)))
    seen, words = _seen(model, features, sources), located_words(saved.tokens, part)
    rows = []
    for each in pairs:
        rows += _rows(model, data, each.matched, np.searchsorted(shown, each.images), seen, words)
    return pa.Table.from_pylist(sorted(rows, key=lambda row: (row["example"], not row["matched"])), WORD_MAP_SCHEMA)


def _pairs(scores: SplitScores, captions: np.ndarray) -> list[_Pairs]:
    """Captions with their own images, and with wrong ones where there are some."""
    own = scores.caption_image[captions]
    wrong = scores.matrix[:, captions].astype(np.float32)
    wrong[own, np.arange(len(captions))] = -np.inf
    pairs = [_Pairs(True, own), _Pairs(False, wrong.argmax(axis=0))]
    return pairs if len(wrong) > 1 else pairs[:1]


def _part(split: Split, scores: SplitScores, images: np.ndarray, captions: np.ndarray) -> Split:
    """The split with these images and captions alone, given by their rows, which rise as those of the split do."""
    wanted = pa.array(scores.image_ids[images].tolist(), pa.string())
    kept = pa.array(scores.caption_ids[captions].tolist(), pa.string())
    return Split(
        split.name,
        split.images.filter(pc.field("image_id").isin(wanted)),
        split.captions.filter(pc.field("caption_id").isin(kept)),
    )


def _seen(model: TransformerDualEncoder, features: FeatureFile, sources: Sources) -> _Seen:
    assert isinstance(model.vision, VisionTower)
    grid, frame = model.vision.grid(), model.vision.frame
    covered = (grid.rows * grid.cell_height / frame[0], grid.columns * grid.cell_width / frame[1])
    height, width = features.arrays["pixels"].shape[1:3]
    return _Seen(grid.rows, grid.columns, covered, Resize(height, width, _fit(sources)))


def _fit(sources: Sources) -> Literal["stretch", "crop"]:
    """How photographs became pixels; of pixels that were imported nobody knows, and they count as whole."""
    given = {key.rpartition(".")[2]: value for key, value in leaves(read_manifest(sources.extract).settings)}
    return "crop" if given.get("fit") == "crop" else "stretch"


def _rows(
    model: TransformerDualEncoder,
    data: SplitData,
    matched: bool,
    images: np.ndarray,
    seen: _Seen,
    words: list[Located],
) -> Iterator[dict[str, Any]]:
    """Rows of the words of all captions, each caption with the image at the given row."""
    device = next(model.parameters()).device
    texts = data.texts(np.arange(len(images))).to(device)
    maps = model.word_maps(data.images(images).to(device), texts)  # [B, n, W]
    scores = maps.mean(dim=1).sum(dim=1) / texts.lengths
    sizes = [data.split.images[side].to_pylist() for side in ("height", "width")]
    for example, (image, (text, located)) in enumerate(zip(images.tolist(), words, strict=True)):
        for start, end, places in located:
            found = maps[example][:, list(places)].mean(dim=1)  # [n]
            yield {
                "example": example,
                "caption_id": str(data.split.caption_ids[example]),
                "image_id": str(data.split.image_ids[image]),
                "matched": matched,
                "text": text,
                "start": start,
                "end": end,
                "rows": seen.rows,
                "columns": seen.columns,
                "area": seen.area(*(side[image] for side in sizes)),
                "values": found[-seen.rows * seen.columns :].tolist(),
                "word_score": float(found.mean()),
                "score": float(scores[example]),
            }


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


@torch.inference_mode()
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
    features = FeatureFile.open(sources.extract / FEATURES)
    data = open_split(pair, features, saved.tokens, saved.settings, saved.frame)
    assert isinstance(saved.tokens, (WordIds, PieceIds))
    model = cast(TransformerDualEncoder, saved.model)
    words = located_words(saved.tokens, pair)
    return list(_rows(model, data, False, np.zeros(1, dtype=np.int64), _seen(model, features, sources), words))
