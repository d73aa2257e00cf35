"""A map over data: its parts, and how one of them is made and on which device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from itrpipe.errors import UsageError
from itrpipe.storage.disk import AGAIN, check_stamp

if TYPE_CHECKING:
    import numpy as np
    import torch

    from itrpipe.progress import Reporter, Task

ARRAYS = ".arrays"
CUDA = "cuda"
Worker = TypeVar("Worker")


@dataclass(frozen=True)
class Part:
    """One part of a map, which depends on the data alone, never on who makes it.

    Attributes:
        name: name of its file, without the suffix.
        rows: number of units that it holds.
        content: data for the worker beside the description of the map; it is pickled.
    """

    name: str
    rows: int
    content: Any = None


class Work(ABC, Generic[Worker]):
    """A map over data. It is pickled to whoever makes its parts, so it describes and holds nothing that is open.

    Attributes:
        title: name of the map, for people, such as `checking images`.
        unit: name of the units that parts hold, in the plural.
        suffix: ending of the files of parts.
        overlap: parts that one worker makes at the same time, in threads: more than 1 where reading and computing take
            turns.
        in_one_thread: whether a part is computed by torch on the processor, and so by one thread, because its bytes may
            depend on their number. A process then makes as many more parts at the same time as it has further cores.
        cores: cores that this process may use; its host sets them.
        device: where a worker computes: `cpu`, `cuda`, or `auto` for a GPU where there is one. A worker has a GPU for
            itself.
        key: text that changes with everything that the parts depend on, beside the fingerprint of the artifact.
        on_every_core: whether a process for every core suits it on this machine, since it is Python all through.
        untold: names of attributes that a worker opens itself, or that parts tell it of as far as it needs them.
    """

    title: str
    unit: str
    suffix: ClassVar[str] = ARRAYS
    overlap: ClassVar[int] = 1
    in_one_thread: ClassVar[bool] = False
    on_every_core: ClassVar[bool] = False
    untold: ClassVar[tuple[str, ...]] = ()
    cores: int = 1
    device: str = "cpu"
    key: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that are sent to workers."""
        return {name: value for name, value in self.__dict__.items() if name not in self.untold}

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Return all parts, in the order of the data."""

    @abstractmethod
    def open(self) -> Worker:
        """Open the worker that makes parts, such as a model; called once in every process."""

    @abstractmethod
    def make(self, worker: Worker, part: Part, path: Path) -> None:
        """Write the file of a part, whole or not at all, and nothing else."""

    def keeps(self, path: Path) -> bool:
        """Return whether a file of an earlier run still counts.

        Raises:
            DataError: it is not as it was written.
        """
        content = None
        if self.suffix != ARRAYS:  # other files are small
            content = path.read_bytes()
        check_stamp(path, AGAIN, content)
        return True


class Made(NamedTuple):
    """Results of a map.

    Attributes:
        paths: files of all parts, in their order; each was made in this run or compared with its checksum.
        rows: units that this run made.
        seconds: duration of the run.
    """

    paths: list[Path]
    rows: int
    seconds: float = 0.0


@dataclass
class Runner:
    """Make maps in this process, in a folder that no later run goes on from.

    Args:
        folder: folder for the files of parts, and for files that are joined of them.
        reporter: shows the progress; None where nobody looks.
        warn: called with the text of a warning.
    """

    folder: Path
    reporter: Reporter | None
    warn: Callable[[str], object]

    def made(self, work: Work, name: str, *, more: bool = False) -> Made:
        """Make every part of a map.

        Args:
            work: the map.
            name: beginning of the names of its files.
            more: another map follows that needs this one.
        """
        parts = work.parts()
        worker = work.open()
        paths = []
        rows = sum(part.rows for part in parts)
        with self.task(work.title, rows, work.unit) as task:
            for part in parts:
                path = self.folder / f"{name}-{part.name}"
                work.make(worker, part, path)
                paths.append(path)
                task.advance(part.rows)
        return Made(paths, rows)

    def task(self, name: str, total: int, unit: str) -> AbstractContextManager[Task]:
        """Show the progress of a job."""
        from rich.console import Console

        from itrpipe.progress import Reporter

        # A console that took itself for a terminal would swallow what the user prints meanwhile.
        reporter = self.reporter or Reporter(Console(quiet=True, force_terminal=False))
        return reporter.task(name, total, unit)


def numbered(contents: Iterable[tuple[int, Any]]) -> list[Part]:
    """Return parts named by their number, which sorts as the parts do, from pairs of a number of rows and a content."""
    parts = []
    for number, (rows, content) in enumerate(contents):
        parts.append(Part(f"{number:06}", rows, content))
    return parts


def cut(items: Sequence[Any] | np.ndarray, size: int) -> list[Part]:
    """Return parts of `size` consecutive items each; the last one may have fewer."""
    contents = []
    for start in range(0, len(items), size):
        piece = items[start : start + size]
        contents.append((len(piece), piece))
    return numbered(contents)


def resolve_device(device: str) -> str:
    """Return `cuda` or `cpu`: the device that is named, or for `auto` a GPU where there is one.

    On a GPU, cuDNN is told for this process to keep single precision: by itself it multiplies in TF32, which keeps 10
    bits of a factor, and the same captions would score differently by 1e-4 in another batch.

    Raises:
        UsageError: it is none of these, or CUDA was asked for and is not there.
    """
    if device == "cpu":
        return device
    import torch

    if device not in ("auto", CUDA):
        raise UsageError(f"device {device!r} is none of auto, cpu and {CUDA}; choose one")
    if device == CUDA and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    if device == "auto":
        device = CUDA if torch.cuda.is_available() else "cpu"
    if device == CUDA:
        torch.backends.cudnn.allow_tf32 = False
    return device


def to_device(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy indices from the host to a device; the host does not wait for the copy to a GPU."""
    if device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices.to(device)
