"""The protocol `leaky-diagonal`: what recall becomes when every vector was made with its own answer at hand.

The global vectors V_g and W_g of AsCL belong to a pair (`itrpipe.models.ascl.fusion`), so a ranking needs them of every
image with every caption. This protocol makes them once: V_g of an image with its first caption, W_g of a caption with
its own image, and ranks by their cosine, as if they were embeddings of one side. Each then bears the mark of its
partner, which the images and captions of other pairs do not. Both directions leak: an image finds its first caption by
the mark, and every caption of an image can bear the mark of that image.

Nothing of this is a result. It is here so that the effect can be seen and measured beside an honest ranking.

Source: the released code of ACF-R, a later method by the first author of AsCL, ranks so.

Shapes: N images, T captions, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from itrpipe.analysis.canary import TrainedModel
from itrpipe.errors import UsageError
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks
from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.training.data import blocks
from itrpipe.training.encode import Rows, score_split

NOTE = (
    "Not a result: every vector was made with its own partner before the ranking, which tells it the answer. Quote the "
    "honest numbers."
)
FIGURES = (*(f"{side}_r{k}" for side in ("i2t", "t2i") for k in CUTOFFS), "rsum")
"""Metrics that are compared."""


@dataclass(frozen=True)
class LeakyScores:
    """Scores of a split by vectors that know their partners.

    Attributes:
        by_vectors: [N, T] cosine of V_g and W_g, each of its own pair.
        fused: [N, T] S of Eq. 4: that cosine in the place of S_global, and the S_local of every pair, which is honest.
    """

    by_vectors: np.ndarray
    fused: np.ndarray


def leaky_figures(
    opened: TrainedModel,
    honest: Mapping[str, float],
    block: int,
    advance: Callable[[int], object] = lambda pairs: None,
) -> dict[str, str | int | dict[str, float]]:
    """Recalls of the leaky protocol beside honest ones.

    Args:
        opened: an AsCL with fusion, and the split.
        honest: metrics of the same split with every pair fused.
        block: images or captions per forward pass.
        advance: called with the number of pairs done.

    Returns:
        `note`, which says that this is no result, `split`, `images`, `captions`, and of `honest`, `leaky_vectors` and
        `leaky_fused` the metrics `i2t_r1` .. `t2i_r10` and `rsum`.

    Raises:
        UsageError: the model fuses no pairs.
        DataError: the scores cannot be ranked.
    """
    own = opened.data.caption_image
    scores = leaky_scores(_fusing(opened), opened.data, own, opened.device, block, opened.precision, advance)
    facts = {"split": opened.data.split.name, "images": opened.data.num_images, "captions": opened.data.num_captions}
    return {
        "note": NOTE,
        **facts,
        "honest": {name: honest[name] for name in FIGURES},
        "leaky_vectors": _figures(scores.by_vectors, own),
        "leaky_fused": _figures(scores.fused, own),
    }


def leaky_scores(
    model: AsclEncoder,
    data: Rows,
    caption_image: np.ndarray,
    device: torch.device,
    block: int,
    precision: str = "fp32",
    advance: Callable[[int], object] = lambda pairs: None,
) -> LeakyScores:
    """Scores by vectors of true pairs.

    Args:
        model: with fusion, in evaluation mode, on `device`.
        data: images and captions.
        caption_image: [T] row of the image each caption belongs to; every image has one.
        device: where to compute.
        block: images or captions per forward pass.
        precision: of the local scores, see `itrpipe.training.encode.score_split`.
        advance: called with the number of pairs done.
    """
    images, texts = _vectors_of_true_pairs(model, data, caption_image, device, block)
    by_vectors = (images @ texts.T).cpu().numpy()
    assert model.fusion is not None
    local = copy.deepcopy(model)
    assert local.fusion is not None
    local.fusion.u1 = 1.0  # Eq. 4 is then S_local
    captions = np.arange(data.num_captions)
    of_pairs = score_split(local, data, device, block, data.num_images, captions, precision, advance)
    return LeakyScores(by_vectors, model.fusion.u1 * of_pairs + (1 - model.fusion.u1) * by_vectors)


@torch.inference_mode()
def _vectors_of_true_pairs(
    model: AsclEncoder, data: Rows, caption_image: np.ndarray, device: torch.device, block: int
) -> tuple[Tensor, Tensor]:
    """V_g [N, D] of every image with its first caption, and W_g [T, D] of every caption with its image."""
    pairs = []
    for rows in blocks(data.num_captions, block):
        images = model.encode_images(data.images(caption_image[rows]).to(device))
        pairs.append(model.pair_vectors(images, model.encode_texts(data.texts(rows).to(device))))
    of_images, of_texts = (torch.cat(side) for side in zip(*pairs, strict=True))
    _, first = np.unique(caption_image, return_index=True)
    return of_images[torch.from_numpy(first).to(device)], of_texts


def _fusing(opened: TrainedModel) -> AsclEncoder:
    model = cast(AsclEncoder, opened.model)
    if getattr(model, "fusion", None) is None:
        raise UsageError(
            "--protocol leaky-diagonal compares vectors of fused pairs, and this model fuses none; leave it out, or "
            "evaluate --method ascl with model.fusion=paper"
        )
    return model


def _figures(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, float]:
    found = metrics(ranks(scores, caption_image))
    return {name: found[name] for name in FIGURES}
