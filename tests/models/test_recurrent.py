"""The GRU over packed sequences against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from itrpipe.models.base import TextBatch
from itrpipe.models.recurrent import last_states, pack, unpack


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [3, 7, 1, 7, 2], [4, 4, 4]])
def test_last_states_and_gradients_are_those_of_pytorch(lengths: list[int]) -> None:
    torch.manual_seed(0)
    rnn = nn.GRU(6, 5, batch_first=True)
    inputs = torch.randn(len(lengths), max(lengths), 6, requires_grad=True)
    weights = torch.randn(len(lengths), 5)
    results = []
    for run in (lambda packed: rnn(packed)[1][0], lambda packed: last_states(rnn, packed)):
        packed = pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        states = run(packed)
        results.append((states, *torch.autograd.grad((states * weights).sum(), [inputs, *rnn.parameters()])))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lengths", [[5], [3, 7, 1, 7, 2]])
def test_packing_is_that_of_pytorch(lengths: list[int]) -> None:
    sequences, counts = torch.randn(len(lengths), 8, 3), torch.tensor(lengths)
    expected = pack_padded_sequence(sequences, counts, batch_first=True, enforce_sorted=False)
    packed = pack(sequences, counts)
    for got, wanted in zip(packed, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    restored, _ = pad_packed_sequence(expected, batch_first=True, total_length=8)
    torch.testing.assert_close(unpack(packed, 8), restored, rtol=0, atol=0)


def test_lengths_stay_on_the_host_when_a_batch_leaves_it() -> None:
    made = TextBatch(torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 1]))
    placed = made.to("meta")
    assert placed.lengths.is_meta
    assert placed.host_lengths.tolist() == placed.to("meta").host_lengths.tolist() == [3, 1]
    assert made.host_lengths.tolist() == [3, 1]
