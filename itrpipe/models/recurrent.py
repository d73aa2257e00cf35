"""Packed sequences that no device waits for, one step of a GRU, and a GRU over them that is quick to train on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, invert_permutation, pack_padded_sequence, pad_packed_sequence


def to_device(indices: Tensor, device: torch.device) -> Tensor:
    """Indices of the host on a device, copied beside what the host does next."""
    return indices.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else indices.to(device)


def pack(sequences: Tensor, lengths: Tensor) -> PackedSequence:
    """Sequences [T, W, D] of lengths [T], which lie on the host, in any order; see `pack_padded_sequence`."""
    lengths, order = lengths.sort(descending=True)
    there = to_device(torch.stack([order, invert_permutation(order)]), sequences.device)  # pyright: ignore
    packed = pack_padded_sequence(sequences.index_select(0, there[0]), lengths, batch_first=True)
    return PackedSequence(packed.data, packed.batch_sizes, *there)


def unpack(packed: PackedSequence, width: int) -> Tensor:
    """Sequences [T, width, D] in the order that they were packed in, zero behind their length."""
    in_order, _ = pad_packed_sequence(PackedSequence(*packed[:2]), batch_first=True, total_length=width)
    return in_order.index_select(0, packed.unsorted_indices)  # pyright: ignore


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    """Next GRU state [b, H] from the two halves of its gates.

    Args:
        from_input: [b, 3H] W_ih x + b_ih, gates in the order reset, update, new.
        from_hidden: [b, 3H] W_hh h + b_hh, same order.
        hidden: [b, H] the state h before the step.
    """
    width = hidden.shape[1]
    gates_in, new_in = from_input.split([2 * width, width], dim=1)
    gates_hidden, new_hidden = from_hidden.split([2 * width, width], dim=1)
    reset, update = torch.sigmoid(gates_in + gates_hidden).chunk(2, dim=1)
    new = torch.tanh(new_in + reset * new_hidden)
    return torch.lerp(new, hidden, update)


def last_states(rnn: nn.GRU, packed: PackedSequence) -> Tensor:
    """State [T, H] of a one-directional, one-layer GRU after the last item of each sequence, in their order.

    On a CPU PyTorch's own loop takes every step's rows out of the packed input one by one, and the gradient of
    each is as large as all of them. Here they are split once. A GPU runs cuDNN.

    Args:
        rnn: the GRU.
        packed: sequences of width D, of any lengths.
    """
    if packed.data.is_cuda:
        return rnn(packed)[1][0]
    weight_ih, weight_hh, bias_ih, bias_hh = rnn.parameters()
    gates = F.linear(packed.data, weight_ih, bias_ih)  # [P, 3H]
    sizes = packed.batch_sizes.tolist()
    hidden = gates.new_zeros(sizes[0], rnn.hidden_size)
    finished = []
    for size, from_input in zip(sizes, gates.split(sizes), strict=True):
        if size < len(hidden):
            hidden, ended = hidden.split([size, len(hidden) - size])
            finished.append(ended)
        hidden = gru_step(from_input, F.linear(hidden, weight_hh, bias_hh), hidden)
    states = torch.cat([hidden, *reversed(finished)])  # longest first
    return states if packed.unsorted_indices is None else states.index_select(0, packed.unsorted_indices)
