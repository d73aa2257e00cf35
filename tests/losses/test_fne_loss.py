"""FNE as one module: it learns, goes on exactly where its state was saved, and its example runs."""

from __future__ import annotations

import doctest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import itrpipe.losses.fne_loss as module
from itrpipe.losses import FneLoss, SamplingRules
from itrpipe.negatives import MomentumTwin

IMAGES, PAIRS, WIDTH = 24, 8, 16


class Loop:
    """A linear layer for each side, its slow copy, and the loss."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.photographs = torch.randn(IMAGES, 12)
        self.sentences = self.photographs + 0.3 * torch.randn(IMAGES, 12)
        self.encoders = nn.ModuleList([nn.Linear(12, WIDTH), nn.Linear(12, WIDTH)])
        self.twin = MomentumTwin(self.encoders, momentum=0.9)
        self.loss = FneLoss(WIDTH, memory_size=20, rules=SamplingRules(min_count=8, window=0.2))
        self.optimizer = torch.optim.SGD(self.encoders.parameters(), lr=0.5)

    def encode(self, encoders: Any, rows: Tensor) -> list[Tensor]:
        sides = zip(encoders, (self.photographs[rows], self.sentences[rows]), strict=True)
        return [normalize(encoder(each), dim=1) for encoder, each in sides]

    def epoch(self, seed: int) -> float:
        torch.manual_seed(seed)
        losses = []
        for rows in torch.randperm(IMAGES).split(PAIRS):
            self.twin.follow()
            with torch.no_grad():
                slow = self.encode(self.twin.model, rows)
            report: dict[str, Tensor] = {}
            loss = self.loss(*self.encode(self.encoders, rows), rows, *slow, report=report)
            assert 0 <= report["retained"] <= PAIRS
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)


def test_it_learns_and_goes_on_from_its_state() -> None:
    whole, again = Loop(), Loop()
    losses = [whole.epoch(seed) for seed in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    for seed in range(6):
        again.epoch(seed)
    resumed = Loop()
    for name in ("encoders", "twin", "loss"):
        getattr(resumed, name).load_state_dict(getattr(again, name).state_dict())
    assert resumed.loss.queues is not None
    assert resumed.loss.queues.filled.all()
    assert resumed.loss.statistics.count[0] > 8
    assert [resumed.epoch(seed) for seed in range(6, 12)] == losses[6:]


def test_its_example_runs() -> None:
    names = {"torch": torch, "nn": nn, "FneLoss": FneLoss, "MomentumTwin": MomentumTwin}
    found = doctest.testmod(module, extraglobs=names)
    assert found.attempted > 5
    assert not found.failed
