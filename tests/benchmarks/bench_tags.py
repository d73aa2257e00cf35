"""Cost of a step of TAGS and TAGS-DC in forward passes of a pair.

Floating-point operations of a step with the published numbers of negatives and sentences are counted, in units of one
forward pass of a pair. Width, features and vocabulary are a fourth of those of UNITER-base, so that parts have about
their published shares. Refilled words are the caption's own with probability 1/2; how often that is so decides how many
sentences are alike.

Run with `make bench`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import NO_WORD, UNLABELLED, CaptionMasks, SpecialTokens
from itrpipe.methods.tags import method as tags
from itrpipe.methods.tags.declaration import Tags
from itrpipe.methods.tags.method import TagsMethod
from itrpipe.methods.tags_dc import method as tags_dc
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder

IMAGES, PER_IMAGE, REGIONS = 420, 5, 36
COPIES, DRAWS, KEEP, HARD = 20, 20, 31, 31
SPECIALS = 4


class Rows:
    """Random captions with three phrases of two words, each beside as many single ones, and random features."""

    caption_image = np.repeat(np.arange(IMAGES), PER_IMAGE)

    def __init__(self, vocabulary: int, image_dim: int, shortest: int, longest: int) -> None:
        random = np.random.default_rng(0)
        self.lengths = random.integers(shortest, longest + 1, len(self.caption_image))
        place, last = np.arange(longest), self.lengths[:, None] - 1
        tokens = random.integers(SPECIALS, vocabulary, (len(self.lengths), longest))
        self.tokens = np.where(place == last, 2, np.where(place < last, tokens, 0))
        self.tokens[:, 0] = 1
        words = np.where((place > 0) & (place < last), place - 1, NO_WORD)
        phrases = np.zeros((6, longest), dtype=bool)
        for phrase, members in enumerate(([0, 1], [2], [3, 4], [5], [1, 2], [4])):
            phrases[phrase, members] = True
        specials = SpecialTokens(vocabulary, tuple(range(SPECIALS)), (SPECIALS, vocabulary))
        self.masks = CaptionMasks(
            self.tokens,
            words,
            self.caption_image,
            lambda rows: np.broadcast_to(phrases, (len(rows), *phrases.shape)),
            specials,
            "piece",
        )
        generator = torch.Generator().manual_seed(0)
        self.regions = torch.randn(IMAGES, REGIONS, image_dim, generator=generator)
        self.boxes = torch.rand(IMAGES, REGIONS, 4, generator=generator)

    def images(self, rows: np.ndarray) -> ImageBatch:
        return ImageBatch(self.regions[rows], None, boxes=self.boxes[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        lengths = torch.from_numpy(self.lengths[rows])
        return TextBatch(torch.from_numpy(self.tokens[rows, : int(lengths.max())]), lengths)


def uniter(sizes: dict[str, int], dropout: float, image_dim: int, vocabulary: int) -> UniterEncoder:
    torch.manual_seed(0)
    model = UniterEncoder(Uniter(**sizes, dropout=dropout), image_dim, vocabulary + 1).train()  # pyright: ignore
    for name, weights in model.named_parameters():
        if name in ("match.weight", "rank.weight", "word_match.weight", "pooler.weight"):
            torch.nn.init.normal_(weights, std=0.3)  # so that scores differ
    return model


def drawn_words(masked: Tensor, labels: Tensor, draws: int, vocabulary: int) -> Tensor:
    """Refills [S, L, W]: half of the words are the caption's own, the others ever the same few."""
    generator = torch.Generator().manual_seed(0)
    labelled = labels != UNLABELLED
    own = labels[labelled][:, None].expand(-1, draws)
    rank = torch.empty(own.shape).exponential_(0.2, generator=generator).long()
    other = SPECIALS + (7 * own + 31 * rank) % (vocabulary - SPECIALS)
    words = torch.where(torch.rand(own.shape, generator=generator) < 0.5, own, other)
    columns = masked[:, :, None].expand(-1, -1, draws)
    return columns.masked_scatter(labelled[:, :, None], words).transpose(1, 2).contiguous()


def forward_pass(model: UniterEncoder, images: ImageBatch, texts: TextBatch) -> Tensor:
    """Score [1] of an image and a caption, for which all states of all layers are computed."""
    assert images.boxes is not None
    width, regions = int(texts.lengths.max()), model.image(images.regions, images.boxes, model.text.kind.weight[1])
    states = torch.cat([model.text(texts.tokens[:, :width]), regions], dim=1)
    return model.rank_score(model.layers(states, torch.ones(1, 1, 1, width + REGIONS, dtype=torch.bool))[:, 0])


def train(model: UniterEncoder, losses: dict[str, Tensor]) -> None:
    model.zero_grad()
    torch.stack(list(losses.values())).sum().backward()


class CountedFlops(TorchDispatchMode):
    """Counts what `FlopCounterMode` counts; that one also follows modules, and stops at parameters without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=found)
        return found


def flops(function: Callable[[], object]) -> int:
    """Floating-point operations of a function; a gradient that it asks for is counted as well."""
    with CountedFlops() as counter:
        function()
    return counter.total


NEGATIVES, WORDS = 399, 15
COLUMN = {"phase 1": 3 * (0.94 * COPIES + 32 + 32 + KEEP), "phase 2": 3 * (0.94 * COPIES + 32 + 32 + KEEP) + 2}
"""Forward passes that a step may cost beside those without gradient, which have a last layer for the start alone."""


@pytest.mark.parametrize("phase", COLUMN)
def test_forward_passes_that_a_published_step_costs(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """36 regions and 15 tokens, so that no pair is longer than another."""
    vocabulary, image_dim = 7_249, 512
    sizes = {"embed_dim": 192, "layers": 12, "heads": 12, "feed_forward_dim": 768, "max_words": WORDS}
    numbers = {"sampled_negatives": NEGATIVES, "hard_negatives": HARD, "copies": COPIES, "draws": DRAWS, "keep": KEEP}
    rows = Rows(vocabulary, image_dim, WORDS, WORDS)
    built: dict[str, Callable[[], TagsMethod]] = {
        "phase 1": lambda: tags.build(Tags(**numbers), rows, rows.masks),  # pyright: ignore
        "phase 2": lambda: tags_dc.build(TagsDc(**numbers), rows, rows.masks),  # pyright: ignore
    }
    method = built[phase]()
    model = uniter(sizes, 0.1, image_dim, vocabulary)
    batch = method.collate(np.array([7]), np.random.default_rng(0))
    assert batch.masked is not None
    drawn = drawn_words(batch.masked.copies, batch.masked.labels, DRAWS, vocabulary)
    monkeypatch.setattr(synthetic, "refill", lambda *given: drawn)
    one = np.zeros(1, dtype=np.int64)
    pair = flops(lambda: forward_pass(model, rows.images(one), rows.texts(one)))
    spent = flops(lambda: train(model, method.losses(model, batch, epoch=0)))
    scored = float(batch.statistics["scored_sentences"])
    allowed = 0.933 * (2 * (NEGATIVES + 1) + scored) + COLUMN[phase]
    print(
        f"\n  TAGS, {phase}, {NEGATIVES} negatives, {scored:.0f} of {COPIES * DRAWS} sentences scored: a caption costs "
        f"{spent / pair:.0f} forward passes of a pair; {allowed:.0f} where all that need not be computed is left out"
    )
    assert spent / pair < allowed
