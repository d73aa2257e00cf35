"""The losses of AsCL: contrastive in both directions, with generated captions among the negatives of images.

A batch has N pairs. Beside its captions T there are captions made from them: T^- by noise, which are negatives of every
image (Asymmetry-I), and T^+ by joining or shortening, which are positives of their image (Asymmetry-II and III), with
negatives made of T^+ by noise in turn. One `caption_loss` is about T and T^-, a second one about T^+ and its own.

The paper prints ratios of exponentials without a logarithm; minimised like that, they would drive positives apart. They
are read as the cross-entropies that they are everywhere else.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-D.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.losses.triplet import hinge, online_hard_negatives


def caption_loss(
    scores: Tensor, generated: Tensor | None = None, temperature: float = 0.05, not_negative: Tensor | None = None
) -> Tensor:
    """Contrastive loss of both directions, a mean over the batch (AsCL Eq. 5; Eq. 6 with T^+ for T):

        L = mean_i - log e^(S(i,i)/t) / sum_n e^(S(n,i)/t)
                   - log e^(S(i,i)/t) / (sum_n e^(S(i,n)/t) + sum_n alpha_in e^(S(i,n^-)/t))

    with alpha_in = 0 where S(i,n^-) > S(i,i), else 1, without gradient through this choice. A caption that is left out
    has the logit -inf; a score of zero would leave e^0 in the sum.

    Args:
        scores: [N, N] S of image i with caption j, positives on the diagonal.
        generated: [N, N] S of image i with the caption made by noise from caption j; None for none.
        temperature: t.
        not_negative: bool [N, N], pairs beside the diagonal that are no negatives, such as captions of the same image;
            for the paper, every one is.

    Returns:
        Scalar, at least single precision.

    Relations:
        `ascl_loss` is its mean over T and T^+; `caption_triplet_loss` is the paper's ablation.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    logits = scores / temperature
    if not_negative is not None:
        own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        logits = logits.masked_fill(not_negative & ~own, float("-inf"))
    target = torch.arange(len(scores), device=scores.device)
    images = F.cross_entropy(logits.T, target)
    if generated is not None:
        logits = torch.cat([logits, kept_generated(scores, generated) / temperature], dim=1)
    return images + F.cross_entropy(logits, target)


def caption_triplet_loss(
    scores: Tensor, generated: Tensor | None = None, margin: float = 0.2, not_negative: Tensor | None = None
) -> Tensor:
    """Triplet loss of both directions over the hardest negatives, a mean over the batch (AsCL Table II, "w triplet"):

        L = mean_i [margin - S(i,i) + max(max_n S(i,n), max_n S(i,n^-))]+ + [margin - S(i,i) + max_n S(n,i)]+

    Generated captions with alpha = 0, see `caption_loss`, are left out.

    Args:
        scores, generated, not_negative: see `caption_loss`.
        margin: by how much a positive must beat a negative; 0.2 in the code of ACF-R, the paper does not say.
    """
    positive = scores.diagonal()
    hardest_text, hardest_image = online_hard_negatives(scores, not_negative)
    if generated is not None:
        hardest_text = torch.maximum(hardest_text, kept_generated(scores, generated).amax(dim=1))
    return (hinge(positive, hardest_text, margin) + hinge(positive, hardest_image, margin)).mean()


def ascl_loss(originals: Tensor, positives: Tensor | None = None) -> Tensor:
    """1/2 L_I + 1/2 L_II&III (AsCL Eq. 7); L_I alone where no positives are generated ("w/o Pos").

    Args:
        originals: L_I, `caption_loss` or `caption_triplet_loss` of the batch's captions.
        positives: L_II&III, the same of the captions T^+; None where there are none.
    """
    return originals if positives is None else (originals + positives) / 2


def kept_generated(scores: Tensor, generated: Tensor) -> Tensor:
    """Scores [N, N] of generated captions, -inf where alpha = 0: where they beat the positive of their image.

    Args:
        scores: [N, N], positives on the diagonal.
        generated: [N, N].
    """
    beaten = generated.detach() > scores.detach().diagonal()[:, None]
    return generated.to(scores.dtype).masked_fill(beaten, float("-inf"))
