"""Speed and memory of a training step of AsCL against one caption at a time, as Eq. 1 to 4 read. Run with `make bench`.

A step scores 64 images with 256 captions: those of the batch, as many positives made of them, and noise on both. The
loop keeps what one caption needs and so computes the scores twice as well, once for the loss and once for gradients; it
is timed on a sample of the captions and scaled by the number of words.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
from measure import paired
from torch import Tensor
from torch.nn import functional as F

from itrpipe.methods.ascl.method import Ascl, caption_loss
from itrpipe.models.ascl.network import AsclImages, CrossModalFusion
from itrpipe.models.base import WordEncoding

PAIRS, CAPTIONS, REGIONS, DIM, HEADS, MOST_WORDS = 64, 256, 36, 1_024, 8, 20
SAMPLE, COMPARED = 8, 16
TEMPERATURE = 0.05


class Step:
    """The fusion, with what encoders give it of images and of this many captions."""

    def __init__(self, captions: int = CAPTIONS) -> None:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.fusion = CrossModalFusion(DIM, HEADS, "paper", 0.8)
        self.regions = F.normalize(torch.randn(PAIRS, REGIONS, DIM, generator=generator), dim=-1).requires_grad_()
        self.whole = torch.randn(PAIRS, DIM, generator=generator).requires_grad_()
        self.words = torch.randn(captions, MOST_WORDS, DIM, generator=generator).requires_grad_()
        self.lengths = torch.randint(10, MOST_WORDS + 1, (captions,), generator=generator)
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

    @torch.no_grad()
    def looped_scores(self, captions: int) -> Tensor:
        return torch.stack([self.column(caption) for caption in range(captions)], dim=1)

    def looped_gradients(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Of the scores [B, n] of the first captions."""
        for tensor in self.inputs:
            tensor.grad = None
        for caption, column in enumerate(cotangent.T):
            self.column(caption).backward(column)
        return tuple(tensor.grad for tensor in self.inputs if tensor.grad is not None)


def loss_of(scores: Tensor) -> Tensor:
    own, noisy, positive, noisy_positive = scores.chunk(4, dim=1)
    halves = (own, noisy), (positive, noisy_positive)
    return torch.stack([caption_loss(*half, None, Ascl(temperature=TEMPERATURE)) for half in halves]).mean()


def test_a_step_against_one_caption_at_a_time():
    step = Step()

    def loop() -> None:
        step.looped_gradients(step.looped_scores(SAMPLE))

    seconds, limit = paired(step.gradients, loop, rounds=1)
    limit *= float(step.lengths.sum() / step.lengths[:SAMPLE].sum())
    print(
        f"\n  AsCL, loss of {PAIRS} x {CAPTIONS} pairs and its gradients: {limit / seconds:.1f} times as fast as one "
        f"caption at a time ({seconds:.1f} s against {limit:.1f} s)"
    )
    assert limit / seconds >= 4


def test_gradients_against_one_caption_at_a_time():
    step = Step(COMPARED)
    scores, expected = step.scores(), step.looped_scores(COMPARED)
    cotangent = torch.randn(scores.shape)
    ours = torch.autograd.grad((scores * cotangent).sum(), step.inputs)
    pairs = zip(ours, step.looped_gradients(cotangent), strict=True)
    error = (scores - expected).abs().max().item()
    worst = max(((mine - other).abs().max() / other.abs().max()).item() for mine, other in pairs)
    print(f"\n  AsCL, largest error of a score {error:.0e}, of a gradient {worst:.0e} of the largest of its tensor")
    assert error < 1e-5
    assert worst < 1e-5


def test_memory_of_a_step():
    """In a process of its own: this one has held the arrays of other tests."""
    found = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    peak = int(found.stdout)
    print(f"\n  AsCL, most memory of a process that computes the gradients of a step: {peak / 2**30:.2f} GiB")
    assert peak < 8 * 2**30


if __name__ == "__main__":
    Step().gradients()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
