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
from itrpipe.training.distributed import together
from itrpipe.training.saved import save_checkpoint

DIE, DIE_AS = "DIE_AFTER_CHECKPOINTS", "DIE_AS"


def commands() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        app(json.loads(line), standalone_mode=False)


def die_after(count: int) -> None:
    """Lets this process be killed when it has written so many checkpoints."""
    from itrpipe.training import loop

    left = [count]

    def save_and_die(*arguments: object) -> None:
        save_checkpoint(*arguments)  # pyright: ignore[reportArgumentType]
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.save_checkpoint = save_and_die  # pyright: ignore[reportPrivateImportUsage]


def die_in_training() -> None:
    """Lets this process be killed in its second step, but not again where the launcher starts it once more."""
    from itrpipe.training.loop import Trainer

    step = Trainer._step

    def die(self: Trainer, *arguments: Any) -> bool:
        if self.position.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)

    Trainer._step = die  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    if (os.environ.get(DIE_AS), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == (os.environ["RANK"], "0"):
        die_in_training()
    if DIE in os.environ:
        die_after(int(os.environ[DIE]))
    together(commands)
