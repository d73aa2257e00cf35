"""Gathers what a report shows: the evaluated runs, their models and every artifact they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.config import declared_stages
from itrpipe.declared import declared_place
from itrpipe.errors import DataError
from itrpipe.evaluation.ranks import Ranks
from itrpipe.reporting.chain import Artifact, read_table
from itrpipe.reporting.departures import Declared, Departure
from itrpipe.reporting.model import Model, member_prefix
from itrpipe.reporting.titles import backbone_title, model_title
from itrpipe.storage.artifact import (
    CROSS_RETRIEVAL,
    METRICS,
    RANKINGS,
    Manifest,
)
from itrpipe.storage.integrity import read_checked_json

DIRECTIONS = {"i2t": "Image → text", "t2i": "Text → image"}
MODEL_INPUT = "train"
COSTS = {"train": "training", "mine_negatives": "total", "synthesize": "total"}
"""Stages that training a model costs, with the phase of their timings that counts."""
PROCESSOR = "processor"


@dataclass(frozen=True)
class Queries:
    """Rankings of one direction.

    Attributes:
        ids: Q query ids.
        rank: [Q] 0-based rank of the best own match.
        oracle_rank: [Q] the same with all correct matches counted; None where the truth is not known.
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
    """One evaluated model, or several whose scores were averaged.

    Attributes:
        label: `method.backbone`, with seed, other members and split where they are not the usual ones; the
            artifact's name where several evaluations share that.
        evaluation: its artifact.
        baseline_method: the method of the first training.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """

    label: str
    evaluation: Artifact
    baseline_method: str
    declared: Declared
    names: Mapping[str, str] = field(default_factory=dict, compare=False)
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the evaluation, which exists."""
        assert self.evaluation.manifest is not None
        return self.evaluation.manifest

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the evaluation: method, backbone, seed, features, split."""
        return self.manifest.settings

    @cached_property
    def members(self) -> tuple[Model, ...]:
        """The models whose scores were averaged, first the one that settings name; often it is the only one."""
        method, backbone, seed = (self.settings[key] for key in ("method", "backbone", "seed"))
        first = self._model(method, backbone, seed, self._needed(MODEL_INPUT))
        others = [name for name in self.manifest.inputs if name.startswith(f"{MODEL_INPUT}_")]
        others.sort(key=lambda name: int(name.rpartition("_")[2]))
        return (first, *(self._member(self._needed(name)) for name in others))

    @property
    def seed(self) -> int:
        """Seed of the first member."""
        return self.members[0].seed

    @property
    def declared_place(self) -> int:
        """Where its method is declared: a method comes before its ablations."""
        return declared_place("train", self.settings["method"])

    @property
    def rerank(self) -> int:
        """How many candidates of a query were scored in full; 0: all of them."""
        return self.settings.get("rerank", 0)

    @property
    def is_baseline(self) -> bool:
        """Whether this is a run of the first training."""
        return all(member.is_baseline for member in self.members)

    @property
    def is_control(self) -> bool:
        """Whether this is what others are to be compared with, besides the first training."""
        return not self.is_baseline and all(member.is_control or member.is_baseline for member in self.members)

    @property
    def is_plain(self) -> bool:
        """Whether its method could take other negatives, weights and batches, and takes in-batch ones."""
        return all(member.is_plain for member in self.members)

    @property
    def is_untrained(self) -> bool:
        """Whether it was evaluated as it was published or given: seeds change nothing in it."""
        return all(member.is_untrained for member in self.members)

    def mined_by(self, method: str) -> bool:
        """Whether a member learned from lists of a model of this method; lists that were removed may have been such."""
        lists = [member.mining.manifest for member in self.members if member.mining]
        return any(each is None or each.settings["method"] == method for each in lists)

    @property
    def is_about_training(self) -> bool:
        """Whether it says nothing of negatives but those of its batches."""
        return self.is_baseline or self.is_control or self.is_plain or self.is_untrained

    @property
    def backbone(self) -> str:
        """The backbones as papers write them, and the seeds of members that differ in theirs."""
        return " + ".join(f"{each.backbone}{self._seed_of(each)}" for each in self.members)

    @property
    def method(self) -> str:
        """`first training`, or the method as papers write it, of an ensemble all; then whether it was re-ranked."""
        return " + ".join(dict.fromkeys(each.method for each in self.members)) + self._reranked

    @property
    def name(self) -> str:
        """For people: backbone, method, how it was re-ranked if it was, and the seed when it is not 0."""
        if len({each.method_name for each in self.members}) > 1:
            return " + ".join(each.name for each in self.members) + self._reranked
        seed = f", seed {self.seed}" if self.seed and self.has_one_seed else ""
        return model_title(self.backbone, self.method) + seed

    @property
    def has_one_seed(self) -> bool:
        """Whether all members were trained with the same seed."""
        return len({each.seed for each in self.members}) == 1

    @property
    def departures(self) -> dict[str, Departure]:
        """Settings of its models that are not as declared; those of further members with their number before the key.

        Nothing is known of models that were removed.
        """
        return {
            f"{member_prefix(number)}{key}": each
            for number, member in enumerate(self.members, 1)
            for key, each in member.departures.items()
        }

    @property
    def seconds(self) -> float | None:
        """What training cost, with the models, mined lists and sentences that it read; None when a part was removed."""
        return self._cost(COSTS)

    @property
    def processor_seconds(self) -> float | None:
        """The same in time of processors, with the embedding of all splits; None also where it was not recorded."""
        return self._cost(dict.fromkeys(COSTS, PROCESSOR))

    def _cost(self, phases: Mapping[str, str]) -> float | None:
        used = {each.path: each for member in self.members for each in member.artifact.chain()}
        counted = [(each.manifest, phases[each.stage]) for each in used.values() if each.stage in phases]
        seconds = [None if manifest is None else manifest.timings.get(phase) for manifest, phase in counted]
        known = [each for each in seconds if each is not None]
        return sum(known) if len(known) == len(seconds) else None

    @cached_property
    def prepare(self) -> Artifact:
        """The dataset."""
        return self._needed("prepare")

    @cached_property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Protocol -> metric -> value, and low and high where there is an interval."""
        return read_checked_json(self.evaluation.folder / METRICS)

    @cached_property
    def rankings(self) -> dict[str, Queries]:
        """Direction -> rankings of all its queries."""
        import pyarrow.compute as pc

        table = read_table(self.evaluation.folder / RANKINGS)
        return {side: _queries(table.filter(pc.field("direction") == side)) for side in DIRECTIONS}

    @cached_property
    def cross_ranks(self) -> np.ndarray | None:
        """Cross-retrieval rank of every positive pair, int [T] from 1; None where evaluation did not write any."""
        if CROSS_RETRIEVAL not in self.manifest.outputs:
            return None
        return read_table(self.evaluation.folder / CROSS_RETRIEVAL)["cross_rank"].to_numpy()

    @property
    def size(self) -> tuple[int, int]:
        """How many images and captions were ranked."""
        images, captions = (len(self.rankings[side].ids) for side in DIRECTIONS)
        return images, captions

    def figures(self, file: str) -> Any:
        """What the evaluation wrote to a JSON file; None where it did not write any."""
        if file not in self._read:
            found = file in self.manifest.outputs
            self._read[file] = read_checked_json(self.evaluation.folder / file) if found else None
        return self._read[file]

    def rows(self, file: str) -> list[dict[str, Any]]:
        """Rows of a table that the evaluation wrote; none where it did not write any."""
        if file not in self._read:
            found = file in self.manifest.outputs
            self._read[file] = read_table(self.evaluation.folder / file).to_pylist() if found else []
        return self._read[file]

    def ranks(self, *, oracle: bool = False) -> Ranks | None:
        """Ranks of both directions; None when all correct matches are asked for but not known."""
        sides = [each.oracle_rank if oracle else each.rank for each in self.rankings.values()]
        return None if sides[0] is None or sides[1] is None else Ranks(sides[0], sides[1])

    def _needed(self, name: str) -> Artifact:
        found = self.evaluation.input(name)
        if found is None:
            raise DataError(f"{self.evaluation.folder}: its manifest names no {name}; remove it and evaluate again")
        return found

    def _member(self, artifact: Artifact) -> Model:
        """A member beside the first; what it is, its name tells even when it was removed."""
        method, backbone, *seed = artifact.name.rpartition("-")[0].split(".")
        number = int(seed[0].removeprefix("s")) if seed else 0
        return self._model(method, backbone, number, artifact)

    def _model(self, method: str, backbone: str, seed: int, artifact: Artifact) -> Model:
        named = self.names.get(artifact.name, "")
        return Model(method, backbone, seed, artifact, self.baseline_method, self.declared, named)

    @property
    def _reranked(self) -> str:
        return f", re-ranked {self.rerank}" if self.rerank else ""

    def _seed_of(self, member: Model) -> str:
        return f" seed {member.seed}" if member.seed and not self.has_one_seed else ""


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
    evaluations: Iterable[tuple[Path, Manifest]],
    baseline_method: str,
    declared: Declared,
    names: Mapping[str, str],
) -> dict[TestSet, list[Run]]:
    """Runs by test set, whatever order they are given in: by backbone, the first training first, its baselines last.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        baseline_method: the method of the first training.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    runs = []
    found: dict[Path, Manifest | None] = {}
    for folder, manifest in evaluations:
        artifact = Artifact("evaluate", folder.name, manifest.fingerprint, folder, manifest, found)
        shared = sum(other.label == manifest.label for _, other in evaluations) > 1
        runs.append(Run(folder.name if shared else manifest.label, artifact, baseline_method, declared, names))
    runs.sort(key=_place)
    groups: dict[TestSet, list[Run]] = {}
    for run in runs:
        groups.setdefault(TestSet(run.prepare.name, run.settings["split"]), []).append(run)
    return dict(sorted(groups.items(), key=lambda group: (group[0].split, group[0].prepare)))


def _place(run: Run) -> tuple[str | int, ...]:
    place = 0 if run.is_baseline else 2 if run.is_control else 1
    return (run.settings["backbone"], place, run.settings["method"], len(run.members), run.rerank, run.seed, run.label)


def all_artifacts(runs: Iterable[Run]) -> list[Artifact]:
    """Everything the runs were made from, each once, in the order of the stages."""
    order = list(declared_stages())
    found = {artifact.path: artifact for run in runs for artifact in run.evaluation.chain()}
    return sorted(found.values(), key=lambda each: (order.index(each.stage), each.name))


def minings(runs: Iterable[Run]) -> list[tuple[Artifact, Run]]:
    """The mined lists that runs were trained with, each once with the first of these runs."""
    found: dict[str, tuple[Artifact, Run]] = {}
    for run in runs:
        for member in run.members:
            if member.mining is not None:
                found.setdefault(member.mining.name, (member.mining, run))
    return list(found.values())


def models(runs: Iterable[Run]) -> list[Model]:
    """The models that runs evaluated, each once."""
    return list({member.artifact.path: member for run in runs for member in run.members}.values())


def mining_name(mining: Artifact, names: Mapping[str, str]) -> str:
    """For people: the backbone that mined and the one that rescored; the artifact's name when it was removed.

    Args:
        mining: the lists.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    if mining.manifest is None:
        return mining.name
    settings = mining.manifest.settings
    rescorer = settings.get("rescore_with")
    backbone = backbone_title(settings["backbone"])
    backbone += f", rescored by {backbone_title(rescorer)}" if rescorer else ""
    miner = mining.manifest.inputs.get(MODEL_INPUT)
    named = names.get(miner.name) if miner is not None else None
    backbone += f" ({named})" if named else ""
    return f"{backbone}, seed {settings['seed']}" if settings["seed"] else backbone


def _queries(table: Any) -> Queries:
    oracle = table["oracle_rank"]
    return Queries(
        ids=table["query_id"].to_pylist(),
        rank=table["rank"].to_numpy().astype(np.int64),
        oracle_rank=None if oracle.null_count else oracle.to_numpy().astype(np.int64),
        candidates=table["candidate_ids"].to_pylist(),
        scores=table["scores"].to_pylist(),
    )


def of_different_methods(runs: Iterable[Run], most: int) -> list[Run]:
    """Some runs to be shown beside each other: methods before their ablations, of each the lowest seed."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.declared_place, run.seed, run.rerank)):
        found.setdefault(run.settings["method"], run)
    return list(found.values())[:most]
