"""What a trained SSAMT does with phrases: how often it tells matches apart, and what each word of a caption is worth.

Source: SSAMT (Fan et al., ICMR 2022), Table 4 and its case study.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.ssamt.network import Relevance, SsamtEncoder, SsamtTexts
from itrpipe.scene_graph.graph import phrases_of
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.scene_graph.stored import SceneGraphFile
from itrpipe.training.data import PhraseSplitData, Sources, blocks
from itrpipe.training.saved import load_model

BATCH = 128
"""Captions among which a hard negative is looked for, as in training."""
CHOICES = ("uniform", "hardest")
WORD = "word"
FRAGMENT_SCHEMA = pa.schema(
    [
        ("example", pa.int32()),
        ("caption_id", pa.string()),
        ("image_id", pa.string()),
        ("matched", pa.bool_()),
        ("text", pa.string()),
        ("kind", pa.string()),
        ("tokens", pa.list_(pa.int16())),
        ("starts", pa.list_(pa.int32())),
        ("ends", pa.list_(pa.int32())),
        ("score", pa.float32()),
        ("holds", pa.bool_()),
        ("pair_score", pa.float32()),
    ]
)


@dataclass(frozen=True)
class PhraseModel:
    """A trained model and a split that it can read.

    Attributes:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
        graphs: the scene graphs of the dataset.
        max_words: words that the model reads of a caption.
    """

    model: SsamtEncoder
    data: PhraseSplitData
    device: torch.device
    graphs: SceneGraphFile
    max_words: int

    @classmethod
    def open(cls, folder: Path, sources: Sources, split: str, device: str) -> PhraseModel:
        """Reads a trained model and opens a split for it.

        Args:
            folder: artifact of `train`.
            sources: what the model was trained on.
            split: name.
            device: `cpu` or `cuda`.

        Raises:
            DataError: the model reads no phrases.
        """
        saved = load_model(folder)
        if not saved.settings.reads_phrases or sources.parse is None:
            raise DataError(f"{folder} holds a model that reads no phrases; evaluate one of the method ssamt")
        model = cast(SsamtEncoder, saved.model)
        settings, features = model.settings, FeatureFile.open(sources.extract / FEATURES)
        phrases = CaptionPhrases.read(sources.parse, settings.max_words)
        rows = PreparedDataset.open(sources.prepare).split(split)
        data = PhraseSplitData(rows, features, saved.vocabulary, phrases, settings.phrases)
        place = torch.device(device)
        return cls(model.to(place), data, place, SceneGraphFile(sources.parse), settings.max_words)

    def texts(self, rows: np.ndarray) -> SsamtTexts:
        """Encoded captions at the given rows."""
        return self.model.encode_texts(self.data.texts(rows).to(self.device))

    def images(self, rows: np.ndarray) -> Any:
        """Encoded images at the given rows."""
        return self.model.encode_images(self.data.images(rows).to(self.device))


@torch.inference_mode()
def matching_accuracy(opened: PhraseModel, seed: int = 0) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """How often a pair beats its negative, and phrases that hold beat those that do not (Table 4).

    Every caption with its image is compared with a negative caption (`i2t`) and with a negative image (`t2i`), drawn
    from a batch of 128: at random (`uniform`), or the one with the highest score of the intra encoders (`hardest`).
    `global` compares cos(h^I, h^T), `local` the sum of both means over fragments. `phrase` looks at negative pairs
    alone: whether the mean of the phrases and words that hold for the image is above that of the others. The paper
    does not define it; this reading gives values below chance without the phrase loss, as the paper's are.

    Args:
        opened: model and split.
        seed: of the batches and of uniform negatives.

    Returns:
        Choice of negatives -> direction -> percent of each score, None where no pair counts, and how many counted.
    """
    counts = {choice: {side: _Counts() for side in ("i2t", "t2i")} for choice in CHOICES}
    for captions, generator in _batches(opened.data, seed):
        own = opened.data.caption_image[captions]
        texts, images = opened.texts(captions), opened.images(own)
        same = torch.from_numpy(own[:, None] == own).to(opened.device)
        usable = ~same.all(dim=1)
        positive = opened.model.relevance(images, texts)
        intra = opened.model.intra_matrix(images, texts).float()
        drawn = torch.rand(intra.shape, generator=generator).to(opened.device)
        for choice, scores in (("hardest", intra), ("uniform", drawn)):
            candidates = scores.masked_fill(same, float("-inf"))
            text, image = candidates.argmax(dim=1), candidates.argmax(dim=0)
            sides = (
                ("i2t", opened.model.relevance(images, texts[text]), own, captions[text.cpu().numpy()]),
                ("t2i", opened.model.relevance(images[image], texts), own[image.cpu().numpy()], captions),
            )
            for side, negative, image_rows, caption_rows in sides:
                holds = opened.data.matching(image_rows, caption_rows, *texts.phrase_tokens.shape[1:])
                counts[choice][side].add(positive, negative, holds.to(opened.device), usable)
    return {choice: {side: each.percents() for side, each in sides.items()} for choice, sides in counts.items()}


class _Counts:
    """Pairs that were compared and those that came out right."""

    def __init__(self) -> None:
        self._right = {"global": 0, "local": 0, "phrase": 0}
        self._pairs, self._phrase_pairs = 0, 0

    def add(self, positive: Relevance, negative: Relevance, holds: Tensor, usable: Tensor) -> None:
        real = negative.fragments_real
        inside, outside = holds & real, ~holds & real
        live = usable & inside.any(dim=1) & outside.any(dim=1)
        means = [(negative.fragments * part).sum(dim=1) / part.sum(dim=1).clamp(min=1) for part in (inside, outside)]
        local = [each.text_fragments + each.regions for each in (positive, negative)]
        self._right["global"] += int(((positive.whole > negative.whole) & usable).sum())
        self._right["local"] += int(((local[0] > local[1]) & usable).sum())
        self._right["phrase"] += int(((means[0] > means[1]) & live).sum())
        self._pairs += int(usable.sum())
        self._phrase_pairs += int(live.sum())

    def percents(self) -> dict[str, float | int | None]:
        of = {"global": self._pairs, "local": self._pairs, "phrase": self._phrase_pairs}
        shares = {name: 100.0 * right / of[name] if of[name] else None for name, right in self._right.items()}
        return {**shares, "pairs": self._pairs, "phrase_pairs": self._phrase_pairs}


@torch.inference_mode()
def fragment_scores(opened: PhraseModel, examples: int = 6, seed: int = 0, block: int = 256) -> pa.Table:
    """Score of every word and phrase of some captions with their own image and with the hardest wrong one.

    Args:
        opened: model and split.
        examples: captions, chosen by the seed.
        seed: of that choice.
        block: images encoded at a time.

    Returns:
        Rows of `FRAGMENT_SCHEMA`: score is the cosine of the fragment with the image, `holds` whether the image's own
        captions say it, `pair_score` the score of the whole pair.
    """
    data = opened.data
    captions = np.sort(np.random.default_rng(seed).permutation(data.num_captions)[:examples])
    texts = opened.texts(captions)
    pooled = torch.cat([opened.images(rows).pooled for rows in blocks(data.num_images, block)])
    intra = texts.pooled @ pooled.T
    own = torch.from_numpy(data.caption_image[captions]).to(opened.device)
    wrong = intra.scatter(1, own[:, None], float("-inf")).argmax(dim=1)
    rows = []
    for matched, image in ((True, own), (False, wrong)):
        images = opened.images(image.cpu().numpy())
        relevance, scores = opened.model.relevance(images, texts), opened.model.score_pairs(images, texts)
        holds = data.matching(image.cpu().numpy(), captions, *texts.phrase_tokens.shape[1:])
        for example, caption in enumerate(captions):
            pair = {
                "example": example,
                "caption_id": str(data.split.caption_ids[caption]),
                "image_id": str(data.split.image_ids[int(image[example])]),
                "matched": matched,
                "pair_score": float(scores[example]),
            }
            fragments = zip(relevance.fragments[example].tolist(), holds[example].tolist(), strict=True)
            rows += _fragments(opened, pair, int(data.graph_rows[caption]), list(fragments), texts)
    return pa.Table.from_pylist(sorted(rows, key=lambda row: (row["example"], not row["matched"])), FRAGMENT_SCHEMA)


def _fragments(
    opened: PhraseModel, pair: dict[str, Any], row: int, scored: list[tuple[float, bool]], texts: SsamtTexts
) -> Iterator[dict[str, Any]]:
    """The words of a caption, then its phrases; `scored` holds the phrases first."""
    graph = opened.graphs.graph_at(row)
    padded = texts.phrase_tokens.shape[1]
    words = [(WORD, (number,), scored[padded + number]) for number in range(min(len(graph.tokens), opened.max_words))]
    known = phrases_of(graph, max_words=opened.max_words)[:padded]
    phrases = [(phrase.kind, phrase.tokens, scored[number]) for number, phrase in enumerate(known)]
    for kind, tokens, (score, holds) in [*words, *phrases]:
        yield {
            **pair,
            "text": graph.text,
            "kind": kind,
            "tokens": list(tokens),
            "starts": [graph.tokens[token].start for token in tokens],
            "ends": [graph.tokens[token].end for token in tokens],
            "score": score,
            "holds": holds,
        }


def _batches(data: PhraseSplitData, seed: int) -> Iterator[tuple[np.ndarray, torch.Generator]]:
    """Captions in random batches, and a generator for the draws of each."""
    order = np.random.default_rng(seed).permutation(data.num_captions)
    generator = torch.Generator().manual_seed(seed)
    for rows in blocks(len(order), BATCH):
        yield order[rows], generator
