"""Check what holds for every backbone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.learning.losses import triplet_loss
from itrpipe.methods.base import AnyMatcher
from itrpipe.models.base import EmbeddingModel, ImageBatch, TextBatch, tiled_scores
from itrpipe.testing.toy_pairs import ToyPairs, readable

BuildModel = Callable[[], AnyMatcher]
TOLERANCE = 1e-3
"""Largest difference of scores that are equal, in standard deviations of all scores."""
LIMIT = 4.5
"""Standard deviations that a recall may be off by chance: there are six, with tails heavier than normal where few
queries hit."""
_DEALT = 500


def check_backbone(build: BuildModel) -> None:
    """Runs all checks of a backbone.

    Args:
        build: makes the model, freshly initialised, for region features of width `IMAGE_DIM`, vectors of whole images
            of width `GLOBAL_DIM`, pixels of size `FRAME` and `VOCABULARY` token ids.

    Raises:
        AssertionError: one of them fails; it says which.
    """
    for check in BACKBONE_CHECKS.values():
        check(build)


def matrix_equals_pairs(build: BuildModel) -> None:
    """Every entry of a matrix of scores is the score of that pair alone."""
    model, images, texts, matrix = _ready(build)
    rows, columns = torch.cartesian_prod(*map(torch.arange, matrix.shape)).T
    with torch.no_grad():
        pairs = model.score_pairs(model.encode_images(images[rows]), model.encode_texts(texts[columns]))
    _require_equal(pairs.view_as(matrix), matrix, "score_pairs differs from score_matrix")


def padding_changes_nothing(build: BuildModel) -> None:
    """Wider captions, and where images may differ in their regions wider images, score the same."""
    model, images, texts, expected = _ready(build)
    assert texts.phrases is not None
    phrases = replace(texts.phrases, tokens=F.pad(texts.phrases.tokens, (0, 2)))
    wider = replace(texts, tokens=F.pad(texts.tokens, (0, 2), value=5), phrases=phrases)  # may hold anything
    _require_equal(_scores(model, images, wider), expected, "padding of captions changes scores")
    if images.count is not None:
        assert images.boxes is not None
        wide = replace(images, regions=F.pad(images.regions, (0, 0, 0, 2)), boxes=F.pad(images.boxes, (0, 0, 0, 2)))
        _require_equal(_scores(model, wide, texts), expected, "padding of regions changes scores")


def order_changes_nothing(build: BuildModel) -> None:
    """Images and captions in another order have the same scores in that order."""
    model, images, texts, expected = _ready(build)
    rows, columns = (torch.randperm(count) for count in expected.shape)
    found = _scores(model, images[rows], texts[columns])
    _require_equal(found, expected[rows][:, columns], "the order of images or captions changes scores")


def blocks_change_nothing(build: BuildModel) -> None:
    """A score does not depend on what else is in the batch, down to a batch of one."""
    model, images, texts, expected = _ready(build)
    rows, columns = map(torch.arange, expected.shape)
    for size in (1, 2, 5):
        captions = [(own, texts[own]) for own in columns.split(size)]
        found = tiled_scores([images[own] for own in rows.split(size)], captions, partial(_scores, model))
        _require_equal(found, expected, f"blocks of {size} change scores")


def noise_ranks_by_chance(build: BuildModel) -> None:
    """Images and captions that have nothing to do with each other rank by chance before any training."""
    *_, scores = _ready(build, 40, 80)
    told = above_chance(scores.numpy(), ToyPairs(images=40).caption_image)
    assert not told, f"recall comes from noise: {told}"


def above_chance(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, str]:
    """Recalls that are off what the same scores give when images are dealt to the groups of captions at random.

    Captions of one image resemble each other, and some images score high with every caption, so that no binomial
    distribution tells how far a recall strays by chance.

    Args:
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        Recall -> its value and the mean over ways to deal, of those that are `LIMIT` standard deviations or more apart.
    """
    draw = np.random.default_rng(0)
    found = metrics(ranks(scores, caption_image))
    dealt = [metrics(ranks(scores[draw.permutation(len(scores))], caption_image)) for _ in range(_DEALT)]
    told = {}
    for name, value in found.items():
        others = np.array([each[name] for each in dealt])
        if "_r" in name and abs(value - others.mean()) > LIMIT * max(others.std(), 1e-6):
            told[name] = f"{value:.1f} instead of {others.mean():.1f}"
    return told


def nan_comes_out(build: BuildModel) -> None:
    """An image whose features are NaN has no finite score, and the scores of others stay as they are."""
    model, images, texts, expected = _ready(build)
    assert images.global_ is not None
    first = torch.tensor([0])
    regions = images.regions.index_fill(0, first, torch.nan)
    whole = images.global_.index_fill(0, first, torch.nan)
    found = _scores(model, replace(images, regions=regions, global_=whole), texts)
    if torch.equal(found.nan_to_num(), expected):
        return  # it reads pixels, which cannot be NaN
    assert not found[0].isfinite().any(), "scores of an image whose features are NaN are finite"
    _require_equal(found[1:], expected[1:], "an image whose features are NaN changes the scores of others")


def two_pairs_train(build: BuildModel) -> None:
    """The smallest batch of training, two pairs, also of one image, gives finite gradients."""
    for owners, captions in (([0, 1], [0, 3]), ([0, 0], [0, 1])):
        model, images, texts, _ = _ready(build)
        sides = (
            model.train().encode_images(images[torch.tensor(owners)]),
            model.encode_texts(texts[torch.tensor(captions)]),
        )
        triplet_loss(model.score_matrix(*sides), margin=10.0, max_violation=False).backward()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        assert gradients, "no parameter has a gradient"
        assert all(each.isfinite().all() for each in gradients), "a gradient of two pairs is not finite"


def scores_are_single_precision(build: BuildModel) -> None:
    """Under bfloat16 autocast scores are single precision, and as many different ones as without it."""
    model, images, texts, expected = _ready(build)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        matrix = _scores(model, images, texts)
        pairs = model.score_pairs(model.encode_images(images), model.encode_texts(texts[: len(matrix)]))
    for found, name in ((matrix, "score_matrix"), (pairs, "score_pairs")):
        assert found.dtype == torch.float32, f"{name} gives {found.dtype} under bfloat16 autocast"
    distinct = len(matrix.unique())
    all_of_them = len(expected.unique())
    assert distinct >= 0.9 * all_of_them, f"{distinct} different scores under bfloat16 autocast, {all_of_them} without"
    # Other models may round the products of pairs, where a sign can decide much.
    if isinstance(model, EmbeddingModel):
        own = matrix.diagonal()
        _require_equal(pairs, own, "score_pairs differs from score_matrix under bfloat16 autocast", matrix)


BACKBONE_CHECKS: dict[str, Callable[[BuildModel], None]] = {
    check.__name__: check
    for check in (
        matrix_equals_pairs,
        padding_changes_nothing,
        order_changes_nothing,
        blocks_change_nothing,
        noise_ranks_by_chance,
        nan_comes_out,
        two_pairs_train,
        scores_are_single_precision,
    )
}
"""By name, for those who want one test of each."""


def _ready(build: BuildModel, images: int = 7, captions: int = 11) -> tuple[AnyMatcher, ImageBatch, TextBatch, Tensor]:
    """A model in evaluation mode, images that it reads, if it can of different numbers of regions, captions, scores."""
    torch.manual_seed(0)
    model = build().eval()
    data = readable(model, images=40)
    sides = data.images(np.arange(images)), data.texts(np.arange(captions))
    return model, *sides, _scores(model, *sides)


@torch.no_grad()
def _scores(model: AnyMatcher, images: ImageBatch, texts: TextBatch) -> Tensor:
    return model.score_matrix(model.encode_images(images), model.encode_texts(texts))


def _require_equal(found: Tensor, expected: Tensor, message: str, among: Tensor | None = None) -> None:
    spread = (expected if among is None else among).std().clamp(min=1e-6)
    off = ((found - expected).abs() / spread).max().item()
    assert off <= TOLERANCE, f"{message}: by {off:.2g} of their standard deviation"
