"""The caption encoder's GRU and the l2-norm over regions, forward and backward on one CPU thread, beside PyTorch's own.

Run with `make bench`.
"""

from __future__ import annotations

import pytest
import torch
from measure import paired
from torch import Tensor, nn

from itrpipe.models.base import l2_normalise
from itrpipe.models.vsepp.network import last_states, pack_captions

PAIRS, REGIONS, WORD_DIM, DIM, SHORTEST, LONGEST = 128, 12, 128, 256, 7, 20


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("bf16", [False, True])
def test_last_states_against_the_packed_gru_of_pytorch(bf16: bool) -> None:
    torch.manual_seed(0)
    rnn = nn.GRU(WORD_DIM, DIM, batch_first=True)
    words = torch.randn(PAIRS, LONGEST, WORD_DIM, requires_grad=True)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (PAIRS,))

    def train(own: bool) -> None:
        packed = pack_captions(words, lengths)
        with torch.autocast("cpu", enabled=bf16):
            states = last_states(rnn, packed) if own else rnn(packed)[1][0]
        states.float().sum().backward()

    ours, theirs = paired(lambda: train(True), lambda: train(False))
    kind = "bf16" if bf16 else "fp32"
    print(f"\n  GRU over {PAIRS} captions, {kind}: {theirs / ours:.1f} times as fast ({1e3 * ours:.1f} ms)")
    assert ours < 1.2 * theirs


def test_norm_over_regions_against_that_of_pytorch() -> None:
    regions = torch.randn(PAIRS, REGIONS, DIM, requires_grad=True)

    def theirs() -> Tensor:
        return regions / torch.linalg.vector_norm(regions, dim=1, keepdim=True)

    ours, slow = paired(lambda: l2_normalise(regions, 1).sum().backward(), lambda: theirs().sum().backward())
    print(f"\n  l2-norm over {REGIONS} regions: {slow / ours:.1f} times as fast ({1e3 * ours:.2f} ms)")
    assert ours < 1.2 * slow
