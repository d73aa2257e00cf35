"""The evaluated runs of a report, their models, and what they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.config import declared_stages
from itrpipe.declared import baseline_kind, declared_place
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import Ranks
from itrpipe.report.chain import Artifact, read_table
from itrpipe.report.names import (
    Declared,
    Departure,
    backbone_title,
    choices_of,
    departures,
    method_title,
    model_title,
    title_by_choices,
)
from itrpipe.storage.artifact import HISTORY, METRICS, RANKINGS, Manifest
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training.settings import FIRST_TRAINING, began_with, trains

DIRECTIONS = {"i2t": "Image → text", "t2i": "Text → image"}
FULL, ORACLE = "full", "oracle"
OBJECTIVE = "objective"
_LISTS, _START, _MODEL = "mine_negatives", "start", "train"
_COSTS = {"train": "training", "mine_negatives": "total", "synthesize": "total"}
"""Stages that training a model costs, with the phase of their timings that counts."""
_PROCESSOR = "processor"


@dataclass(frozen=True)
class Model:
    """One trained model that an evaluation read.

    Attributes:
        method_name, backbone_name, seed: that it was trained with.
        artifact: of `train`, possibly removed; then nothing is known of its settings.
        declared: settings by the declarations.
        named: what the user calls it; often nothing.
    """

    method_name: str
    backbone_name: str
    seed: int
    artifact: Artifact
    declared: Declared
    named: str = ""

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """It was trained with; empty when it was removed."""
        return {} if self.artifact.manifest is None else self.artifact.manifest.settings

    @property
    def is_first(self) -> bool:
        """Whether it is of the first training."""
        return self.method_name == FIRST_TRAINING

    @property
    def is_baseline(self) -> bool:
        """Whether it is declared as what others are compared with."""
        return bool(baseline_kind("train", self.method_name))

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """What its method was put together from, see `MethodSettings.choices`; often nothing."""
        return choices_of(self.settings) if self.settings else {}

    @property
    def is_plain(self) -> bool:
        """Whether its method could take other negatives, weights and batches, and takes in-batch ones."""
        return bool(self.choices) and not any(value for part, value in self.choices.items() if part != OBJECTIVE)

    @property
    def is_untrained(self) -> bool:
        """Whether it is a pretrained model as it is, or embeddings from files: seeds change nothing in it."""
        return bool(self.settings) and not trains(self.settings)

    @property
    def encoders(self) -> tuple[str, ...]:
        """Published weights that it began with, see `itrpipe.training.settings.began_with`."""
        return began_with(self.settings) if self.settings else ()

    @property
    def backbone(self) -> str:
        """The backbone as papers write it."""
        return backbone_title(self.backbone_name)

    @property
    def method(self) -> str:
        """The method as papers write it, with its choices where it names them, and its name."""
        chosen = title_by_choices(self.method_name, self.settings) if self.settings else ""
        title = chosen or method_title(self.method_name)
        return f"{title} ({self.named})" if self.named else title

    @property
    def name(self) -> str:
        """For people: backbone, method and the seed when it is not 0."""
        return f"{model_title(self.backbone, self.method)}{f', seed {self.seed}' if self.seed else ''}"

    @cached_property
    def mining(self) -> Artifact | None:
        """The mined lists it was trained with; None where it was trained with none, or was removed."""
        return self.artifact.input(_LISTS)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One row per validation; none of given embeddings, or when the model was removed."""
        manifest = self.artifact.manifest
        if manifest is None or HISTORY not in manifest.outputs:
            return []
        return read_table(self.artifact.folder / HISTORY).to_pylist()

    @cached_property
    def departures(self) -> dict[str, Departure]:
        """Settings that are not as declared."""
        return departures(self.artifact, self.declared)

    @cached_property
    def epochs(self) -> float | None:
        """Epochs that its weights were trained for, with those of the model that they started from.

        None when one of the models was removed, and of given embeddings.
        """
        return _epochs(self.artifact)

    @cached_property
    def epochs_of_both(self) -> float | None:
        """The same with those of the model that mined for it, unless it started from one."""
        mined = self.mining.input(_MODEL) if self.mining and not self.artifact.input(_START) else None
        if self.epochs is None or mined is None:
            return self.epochs
        return self.epochs + (_epochs(mined) or 0.0)


def _epochs(artifact: Artifact | None) -> float | None:
    done = 0.0
    while artifact is not None:
        if artifact.manifest is None or HISTORY not in artifact.manifest.outputs:
            return None
        done += read_table(artifact.folder / HISTORY)["epoch"][-1].as_py()
        artifact = artifact.input(_START)
    return round(done, 3)


def member_prefix(number: int) -> str:
    """What stands before the settings of a member of an ensemble, counted from 1; nothing before the first's."""
    return "" if number == 1 else f"model {number} "


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

    @classmethod
    def of(cls, table: Any) -> Queries:
        """From the rows of a table of rankings."""
        oracle = table["oracle_rank"]
        return cls(
            ids=table["query_id"].to_pylist(),
            rank=table["rank"].to_numpy().astype(np.int64),
            oracle_rank=None if oracle.null_count else oracle.to_numpy().astype(np.int64),
            candidates=table["candidate_ids"].to_pylist(),
            scores=table["scores"].to_pylist(),
        )


@dataclass(frozen=True)
class Run:
    """One evaluated model, or several whose scores were averaged.

    Attributes:
        label: `method.backbone`, with seed, other members and split where they are not the usual ones; the
            artifact's name where several evaluations share that.
        evaluation: its artifact.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """

    label: str
    evaluation: Artifact
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
        first = self._model(method, backbone, seed, self._needed(_MODEL))
        others = [name for name in self.manifest.inputs if name.startswith(f"{_MODEL}_")]
        others.sort(key=lambda name: int(name.rpartition("_")[2]))
        return (first, *(self._member(self._needed(name)) for name in others))

    @property
    def seed(self) -> int:
        """Seed of the first member."""
        return self.members[0].seed

    @property
    def rerank(self) -> int:
        """How many candidates of a query were scored in full; 0: all of them."""
        return self.settings.get("rerank", 0)

    @property
    def is_first(self) -> bool:
        """Whether this is a run of the first training."""
        return all(member.is_first for member in self.members)

    @property
    def is_plain(self) -> bool:
        """Whether its method could take other negatives, weights and batches, and takes in-batch ones."""
        return all(member.is_plain for member in self.members)

    @property
    def is_untrained(self) -> bool:
        """Whether it was evaluated as it was published or given: seeds change nothing in it."""
        return all(member.is_untrained for member in self.members)

    @property
    def is_baseline(self) -> bool:
        """Whether it learned from the negatives of its batches alone, so that others are compared with it."""
        declared = all(member.is_baseline or member.is_first for member in self.members)
        return declared or self.is_plain or self.is_untrained

    @property
    def backbone(self) -> str:
        """The backbones as papers write them, and the seeds of members that differ in theirs."""
        return " + ".join(f"{each.backbone}{self._seed_of(each)}" for each in self.members)

    @property
    def method(self) -> str:
        """The method as papers write it, of an ensemble all; then whether it was re-ranked."""
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
        """Settings of its models that are not as declared; of further members with their number before the key."""
        return {
            f"{member_prefix(number)}{key}": each
            for number, member in enumerate(self.members, 1)
            for key, each in member.departures.items()
        }

    @property
    def seconds(self) -> float | None:
        """What training cost, with the models, mined lists and sentences that it read; None when a part was removed."""
        return self._cost(_COSTS)

    @property
    def processor_seconds(self) -> float | None:
        """The same in time of processors, with the embedding of all splits; None also where it was not recorded."""
        return self._cost(dict.fromkeys(_COSTS, _PROCESSOR))

    def _cost(self, phases: Mapping[str, str]) -> float | None:
        used = {each.path: each for member in self.members for each in member.artifact.chain()}
        counted = [(each.manifest, phases[each.stage]) for each in used.values() if each.stage in phases]
        seconds = [None if manifest is None else manifest.timings.get(phase) for manifest, phase in counted]
        return None if None in seconds else sum(each for each in seconds if each is not None)

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
        return {side: Queries.of(table.filter(pc.field("direction") == side)) for side in DIRECTIONS}

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
        return Model(method, backbone, seed, artifact, self.declared, self.names.get(artifact.name, ""))

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
    evaluations: Iterable[tuple[Path, Manifest]], declared: Declared, names: Mapping[str, str]
) -> dict[TestSet, list[Run]]:
    """Runs by test set, whatever order they are given in: by backbone, the first training first, its baselines last.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    runs = []
    found: dict[Path, Manifest | None] = {}
    for folder, manifest in evaluations:
        artifact = Artifact("evaluate", folder.name, manifest.fingerprint, folder, manifest, found)
        shared = sum(other.label == manifest.label for _, other in evaluations) > 1
        runs.append(Run(folder.name if shared else manifest.label, artifact, declared, names))
    runs.sort(key=_place)
    groups: dict[TestSet, list[Run]] = {}
    for run in runs:
        groups.setdefault(TestSet(run.prepare.name, run.settings["split"]), []).append(run)
    return dict(sorted(groups.items(), key=lambda group: (group[0].split, group[0].prepare)))


def _place(run: Run) -> tuple[str | int, ...]:
    place = 0 if run.is_first else 2 if run.is_baseline else 1
    return (run.settings["backbone"], place, run.settings["method"], len(run.members), run.rerank, run.seed, run.label)


def of_different_methods(runs: Iterable[Run], most: int) -> list[Run]:
    """Some runs to be shown beside each other: methods before their ablations, of each the lowest seed."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (declared_place("train", run.settings["method"]), run.seed, run.rerank)):
        found.setdefault(run.settings["method"], run)
    return list(found.values())[:most]


def all_artifacts(runs: Iterable[Run]) -> list[Artifact]:
    """Everything the runs were made from, each once, in the order of the stages."""
    order = list(declared_stages())
    found = {artifact.path: artifact for run in runs for artifact in run.evaluation.chain()}
    return sorted(found.values(), key=lambda each: (order.index(each.stage), each.name))
