"""SSAMT: its masks edge by edge, what the order of phrases may not change, and its scores in tiles and pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from itrpipe.errors import DataError
from itrpipe.models.base import ImageBatch, PhraseBatch, TextBatch, rows_of
from itrpipe.models.ssamt import network as ssamt
from itrpipe.models.ssamt.declaration import Ssamt
from itrpipe.models.ssamt.network import SsamtEncoder, build, image_mask, pair_mask, text_mask
from itrpipe.models.uniter.network import initialise

SMALL = {"embed_dim": 32, "heads": 4, "feed_forward_dim": 48, "dropout": 0.0, "max_words": 12}
IMAGE_DIM, WORDS, VOCABULARY = 10, 6, 30
# "a red dog runs": an object (dog), an attribute (red dog); C^T, 2 phrases, 4 words, C^I, 2 regions.
C_T, DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION = range(10)
MEMBERS = torch.tensor([[[0, 0, 1, 0], [0, 1, 1, 0]]], dtype=torch.bool)


def small(**changed: object) -> SsamtEncoder:
    torch.manual_seed(0)
    model = build(Ssamt(**{**SMALL, **changed}), IMAGE_DIM, VOCABULARY)  # pyright: ignore
    initialise(model, 0.3)  # so that what can be seen is seen
    return model.eval()


def images(count: int = 3, regions: int = 4, seed: int = 1) -> ImageBatch:
    generator = torch.Generator().manual_seed(seed)
    return ImageBatch(torch.randn(count, regions, IMAGE_DIM, generator=generator))


def texts(lengths: list[int], phrases: list[list[tuple[int, list[int]]]]) -> TextBatch:
    """Captions of random words; each phrase is a kind and its token numbers."""
    generator = torch.Generator().manual_seed(2)
    width, most = max(lengths), max(map(len, phrases))
    tokens = torch.randint(4, VOCABULARY, (len(lengths), width), generator=generator)
    kinds = torch.full((len(lengths), most), -1)
    members = torch.zeros(len(lengths), most, width, dtype=torch.bool)
    for row, own in enumerate(phrases):
        for place, (kind, words) in enumerate(own):
            kinds[row, place] = kind
            members[row, place, words] = True
    return TextBatch(tokens, torch.tensor(lengths), PhraseBatch(kinds, members))


CAPTIONS = texts(
    [5, 3, 6, 1],
    [[(0, [1]), (1, [0, 1]), (2, [1, 2, 4])], [(0, [2])], [(0, [0]), (0, [5]), (2, [0, 3, 5])], []],
)


def mask_of(rule: str) -> Tensor:
    real_text, real_image = torch.ones(1, 7, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)
    return pair_mask(text_mask(MEMBERS, real_text, rule), real_text, real_image, rule)[0]  # pyright: ignore


# The truth table: query, keys it may look at, keys it may not; the edges that `strict` closes besides.
TABLE = [
    (C_T, [C_T, DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS, C_I], [REGION, OTHER_REGION], [C_I]),
    (DOG_NODE, [C_T, DOG_NODE, RED_DOG_NODE, DOG, C_I, REGION, OTHER_REGION], [A, RED, RUNS], [RED_DOG_NODE]),
    (RED_DOG_NODE, [C_T, DOG_NODE, RED_DOG_NODE, RED, DOG, C_I, REGION, OTHER_REGION], [A, RUNS], [DOG_NODE]),
    (A, [C_T, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION], [DOG_NODE, RED_DOG_NODE], []),
    (RED, [C_T, RED_DOG_NODE, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION], [DOG_NODE], []),
    (DOG, [C_T, DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION], [], []),
    (C_I, [C_T, C_I, REGION, OTHER_REGION], [DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS], [C_T]),
    (REGION, [C_T, DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION], [], []),
]


@pytest.mark.parametrize(("query", "may", "may_not", "strict"), TABLE)
def test_every_row_of_the_truth_table(query, may, may_not, strict):
    assert sorted([*may, *may_not]) == list(range(10))
    paper = mask_of("paper")[query]
    assert paper[may].all()
    assert not paper[may_not].any()
    expected = paper.clone()
    expected[strict] = False
    torch.testing.assert_close(mask_of("strict")[query], expected)
    assert mask_of("none")[query].all()


@pytest.mark.parametrize("rule", ["paper", "strict", "none"])
def test_padding_is_seen_by_nothing_but_itself(rule):
    real_text = torch.tensor([[True, True, False, True, True, True, False]])
    real_image = torch.tensor([[True, True, False]])
    text = text_mask(MEMBERS, real_text, rule)
    allowed = pair_mask(text, real_text, real_image, rule)[0]
    for place in (2, 6, 9):
        assert allowed[:, place].nonzero().flatten().tolist() == [place]
    assert allowed.any(dim=1).all()
    assert image_mask(real_image)[0].tolist() == [[True, True, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("phase", ["intra", "inter"])
def test_tiles_score_as_pairs_do(phase, monkeypatch):
    monkeypatch.setitem(ssamt._TILE_SIZES, "cpu", 64 * SMALL["embed_dim"])
    model = small(phase=phase)
    encoded, captions = model.encode_images(images()), model.encode_texts(CAPTIONS)
    matrix = model.score_matrix(encoded, captions)
    for image in range(3):
        rows = torch.full((4,), image)
        torch.testing.assert_close(
            matrix[image], model.score_pairs(rows_of(encoded, rows), captions), atol=1e-6, rtol=1e-5
        )


def test_the_score_is_the_weighted_sum_of_the_paper():
    model = small(mu1=0.3, mu2=0.1)
    encoded, captions = model.encode_images(images(4)), model.encode_texts(CAPTIONS)
    relevance = model.relevance(encoded, captions)
    real = relevance.fragments_real
    assert real.sum(dim=1).tolist() == [8, 4, 9, 1]
    means = torch.stack([row[mask].mean() for row, mask in zip(relevance.fragments, real, strict=True)])
    intra = (encoded.pooled * captions.pooled).sum(dim=1)
    expected = intra + 0.3 * relevance.whole + 0.1 * means + 0.1 * relevance.regions
    torch.testing.assert_close(model.score_pairs(encoded, captions), expected)
    torch.testing.assert_close(small(phase="intra").score_pairs(encoded, captions), intra)


def test_the_order_of_phrases_changes_nothing():
    model = small()
    encoded = model.encode_images(images(1))
    forward = texts([5], [[(0, [1]), (1, [0, 1]), (2, [1, 2, 4])]])
    backward = texts([5], [[(2, [1, 2, 4]), (1, [0, 1]), (0, [1])]])
    scores = [model.score_pairs(encoded, model.encode_texts(each)) for each in (forward, backward)]
    torch.testing.assert_close(*scores, atol=1e-5, rtol=0)
    other = texts([5], [[(0, [1]), (1, [0, 2]), (2, [1, 2, 4])]])
    assert (model.score_pairs(encoded, model.encode_texts(other)) - scores[0]).abs() > 1e-5


def test_no_gradient_crosses_a_closed_edge():
    model = small(layers=1)
    regions = images(1).regions.requires_grad_()
    encoded = model.encode_images(ImageBatch(regions))
    captions = model.encode_texts(texts_at(CAPTIONS, 0))
    captions.words.requires_grad_().retain_grad()
    inside = text_mask(captions.phrase_tokens, captions.real, "paper")
    allowed = pair_mask(inside, captions.real, encoded.real, "paper")
    text = model.inter_nodes.of_caption(captions.words, captions.kinds)
    image = model.inter_nodes.of_image(encoded.regions)
    states = model.inter_layers[0](torch.cat([text, image], dim=1), allowed[:, None])
    length = text.shape[1]

    def reached(position: int, source: Tensor) -> Tensor:
        # Squares, because a layer norm keeps the plain sum as it is.
        (gradient,) = torch.autograd.grad((states[0, position, ::2] ** 2).sum(), source, retain_graph=True)
        return gradient[0].abs().sum(dim=-1) > 0

    assert not reached(0, regions).any()  # C^T and the regions
    assert not reached(length, captions.words).any()  # C^I and the words
    assert reached(1, captions.words).tolist() == [False, True, False, False, False]  # the node of token 1
    assert reached(length + 1, captions.words).all()  # a region sees every word


def test_the_second_phase_trains_the_inter_encoder_alone():
    model = small(dropout=0.5).train()
    frozen = ("embedding.", "intra_nodes.", "text_layers.", "image_layers.")
    for name, weights in model.named_parameters():
        assert weights.requires_grad != name.startswith(frozen), name
    first, second = (model.encode_texts(CAPTIONS).pooled for _ in range(2))
    torch.testing.assert_close(first, second)  # no dropout in what is frozen
    encoded, captions = model.encode_images(images(4)), model.encode_texts(CAPTIONS)
    assert (model.relevance(encoded, captions).whole - model.relevance(encoded, captions).whole).abs().max() > 0
    assert all(weights.requires_grad for weights in small(phase="intra").parameters())


def test_captions_without_phrases_and_models_without_their_scene_graphs():
    model = small(phrases=False)
    bare = TextBatch(
        CAPTIONS.tokens,
        CAPTIONS.lengths,
        PhraseBatch(torch.zeros(4, 0, dtype=torch.int64), torch.zeros(4, 0, 6, dtype=torch.bool)),
    )
    assert model.score_matrix(model.encode_images(images()), model.encode_texts(bare)).shape == (3, 4)
    with pytest.raises(DataError, match="run `itrpipe parse`"):
        model.encode_texts(TextBatch(CAPTIONS.tokens, CAPTIONS.lengths))
    with pytest.raises(DataError, match="a caption has 13 words and the model 12 positions"):
        model.encode_texts(texts([13], [[]]))


def texts_at(batch: TextBatch, row: int) -> TextBatch:
    """One caption without any padding."""
    assert batch.phrases is not None
    length, phrases = int(batch.lengths[row]), int((batch.phrases.kinds[row] >= 0).sum())
    members = batch.phrases.tokens[row : row + 1, :phrases, :length]
    own = PhraseBatch(batch.phrases.kinds[row : row + 1, :phrases], members)
    return TextBatch(batch.tokens[row : row + 1, :length], batch.lengths[row : row + 1], own)
