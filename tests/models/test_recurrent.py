"""The GRU over packed sequences against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from itrpipe.models.recurrent import last_states


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
