"""Which negative sentences a trained model tells from the captions that they were made of, by its scores alone.

A sentence is told from its caption where the image of both scores lower with the sentence. Scores that are equal count
as wrong, and so do sentences that the model reads as their caption, since it does not know the words that differ.

Only pairs are scored: every sentence and every caption with one image.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Table 4 and section 4.3.

Shapes: N images, T captions, S sentences, W tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import DataError
from itrpipe.evaluation.bootstrap import mean_intervals
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import TextBatch
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.training.data import PhraseSplitData, Sources, SplitData, blocks, open_split
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import SavedModel, load_model

ReadSplit = Callable[[Split], SplitData]
ParseTexts = Callable[[pa.Table], Path]
"""Rows with caption_id, image_id and text to a folder with their scene graphs."""


class JudgedSentences(NamedTuple):
    """Sentences beside the captions that they were made of.

    Attributes:
        owners: int64 [S], row of each one's caption.
        images: int64 [S], row of its image.
        scores: float32 [S], of the image with the sentence; that of the caption where the model reads both alike.
        caption_scores: float32 [S], of the image with the caption.
    """

    owners: np.ndarray
    images: np.ndarray
    scores: np.ndarray
    caption_scores: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """bool [S], sentences that score below their caption."""
        return self.scores < self.caption_scores


@dataclass(frozen=True)
class SentenceJudge:
    """A trained model and the captions that it tells sentences from.

    Attributes:
        model: in evaluation mode, on `device`.
        split: the captions and their images.
        read: images with any captions as the model reads them.
        device: where to compute.
        block: sentences per forward pass.
    """

    model: AnyMatcher
    split: Split
    read: ReadSplit
    device: torch.device
    block: int

    @classmethod
    def open(
        cls,
        folder: Path,
        sources: Sources,
        split: str,
        image_ids: np.ndarray,
        device: str,
        block: int,
        parse: ParseTexts | None = None,
    ) -> SentenceJudge:
        """Reads a trained model.

        Args:
            folder: artifact of `train`.
            sources: what the model was trained on.
            split: name.
            image_ids: images of it whose captions count.
            device: `cpu` or `cuda`.
            block: sentences per forward pass.
            parse: makes scene graphs, for models that read phrases.

        Raises:
            DataError: a file is damaged.
        """
        rows = PreparedDataset.open(sources.prepare).split(split)
        others = np.setdiff1d(rows.image_ids, image_ids).tolist()
        features = FeatureFile.open(sources.extract / FEATURES)
        return cls.over(folder, rows.without(others) if others else rows, features, device, block, parse)

    @classmethod
    def over(
        cls,
        folder: Path,
        split: Split,
        features: FeatureFile,
        device: str,
        block: int,
        parse: ParseTexts | None = None,
    ) -> SentenceJudge:
        """Reads a trained model for any images with captions.

        Args:
            folder, device, block, parse: see `open`.
            split: the captions and their images.
            features: of these images.
        """
        saved = load_model(folder)
        read = partial(_read_words if parse is None else partial(_read_phrases, parse), saved, features)
        return cls(saved.model.to(device), split, read, torch.device(device), block)

    def judge(
        self,
        sentences: Path,
        advance: Callable[[int], object] = lambda pairs: None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> JudgedSentences:
        """Scores the kept sentences of an artifact, and their captions once each; in single precision.

        Args:
            sentences: artifact of `synthesize`.
            advance: called with the number of sentences done.
            warn: is told how many are longer than the model reads.

        Raises:
            DataError: it has sentences, but none of them for captions of this split; or a file is damaged.
        """
        file = SentenceFile(sentences)
        kept = file.kept(("caption_id", "image_id", "text"))
        rows = pc.call_function(
            "index_in", [kept["caption_id"]], pc.SetLookupOptions(self.split.captions["caption_id"].combine_chunks())
        )
        known = pc.call_function("is_valid", [rows])
        if len(kept) and not pc.call_function("any", [known]).as_py():
            raise DataError(
                f"{file.path} has no sentence for any caption of the split {self.split.name}; remove it and run "
                "`itrpipe synthesize` again"
            )
        owners = rows.filter(known).to_numpy().astype(np.int64)
        if not len(owners):
            none = np.empty(0, dtype=np.float32)
            return JudgedSentences(owners, owners, none, none)
        return self.compare(kept.filter(known), owners, advance, warn)

    @torch.inference_mode()
    def compare(
        self,
        sentences: pa.Table,
        owners: np.ndarray,
        advance: Callable[[int], object] = lambda pairs: None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> JudgedSentences:
        """Scores sentences and the captions that they belong to, every image of a block encoded once.

        Args:
            sentences: S rows with image_id, that of their caption, and text.
            owners: [S] row of each one's caption among those of the split.
            advance: called with the number of captions and sentences done.
            warn: see `judge`.
        """
        used, owner = np.unique(owners, return_inverse=True)
        images = self.split.caption_image[np.concatenate([used, owners])]
        order = np.argsort(images, kind="stable")  # all that is said of an image follows each other
        columns = ["image_id", "text"]
        captions = self.split.captions.select(columns).take(pa.array(used))
        texts = pa.concat_tables([captions, sentences.select(columns)]).take(pa.array(order))
        data = self.read(Split(self.split.name, self.split.images, _as_captions(texts)))
        if reason := data.cut("captions and negatives"):
            warn(reason)
        found = np.empty(len(order), dtype=np.float32)
        for part in blocks(len(order), self.block):
            found[part] = self._scores(data, part)
            advance(len(part))
        place = np.argsort(order)
        sides = place[owner], place[len(used) :]
        caption_scores, scores = (found[side] for side in sides)
        for part in blocks(len(owners), self.block):
            alike = _same_tokens(*(data.texts(side[part]) for side in sides)).numpy()
            scores[part] = np.where(alike, caption_scores[part], scores[part])
        return JudgedSentences(owners, self.split.caption_image[owners], scores, caption_scores)

    def _scores(self, data: SplitData, rows: np.ndarray) -> np.ndarray:
        """Scores [B] of captions with their images, each of which is encoded once."""
        model = self.model
        images, owners = np.unique(data.caption_image[rows], return_inverse=True)
        seen = model.encode_images(data.images(images).to(self.device))
        read = model.encode_texts(data.texts(rows).to(self.device))
        owner = torch.from_numpy(owners).to(self.device)
        return model.score_at(seen, read, owner, torch.arange(len(rows))).float().cpu().numpy()


def discrimination(judged: JudgedSentences, samples: int, level: float) -> dict[str, Any]:
    """How many sentences are told from their captions.

    Images are resampled for the intervals, each with all its captions and sentences, of those that have some.

    Args:
        judged: by one model.
        samples: resampled test sets.
        level: share of them inside an interval, 0..1.

    Returns:
        `percent` of the sentences that score below their caption, and `gap`, the mean of their raw scores less those of
        their captions: value, low and high, None without a sentence; how many `sentences` there are, and of how many
        `captions`.
    """
    counts = {"sentences": len(judged.owners), "captions": len(np.unique(judged.owners))}
    if not len(judged.owners):
        return {"percent": None, "gap": None, **counts}
    images, rows = np.unique(judged.images, return_inverse=True)
    values = {"percent": 100.0 * judged.right, "gap": judged.scores.astype(np.float64) - judged.caption_scores}
    found = mean_intervals(values, rows, len(images), samples, level)
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()} | counts


def _read_words(saved: SavedModel, features: FeatureFile, split: Split) -> SplitData:
    return open_split(split, features, saved.tokens, saved.settings, saved.frame)


def _read_phrases(parse: ParseTexts, saved: SavedModel, features: FeatureFile, split: Split) -> SplitData:
    settings: Any = saved.settings
    phrases = CaptionPhrases.read(parse(split.captions), settings.max_words)
    used = pc.SetLookupOptions(split.captions["image_id"].combine_chunks())
    described = pc.call_function("is_in", [split.images["image_id"]], used)  # others have no scene graph in the file
    own = Split(split.name, split.images.filter(described), split.captions)
    return PhraseSplitData(own, features, saved.vocabulary, phrases, settings.phrases)


def _as_captions(sentences: pa.Table) -> pa.Table:
    """Sentences as a split has captions, with ids of their own."""
    ids = pa.array([str(row) for row in range(len(sentences))], pa.string())
    words = pa.array([tokenize(text) for text in sentences["text"].to_pylist()], pa.list_(pa.string()))
    columns = {"caption_id": ids, "image_id": sentences["image_id"], "text": sentences["text"], "tokens": words}
    return pa.table(columns)


def _same_tokens(texts: TextBatch, others: TextBatch) -> Tensor:
    """bool [B], where both have the same tokens; nowhere with phrases, which equal tokens may have others of."""
    if texts.phrases is not None:
        return torch.zeros(len(texts.lengths), dtype=torch.bool)
    width = min(texts.tokens.shape[1], others.tokens.shape[1])
    differs = texts.tokens[:, :width] != others.tokens[:, :width]
    real = torch.arange(width) < texts.lengths[:, None]
    return (texts.lengths == others.lengths) & ~(differs & real).any(dim=1)
