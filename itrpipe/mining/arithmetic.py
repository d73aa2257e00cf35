"""What this machine multiplies faster, bfloat16 or single precision: measured once, in about a second, and remembered.

Processors differ: on one a product of matrices takes a third of the time in bfloat16, on another half as long again,
although it has instructions for it too. What is remembered is a cache beside others of the user; without it, on other
hardware or with another torch the measurement is made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import torch

from itrpipe.artifacts.disk import write_json
from itrpipe.errors import ItrpipeError
from itrpipe.mining.threads import one_thread

Faster = Literal["bf16", "fp32"]
MARGIN = 1.15
"""How much faster bfloat16 has to be before it is chosen."""
_ROWS = 1_024
_SECONDS = 0.8
_FILE = "arithmetic.json"


@dataclass(frozen=True)
class Seconds:
    """The shortest time of each precision for one and the same work."""

    fp32: float
    bf16: float

    @property
    def faster(self) -> Faster:
        """The one to choose; single precision where bfloat16 gains little."""
        return "bf16" if self.fp32 > MARGIN * self.bf16 else "fp32"


def product_seconds(device: torch.device | str = "cpu") -> Seconds:
    """Times of a product of two square matrices of 1,024 rows, as in mining; on one processor core."""
    return _remembered("product", torch.device(device), _time_products)


def gigaflops(seconds: float) -> float:
    """Operations per second, in billions, of a product that takes so long, see `product_seconds`."""
    return 2 * _ROWS**3 / seconds / 1e9


@one_thread()
def _time_products(device: torch.device) -> Seconds:
    left, right = (torch.randn(_ROWS, _ROWS, device=device) for _ in range(2))
    halves = left.bfloat16(), right.bfloat16()
    return best_seconds(lambda: left @ right, lambda: halves[0] @ halves[1], device)


def best_seconds(fp32: Callable[[], object], bf16: Callable[[], object], device: torch.device) -> Seconds:
    """The shortest times of two callables for the same work.

    They alternate, so that other programs slow both alike.
    """
    best = {fp32: float("inf"), bf16: float("inf")}
    for each in best:
        each()  # what is done once only
    end = time.monotonic() + _SECONDS
    while True:
        for each in best:
            _wait(device)
            start = time.perf_counter()
            each()
            _wait(device)
            best[each] = min(best[each], time.perf_counter() - start)
        if time.monotonic() > end:
            return Seconds(best[fp32], best[bf16])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _remembered(work: str, device: torch.device, measure: Callable[[torch.device], Seconds]) -> Seconds:
    path, key = _cache(), f"{work} on {hardware(device)}"
    known = {} if path is None else _read(path)
    if key in known:
        return Seconds(**known[key])
    found = measure(device)
    if path is not None:
        # Where nothing can be written, the next process measures again.
        with contextlib.suppress(OSError, ItrpipeError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**known, key: asdict(found)})
    return found


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What was measured earlier, without what is damaged: that is measured again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if _is_whole(entry)} if isinstance(found, dict) else {}


def _is_whole(entry: object) -> bool:
    names = {field.name for field in fields(Seconds)}
    if not isinstance(entry, dict) or entry.keys() != names:
        return False
    return all(isinstance(value, float) and value > 0 for value in entry.values())


def _cache() -> Path | None:
    """The file; None for a user without a home, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "itrpipe" / _FILE
    except RuntimeError:
        return None


def hardware(device: torch.device | str) -> str:
    """Name of a processor or GPU, and the version of torch that computes on it."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return f"{name}, torch {torch.__version__}"


def _processor() -> str:
    """Its name and the instructions that matter here; where the system does not tell, its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    lines = dict(line.split(":", 1) for line in reversed(text.splitlines()) if ":" in line)
    known = {key.strip(): value.strip() for key, value in lines.items()}
    units = sorted({"avx512f", "avx512_bf16", "amx_bf16"} & set(known.get("flags", "").split()))
    return " ".join([known.get("model name", platform.machine()), *units])
