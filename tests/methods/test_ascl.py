"""AsCL: noise on words, captions joined and shortened, the losses against their logits, and what a batch holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from itrpipe.methods.ascl import method as ascl
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.ascl.method import (
    DONE,
    NOISES,
    add_noise,
    caption_loss,
    caption_triplet_loss,
    joined,
    shortened,
    shuffle_tokens,
)
from itrpipe.models.base import TextBatch
from itrpipe.testing import ToyPairs

T, W, D = 500, 7, 5
START, END = 1, 2


def states() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(T, W, D, generator=generator) + 1.0, torch.randint(1, W + 1, (T,), generator=generator)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def captions(*words: list[int]) -> TextBatch:
    return written((START,), (END,), *words)


def written(before: tuple[int, ...], behind: tuple[int, ...], *words: list[int]) -> TextBatch:
    rows = [[*before, *each, *behind] for each in words]
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return TextBatch(tokens, torch.tensor([len(row) for row in rows]))


def words_of(batch: TextBatch) -> list[list[int]]:
    """The words of captions that stand between start and end, with zeros behind; fails where they do not."""
    found = []
    for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True):
        assert row[0] == START
        assert row[length - 1] == END
        assert not any(row[length:])
        found.append(row[1 : length - 1])
    assert batch.tokens.shape[1] == batch.lengths.max()
    return found


def test_a_mixture_gives_each_caption_noise_of_its_own_kind():
    vectors, lengths = states()
    vectors.requires_grad_()
    several = [*NOISES, "shuffle before"]
    kinds = np.array([several[row % len(several)] for row in range(T)])
    noisy = add_noise(vectors, lengths, kinds, seeded())
    places: dict[str, set[int]] = {"word": set(), "feature": set()}
    for kind, before, after, length in zip(kinds, vectors, noisy, lengths.tolist(), strict=True):
        changed = after != before
        expected = {
            "gaussian": changed.all(),
            "shuffle": torch.equal(after.sort(dim=0).values, before.sort(dim=0).values) and not changed[length:].any(),
            "cutoff": (after[changed] == 0).all() and changed.sum() in (W, D) and changed[:length].any(),
            "dropout": changed.all() and ((after == 0) | (after == 2 * before)).all(),
            "shuffle before": not changed.any(),
        }
        assert expected[kind], kind
        if kind == "cutoff":
            side = "word" if changed.sum() == D else "feature"
            places[side] |= set(changed.all(dim=1 if side == "word" else 0).nonzero()[:, 0].tolist())
    assert places == {"word": set(range(W)), "feature": set(range(D))}
    noise, dropped = ((noisy - vectors)[torch.from_numpy(kinds == name)] for name in ("gaussian", "dropout"))
    assert noise.std().item() == pytest.approx(1.0, rel=0.05)
    assert (dropped < 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
    noisy.sum().backward()
    assert vectors.grad is not None
    assert (vectors.grad[torch.from_numpy(kinds == "shuffle before")] == 1).all()


def test_shuffled_tokens_stay_between_start_and_end():
    batch = captions([4, 5, 6, 7, 8, 9], [4, 5], [], [4])
    seen = set()
    for seed in range(30):
        mixed = shuffle_tokens(batch, np.random.default_rng(seed))
        assert mixed.tokens.dtype == batch.tokens.dtype
        found = words_of(mixed)
        assert [sorted(each) for each in found] == words_of(batch)
        seen.add(tuple(found[1]))
        assert found[0] != [4, 5, 6, 7, 8, 9]
    assert seen == {(4, 5), (5, 4)}


@pytest.mark.parametrize("ends", [(1, 1), (0, 1), (1, 0), (0, 0), (2, 1), (1, 2)])
def test_what_stands_around_the_words_stays_around_them(ends: tuple[int, int]):
    around, outside = sum(ends), ((1, 91)[: ends[0]], (92, 2)[2 - ends[1] :])
    first, second = (
        written(*outside, *words)
        for words in ([[4, 5, 6], [7], [8, 9, 10, 11]], [[12, 13], [14, 15, 16, 17, 18], [19]])
    )
    for found, expected in (
        (joined(first, second, ends, 99), [[4, 5, 6, 12, 13], [7, 14, 15, 16, 17, 18], [8, 9, 10, 11, 19]]),
        (joined(first, second, ends, 4 + around), [[4, 5, 6, 12], [7, 14, 15, 16], [8, 9, 10, 11]]),
        (joined(first, second, ends, 2 + around), [[4, 5], [7, 14], [8, 9]]),
        (shortened(first, ends), [[4], [7], [8, 9]]),
        (shortened(second, ends), [[12], [14, 15], [19]]),
        (shortened(written(*outside, []), ends), [[]]),
    ):
        wanted = written(*outside, *expected)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.lengths.tolist() == wanted.lengths.tolist()


# Losses

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


def test_shuffling_is_done_before_the_encoder_where_it_can_matter():
    rows = np.array([0, 4, 6, 13])
    before, after = (
        ascl.build(Ascl(noise="shuffle", shuffle_at=place), ToyPairs(), {}).collate(rows, np.random.default_rng(0))
        for place in ("input", "states")
    )
    made = before.made["originals"]
    assert made.kinds.tolist() == [DONE] * 4
    assert made.shuffled is not None
    assert made.shuffled[0].tolist() == [0, 1, 2, 3]
    assert made.shuffled[1].tokens.sort(dim=1).values.tolist() == made.texts.tokens.sort(dim=1).values.tolist()
    assert not torch.equal(made.shuffled[1].tokens, made.texts.tokens)
    assert (after.made["originals"].kinds.tolist(), after.made["originals"].shuffled) == (["shuffle"] * 4, None)
