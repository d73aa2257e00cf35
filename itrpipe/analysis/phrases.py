"""Accuracy of a trained SSAMT in telling matches apart by phrases, and its ranking in two steps.

Source: SSAMT (Fan et al., ICMR 2022), Table 4.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.features.embeddings import SplitScores
from itrpipe.models.ssamt.network import Relevance, SsamtEncoder, SsamtTexts
from itrpipe.training.batches import blocks
from itrpipe.training.data import PhraseTexts, SplitData

BATCH = 128
"""Captions among which a hard negative is looked for, as in training."""
PAIRS_AT_ONCE = 512
"""Pairs that are scored in full at a time."""
Percentages = dict[str, float | int | None]
"""Name of a score -> percent of the pairs, and the numbers of pairs."""


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
        data = evaluation.data(evaluation.existing("parse"))
        device = torch.device(evaluation.place)
        return cls(evaluation.saved.model, data, device)

    def texts(self, rows: np.ndarray) -> SsamtTexts:
        """Return encoded captions at the given rows."""
        batch = self.data.texts(rows).to(self.device)
        return self.model.encode_texts(batch)

    def images(self, rows: np.ndarray) -> Any:
        """Return encoded images at the given rows."""
        batch = self.data.images(rows).to(self.device)
        return self.model.encode_images(batch)


@torch.inference_mode()
def matching_accuracy(opened: PhraseModel) -> dict[str, dict[str, Percentages]]:
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
    data = opened.data
    model = opened.model
    is_right = defaultdict(list)
    order = np.random.default_rng(0).permutation(data.num_captions)
    generator = torch.Generator().manual_seed(0)
    for rows in blocks(len(order), BATCH):
        captions = order[rows]
        owners = data.caption_image[captions]
        texts = opened.texts(captions)
        images = opened.images(owners)
        is_same = torch.from_numpy(owners[:, None] == owners).to(opened.device)
        usable = ~is_same.all(dim=1)
        positive = model.relevance(images, texts)
        intra = model.intra_matrix(images, texts).float()
        drawn = torch.rand(intra.shape, generator=generator).to(opened.device)
        for choice, scores in (("hardest", intra), ("uniform", drawn)):
            candidates = scores.masked_fill(is_same, float("-inf"))
            text = candidates.argmax(dim=1)
            image = candidates.argmax(dim=0)
            with_text = model.relevance(images, texts[text])
            with_image = model.relevance(images[image], texts)
            for side, negative, image_rows, caption_rows in (
                ("i2t", with_text, owners, captions[text.cpu().numpy()]),
                ("t2i", with_image, owners[image.cpu().numpy()], captions),
            ):
                phrases = cast(PhraseTexts, data.captions)
                shape = texts.phrase_tokens.shape[1:]
                holds = phrases.matching(image_rows, caption_rows, *shape).to(opened.device)
                compared = _compare(positive, negative, holds, usable)
                for score, pairs in compared.items():
                    is_right[choice, side, score] += pairs.tolist()

    accuracy: dict[str, dict[str, Percentages]] = {"uniform": {}, "hardest": {}}
    for (choice, side, score), pairs in is_right.items():
        figures = accuracy[choice].setdefault(side, {})
        figures[score] = None
        if pairs:
            figures[score] = 100.0 * sum(pairs) / len(pairs)
        count = "pairs"
        if score == "phrase":
            count = "phrase_pairs"
        figures[count] = len(pairs)
    return accuracy


def _compare(
    positive: Relevance,
    negative: Relevance,
    holds: Tensor,
    usable: Tensor,
) -> dict[str, Tensor]:
    """Return whether each pair that counts beats its negative, bool, by the name of the score.

    Args:
        positive, negative: B pairs each.
        holds: bool [B, fragments], whether a fragment of the negative pair's caption holds for its image.
        usable: bool [B], pairs that have a negative.
    """
    held = holds & negative.fragments_real
    wrong = ~holds & negative.fragments_real
    has_both = usable & held.any(dim=1) & wrong.any(dim=1)
    whole = positive.whole > negative.whole
    positive_local = positive.text_fragments + positive.regions
    negative_local = negative.text_fragments + negative.regions
    local = positive_local > negative_local
    held_mean = _masked_mean(negative.fragments, held)
    wrong_mean = _masked_mean(negative.fragments, wrong)
    phrase = held_mean > wrong_mean
    return {
        "global": whole[usable],
        "local": local[usable],
        "phrase": phrase[has_both],
    }


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(dim=1).clamp(min=1)
    return (values * mask).sum(dim=1) / count


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
    data = opened.data
    model = opened.model
    image_parts = []
    for rows in blocks(data.num_images, evaluation.block):
        image_parts.append(opened.images(rows).pooled)
    text_parts = []
    for rows in blocks(data.num_captions, evaluation.block):
        text_parts.append(opened.texts(rows).pooled)
    images = torch.cat(image_parts)
    texts = torch.cat(text_parts)
    intra = (images @ texts.T).float()  # [N, T]

    is_chosen = torch.zeros_like(intra, dtype=torch.bool)
    for along in (0, 1):
        depth = min(evaluation.settings.rerank, intra.shape[along])
        best = intra.topk(depth, dim=along).indices
        is_chosen.scatter_(along, best, True)
    widest = 1.0 + model.settings.mu1 + 2.0 * model.settings.mu2
    scores = intra - 2.0 * widest  # below every full score

    rows, columns = is_chosen.nonzero(as_tuple=True)
    order = columns.argsort(stable=True)  # pairs of one caption together, so that a batch encodes few captions
    with evaluation.job.reporter.task("scoring candidates", len(order), "pairs") as task:
        for part in order.split(PAIRS_AT_ONCE):
            pair_images = rows[part]
            pair_captions = columns[part]
            used_images, image_at = pair_images.unique(return_inverse=True)
            used_captions, caption_at = pair_captions.unique(return_inverse=True)
            encoded_images = opened.images(used_images.cpu().numpy())
            encoded_texts = opened.texts(used_captions.cpu().numpy())
            full = model.score_pairs(encoded_images[image_at], encoded_texts[caption_at])
            scores[pair_images, pair_captions] = full.float()
            task.advance(len(part))
    return replace(split, matrix=scores.cpu().numpy())
