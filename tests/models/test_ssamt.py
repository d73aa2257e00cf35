"""SSAMT: its masks edge by edge, its score term by term and in tiles, and what each phase trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from itrpipe.models.base import PhraseBatch
from itrpipe.models.ssamt import network as ssamt
from itrpipe.models.ssamt.network import pair_mask, text_mask
from itrpipe.models.uniter.network import initialise
from tests.models.toys import built, close, encoded, toys

# "a red dog runs": an object (dog), an attribute (red dog); C^T, 2 phrases, 4 words, C^I, 2 regions.
C_T, DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS, C_I, REGION, OTHER_REGION = range(10)
MEMBERS = torch.tensor([[[0, 0, 1, 0], [0, 1, 1, 0]]], dtype=torch.bool)
# Query -> keys that it may not look at; and those that `strict` closes besides.
CLOSED = {
    C_T: ([REGION, OTHER_REGION], [C_I]),
    DOG_NODE: ([A, RED, RUNS], [RED_DOG_NODE]),
    RED_DOG_NODE: ([A, RUNS], [DOG_NODE]),
    A: ([DOG_NODE, RED_DOG_NODE], []),
    RED: ([DOG_NODE], []),
    DOG: ([], []),
    RUNS: ([DOG_NODE, RED_DOG_NODE], []),
    C_I: ([DOG_NODE, RED_DOG_NODE, A, RED, DOG, RUNS], [C_T]),
    REGION: ([], []),
    OTHER_REGION: ([], []),
}


def visible(**options: Any) -> Any:
    """A model whose weights are so large that all that can be seen is seen."""
    model = built("ssamt", **options)
    initialise(model, 0.3)
    return model


def mask(rule: Any, real_text: Tensor, real_image: Tensor) -> Tensor:
    return pair_mask(text_mask(MEMBERS, real_text, rule), real_text, real_image, rule)[0]


@pytest.mark.parametrize("rule", ["paper", "strict", "none"])
def test_closed_edges_are_those_of_the_table(rule: str) -> None:
    allowed = mask(rule, torch.ones(1, 7, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool))
    for query, (closed, strictly) in CLOSED.items():
        expected = {"paper": closed, "strict": [*closed, *strictly], "none": []}[rule]
        assert (~allowed[query]).nonzero().flatten().tolist() == sorted(expected), query


@pytest.mark.parametrize("rule", ["paper", "strict", "none"])
def test_padding_is_seen_by_nothing_but_itself(rule: str) -> None:
    real_text = torch.tensor([[True, True, False, True, True, True, False]])
    real_image = torch.tensor([[True, True, False]])
    allowed = mask(rule, real_text, real_image)
    for place in (2, 6, 9):
        assert allowed[:, place].nonzero().flatten().tolist() == [place]


@torch.no_grad()
@pytest.mark.parametrize("pairs", [1, 4, 1 << 20])
def test_tiles_score_as_pairs_do_by_the_weighted_sum_of_the_paper(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ssamt._TILE_SIZES, "cpu", pairs * 17 * 12)
    model = visible(mu1=0.3, mu2=0.1)
    images, texts = toys()
    assert texts.phrases is not None
    kinds = texts.phrases.kinds.clone()
    kinds[0] = -1  # a caption without phrases
    texts = replace(texts, phrases=PhraseBatch(kinds, texts.phrases.tokens & (kinds >= 0)[..., None]))
    pictures, captions = encoded(model, images, texts)
    matrix = model.score_matrix(pictures, captions)
    for row in range(3):
        own = pictures[torch.full((4,), row)]
        relevance = model.relevance(own, captions)
        real = relevance.fragments_real
        assert real.sum(dim=1).tolist() == ((kinds >= 0).sum(dim=1) + texts.lengths).tolist()
        means = torch.stack([each[inside].mean() for each, inside in zip(relevance.fragments, real, strict=True)])
        intra = (own.pooled * captions.pooled).sum(dim=1)
        expected = intra + 0.3 * relevance.whole + 0.1 * means + 0.1 * relevance.regions
        close(model.score_pairs(own, captions), expected)
        close(matrix[row], expected)
        close(visible(phase="intra").score_pairs(own, captions), intra)


def test_the_second_phase_trains_the_inter_encoder_alone() -> None:
    model = visible(dropout=0.5).train()
    frozen = ("embedding.", "intra_nodes.", "text_layers.", "image_layers.")
    assert all(each.requires_grad != name.startswith(frozen) for name, each in model.named_parameters())
    images, texts = encoded(model, *toys(4))
    close(model.encode_texts(toys()[1]).pooled, texts.pooled, 0)  # no dropout in what is frozen
    assert not torch.equal(model.relevance(images, texts).whole, model.relevance(images, texts).whole)
    assert all(each.requires_grad for each in built("ssamt", phase="intra").parameters())
