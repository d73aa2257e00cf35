"""The evaluated runs of a report, their models, what they were made from, and which differ in nothing but a seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.config import baseline_kind, declared_stages, leaves
from itrpipe.evaluation.metrics import SIDES, Ranks
from itrpipe.features.declaration import GIVEN, model_inputs
from itrpipe.mining.lists import DIRECTIONS
from itrpipe.report.chain import ChainArtifact
from itrpipe.report.names import (
    Declared,
    Departure,
    backbone_title,
    choices_of,
    departures,
    distinctions,
    method_title,
    model_title,
    title_by_choices,
)
from itrpipe.storage.artifact import HISTORY, METRICS, RANKINGS, STATISTICS, Manifest
from itrpipe.storage.disk import read_json
from itrpipe.storage.tables import read_table
from itrpipe.training.settings import FIRST_TRAINING, trains, unread

OBJECTIVE = "objective"
FIRST, DECLARED, PLAIN, UNTRAINED = "first", "declared", "plain", "untrained"
"""Roles of a model that others are compared with: of the first training; declared as a baseline; of a method that could
take other negatives, weights and batches, and takes in-batch ones; a pretrained model as it is, or embeddings from
files, in which seeds change nothing: it is not one of several seeds that were trained elsewhere."""
MINING, SEED = "mining ", "seed"
"""Begins the keys of a mining; the setting that repeats a training."""
_START = "start"
_EMBEDDINGS = "embeddings"
_COSTS = ("train", _EMBEDDINGS, "mine_negatives", "synthesize")
"""Stages that training a model costs."""
_NAMED = re.compile(r"([^.]+)\.(.+?)(?:\.s(\d+))?-[^-]+")
"""Configuration, backbone and seed in the name of an artifact, see `itrpipe.training.settings.run_label`."""
_SEED_ELSEWHERE = re.compile(r"(.+)@(\d+)")
"""Name and seed of a model that was trained elsewhere."""
_REMEDY = "remove its folder and run the same command again"


@dataclass(frozen=True)
class Model:
    """One trained model that an evaluation read.

    Attributes:
        method_name, backbone_name, seed: that it was trained with.
        artifact: of `train`, possibly removed; then nothing is known of its settings.
        declared: settings by the declarations.
        named: what the user calls it, without its seed; often nothing.
        is_seed_elsewhere: whether the seed is of a training elsewhere, as its name `NAME@SEED` says.
    """

    method_name: str
    backbone_name: str
    seed: int
    artifact: ChainArtifact
    declared: Declared
    named: str = ""
    is_seed_elsewhere: bool = False

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """It was trained with; empty when it was removed."""
        return {} if self.artifact.manifest is None else self.artifact.manifest.settings

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return its settings and those of its mined lists but the seed, by dotted keys; nothing if removed."""
        values = {key: value for key, value in leaves(self.settings) if key != SEED}
        if self.mining is not None and self.mining.manifest is not None:
            for key, value in leaves(self.mining.manifest.settings):
                if key != SEED:
                    values[f"{MINING}{key}"] = value
        return values

    @cached_property
    def has_idle_judges(self) -> bool:
        """Tell whether it was to avoid what judges of its negatives mark, and they marked nothing."""
        if self.mining is None or self.mining.manifest is None or not self.mining.manifest.settings.get("judges"):
            return False
        judged = read_json(self.mining.opened / STATISTICS)["judged"]
        return not any(judged[direction]["marked"] for direction in DIRECTIONS)

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """Return what its method was put together from, see `Contrastive.choices`; often nothing."""
        return choices_of(self.settings)

    @cached_property
    def is_trained(self) -> bool:
        """Tell whether it was trained here, unlike embeddings from files and pretrained models; removed ones were."""
        return self.artifact.stage == "train" and (not self.settings or trains(self.settings))

    @cached_property
    def roles(self) -> frozenset[str]:
        """In which of the roles above others are compared with it; in none where it is one of the others."""
        holds = {
            FIRST: self.method_name == FIRST_TRAINING,
            DECLARED: baseline_kind("train", self.method_name),
            PLAIN: self.choices and not any(value for part, value in self.choices.items() if part != OBJECTIVE),
            UNTRAINED: not self.is_trained and not self.is_seed_elsewhere,
        }
        return frozenset(role for role, is_so in holds.items() if is_so)

    @property
    def method(self) -> str:
        """The method as papers write it, with its choices and its name; of what was not trained here the name alone."""
        if self.named and not self.is_trained:
            return self.named
        title = title_by_choices(self.method_name, self.settings) or method_title(self.method_name)
        notes = [self.named] if self.named else []
        if self.has_idle_judges:
            notes.append("marked nothing")
        return f"{title} ({'; '.join(notes)})" if notes else title

    @cached_property
    def mining(self) -> ChainArtifact | None:
        """The mined lists it was trained with; None where it was trained with none, or was removed."""
        return self.artifact.inputs.get("mine_negatives")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One row per validation; none of given embeddings, or when the model was removed."""
        return _history(self.artifact)

    @cached_property
    def departures(self) -> dict[str, Departure]:
        """Settings that are not as declared; none of a training elsewhere, which its name tells."""
        return {} if self.is_seed_elsewhere else departures(self.artifact, self.declared)

    @cached_property
    def epochs(self) -> float | None:
        """Epochs that its weights were trained for, with those of the model that they started from.

        None when one of the models was removed, and of given embeddings.
        """
        done, artifact = 0.0, self.artifact
        while artifact is not None:
            history = _history(artifact)
            if not history:
                return None
            done += history[-1]["epoch"]
            artifact = artifact.inputs.get(_START)
        return round(done, 3)


def _history(artifact: ChainArtifact) -> list[dict[str, Any]]:
    if artifact.manifest is None or HISTORY not in artifact.manifest.outputs:
        return []
    return read_table(artifact.opened / HISTORY, (), _REMEDY).to_pylist()


def member_prefix(number: int) -> str:
    """Return what stands before the settings of a member of an ensemble, counted from 1; nothing before the first's."""
    return "" if number == 1 else f"model {number} "


@dataclass(frozen=True)
class Run:
    """One evaluated model, or several whose scores were averaged.

    Attributes:
        label: `method.backbone`, with seed, other members and split where they are not the usual ones; the
            artifact's name where several evaluations share that.
        evaluation: its artifact, which exists.
        members: the models whose scores were averaged, first the one that settings name; often it is the only one.
    """

    label: str
    evaluation: ChainArtifact
    members: tuple[Model, ...]

    @property
    def manifest(self) -> Manifest:
        """Manifest of the evaluation."""
        assert self.evaluation.manifest is not None
        return self.evaluation.manifest

    @property
    def names(self) -> tuple[str, str]:
        """Return what it can be called: its label and the folder of its evaluation."""
        return self.label, self.evaluation.name

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the evaluation: method, backbone, seed, features, split."""
        return self.manifest.settings

    @property
    def seed(self) -> int:
        """Seed of the first member."""
        return self.members[0].seed

    @property
    def rerank(self) -> int:
        """Return how many candidates of a query were scored in full; 0: all of them."""
        return self.settings.get("rerank", 0)

    @property
    def roles(self) -> frozenset[str]:
        """Return those of all its members."""
        return frozenset.intersection(*(each.roles for each in self.members))

    @property
    def backbone(self) -> str:
        """The backbones as papers write them, and the seeds of members that differ in theirs."""
        names = []
        for each in self.members:
            name = backbone_title(each.backbone_name)
            if each.seed and not self._has_one_seed:
                name += f" seed {each.seed}"
            names.append(name)
        return " + ".join(names)

    @property
    def _has_one_seed(self) -> bool:
        return len({each.seed for each in self.members}) == 1

    @property
    def method(self) -> str:
        """The method as papers write it, of an ensemble all; then whether it was re-ranked."""
        methods = " + ".join(dict.fromkeys(each.method for each in self.members))
        return f"{methods}, re-ranked {self.rerank}" if self.rerank else methods

    @property
    def name(self) -> str:
        """For people: backbone, method, how it was re-ranked if it was, and the seed when it is not 0."""
        title = model_title(self.backbone, self.method)
        return f"{title}, seed {self.seed}" if self.seed and self._has_one_seed else title

    @property
    def departures(self) -> dict[str, Departure]:
        """Settings of its models that are not as declared; of further members with their number before the key."""
        departures = {}
        for number, member in enumerate(self.members, 1):
            for key, each in member.departures.items():
                departures[f"{member_prefix(number)}{key}"] = each
        return departures

    @property
    def seconds(self) -> float | None:
        """Return the seconds of training with the models, lists and sentences that it read; None if one was removed."""
        chain: dict[str, ChainArtifact] = {}
        for member in self.members:
            chain |= {each.path: each for each in member.artifact.chain()}
        seconds = 0.0
        for each in chain.values():
            if each.stage in _COSTS:
                if each.manifest is None:
                    return None
                seconds += each.manifest.timings["total"]
        return seconds

    @cached_property
    def prepare(self) -> ChainArtifact:
        """The dataset."""
        return self.evaluation.inputs["prepare"]

    @cached_property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Protocol -> metric -> value, and low and high where there is an interval."""
        return read_json(self.evaluation.folder / METRICS)

    @cached_property
    def rankings(self) -> dict[str, pa.Table]:
        """Direction -> rankings of all its queries, see `itrpipe.evaluation.rankings.write_rankings`."""
        table = read_table(self.evaluation.folder / RANKINGS, (), _REMEDY)
        return {side: table.filter(pc.field("direction") == side) for side in SIDES}

    @property
    def size(self) -> tuple[int, int]:
        """Return how many images and captions were ranked."""
        images, captions = map(len, self.rankings.values())
        return images, captions

    def wrote(self, file: str) -> Any:
        """Return what the evaluation wrote to a file: JSON, or the rows of a table; None where it did not write any."""
        if file not in self.manifest.outputs:
            return None
        path = self.evaluation.folder / file
        if file.endswith(".parquet"):
            return read_table(path, (), _REMEDY).to_pylist()
        return read_json(path)

    def ranks(self, column: str = "rank") -> Ranks:
        """Ranks of both directions: `rank`, or where all correct matches are known `oracle_rank`."""
        return Ranks(*(table[column].to_numpy().astype(np.int64) for table in self.rankings.values()))


def _model(artifact: ChainArtifact, declared: Declared, names: Mapping[str, str]) -> Model:
    """Return what an evaluation read as a model; see `collect`."""
    if artifact.stage == _EMBEDDINGS:  # NAME.SPLIT or NAME@SEED.SPLIT
        backbone, _, seed = artifact.name.partition(".")[0].partition("@")
        title = _EMBEDDINGS if backbone == GIVEN else backbone_title(backbone)
        return Model(GIVEN, backbone, int(seed or 0), artifact, declared, title, bool(seed))
    found = _NAMED.fullmatch(artifact.name)  # told by its name even when it was removed
    assert found is not None
    conf, backbone, seed = found.groups()
    named = names.get(artifact.name, "")
    is_trained_here = artifact.manifest is None or trains(artifact.manifest.settings)
    repeated = None if is_trained_here else _SEED_ELSEWHERE.fullmatch(named)
    if repeated is not None:
        named, seed = repeated.groups()
    return Model(conf, backbone, int(seed or 0), artifact, declared, named, repeated is not None)


def collect(
    evaluations: Iterable[tuple[Path, Manifest]], declared: Declared, names: Mapping[str, str]
) -> list[list[Run]]:
    """Runs by the images that they were evaluated on, since only those compare, whatever order they are given in.

    Within a set by backbone, first trainings first, baselines of further ones last.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    runs: list[Run] = []
    found: dict[Path, Manifest | None] = {}
    labels = Counter(manifest.label for _, manifest in evaluations)
    for folder, manifest in evaluations:
        artifact = ChainArtifact("evaluate", folder.name, manifest.fingerprint, folder, manifest, found)
        label = manifest.label if labels[manifest.label] == 1 else folder.name
        models = [_model(artifact.inputs[name], declared, names) for name in model_inputs(manifest.inputs)]
        runs.append(Run(label, artifact, tuple(models)))

    def place(run: Run) -> tuple[str | int, ...]:
        place = 1
        if run.roles:  # others may begin with what comes first
            place = 0 if FIRST in run.roles or len(run.members) == 1 else 2
        settings = run.settings
        return settings["backbone"], place, settings["method"], len(run.members), run.rerank, run.seed, run.label

    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=place):
        groups.setdefault((run.settings["split"], run.prepare.name), []).append(run)
    return [group for _, group in sorted(groups.items())]


def all_artifacts(runs: Iterable[Run]) -> list[ChainArtifact]:
    """Everything the runs were made from, each once, in the order of the stages."""
    order = list(declared_stages())
    found = {artifact.path: artifact for run in runs for artifact in run.evaluation.chain()}
    return sorted(found.values(), key=lambda each: (order.index(each.stage), each.name))


@dataclass(frozen=True)
class Series:
    """Runs of one method and one backbone with equal settings, re-ranked alike.

    Attributes:
        name: for people: backbone, method, and of the settings in which it differs from series of the same as many as
            tell it apart.
        all: of every seed; several of one seed when a model was trained again.
        differing: all settings in which it differs from series of the same, by their dotted keys.
    """

    name: str
    all: tuple[Run, ...]
    differing: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def first(self) -> Run:
        """One of them, for what they have in common."""
        return self.all[0]

    @property
    def method(self) -> str:
        """The name without the backbone."""
        return self.name.removeprefix(f"{self.first.backbone}, ")


def contents_of(runs: Iterable[Run], file: str) -> list[Any]:
    """Return what runs wrote to a file of their evaluations, of those that wrote any."""
    contents = [run.wrote(file) for run in runs]
    return [content for content in contents if content]


def by_seed(series: Series) -> dict[int, Run]:
    """The newest run of every seed."""
    ordered = sorted(series.all, key=lambda run: run.manifest.finished)
    return dict(sorted({run.seed: run for run in ordered}.items()))


def series_of(items: Sequence[Run]) -> list[Series]:
    """Groups by method, backbones and settings, in the order of the first of each group.

    Members with different seeds, and removed models, whose settings are not known any more, stay alone.
    """
    groups: dict[str, list[Run]] = {}
    titles, facts_of = [], []
    for index, item in enumerate(items):
        facts, key = {}, str(index)
        if all(member.artifact.manifest is not None for member in item.members):
            for number, member in enumerate(item.members, 1):
                skipped = unread(member.settings)
                for name, value in member.values.items():
                    # Of a training elsewhere its name tells all.
                    if name not in skipped and not member.is_seed_elsewhere:
                        facts[f"{member_prefix(number)}{name}"] = value
            facts |= {name: each.value for name, each in item.departures.items()}
            if len({member.seed for member in item.members}) == 1:
                # The title of a run's method also says how it was re-ranked, which its models do not know.
                told = [item.method, [member.method_name for member in item.members], facts]
                key = json.dumps(told, sort_keys=True, default=str)
        if key not in groups:
            titles.append(model_title(item.backbone, item.method))
            facts_of.append(facts)
        groups.setdefault(key, []).append(item)
    found = []
    for title, runs, (differing, parts) in zip(titles, groups.values(), distinctions(titles, facts_of), strict=True):
        more = len(differing) - len(parts)
        if more:
            parts.append(f"{more} more setting{'s' if more > 1 else ''}")
        found.append(Series(f"{title} ({', '.join(parts)})" if parts else title, tuple(runs), differing))
    return found
