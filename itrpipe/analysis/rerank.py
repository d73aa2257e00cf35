"""Scores of a split in which only the best candidates of every query go through the costly part of a model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itrpipe.analysis.phrase_analysis import PhraseModel
from itrpipe.progress import Reporter
from itrpipe.training.data import blocks

PAIRS_AT_ONCE = 512


@torch.inference_mode()
def reranked_scores(opened: PhraseModel, depth: int, block: int, reporter: Reporter) -> np.ndarray:
    """Full scores of the `depth` best captions of every image and images of every caption by the intra encoders.

    All other pairs keep the order of the intra encoders and lie below every pair that was scored in full. Such numbers
    are not those of full inference: a match that the first ranking misses stays lost.

    Args:
        opened: model and split.
        depth: K of either direction, at most the number of images.
        block: images or captions encoded at a time.
        reporter: shows the progress.

    Returns:
        [N, T] float32.

    Source: SSAMT describes full inference; this is its usual short cut.
    """
    data, model = opened.data, opened.model
    images = [opened.images(rows).pooled for rows in blocks(data.num_images, block)]
    texts = [opened.texts(rows).pooled for rows in blocks(data.num_captions, block)]
    intra = (torch.cat(images) @ torch.cat(texts).T).float()  # [N, T]
    chosen = _best(intra, depth)
    scores = intra - 2.0 * (1.0 + model.settings.mu1 + 2.0 * model.settings.mu2)  # below every full score
    rows, columns = chosen.nonzero(as_tuple=True)
    order = columns.argsort(stable=True)  # pairs of one caption together, so that a batch encodes few captions
    with reporter.task("scoring candidates", len(order), "pairs") as task:
        for part in order.split(PAIRS_AT_ONCE):
            image, caption = rows[part], columns[part]
            used_images, image_at = image.unique(return_inverse=True)
            used_captions, caption_at = caption.unique(return_inverse=True)
            sides = opened.images(used_images.cpu().numpy()), opened.texts(used_captions.cpu().numpy())
            scores[image, caption] = model.score_pairs(sides[0][image_at], sides[1][caption_at]).float()
            task.advance(len(part))
    return scores.cpu().numpy()


def _best(scores: Tensor, depth: int) -> Tensor:
    """bool [N, T], the `depth` highest of each row and of each column."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    for along in (0, 1):
        best = scores.topk(min(depth, scores.shape[along]), dim=along).indices
        chosen.scatter_(along, best, True)
    return chosen
