"""The losses of AsCL against cross-entropies and hinges on logits that are put together one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from itrpipe.methods.ascl.method import caption_loss, caption_triplet_loss, kept_generated

N, TEMPERATURE = 5, 0.05


def scores(seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.rand(N, N, generator=torch.Generator().manual_seed(seed)) + 0.2 * torch.eye(N)


def by_rows(own: torch.Tensor, generated: torch.Tensor | None, not_negative: torch.Tensor | None) -> torch.Tensor:
    """The loss by `F.cross_entropy` on the logits of each image and of each caption, positive first."""
    total = torch.zeros(())
    for i in range(N):
        others = [n for n in range(N) if n != i and (not_negative is None or not not_negative[i, n])]
        images = [n for n in range(N) if n != i and (not_negative is None or not not_negative[n, i])]
        texts = [own[i, i], *own[i, others]]
        if generated is not None:
            texts += [each for each in generated[i] if not each > own[i, i]]
        for logits in (torch.stack(texts), torch.stack([own[i, i], *own[images, i]])):
            total = total + F.cross_entropy(logits[None] / TEMPERATURE, torch.tensor([0]))
    return total / N


@pytest.mark.parametrize("with_generated", [False, True])
@pytest.mark.parametrize("with_same_image", [False, True])
def test_the_loss_is_the_cross_entropy_of_the_logits_that_are_there(with_generated, with_same_image):
    own = scores().requires_grad_()
    generated = (scores(1) + 0.15).requires_grad_() if with_generated else None
    image = torch.tensor([0, 1, 1, 2, 0])
    same = image == image[:, None] if with_same_image else None
    inputs = [own] if generated is None else [own, generated]
    if generated is not None:
        beaten = generated > own.diagonal()[:, None]
        assert beaten.any()
        assert not beaten.all()
    losses = caption_loss(own, generated, TEMPERATURE, same), by_rows(own, generated, same)
    torch.testing.assert_close(*losses)
    ours, theirs = (torch.autograd.grad(loss, inputs) for loss in losses)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_generated_caption_counts_up_to_the_score_of_the_positive_and_not_beyond():
    own = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
    generated = torch.tensor([[0.5, math.nextafter(0.5, 1.0)], [0.5 + 1e-6, 0.5 - 1e-6]], dtype=torch.float64)
    kept = kept_generated(own.double(), generated)
    assert kept.isfinite().tolist() == [[True, False], [False, True]]
    without = caption_loss(own, torch.full((2, 2), 0.51), 1.0)
    torch.testing.assert_close(without, caption_loss(own, None, 1.0))
    expected = math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(-0.5) + 2 * math.exp(0.0))
    assert caption_loss(own, torch.full((2, 2), 0.5), 1.0).item() == pytest.approx(expected, abs=1e-6)


def test_half_precision_scores_keep_small_temperatures_apart():
    own = scores().to(torch.bfloat16)
    loss = caption_loss(own, own, 0.01)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, caption_loss(own.float(), own.float(), 0.01))


@pytest.mark.parametrize("with_same_image", [False, True])
def test_the_triplet_variant_takes_the_hardest_negative_of_all(with_same_image):
    own, generated = scores().requires_grad_(), (scores(1) + 0.1).requires_grad_()
    image = torch.tensor([0, 1, 1, 2, 0])
    same = image == image[:, None] if with_same_image else torch.eye(N, dtype=torch.bool)
    total = torch.zeros(())
    for i in range(N):
        texts = [own[i, n] for n in range(N) if not same[i, n]]
        texts += [each for each in generated[i] if not each > own[i, i]]
        images = [own[n, i] for n in range(N) if not same[n, i]]
        total = total + sum((0.2 - own[i, i] + max(each)).clamp(min=0) for each in (texts, images))
    losses = caption_triplet_loss(own, generated, 0.2, same), total / N
    torch.testing.assert_close(*losses)
    ours, theirs = (torch.autograd.grad(loss, [own, generated]) for loss in losses)
    assert theirs[1].abs().sum() > 0
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    alone = caption_triplet_loss(own, None, 0.2, same)
    assert alone < losses[0]
