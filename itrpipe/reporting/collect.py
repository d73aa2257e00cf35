"""Gathers what a report shows: the evaluated runs and every artifact they were made from.

A manifest names its inputs, and artifacts of one dataset are siblings, so the chain is followed from folder to
folder. An artifact that was removed since stays in the chain as a name without content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.artifacts import Manifest, check_artifact
from itrpipe.config import declared_stages
from itrpipe.disk import read_json
from itrpipe.errors import DataError
from itrpipe.evaluation.ranks import Ranks

DIRECTIONS = {"i2t": "Image → text", "t2i": "Text → image"}
_METHOD_TITLES = {"triplet-long": "longer round one"}
_TITLES = {"vsepp": "VSE++"}


@dataclass(frozen=True)
class FileNames:
    """What the stages call the files that a report reads.

    Attributes:
        metrics, rankings: of `evaluate`.
        history: of `train`.
        statistics: of `mine_negatives`.
    """

    metrics: str
    rankings: str
    history: str
    statistics: str


@dataclass(frozen=True)
class Artifact:
    """One link of the chain.

    Attributes:
        stage, name, fingerprint: as the manifest of what was made from it says.
        folder: where it lies or lay.
        manifest: None when the folder was removed.
    """

    stage: str
    name: str
    fingerprint: str
    folder: Path
    manifest: Manifest | None

    @property
    def path(self) -> str:
        """Stage and name, as messages write it."""
        return f"{self.stage}/{self.name}"

    def input(self, name: str) -> Artifact | None:
        """The artifact read under an input name; None when there was none or nothing is known any more.

        Raises:
            DataError: it is damaged, or its folder holds another artifact.
        """
        if self.manifest is None or name not in self.manifest.inputs:
            return None
        record = self.manifest.inputs[name]
        folder = self.folder.parent.parent / record.stage / record.name
        manifest = check_artifact(folder) if folder.exists() else None
        if manifest is not None and manifest.fingerprint != record.fingerprint:
            raise DataError(f"{folder} is another artifact than {self.path} was made from; remove it and rerun")
        return Artifact(record.stage, record.name, record.fingerprint, folder, manifest)

    def chain(self) -> Iterator[Artifact]:
        """Yields everything this was made from, then itself; an artifact read twice comes twice."""
        for name in self.manifest.inputs if self.manifest else ():
            upstream = self.input(name)
            if upstream is not None:
                yield from upstream.chain()
        yield self


@dataclass(frozen=True)
class Queries:
    """Rankings of one direction.

    Attributes:
        ids: Q query ids.
        rank: [Q] 0-based rank of the best own match.
        oracle_rank: [Q] the same with every true match counted; None where the truth is not known.
        candidates: Q lists of the ids of the best candidates.
        scores: Q lists of their scores.
    """

    ids: list[str]
    rank: np.ndarray
    oracle_rank: np.ndarray | None
    candidates: list[list[str]]
    scores: list[list[float]]


@dataclass(frozen=True)
class Run:
    """One evaluated model.

    Attributes:
        label: `method.backbone`, with seed and split where they are not the usual ones; the artifact's name where
            several evaluations share that.
        evaluation: its artifact.
        files: names of the files.
        baseline_method: the method of round one.
    """

    label: str
    evaluation: Artifact
    files: FileNames
    baseline_method: str

    @property
    def manifest(self) -> Manifest:
        """Of the evaluation, which exists."""
        assert self.evaluation.manifest is not None
        return self.evaluation.manifest

    @property
    def settings(self) -> dict[str, Any]:
        """Of the evaluation: method, backbone, seed, features, split."""
        return self.manifest.settings

    @property
    def is_baseline(self) -> bool:
        """Whether this is a run of round one."""
        return self.settings["method"] == self.baseline_method

    @property
    def backbone(self) -> str:
        """The backbone as papers write it."""
        return backbone_title(self.settings["backbone"])

    @property
    def method(self) -> str:
        """`round one`, or the method as papers write it."""
        name: str = self.settings["method"]
        return "round one" if self.is_baseline else _METHOD_TITLES.get(name, name.upper())

    @property
    def is_control(self) -> bool:
        """Whether this is round one again, trained for as long as both rounds."""
        return not self.is_baseline and self.settings["method"].startswith(self.baseline_method)

    @property
    def name(self) -> str:
        """For people: backbone, method and the seed when it is not 0."""
        seed = self.settings["seed"]
        return f"{self.backbone}, {self.method}{f', seed {seed}' if seed else ''}"

    @cached_property
    def train(self) -> Artifact:
        """The model."""
        return self._needed("train")

    @cached_property
    def prepare(self) -> Artifact:
        """The dataset."""
        return self._needed("prepare")

    @cached_property
    def mining(self) -> Artifact | None:
        """The mined lists it was trained with; None for round one and when the model was removed."""
        return self.train.input("mine_negatives")

    @cached_property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Protocol -> metric -> value, and low and high where there is an interval."""
        return read_json(self.evaluation.folder / self.files.metrics)

    @cached_property
    def history(self) -> list[dict[str, Any]] | None:
        """One row per epoch; None when the model was removed."""
        return None if self.train.manifest is None else _table(self.train.folder / self.files.history).to_pylist()

    @cached_property
    def rankings(self) -> dict[str, Queries]:
        """Direction -> rankings of all its queries."""
        import pyarrow.compute as pc

        table = _table(self.evaluation.folder / self.files.rankings)
        return {side: _queries(table.filter(pc.field("direction") == side)) for side in DIRECTIONS}

    def ranks(self, *, oracle: bool = False) -> Ranks | None:
        """Ranks of both directions; None when every true match is asked for but not known."""
        sides = [each.oracle_rank if oracle else each.rank for each in self.rankings.values()]
        return None if sides[0] is None or sides[1] is None else Ranks(sides[0], sides[1])

    def _needed(self, name: str) -> Artifact:
        found = self.evaluation.input(name)
        if found is None:
            raise DataError(f"{self.evaluation.folder}: its manifest names no {name}; remove it and evaluate again")
        return found


@dataclass(frozen=True)
class TestSet:
    """The images that runs were evaluated on: only runs on the same ones compare.

    Attributes:
        prepare: name of the dataset's artifact.
        split: of it.
    """

    __test__ = False  # pytest would take it for a test

    prepare: str
    split: str


def collect(
    evaluations: Iterable[tuple[Path, Manifest]], files: FileNames, baseline_method: str
) -> dict[TestSet, list[Run]]:
    """Runs by test set, sorted by backbone, round and seed whatever order they are given in.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        files: names of the files.
        baseline_method: the method of round one.
    """
    runs = []
    for folder, manifest in evaluations:
        artifact = Artifact("evaluate", folder.name, manifest.fingerprint, folder, manifest)
        shared = sum(other.label == manifest.label for _, other in evaluations) > 1
        runs.append(Run(folder.name if shared else manifest.label, artifact, files, baseline_method))
    runs.sort(key=lambda run: (run.settings["backbone"], not run.is_baseline, run.label))
    groups: dict[TestSet, list[Run]] = {}
    for run in runs:
        groups.setdefault(TestSet(run.prepare.name, run.settings["split"]), []).append(run)
    return dict(sorted(groups.items(), key=lambda group: (group[0].split, group[0].prepare)))


def all_artifacts(runs: Iterable[Run]) -> list[Artifact]:
    """Everything the runs were made from, each once, in the order of the stages."""
    order = list(declared_stages())
    found = {artifact.path: artifact for run in runs for artifact in run.evaluation.chain()}
    return sorted(found.values(), key=lambda each: (order.index(each.stage), each.name))


def minings(runs: Iterable[Run]) -> list[tuple[Artifact, Run]]:
    """The mined lists that runs were trained with, each once with the first of these runs."""
    found: dict[str, tuple[Artifact, Run]] = {}
    for run in runs:
        if run.mining is not None:
            found.setdefault(run.mining.name, (run.mining, run))
    return list(found.values())


def backbone_title(name: str) -> str:
    """A backbone as papers write it."""
    return _TITLES[name] if name in _TITLES else name.upper()


def mining_name(mining: Artifact) -> str:
    """For people: the backbone that mined; the artifact's name when it was removed."""
    if mining.manifest is None:
        return mining.name
    settings = mining.manifest.settings
    backbone = backbone_title(settings["backbone"])
    return f"{backbone}, seed {settings['seed']}" if settings["seed"] else backbone


def _table(path: Path) -> Any:
    """Reads a Parquet file.

    Raises:
        DataError: truncated or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is damaged ({reason}); remove its folder and rerun") from None


def _queries(table: Any) -> Queries:
    oracle = table["oracle_rank"]
    return Queries(
        ids=table["query_id"].to_pylist(),
        rank=table["rank"].to_numpy().astype(np.int64),
        oracle_rank=None if oracle.null_count else oracle.to_numpy().astype(np.int64),
        candidates=table["candidate_ids"].to_pylist(),
        scores=table["scores"].to_pylist(),
    )
