"""Noise on states of words, and captions joined, shortened and shuffled, against captions taken one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from itrpipe.methods.ascl.method import (
    NOISES,
    CaptionPositives,
    add_noise,
    cut_feature,
    cut_token,
    cutoff,
    dropout,
    gaussian,
    joined,
    shortened,
    shuffle,
    shuffle_tokens,
)
from itrpipe.models.base import TextBatch

T, W, D = 200, 7, 5
START, END = 1, 2
ENDS = (1, 1)


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


def real(lengths: torch.Tensor) -> torch.Tensor:
    return torch.arange(W) < lengths[:, None]


def test_gaussian_noise_has_its_deviation():
    vectors, lengths = states()
    noise = gaussian(vectors, lengths, seeded(), deviation=2.0) - vectors
    assert noise.mean().item() == pytest.approx(0.0, abs=0.1)
    assert noise.std().item() == pytest.approx(2.0, rel=0.05)


def test_shuffled_words_are_the_same_words_of_the_same_caption():
    vectors, lengths = states()
    mixed = shuffle(vectors, lengths, seeded())
    moved = 0
    for before, after, length in zip(vectors, mixed, lengths.tolist(), strict=True):
        torch.testing.assert_close(after[length:], before[length:])
        order = (after[:length, None] == before[None, :length]).all(dim=-1)
        assert (order.sum(dim=0) == 1).all()
        assert (order.sum(dim=1) == 1).all()
        moved += not order.diagonal().all()
    assert moved > T / 2


def test_a_cut_takes_one_word_or_one_feature_of_each_caption():
    vectors, lengths = states()
    word, feature = cut_token(vectors, lengths, seeded()) == 0, cut_feature(vectors, lengths, seeded()) == 0
    assert (word.all(dim=2).sum(dim=1) == 1).all()
    assert (word.sum(dim=(1, 2)) == D).all()
    assert (word.all(dim=2) & real(lengths)).any(dim=1).all()
    assert (feature.all(dim=1).sum(dim=1) == 1).all()
    assert (feature.sum(dim=(1, 2)) == W).all()
    full = cut_token(vectors, torch.full_like(lengths, W), seeded()) == 0
    for chosen, number in ((full.all(dim=2), W), (feature.all(dim=1), D)):
        assert (chosen.sum(dim=0) > 0).tolist() == [True] * number
    both = cutoff(vectors, lengths, seeded()) == 0
    words, features = both.all(dim=2).any(dim=1), both.all(dim=1).any(dim=1)
    assert (words ^ features).all()
    assert 0.3 < words.float().mean() < 0.7


def test_dropout_keeps_the_mean():
    vectors, lengths = states()
    dropped = dropout(vectors, lengths, seeded(), rate=0.25)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(dropped[kept], vectors[kept] / 0.75)


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_drawn_by_the_generator_alone(name):
    vectors, lengths = states()
    first, again, other = (NOISES[name](vectors, lengths, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, vectors)


def test_a_mixture_gives_each_caption_noise_of_its_own_kind():
    vectors, lengths = states()
    vectors.requires_grad_()
    several = [*NOISES, "shuffle before"]
    kinds = np.array([several[row % len(several)] for row in range(T)])
    noisy = add_noise(vectors, lengths, kinds, seeded())
    for kind, before, after, length in zip(kinds, vectors, noisy, lengths.tolist(), strict=True):
        changed = after != before
        expected = {
            "gaussian": changed.all(),
            "shuffle": torch.equal(after.sort(dim=0).values, before.sort(dim=0).values) and not changed[length:].any(),
            "cutoff": (after[changed] == 0).all() and changed.sum() in (W, D),
            "dropout": changed.all() and ((after == 0) | (after == 2 * before)).all(),
            "shuffle before": not changed.any(),
        }
        assert expected[kind], kind
    noisy.sum().backward()
    assert vectors.grad is not None
    untouched = torch.tensor([kind == "shuffle before" for kind in kinds])
    assert (vectors.grad[untouched] == 1).all()


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


def test_joined_captions_keep_the_end_when_they_are_cut():
    first, second = captions([4, 5, 6], [7], []), captions([8, 9], [10, 11, 12, 13, 14], [15])
    assert words_of(joined(first, second, ENDS, 99)) == [[4, 5, 6, 8, 9], [7, 10, 11, 12, 13, 14], [15]]
    cut = joined(first, second, ENDS, 6)
    assert words_of(cut) == [[4, 5, 6, 8], [7, 10, 11, 12], [15]]
    assert cut.tokens.dtype == first.tokens.dtype
    assert words_of(joined(first, second, ENDS, 4)) == [[4, 5], [7, 10], [15]]


def test_half_of_a_caption_is_rounded_down_but_not_to_nothing():
    batch = captions([4, 5, 6, 7, 8, 9], [4, 5, 6], [4, 5], [4], [])
    assert words_of(shortened(batch, ENDS)) == [[4, 5, 6], [4], [4], [4], []]


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
    ):
        wanted = written(*outside, *expected)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.lengths.tolist() == wanted.lengths.tolist()


def test_pairs_are_two_different_captions_of_the_image():
    caption_image = np.array([2, 0, 2, 1, 0, 2])
    pairs = CaptionPositives("joined", SimpleNamespace(caption_image=caption_image), 9)  # pyright: ignore
    images = np.repeat([0, 1, 2], 400)
    first, second = pairs.two_captions(images, np.random.default_rng(0))
    np.testing.assert_array_equal(caption_image[first], images)
    np.testing.assert_array_equal(caption_image[second], images)
    assert (first == second).tolist() == (images == 1).tolist()
    drawn, counts = np.unique(np.stack([first, second])[:, images == 2], axis=1, return_counts=True)
    assert drawn.T.tolist() == [[0, 2], [0, 5], [2, 0], [2, 5], [5, 0], [5, 2]]
    assert counts.min() > 40
