"""What tests of whole commands share: options, artifacts, interruptions, and how a refusal looks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.training.loop import Trainer
from itrpipe.training.saved import MODEL
from tests.conftest import Outcome
from tests.definitions import save_definition

Invoke = Callable[..., Outcome]
TINY_SSAMT = (
    "train.model.embed_dim=8",
    "train.model.feed_forward_dim=8",
    "train.model.heads=2",
    "train.max_updates=0",
    "train.warmup_updates=2",
    "train.learning_rate=0.01",
)
"""Both phases of SSAMT, small and quickly trained."""


def sets(*texts: str) -> list[str]:
    """These assignments as options."""
    return [f"--set={text}" for text in texts]


def done(outcome: Outcome) -> str:
    """What a command printed that has to succeed."""
    assert outcome.code == 0, outcome.err
    return outcome.out


def made(outcome: Outcome) -> Path:
    """The artifact that a command has made or found."""
    return Path(done(outcome).strip().splitlines()[-1])


def refused(outcome: Outcome, code: int, *parts: str) -> None:
    """One line of error with all of these parts, and an exit code."""
    assert outcome.code == code, outcome.out + outcome.err
    assert re.fullmatch(r"error: [^\n]*\n", outcome.err), outcome.err
    assert all(part in outcome.err for part in parts), outcome.err


def only(root: Path, pattern: str) -> Path:
    """The one finished artifact of this stage and label, such as `train/aoq.vsepp`, in a data folder."""
    (folder,) = root.glob(f"*/{pattern}-????????")
    return folder


def planned(out: str) -> list[str]:
    """Stages and labels that a command said it would make."""
    return [line.split()[1].rpartition("-")[0] for line in out.splitlines() if line.startswith("  + ")]


def history(root: Path, label: str) -> list[dict[str, Any]]:
    """Rows of a training, an epoch each."""
    return pq.read_table(only(root, f"train/{label}") / "history.parquet").to_pylist()


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def define_scenes(root: Path, **sizes: int) -> Path:
    """Tells a data folder of the embedded dataset with a few drawings, by default of twelve training images."""
    scenes = StageDefinition(conf="scenes", settings={"train": 12, "val": 4, "test": 4, **sizes})
    definition = DatasetDefinition(prepare=scenes, features={"scenes": StageDefinition(conf="scenes")})
    save_definition(root, "scenes", definition)
    return root


@contextmanager
def interrupted(
    call: int, target: type = Trainer, name: str = "_step", counts: Callable[[Any], bool] = lambda _: True
) -> Iterator[list[tuple[Any, ...]]]:
    """Ctrl-C at the beginning of this call of a method, by default of a training step; gives the calls before it.

    Args:
        call: from 1.
        target: has the method.
        name: of the method.
        counts: of the object whose method it is, whether its calls count.
    """
    method, calls = getattr(target, name), list[tuple[Any, ...]]()

    def stop(self: Any, *given: Any, **named: Any) -> Any:
        if counts(self):
            if len(calls) == call - 1:
                raise KeyboardInterrupt
            calls.append(given)
        return method(self, *given, **named)

    with mock.patch.object(target, name, stop):
        yield calls


def same_files(pattern: str, roots: tuple[Path, Path], *names: str) -> None:
    """Both data folders have the same bytes in these files of an artifact."""
    for name in names:
        found, expected = ((only(root, pattern) / name).read_bytes() for root in roots)
        assert found == expected, name


def goes_on(run: Callable[[Path], Outcome], root: Path, label: str, call: int, position: str, **stop: Any) -> Path:
    """A training that is interrupted ends with the bytes of one that is not.

    Args:
        run: trains in a data folder.
        root: the data folder.
        label: of the model.
        call: of a training step that is interrupted.
        position: at which the training says that it goes on.
        stop: what else `interrupted` is given.

    Returns:
        A copy of the data folder with the model of the training that was not interrupted.
    """
    whole = copied(root, root.with_name("whole"))
    done(run(whole))
    with interrupted(call, **stop):
        assert run(root).code == 130
    assert f"going on in {position}" in done(run(root))
    same_files(f"train/{label}", (root, whole), MODEL, "history.parquet")
    return whole
