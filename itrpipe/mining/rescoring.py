"""Second opinions on mined candidates: another model's order of them, and how likely they are false negatives.

An embedding model finds the candidates, a slower one, such as one with cross-attention, looks at every pair and puts
the hardest of them in its own order. Candidates behind these are left out: scores of two models cannot be compared.

Shapes: N images, T captions, A anchors, K candidates of each, P pairs, S vectors of an item (regions, words, or one),
D embedding width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import CUDA, Part, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import EmbeddingRows, Side, SplitEmbeddings
from itrpipe.learning.false_negatives import estimate_gaussians, probabilities
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, CandidateLists, ListWork, MinedFile, by_score
from itrpipe.models.base import (
    DualEncoder,
    ImageEncoding,
    RegionEncoding,
    TextEncoding,
    WordEncoding,
)
from itrpipe.models.scan.network import CrossAttentionModel
from itrpipe.training.data import Sources, SplitData, blocks, reopened
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import SavedModel, load_model

ScorePairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Image rows [P] and caption rows [P] -> scores [P], higher for a better match."""
LEVELS = (0.5, 0.01)
"""Probabilities above which candidates are counted: likelier a match than not, and lambda of FNE (Eq. 13)."""
PAIRS_PER_BLOCK = 65_536
_POSITIVES = "positives"
_ROWS_PER_PASS = 256
_COUNTED_ROWS = 8_192
_COPIES = 2.5
"""How often the vectors of a pair are in memory while it is scored, with room for what is derived from them."""
_CPU_BATCH_BYTES = 32 * 2**20
"""A batch that fits into the processor's cache is up to twice as fast as one of 256 MiB."""


class Rescoring(ListWork[ScorePairs]):
    """Scores the hardest candidates of both directions again, and every caption with its own image.

    A part is some anchors with all their candidates; the positives are a third direction, with lists of one candidate.
    Lists are joined by falling scores of the second model, equal ones by rising row.

    Args:
        name: of the second model, for people.
        lists: file of both directions.
        owners: [T] row of the image each caption belongs to, -1 for none.
        open_scorer: opens the second model; it is pickled.
        tops: candidates of each image and of each caption that are scored again, no more than the lists hold.
        device: where pairs are scored.
        block_pairs: places of the lists in a part, about.
    """

    def __init__(
        self,
        name: str,
        lists: Path,
        owners: np.ndarray,
        open_scorer: Callable[[], ScorePairs],
        tops: tuple[int, int],
        device: str = "cpu",
        block_pairs: int = PAIRS_PER_BLOCK,
    ) -> None:
        self.title, self.device, self.key = f"scoring by {name}", device, str(block_pairs)
        self._lists, self._owners, self._open_scorer = lists, owners, open_scorer
        anchors = [count for count, _ in MinedFile(lists).shapes.values()]
        shapes = dict(zip(DIRECTIONS, zip(anchors, tops, anchors[::-1], strict=True), strict=True))
        shapes |= {_POSITIVES: (len(owners), 1, anchors[0])}
        super().__init__(shapes, {name: max(1, block_pairs // width) for name, (_, width, _) in shapes.items()})

    def open(self) -> ScorePairs:
        """The second model with the encodings of everything."""
        return self._open_scorer()

    def make(self, worker: ScorePairs, part: Part, path: Path) -> None:
        """Scores the candidates of some anchors.

        Raises:
            DataError: the model returned NaN, infinity, or another number of scores than pairs.
        """
        direction, start, stop = part.content
        if direction == _POSITIVES:
            candidates = self._owners[start:stop, None]
        else:
            candidates = MinedFile(self._lists).read(direction, start, stop).candidates[:, : self.shapes[direction][1]]
        row, column = (candidates != NO_ROW).nonzero()
        anchors, others = row + start, candidates[row, column]
        found = np.asarray(worker(*((anchors, others) if direction == DIRECTIONS[0] else (others, anchors))))
        if found.shape != anchors.shape or not np.isfinite(found).all():
            raise DataError(
                f"scores {found.shape} of {len(anchors)} pairs have another number or are NaN or infinite: "
                "check the model that scores the mined lists again"
            )
        scores = np.full(candidates.shape, np.nan, dtype=np.float32)
        scores[row, column] = found
        self.write(path, direction, by_score(candidates, scores))


def rescored_positives(path: Path) -> np.ndarray:
    """Scores [T] float32 of every caption with its image in the joined file of `Rescoring`; NaN for one of nobody."""
    found = MinedFile(path).read(_POSITIVES)
    return np.where(found.candidates == NO_ROW, np.nan, found.scores)[:, 0]


class KeptVectors:
    """The vectors of many items, such as the words of captions, one item behind the other without padding.

    Args:
        counts: [n] vectors of each item.
        dim: D.
        device: where they are kept.

    Attributes:
        vectors: [sum of counts, D] float32.
    """

    def __init__(self, counts: np.ndarray, dim: int, device: torch.device) -> None:
        self._counts = torch.as_tensor(counts, dtype=torch.int64, device=device)
        self._starts = self._counts.cumsum(0) - self._counts
        self.vectors = torch.empty(int(counts.sum()), dim, device=device)

    def put(self, first: int, padded: Tensor) -> None:
        """Keeps the vectors [b, S, D] of items `first`, ..., of each as many as it has."""
        counts, start = self._counts[first : first + len(padded)], int(self._starts[first])
        real = torch.arange(padded.shape[1], device=counts.device) < counts[:, None]
        self.vectors[start : start + int(counts.sum())] = padded.to(counts.device, torch.float32)[real]

    def take(self, rows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Padded vectors [P, S, D] of items [P] and the number of real ones [P]."""
        wanted = torch.as_tensor(rows, dtype=torch.int64, device=self._counts.device)
        counts = self._counts[wanted]
        places = self._starts[wanted, None] + torch.arange(int(counts.max()), device=wanted.device)
        places = places.clamp_(max=len(self.vectors) - 1)  # behind the last item there is nothing to pad with
        return self.vectors[places].to(device), counts.to(device)


class PairScorer:
    """Scores pairs of images and captions of a split, all of which it encodes first.

    The encodings are kept in float32 without padding: for a dual encoder one vector per item, else one per region and
    one per word. That is 4 D bytes each: at D = 1024 and 36 regions about 12 GiB for Flickr30K and 43 GiB for COCO.
    With a GPU a side is kept there if it takes less than half of what is free, else in main memory.

    Args:
        model: a dual encoder or one with cross-attention, in evaluation mode; it is moved to the device.
        data: the split.
        dim: D.
        device: where pairs are scored.
        memory: bytes that a batch of pairs takes, at most.

    Raises:
        UsageError: the machine has less memory than the encodings take.
    """

    @torch.inference_mode()
    def __init__(self, model: AnyMatcher, data: SplitData, dim: int, device: torch.device, memory: int) -> None:
        self._model, self._device, self._dim = model.to(device), device, dim
        self._memory = memory if device.type == CUDA else min(memory, _CPU_BATCH_BYTES)
        self._dual = isinstance(model, DualEncoder)
        if self._dual:
            counts = [np.ones(count, dtype=np.int64) for count in (data.num_images, data.num_captions)]
        else:
            lengths = [data.texts(rows).lengths.numpy() for rows in blocks(data.num_captions, _COUNTED_ROWS)]
            counts = [data.region_counts, np.concatenate(lengths)]
        self._widest_image, self._lengths = int(counts[0].max()), counts[1]
        self._images, self._texts = _room(counts, dim, device)
        for rows in blocks(data.num_images, _ROWS_PER_PASS):
            image = self._model.encode_images(data.images(rows).to(device))
            self._images.put(int(rows[0]), image.embedding[:, None] if self._dual else image.regions)
        for rows in blocks(data.num_captions, _ROWS_PER_PASS):
            text = self._model.encode_texts(data.texts(rows).to(device))
            self._texts.put(int(rows[0]), text.embedding[:, None] if self._dual else text.words)

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Scores pairs, those with the longest captions first, so that a batch is padded little.

        Args:
            images: [P] rows.
            captions: [P] rows.

        Returns:
            [P] float32.
        """
        order = np.argsort(-self._lengths[captions], kind="stable")
        scores, start = np.empty(len(order), dtype=np.float32), 0
        while start < len(order):
            # Beside the vectors there are a few matrices of the products of all of them with each other.
            vectors = self._widest_image + int(self._lengths[captions[order[start]]])
            per_pair = 4 * vectors * (_COPIES * self._dim + 2 * vectors)
            batch = order[start : start + max(1, int(self._memory / per_pair))]
            image, regions = self._images.take(images[batch], self._device)
            text, words = self._texts.take(captions[batch], self._device)
            if self._dual:
                sides: Any = ImageEncoding(image[:, 0]), TextEncoding(text[:, 0])
            else:
                all_real = bool((regions == image.shape[1]).all())
                sides = RegionEncoding(image, None if all_real else regions), WordEncoding(text, words)
            scores[batch] = self._model.score_pairs(*sides).float().cpu().numpy()
            start += len(batch)
        return scores


def _room(counts: Sequence[np.ndarray], dim: int, device: torch.device) -> list[KeptVectors]:
    """Room for the vectors of each side, on the device or in main memory."""
    kept, present = [], os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    in_main_memory = 0
    for each in counts:
        needed = 4 * dim * int(each.sum())
        on_device = device.type == CUDA and needed <= torch.cuda.mem_get_info(device)[0] // 2
        in_main_memory += 0 if on_device else needed
        if in_main_memory > present:
            raise UsageError(
                f"the encodings of the training set take {in_main_memory / 2**30:.1f} GiB and this machine has "
                f"{present / 2**30:.1f} GiB of memory; mine without --rescore-with, or on a larger machine"
            )
        kept.append(KeptVectors(each, dim, device if on_device else torch.device("cpu")))
    return kept


def load_scoring_model(folder: Path) -> SavedModel:
    """Reads a trained model that can score pairs by kept encodings.

    Raises:
        DataError: the artifact is damaged.
        UsageError: the model is neither a dual encoder nor one with cross-attention.
    """
    saved = load_model(folder)
    if not isinstance(saved.model, DualEncoder | CrossAttentionModel):
        raise UsageError(
            f"{saved.config['backbone']} encodes neither vectors nor regions and words, so that it cannot score mined "
            "lists again; give --rescore-with another backbone, such as bfan"
        )
    return saved


def encoded_scorer(
    trained: Path, prepared: Path, extracted: Path, embeddings: EmbeddingRows, device: str, memory: int
) -> PairScorer:
    """A trained model on the training images and captions that another one embedded, which it has encoded.

    Args:
        trained: artifact of the model.
        prepared: of the captions.
        extracted: of the features.
        embeddings: by the other model.
        device: `auto`, `cpu` or `cuda`.
        memory: bytes that a batch of pairs takes.

    Raises:
        DataError: captions and features are of other images than the embeddings.
        UsageError: the machine has less memory than the encodings take.
    """
    saved = load_scoring_model(trained)
    data = reopened(saved, Sources(prepared, extracted), ["train"])["train"]
    split = data.split
    sides: tuple[tuple[Side, np.ndarray, int], ...] = (
        ("image", split.image_ids, embeddings.images.shape[0]),
        ("caption", split.caption_ids, embeddings.texts.shape[0]),
    )
    for side, ours, count in sides:
        if ours.tolist() != embeddings.ids(side, 0, count):
            raise DataError(
                f"{prepared} and {extracted} hold {len(ours):,} training rows and the mining model embedded "
                f"{count:,} or others; run `itrpipe train` again"
            )
    return PairScorer(saved.model, data, saved.embed_dim, torch.device(resolve_device(device)), memory)


class Guard:
    """Estimates how likely each candidate is a false negative, some anchors at a time, and counts.

    Args:
        embeddings: of the training set, which the lists were mined with.
        prior: share of matches among all pairs, 0..1.
        batch_size: pairs whose negatives compete in the statistics of mismatches.

    Raises:
        UsageError: the model ranks hardly any pair above the others of its batch, so that there is no estimate.
    """

    def __init__(self, embeddings: SplitEmbeddings, *, prior: float, batch_size: int) -> None:
        rows = (embeddings.images, embeddings.texts, embeddings.caption_image)
        self._gaussians, self._prior = estimate_gaussians(*rows, batch_size=batch_size), prior
        self._above = {name: dict.fromkeys(map(str, LEVELS), 0) for name in DIRECTIONS}
        if not self._gaussians.usable():
            raise UsageError(
                f"--guard fne: the mining model ranks {int(self._gaussians.count[0])} training pairs above all others "
                "of their batch, too few to estimate from; train it longer or leave --guard out"
            )

    def probability(self, direction: str, lists: CandidateLists) -> np.ndarray:
        """Probability [a, K] float32 of every candidate; 0 behind the end of a shorter list."""
        found = probabilities(lists.scores, self._gaussians, self._prior)
        for level in LEVELS:
            self._above[direction][str(level)] += int((found > level).sum())
        return found

    def facts(self) -> dict[str, Any]:
        """Figures ready for JSON: `mean` and `variance` of `matches` and `mismatches`, and `above`.

        The last is direction -> level -> candidates above it.
        """
        sides = ("matches", "mismatches")
        moments = {"mean": self._gaussians.mean, "variance": self._gaussians.variance}
        found: dict[str, Any] = {
            name: {side: round(value, 6) for side, value in zip(sides, moment.tolist(), strict=True)}
            for name, moment in moments.items()
        }
        return found | {"above": self._above}
