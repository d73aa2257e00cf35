"""Trainings that stop as if their process had been killed."""

from __future__ import annotations

from typing import Any

import pytest

from itrpipe.training.loop import Trainer


def interrupt(run: Trainer, after: int) -> None:
    """Trains until so many steps are taken, and not a step further."""
    step, left = run._step, iter(range(after))

    def counted(*arguments: Any) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(*arguments)

    run._step = counted  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyboardInterrupt):
        run.run()
