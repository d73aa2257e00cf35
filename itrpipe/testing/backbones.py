"""Checks of a backbone; `check_backbone` runs them all, and `BACKBONE_CHECKS` has each by its name."""

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
"""Standard deviations that a recall may be off by chance: there are six recalls, with tails heavier than normal where
few queries hit."""
_SHUFFLES = 500


def check_backbone(build: BuildModel) -> None:
    """Run all checks of a backbone.

    Args:
        build: returns the model, freshly initialised, for region features of width `IMAGE_DIM`, vectors of whole images
            of width `GLOBAL_DIM`, pixels of size `FRAME` and `VOCABULARY` token ids.

    Raises:
        AssertionError: one of them fails; it says which.
    """
    for check in BACKBONE_CHECKS.values():
        check(build)


def matrix_equals_pairs(build: BuildModel) -> None:
    """Every entry of a matrix of scores is the score of that pair alone."""
    model, images, texts, matrix = _ready(build)
    num_images, num_texts = matrix.shape
    rows = torch.arange(num_images).repeat_interleave(num_texts)
    columns = torch.arange(num_texts).repeat(num_images)
    with torch.no_grad():
        image_encodings = model.encode_images(images[rows])
        text_encodings = model.encode_texts(texts[columns])
        pairs = model.score_pairs(image_encodings, text_encodings)
    _require_equal(pairs.view_as(matrix), matrix, "score_pairs differs from score_matrix")


def padding_changes_nothing(build: BuildModel) -> None:
    """Wider captions, and where images may differ in their regions wider images, score the same."""
    model, images, texts, expected = _ready(build)
    assert texts.phrases is not None
    phrases = replace(texts.phrases, tokens=F.pad(texts.phrases.tokens, (0, 2)))
    tokens = F.pad(texts.tokens, (0, 2), value=5)  # padding may hold anything
    wider_texts = replace(texts, tokens=tokens, phrases=phrases)
    _require_equal(_scores(model, images, wider_texts), expected, "padding of captions changes scores")
    if images.count is not None:
        assert images.boxes is not None
        regions = F.pad(images.regions, (0, 0, 0, 2))
        boxes = F.pad(images.boxes, (0, 0, 0, 2))
        wider_images = replace(images, regions=regions, boxes=boxes)
        _require_equal(_scores(model, wider_images, texts), expected, "padding of regions changes scores")


def order_changes_nothing(build: BuildModel) -> None:
    """Images and captions in another order have the same scores in that order."""
    model, images, texts, expected = _ready(build)
    num_images, num_texts = expected.shape
    rows = torch.randperm(num_images)
    columns = torch.randperm(num_texts)
    scores = _scores(model, images[rows], texts[columns])
    _require_equal(scores, expected[rows][:, columns], "the order of images or captions changes scores")


def blocks_change_nothing(build: BuildModel) -> None:
    """A score does not depend on what else is in the batch, down to a batch of one."""
    model, images, texts, expected = _ready(build)
    num_images, num_texts = expected.shape
    for size in (1, 2, 5):
        image_blocks = [images[rows] for rows in torch.arange(num_images).split(size)]
        text_blocks = [(columns, texts[columns]) for columns in torch.arange(num_texts).split(size)]
        scores = tiled_scores(image_blocks, text_blocks, partial(_scores, model))
        _require_equal(scores, expected, f"blocks of {size} change scores")


def noise_ranks_by_chance(build: BuildModel) -> None:
    """Images and captions that have nothing to do with each other rank by chance before any training."""
    _, _, _, scores = _ready(build, 40, 80)
    recalls = above_chance(scores.numpy(), ToyPairs(images=40).caption_image)
    assert not recalls, f"recall comes from noise: {recalls}"


def above_chance(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, str]:
    """Find recalls that differ from those of the same scores when images are dealt to groups of captions at random.

    Captions of one image resemble each other, and some images score high with every caption, so that no binomial
    distribution tells how far a recall strays by chance.

    Args:
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        Recall -> its value and the mean of shuffled scores, of those that are more than `LIMIT` standard deviations
        apart.
    """
    rng = np.random.default_rng(0)
    shuffled = []
    for _ in range(_SHUFFLES):
        order = rng.permutation(len(scores))
        shuffled.append(metrics(ranks(scores[order], caption_image)))
    recalls = {}
    for name, value in metrics(ranks(scores, caption_image)).items():
        by_chance = np.array([values[name] for values in shuffled])
        mean = by_chance.mean()
        if "_r" in name and abs(value - mean) > LIMIT * max(by_chance.std(), 1e-6):
            recalls[name] = f"{value:.1f} instead of {mean:.1f}"
    return recalls


def nan_features_give_nan_scores(build: BuildModel) -> None:
    """An image whose features are NaN has no finite score, and the scores of others stay as they are."""
    model, images, texts, expected = _ready(build)
    assert images.global_ is not None
    first = torch.tensor([0])
    regions = images.regions.index_fill(0, first, torch.nan)
    global_ = images.global_.index_fill(0, first, torch.nan)
    scores = _scores(model, replace(images, regions=regions, global_=global_), texts)
    if torch.equal(scores.nan_to_num(), expected):
        return  # it reads pixels, which cannot be NaN
    assert not scores[0].isfinite().any(), "scores of an image whose features are NaN are finite"
    _require_equal(scores[1:], expected[1:], "an image whose features are NaN changes the scores of others")


def two_pairs_train(build: BuildModel) -> None:
    """The smallest batch of training, two pairs, also of one image, gives finite gradients."""
    for owners, captions in (([0, 1], [0, 3]), ([0, 0], [0, 1])):
        model, images, texts, _ = _ready(build)
        model.train()
        image_encodings = model.encode_images(images[torch.tensor(owners)])
        text_encodings = model.encode_texts(texts[torch.tensor(captions)])
        scores = model.score_matrix(image_encodings, text_encodings)
        triplet_loss(scores, margin=10.0, max_violation=False).backward()
        has_gradient = False
        for parameter in model.parameters():
            if parameter.grad is not None:
                has_gradient = True
                assert parameter.grad.isfinite().all(), "a gradient of two pairs is not finite"
        assert has_gradient, "no parameter has a gradient"


def scores_are_single_precision(build: BuildModel) -> None:
    """Under bfloat16 autocast scores are single precision, and as many different ones as without it."""
    model, images, texts, expected = _ready(build)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        matrix = _scores(model, images, texts)
        pairs = model.score_pairs(model.encode_images(images), model.encode_texts(texts[: len(matrix)]))
    for scores, name in ((matrix, "score_matrix"), (pairs, "score_pairs")):
        assert scores.dtype == torch.float32, f"{name} gives {scores.dtype} under bfloat16 autocast"
    distinct = len(matrix.unique())
    without = len(expected.unique())
    assert distinct >= 0.9 * without, f"{distinct} different scores under bfloat16 autocast, {without} without"
    # Other models may round the products of pairs, where a sign can decide much.
    if isinstance(model, EmbeddingModel):
        message = "score_pairs differs from score_matrix under bfloat16 autocast"
        _require_equal(pairs, matrix.diagonal(), message, spread_of=matrix)


BACKBONE_CHECKS: dict[str, Callable[[BuildModel], None]] = {
    check.__name__: check
    for check in (
        matrix_equals_pairs,
        padding_changes_nothing,
        order_changes_nothing,
        blocks_change_nothing,
        noise_ranks_by_chance,
        nan_features_give_nan_scores,
        two_pairs_train,
        scores_are_single_precision,
    )
}
"""Each check by its name, for suites that make one test of each."""


def _ready(build: BuildModel, images: int = 7, captions: int = 11) -> tuple[AnyMatcher, ImageBatch, TextBatch, Tensor]:
    """Return a model in evaluation mode, images that it reads, captions, and their scores.

    The images have different numbers of regions if the model reads such.
    """
    torch.manual_seed(0)
    model = build().eval()
    data = readable(model, images=40)
    image_batch = data.images(np.arange(images))
    text_batch = data.texts(np.arange(captions))
    return model, image_batch, text_batch, _scores(model, image_batch, text_batch)


@torch.no_grad()
def _scores(model: AnyMatcher, images: ImageBatch, texts: TextBatch) -> Tensor:
    return model.score_matrix(model.encode_images(images), model.encode_texts(texts))


def _require_equal(scores: Tensor, expected: Tensor, message: str, spread_of: Tensor | None = None) -> None:
    if spread_of is None:
        spread_of = expected
    deviation = spread_of.std().clamp(min=1e-6)
    difference = ((scores - expected).abs() / deviation).max().item()
    assert difference <= TOLERANCE, f"{message}: by {difference:.2g} of their standard deviation"
