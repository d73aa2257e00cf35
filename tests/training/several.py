"""What a launcher starts in tests: commands of itrpipe, one after the other, in processes that load torch once.

Each line of the file that is named holds the arguments of a command, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from itrpipe.cli import app
from itrpipe.training.distributed import run_in_first_process

DIE_AS, DIE_AT = "DIE_AS", "DIE_AT_STEP"


def commands() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        app(json.loads(line), standalone_mode=False)


def die_in_training(last: int) -> None:
    """Lets this process be killed after so many steps, but not again where the launcher starts it once more."""
    from itrpipe.training.recipe import Trainer

    step = Trainer._step

    def die(self: Trainer, *arguments: Any) -> bool:
        if self.position.step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)

    Trainer._step = die  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    if (os.environ.get(DIE_AS), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == (os.environ["RANK"], "0"):
        die_in_training(int(os.environ.get(DIE_AT, "1")))
    run_in_first_process(commands)
