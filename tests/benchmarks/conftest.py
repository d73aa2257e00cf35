"""What the machine can do at most, before what is made of it."""

from __future__ import annotations

import pytest
import torch
from measure import paired


@pytest.fixture(scope="session", autouse=True)
def machine_limits() -> None:
    """Prints the rates of bare products and of a copy, which the ratios below are to be read beside."""
    print(
        f"\n  {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    side, short = 2_048, 512  # some processors take minutes for large products in bfloat16
    left, right = (torch.randn(side, side) for _ in range(2))
    halves = left[:short, :short].bfloat16(), right[:short, :short].bfloat16()
    single, half = paired(lambda: left @ right, lambda: halves[0] @ halves[1])
    print(f"  products: {2e-9 * side**3 / single:.0f} GFLOP/s in fp32, {2e-9 * short**3 / half:.0f} in bf16")
    source, copy = torch.zeros(1 << 26), torch.zeros(1 << 26)
    seconds, _ = paired(lambda: copy.copy_(source), lambda: None)
    print(f"  copies: {2 * source.nbytes / seconds / 1e9:.1f} GB/s read and written")
