"""Speed and memory of a training step of AsCL against one caption at a time, as Eq. 1 to 4 read. Run with `make bench`.

A step scores 64 images with 256 captions: those of the batch, as many positives made of them, and noise on both. The
loop keeps what one caption needs and so computes the scores twice as well, once for the loss and once for gradients; it
is timed on a sample of the captions and scaled by the number of words.
"""

from __future__ import annotations

import torch
from measure import apart, most_memory, paired
from torch import Tensor
from torch.nn import functional as F

from itrpipe.methods.ascl.method import Ascl, caption_loss
from itrpipe.models.ascl.network import AsclImages, CrossModalFusion
from itrpipe.models.base import WordEncoding

PAIRS, CAPTIONS, REGIONS, DIM, HEADS, MOST_WORDS = 64, 256, 36, 1_024, 8, 20
SAMPLE = 8
TEMPERATURE = 0.05


class Step:
    """The fusion, with what encoders give it of images and of this many captions."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.fusion = CrossModalFusion(DIM, HEADS, 0.8)
        self.regions = F.normalize(torch.randn(PAIRS, REGIONS, DIM, generator=generator), dim=-1).requires_grad_()
        self.whole = torch.randn(PAIRS, DIM, generator=generator).requires_grad_()
        self.words = torch.randn(CAPTIONS, MOST_WORDS, DIM, generator=generator).requires_grad_()
        self.lengths = torch.randint(10, MOST_WORDS + 1, (CAPTIONS,), generator=generator)
        self.inputs = [*self.fusion.parameters(), self.regions, self.whole, self.words]

    def scores(self) -> Tensor:
        return self.fusion.score_matrix(
            AsclImages(self.regions, None, self.whole), WordEncoding(self.words, self.lengths)
        )

    def gradients(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss_of(self.scores()), self.inputs)

    def column(self, caption: int) -> Tensor:
        """Scores [B] of all images with one caption."""
        length = self.lengths[caption : caption + 1]
        words = self.words[caption : caption + 1, : int(length)].expand(PAIRS, -1, -1)
        images = AsclImages(self.regions, None, self.whole)
        return self.fusion.score_pairs(images, WordEncoding(words, length.expand(PAIRS)))

    def looped(self, captions: int) -> None:
        """Scores of the first captions, and their gradients."""
        with torch.no_grad():
            scores = torch.stack([self.column(caption) for caption in range(captions)], dim=1)
        for caption, column in enumerate(scores.T):
            self.column(caption).backward(column)


def loss_of(scores: Tensor) -> Tensor:
    own, noisy, positive, noisy_positive = scores.chunk(4, dim=1)
    halves = (own, noisy), (positive, noisy_positive)
    return torch.stack([caption_loss(*half, None, Ascl(temperature=TEMPERATURE)) for half in halves]).mean()


def test_a_step_against_one_caption_at_a_time() -> None:
    step = Step()
    seconds, limit = paired(step.gradients, lambda: step.looped(SAMPLE), rounds=1)
    limit *= float(step.lengths.sum() / step.lengths[:SAMPLE].sum())
    print(
        f"\n  AsCL, loss of {PAIRS} x {CAPTIONS} pairs and its gradients: {limit / seconds:.1f} times as fast as one "
        f"caption at a time ({seconds:.1f} s against {limit:.1f} s)"
    )
    assert limit / seconds >= 4


def test_memory_of_a_step() -> None:
    (peak,) = apart(__file__)
    print(f"\n  AsCL, most memory of a process that computes the gradients of a step: {peak / 2**30:.2f} GiB")
    assert peak < 8 * 2**30


if __name__ == "__main__":
    Step().gradients()
    print(most_memory())
