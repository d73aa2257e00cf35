"""Accuracy of a trained SSAMT in telling matches apart by phrases, and its ranking in two steps.

Source: SSAMT (Fan et al., ICMR 2022), Table 4.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.features.embeddings import SplitScores
from itrpipe.models.ssamt.network import SsamtEncoder, SsamtTexts
from itrpipe.training.batches import blocks
from itrpipe.training.data import PhraseTexts, SplitData

BATCH = 128
"""Captions among which a hard negative is looked for, as in training."""
PAIRS_AT_ONCE = 512
"""Pairs that are scored in full at a time."""


@dataclass(frozen=True)
class PhraseModel:
    """A trained model and a split that it can read.

    Attributes:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
    """

    model: SsamtEncoder
    data: SplitData
    device: torch.device

    @classmethod
    def open(cls, evaluation: EvaluatedModel) -> PhraseModel:
        """Open the evaluated split for the model.

        Raises:
            MissingInputError: what the model was trained on was removed since.
        """
        return cls(
            evaluation.saved.model, evaluation.data(evaluation.existing("parse")), torch.device(evaluation.place)
        )

    def texts(self, rows: np.ndarray) -> SsamtTexts:
        """Return encoded captions at the given rows."""
        return self.model.encode_texts(self.data.texts(rows).to(self.device))

    def images(self, rows: np.ndarray) -> Any:
        """Return encoded images at the given rows."""
        return self.model.encode_images(self.data.images(rows).to(self.device))


@torch.inference_mode()
def matching_accuracy(opened: PhraseModel) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Return how often a pair beats its negative, and phrases that hold beat those that do not (Table 4).

    Every caption with its image is compared with a negative caption (`i2t`) and with a negative image (`t2i`), drawn
    from a batch of 128: at random (`uniform`), or the one with the highest score of the intra encoders (`hardest`).
    `global` compares cos(h^I, h^T), `local` the sum of both means over fragments. `phrase` looks at negative pairs
    alone: whether the mean of the phrases and words that hold for the image is above that of the others. The paper
    does not define it; this reading gives values below chance without the phrase loss, as the paper's are.

    Args:
        opened: model and split.

    Returns:
        Choice of negatives -> direction -> percent of each score, None where no pair counts, and how many counted.
    """
    data, model, device = opened.data, opened.model, opened.device
    right: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    order = np.random.default_rng(0).permutation(data.num_captions)
    generator = torch.Generator().manual_seed(0)
    for rows in blocks(len(order), BATCH):
        captions = order[rows]
        own = data.caption_image[captions]
        texts = opened.texts(captions)
        images = opened.images(own)
        same = torch.from_numpy(own[:, None] == own).to(device)
        usable = ~same.all(dim=1)
        positive = model.relevance(images, texts)
        intra = model.intra_matrix(images, texts).float()
        drawn = torch.rand(intra.shape, generator=generator).to(device)
        for choice, scores in (("hardest", intra), ("uniform", drawn)):
            candidates = scores.masked_fill(same, float("-inf"))
            text = candidates.argmax(dim=1)
            image = candidates.argmax(dim=0)
            for side, negative, image_rows, caption_rows in (
                ("i2t", model.relevance(images, texts[text]), own, captions[text.cpu().numpy()]),
                ("t2i", model.relevance(images[image], texts), own[image.cpu().numpy()], captions),
            ):
                holds = (
                    cast(PhraseTexts, data.captions)
                    .matching(image_rows, caption_rows, *texts.phrase_tokens.shape[1:])
                    .to(device)
                )
                inside = holds & negative.fragments_real
                outside = ~holds & negative.fragments_real
                live = usable & inside.any(dim=1) & outside.any(dim=1)
                is_above = _masked_mean(negative.fragments, inside) > _masked_mean(negative.fragments, outside)
                local = positive.text_fragments + positive.regions > negative.text_fragments + negative.regions
                right[choice, side, "global"] += (positive.whole > negative.whole)[usable].tolist()
                right[choice, side, "local"] += local[usable].tolist()
                right[choice, side, "phrase"] += is_above[live].tolist()
    found: dict[str, Any] = {"uniform": {}, "hardest": {}}
    for (choice, side, score), pairs in right.items():
        figures = found[choice].setdefault(side, {})
        figures[score] = 100.0 * sum(pairs) / len(pairs) if pairs else None
        figures["phrase_pairs" if score == "phrase" else "pairs"] = len(pairs)
    return found


def _masked_mean(values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return (values * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


@torch.inference_mode()
def reranked(evaluation: EvaluatedModel, split: SplitScores) -> SplitScores:
    """Return full scores of the best captions of every image and images of every caption by the intra encoders.

    All other pairs keep the order of the intra encoders and lie below every pair that was scored in full. Such numbers
    are not those of full inference: a match that the first ranking misses stays lost.

    Args:
        evaluation: of the model; its setting `rerank` says how many candidates of every query are scored in full.
        split: scores of the evaluated split, which these take the place of.

    Raises:
        MissingInputError: what the model was trained on was removed since.

    Source: SSAMT describes full inference; this is its usual short cut.
    """
    opened = PhraseModel.open(evaluation)
    data, model = opened.data, opened.model
    block = evaluation.block
    depth = evaluation.settings.rerank
    images = torch.cat([opened.images(rows).pooled for rows in blocks(data.num_images, block)])
    texts = torch.cat([opened.texts(rows).pooled for rows in blocks(data.num_captions, block)])
    intra = (images @ texts.T).float()  # [N, T]
    chosen = torch.zeros_like(intra, dtype=torch.bool)
    for along in (0, 1):
        chosen.scatter_(along, intra.topk(min(depth, intra.shape[along]), dim=along).indices, True)
    scores = intra - 2.0 * (1.0 + model.settings.mu1 + 2.0 * model.settings.mu2)  # below every full score
    rows, columns = chosen.nonzero(as_tuple=True)
    order = columns.argsort(stable=True)  # pairs of one caption together, so that a batch encodes few captions
    with evaluation.job.reporter.task("scoring candidates", len(order), "pairs") as task:
        for part in order.split(PAIRS_AT_ONCE):
            image, caption = rows[part], columns[part]
            used_images, image_at = image.unique(return_inverse=True)
            used_captions, caption_at = caption.unique(return_inverse=True)
            seen = opened.images(used_images.cpu().numpy())
            read = opened.texts(used_captions.cpu().numpy())
            scores[image, caption] = model.score_pairs(seen[image_at], read[caption_at]).float()
            task.advance(len(part))
    return replace(split, matrix=scores.cpu().numpy())
