"""The evaluated runs of a report, and the trained models that they read."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.config import baseline_kind, declared_stages, leaves
from itrpipe.evaluation.metrics import SIDES, Ranks, random_recalls, reaches_chance
from itrpipe.evaluation.results import FULL
from itrpipe.features.declaration import GIVEN, model_inputs
from itrpipe.mining.lists import DIRECTIONS
from itrpipe.report.chain import ChainArtifact
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
from itrpipe.storage.disk import read_json
from itrpipe.storage.tables import read_table
from itrpipe.training.settings import FIRST_TRAINING, trains

Role = Literal["first training", "declared", "in-batch", "untrained"]
"""The roles that a model has as a baseline of others.

`first training`: it is the first training of its backbone. `declared`: its configuration is declared as a baseline.
`in-batch`: its method could take other negatives, weights and batches, and takes in-batch negatives. `untrained`: it is
a pretrained model, or embeddings from files, so that seeds change nothing; one of several seeds that were trained
elsewhere does not have this role.
"""
OBJECTIVE = "objective"
MINING = "mining "
"""Begins the keys of the settings of a mining."""
_STAGES_WITH_COST = ("train", "embeddings", "mine_negatives", "synthesize")
"""Stages that training a model costs."""
_ARTIFACT_NAME = re.compile(r"([^.]+)\.(.+?)(?:\.s(\d+))?-[^-]+")
"""Configuration, backbone and seed in the name of an artifact, see `itrpipe.training.settings.run_label`."""
_SEED_ELSEWHERE = re.compile(r"(.+)@(\d+)")
"""Name and seed of a model that was trained elsewhere."""
_REMEDY = "remove its folder and run the same command again"


@dataclass(frozen=True)
class TrainedModel:
    """One trained model that an evaluation read.

    Attributes:
        method_name, backbone_name, seed: that it was trained with.
        artifact: of `train`, possibly removed; then nothing is known of its settings.
        declared: settings by the declarations.
        user_name: what the user calls it, without its seed; often nothing.
        is_seed_elsewhere: whether the seed is of a training elsewhere, as its name `NAME@SEED` says.
    """

    method_name: str
    backbone_name: str
    seed: int
    artifact: ChainArtifact
    declared: Declared
    user_name: str = ""
    is_seed_elsewhere: bool = False

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that it was trained with; none when it was removed."""
        return self.artifact.settings

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return its settings and those of its mined lists but the seed, by dotted keys; nothing if removed."""
        values = dict(leaves(self.settings))
        values.pop("seed", None)
        if self.mining is not None:
            for key, value in leaves(self.mining.settings):
                if key != "seed":
                    values[f"{MINING}{key}"] = value
        return values

    @cached_property
    def has_idle_judges(self) -> bool:
        """Tell whether it was to avoid what judges of its negatives mark, and they marked nothing."""
        if self.mining is None or not self.mining.settings.get("judges"):
            return False
        judged = self.mining.statistics["judged"]
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
    def roles(self) -> frozenset[Role]:
        """Return the roles that it has as a baseline; none of a model that is no baseline."""
        roles: set[Role] = set()
        if self.method_name == FIRST_TRAINING:
            roles.add("first training")
        if baseline_kind("train", self.method_name):
            roles.add("declared")
        other_choices = dict(self.choices)
        other_choices.pop(OBJECTIVE, None)
        if self.choices and not any(other_choices.values()):
            roles.add("in-batch")
        if not self.is_trained and not self.is_seed_elsewhere:
            roles.add("untrained")
        return frozenset(roles)

    @property
    def method(self) -> str:
        """Return the method as papers write it, with choices and name; of what was not trained here the name alone."""
        if self.user_name and not self.is_trained:
            return self.user_name
        title = title_by_choices(self.method_name, self.settings) or method_title(self.method_name)
        notes = []
        if self.user_name:
            notes.append(self.user_name)
        if self.has_idle_judges:
            notes.append("marked nothing")
        if notes:
            title += f" ({'; '.join(notes)})"
        return title

    @cached_property
    def mining(self) -> ChainArtifact | None:
        """Return the mined lists it was trained with; None where it was trained with none, or was removed."""
        return self.artifact.inputs.get("mine_negatives")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return one row per validation; none of given embeddings, or when the model was removed."""
        return _history(self.artifact)

    @cached_property
    def departures(self) -> dict[str, Departure]:
        """Return settings that are not as declared; none of a training elsewhere, which its name tells."""
        return {} if self.is_seed_elsewhere else departures(self.artifact, self.declared)

    @cached_property
    def epochs(self) -> float | None:
        """Return the epochs that its weights were trained for, with those of the model that they started from.

        None when one of the models was removed, and of given embeddings.
        """
        epochs = 0.0
        artifact: ChainArtifact | None = self.artifact
        while artifact is not None:
            history = _history(artifact)
            if not history:
                return None
            epochs += history[-1]["epoch"]
            artifact = artifact.inputs.get("start")
        return round(epochs, 3)


def _history(artifact: ChainArtifact) -> list[dict[str, Any]]:
    if artifact.manifest is None or HISTORY not in artifact.manifest.outputs:
        return []
    return read_table(artifact.opened / HISTORY, (), _REMEDY).to_pylist()


def member_prefix(number: int) -> str:
    """Return what stands before the settings of a member of an ensemble, counted from 1; nothing before the first's."""
    return "" if number == 1 else f"model {number} "


@dataclass(frozen=True)
class EvaluatedRun:
    """One evaluated model, or several whose scores were averaged.

    Attributes:
        label: `method.backbone`, with seed, other members and split where they are not the usual ones; the
            artifact's name where several evaluations share that.
        evaluation: its artifact, which exists.
        members: the models whose scores were averaged, first the one that settings name; often it is the only one.
    """

    label: str
    evaluation: ChainArtifact
    members: tuple[TrainedModel, ...]

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the evaluation."""
        assert self.evaluation.manifest is not None
        return self.evaluation.manifest

    @property
    def names(self) -> tuple[str, str]:
        """Return what it can be called: its label and the folder of its evaluation."""
        return self.label, self.evaluation.name

    @property
    def settings(self) -> dict[str, Any]:
        """Return settings of the evaluation: method, backbone, seed, features, split."""
        return self.manifest.settings

    @property
    def model(self) -> TrainedModel:
        """Return the first member, often the only one."""
        return self.members[0]

    @property
    def seed(self) -> int:
        """Return the seed of the first member."""
        return self.model.seed

    @property
    def rerank(self) -> int:
        """Return how many candidates of a query were scored in full; 0: all of them."""
        return self.settings.get("rerank", 0)

    @property
    def roles(self) -> frozenset[Role]:
        """Return the roles that all its members have."""
        return frozenset.intersection(*(model.roles for model in self.members))

    @property
    def backbone(self) -> str:
        """Return the backbones as papers write them, and the seeds of members that differ in theirs."""
        names = []
        for model in self.members:
            name = backbone_title(model.backbone_name)
            if model.seed and not self._has_one_seed:
                name += f" seed {model.seed}"
            names.append(name)
        return " + ".join(names)

    @property
    def _has_one_seed(self) -> bool:
        return all(model.seed == self.seed for model in self.members)

    @property
    def method(self) -> str:
        """Return the method as papers write it, of an ensemble all; then whether it was re-ranked."""
        methods = " + ".join(dict.fromkeys(model.method for model in self.members))
        if self.rerank:
            methods += f", re-ranked {self.rerank}"
        return methods

    @property
    def name(self) -> str:
        """Return its name for people: backbone, method, how it was re-ranked, and the seed when it is not 0."""
        title = model_title(self.backbone, self.method)
        if self.seed and self._has_one_seed:
            title += f", seed {self.seed}"
        return title

    @property
    def departures(self) -> dict[str, Departure]:
        """Return settings of its models that are not as declared; of further members with their number before."""
        departures = {}
        for number, model in enumerate(self.members, 1):
            for key, departure in model.departures.items():
                departures[f"{member_prefix(number)}{key}"] = departure
        return departures

    @property
    def seconds(self) -> float | None:
        """Return the seconds of training with the models, lists and sentences that it read; None if one was removed."""
        artifacts = {}
        for model in self.members:
            for artifact in model.artifact.chain():
                artifacts[artifact.path] = artifact
        seconds = 0.0
        for artifact in artifacts.values():
            if artifact.stage in _STAGES_WITH_COST:
                if artifact.manifest is None:
                    return None
                seconds += artifact.manifest.timings["total"]
        return seconds

    @cached_property
    def prepare(self) -> ChainArtifact:
        """Return the dataset."""
        return self.evaluation.inputs["prepare"]

    @cached_property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return protocol -> metric -> value, and low and high where there is an interval."""
        return read_json(self.evaluation.folder / METRICS)

    @cached_property
    def rankings(self) -> dict[str, pa.Table]:
        """Return direction -> rankings of all its queries, see `itrpipe.evaluation.rankings.write_rankings`."""
        table = read_table(self.evaluation.folder / RANKINGS, (), _REMEDY)
        rankings = {}
        for side in SIDES:
            rankings[side] = table.filter(pc.field("direction") == side)
        return rankings

    @property
    def size(self) -> tuple[int, int]:
        """Return how many images and captions were ranked."""
        images, captions = map(len, self.rankings.values())
        return images, captions

    def is_at_chance(self) -> bool:
        """Tell whether chance lies within or above the interval of its RSum."""
        return reaches_chance(self.metrics[FULL], random_recalls(*self.size))

    def wrote(self, file: str) -> Any:
        """Return the JSON that the evaluation wrote to a file; None where it wrote none."""
        if file not in self.manifest.outputs:
            return None
        return read_json(self.evaluation.folder / file)

    def ranks(self, column: str = "rank") -> Ranks:
        """Return ranks of both directions: `rank`, or where all correct matches are known `oracle_rank`."""
        return Ranks(*(table[column].to_numpy().astype(np.int64) for table in self.rankings.values()))


def group_runs(
    evaluations: Iterable[tuple[Path, Manifest]],
    declared: Declared,
    names: Mapping[str, str],
) -> list[list[EvaluatedRun]]:
    """Group runs by the images that they were evaluated on, since only those compare, whatever order they come in.

    Within a set by backbone, first trainings first, baselines of further ones last.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        declared: settings by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    runs = []
    manifests: dict[Path, Manifest | None] = {}
    labels = Counter(manifest.label for _, manifest in evaluations)
    for folder, manifest in evaluations:
        artifact = ChainArtifact(
            "evaluate",
            folder.name,
            manifest.fingerprint,
            folder,
            manifest,
            manifests,
        )
        label = manifest.label if labels[manifest.label] == 1 else folder.name
        models = []
        for name in model_inputs(manifest.inputs):
            models.append(_trained_model(artifact.inputs[name], declared, names))
        runs.append(EvaluatedRun(label, artifact, tuple(models)))

    groups = defaultdict(list)
    for run in sorted(runs, key=_sort_key):
        groups[run.settings["split"], run.prepare.name].append(run)
    return [groups[key] for key in sorted(groups)]


def _trained_model(
    artifact: ChainArtifact,
    declared: Declared,
    names: Mapping[str, str],
) -> TrainedModel:
    """Return a trained model by the name of its artifact and the user's name for it; see `group_runs`."""
    if artifact.stage == "embeddings":  # NAME.SPLIT or NAME@SEED.SPLIT
        backbone, _, seed = artifact.name.partition(".")[0].partition("@")
        title = "embeddings" if backbone == GIVEN else backbone_title(backbone)
        return TrainedModel(
            GIVEN,
            backbone,
            int(seed or 0),
            artifact,
            declared,
            title,
            bool(seed),
        )
    match = _ARTIFACT_NAME.fullmatch(artifact.name)  # told by its name even when it was removed
    assert match is not None
    conf, backbone, seed = match.groups()
    name = names.get(artifact.name, "")
    repeated = None
    if artifact.manifest is not None and not trains(artifact.manifest.settings):
        repeated = _SEED_ELSEWHERE.fullmatch(name)
    if repeated is not None:
        name, seed = repeated.groups()
    return TrainedModel(
        conf,
        backbone,
        int(seed or 0),
        artifact,
        declared,
        name,
        repeated is not None,
    )


def _sort_key(run: EvaluatedRun) -> tuple[str | int, ...]:
    """Return the place of a run in its set: baselines that others may begin with come first, further ones last."""
    place = 1
    if run.roles:
        place = 0 if "first training" in run.roles or len(run.members) == 1 else 2
    settings = run.settings
    return settings["backbone"], place, settings["method"], len(run.members), run.rerank, run.seed, run.label


def all_artifacts(runs: Iterable[EvaluatedRun]) -> list[ChainArtifact]:
    """Return everything the runs were made from, each once, in the order of the stages."""
    order = list(declared_stages())
    artifacts = {}
    for run in runs:
        for artifact in run.evaluation.chain():
            artifacts[artifact.path] = artifact
    return sorted(artifacts.values(), key=lambda each: (order.index(each.stage), each.name))


def contents_of(runs: Iterable[EvaluatedRun], file: str) -> list[Any]:
    """Return what runs wrote to a file of their evaluations, of those that wrote any."""
    contents = []
    for run in runs:
        content = run.wrote(file)
        if content:
            contents.append(content)
    return contents
