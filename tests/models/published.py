"""What the released code of SCAN and VSE++ gives for recorded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
NAMES = {"fc.": "img.fc.", "text.": "txt."}


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def published_name(name: str) -> str:
    """The name that our parameter has in the released code."""
    ours = next(prefix for prefix in NAMES if name.startswith(prefix))
    return NAMES[ours] + name.removeprefix(ours)


def with_weights(model: Any, reference: dict[str, np.ndarray]) -> Any:
    state = {name: torch.tensor(reference[f"w_{published_name(name)}"]) for name in model.state_dict()}
    model.load_state_dict(state)
    return model
