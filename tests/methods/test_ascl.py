"""AsCL: noise on words, captions joined and shortened, the losses against their logits, and what a batch holds."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from itrpipe.methods.ascl import method as ascl
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.ascl.method import (
    DONE,
    NOISES,
    add_noise,
    generated_positives,
)
from itrpipe.methods.base import TokenLimits
from itrpipe.models.base import TextBatch
from itrpipe.storage.arrays import Ragged
from itrpipe.testing import ToyPairs
from tests.methods.toys import built

T, W, D = 500, 7, 5


def states() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(T, W, D, generator=generator) + 1.0, torch.randint(1, W + 1, (T,), generator=generator)


def test_a_mixture_gives_each_caption_noise_of_its_own_kind():
    vectors, lengths = states()
    vectors.requires_grad_()
    several = [*NOISES, "shuffle before"]
    kinds = np.array([several[row % len(several)] for row in range(T)])
    noisy = add_noise(vectors, lengths, kinds, torch.Generator().manual_seed(0))
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


class Written:
    """Captions of three images, an empty one among them, with so many tokens before and behind their words."""

    caption_image = np.array([0, 0, 0, 1, 1, 2])
    words = ([4, 5, 6], [7], [8, 9, 10, 11, 12], [13, 14], [], [15])

    def __init__(self, ends: tuple[int, int]) -> None:
        self.before, self.behind = [1, 91][: ends[0]], [92, 2][2 - ends[1] :]

    def texts(self, rows: np.ndarray) -> TextBatch:
        found = [torch.tensor([*self.before, *self.words[row], *self.behind]) for row in rows]
        return TextBatch(pad_sequence(found, batch_first=True), torch.tensor([len(each) for each in found]))


@pytest.mark.parametrize("ends", [(1, 1), (0, 1), (1, 0), (0, 0), (2, 1), (1, 2)])
def test_positives_are_two_captions_of_the_image_or_half_of_the_own_one(ends: tuple[int, int]) -> None:
    """What was recorded was drawn equally often, within the ends of captions and as long as they may be."""
    written, captions_of, found = Written(ends), Ragged.of_owners(Written.caption_image, 3), []
    for kind, most in product(("joined", "shortened", "either"), (99, 4, 2)):
        limits = TokenLimits(*ends, most + sum(ends))
        given = written, captions_of, np.tile(np.arange(6), 30), limits, np.random.default_rng(0)
        made = generated_positives(kind, *given)  # pyright: ignore
        content = json.dumps([made.tokens.tolist(), made.lengths.tolist()])
        found.append(hashlib.sha256(content.encode()).hexdigest()[:8])
    recorded = json.loads(Path(__file__).with_name("cases.json").read_text())["positives"]
    assert found == recorded["".join(map(str, ends))]


def test_shuffling_is_done_before_the_encoder_where_it_can_matter():
    rows = np.array([0, 4, 6, 13])
    before, after = (
        built(ascl.build, Ascl(noise="shuffle", shuffle_at=place), ToyPairs()).collate(rows, np.random.default_rng(0))
        for place in ("input", "states")
    )
    made = before.made["originals"]
    assert made.kinds.tolist() == [DONE] * 4
    assert made.shuffled is not None
    assert made.shuffled[0].tolist() == [0, 1, 2, 3]
    assert made.shuffled[1].tokens.sort(dim=1).values.tolist() == made.texts.tokens.sort(dim=1).values.tolist()
    assert not torch.equal(made.shuffled[1].tokens, made.texts.tokens)
    assert (after.made["originals"].kinds.tolist(), after.made["originals"].shuffled) == (["shuffle"] * 4, None)
