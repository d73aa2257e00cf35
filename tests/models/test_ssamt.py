"""SSAMT: its masks edge by edge, its score term by term and in tiles, and what each phase trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

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


def test_the_second_phase_trains_the_inter_encoder_alone() -> None:
    model = visible(dropout=0.5).train()
    frozen = ("embedding.", "intra_nodes.", "text_layers.", "image_layers.")
    assert all(each.requires_grad != name.startswith(frozen) for name, each in model.named_parameters())
    images, texts = encoded(model, *toys(4))
    close(model.encode_texts(toys()[1]).pooled, texts.pooled, 0)  # no dropout in what is frozen
    assert not torch.equal(model.relevance(images, texts).whole, model.relevance(images, texts).whole)
    assert all(each.requires_grad for each in built("ssamt", phase="intra").parameters())
