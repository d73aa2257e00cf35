"""Trainings of a dataset, finished and at work, and the reports on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from itrpipe.artifacts.artifact import PARTIAL, WORK, folders_in, is_finished, read_manifest
from itrpipe.artifacts.files import HISTORY, REPORT_PAGE
from itrpipe.artifacts.integrity import checked
from itrpipe.artifacts.locks import is_locked
from itrpipe.errors import ItrpipeError, MissingInputError
from itrpipe.training.loop import CHECKPOINT

TRAIN, REPORT = "train", "report"
_COLUMNS = ("epoch", "loss", "val_rsum", "learning_rate", "best")


class Runs:
    """Reads curves and reports anew whenever it is asked.

    Args:
        root: the data folder.
        dataset: its name.
    """

    def __init__(self, root: Path, dataset: str) -> None:
        self._folder = root / dataset
        self._finished: dict[tuple[Path, float], dict[str, Any]] = {}

    def trainings(self) -> list[dict[str, Any]]:
        """Name, state and a row for each validation of every training, those at work first, then the newest.

        A finished training has its rows in `history.parquet`, another one in the checkpoint that it would go on from.
        What cannot be read has no row and says why.
        """
        found = [self._one(folder) for folder in folders_in(self._folder / TRAIN)]
        order = ("running", "interrupted", "finished", "damaged")
        newest = sorted(found, key=lambda each: each["changed"], reverse=True)
        return sorted(newest, key=lambda each: order.index(each["state"]))

    def reports(self) -> list[dict[str, str]]:
        """Name and time of every report, newest first."""
        folders = [each for each in folders_in(self._folder / REPORT) if is_finished(each)]
        found = [{"name": each.name, "finished": read_manifest(each).finished} for each in folders]
        return sorted(found, key=lambda each: each["finished"], reverse=True)

    def report(self, name: str) -> Path:
        """The page of a report.

        Raises:
            MissingInputError: there is none of this name.
            DataError: it is damaged.
        """
        for each in folders_in(self._folder / REPORT):
            if each.name == name and is_finished(each):
                return checked(each / REPORT_PAGE)
        raise MissingInputError(f"there is no report {name}")

    def _one(self, folder: Path) -> dict[str, Any]:
        changed = folder.stat().st_mtime
        if (folder, changed) in self._finished:
            return self._finished[folder, changed]
        known = {"name": folder.name.removesuffix(PARTIAL), "changed": changed, "problem": ""}
        try:
            if folder.name.endswith(PARTIAL):
                state = "running" if is_locked(folder) else "interrupted"
                return {**known, "state": state, "rows": _shown(_of_checkpoint(folder / WORK / CHECKPOINT))}
            rows = pq.read_table(checked(folder / HISTORY)).to_pylist()
        except ItrpipeError as error:
            return {**known, "state": "damaged", "rows": [], "problem": str(error)}
        self._finished[folder, changed] = {**known, "state": "finished", "rows": _shown(rows)}
        return self._finished[folder, changed]


def _of_checkpoint(path: Path) -> list[dict[str, Any]]:
    """Rows of the header of a checkpoint; none before the first. Checkpoints are replaced whole."""
    try:
        with safe_open(path, framework="np") as file:
            return json.loads(file.metadata()["position"])["history"]
    except (FileNotFoundError, SafetensorError):
        return []


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns that are drawn; what is not there, or not finite, is None, which JSON has."""
    return [{name: _number(row.get(name)) for name in _COLUMNS} for row in rows]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
