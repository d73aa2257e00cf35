"""A trained model as a report sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from itrpipe.declared import is_control
from itrpipe.reporting.chain import Artifact, read_table
from itrpipe.reporting.departures import Declared, Departure, departures
from itrpipe.reporting.titles import backbone_title, choices_of, method_title, model_title, title_by_choices
from itrpipe.storage.artifact import HISTORY
from itrpipe.training.settings import began_with, trains

LISTS_INPUT, START_INPUT = "mine_negatives", "start"
OBJECTIVE = "objective"


@dataclass(frozen=True)
class Model:
    """One trained model that an evaluation read.

    Attributes:
        method_name, backbone_name, seed: that it was trained with.
        artifact: of `train`, possibly removed.
        baseline_method: the method of the first training.
        declared: settings by the declarations.
        named: what the user calls it; often nothing.
    """

    method_name: str
    backbone_name: str
    seed: int
    artifact: Artifact
    baseline_method: str
    declared: Declared
    named: str = ""

    @property
    def is_baseline(self) -> bool:
        """Whether it is of the first training."""
        return self.method_name == self.baseline_method

    @property
    def is_control(self) -> bool:
        """Whether it is the first training trained for longer, or another method without what that is about."""
        return is_control("train", self.method_name)

    @cached_property
    def is_plain(self) -> bool:
        """Whether its method could take other negatives, weights and batches, and takes in-batch ones."""
        manifest = self.artifact.manifest
        chosen = {} if manifest is None else choices_of(manifest.settings)
        return bool(chosen) and not any(value for part, value in chosen.items() if part != OBJECTIVE)

    @cached_property
    def encoders(self) -> tuple[str, ...]:
        """Published weights that it began with, see `itrpipe.training.settings.began_with`."""
        manifest = self.artifact.manifest
        return () if manifest is None else began_with(manifest.settings)

    @property
    def is_untrained(self) -> bool:
        """Whether it is a pretrained model as it is, or embeddings from files: seeds change nothing in it."""
        return self.artifact.manifest is not None and not trains(self.artifact.manifest.settings)

    @property
    def backbone(self) -> str:
        """The backbone as papers write it."""
        return backbone_title(self.backbone_name)

    @property
    def method(self) -> str:
        """`first training`, or the method as papers write it, with its choices where it names them, and its name."""
        manifest = self.artifact.manifest
        chosen = "" if manifest is None else title_by_choices(self.method_name, manifest.settings)
        title = chosen or method_title(self.method_name, self.baseline_method)
        return f"{title} ({self.named})" if self.named else title

    @property
    def name(self) -> str:
        """For people: backbone, method and the seed when it is not 0."""
        return f"{model_title(self.backbone, self.method)}{f', seed {self.seed}' if self.seed else ''}"

    @property
    def members(self) -> tuple[Model, ...]:
        """Itself, as a run of one model would say."""
        return (self,)

    @cached_property
    def mining(self) -> Artifact | None:
        """The mined lists it was trained with; None for the first training and when the model was removed."""
        return self.artifact.input(LISTS_INPUT)

    @cached_property
    def history(self) -> list[dict[str, Any]] | None:
        """One row per validation, none of given embeddings; None when the model was removed."""
        manifest = self.artifact.manifest
        if manifest is None:
            return None
        if HISTORY not in manifest.outputs:
            return []
        return read_table(self.artifact.folder / HISTORY).to_pylist()

    @property
    def validation_images(self) -> int:
        """Images of the validation split that it was validated with at most; 0: all of them."""
        manifest = self.artifact.manifest
        return 0 if manifest is None else manifest.settings.get("validation_images") or 0

    @cached_property
    def departures(self) -> dict[str, Departure]:
        """Settings that are not as declared, see `itrpipe.reporting.departures`; nothing when the model was removed."""
        return departures(self.artifact, self.declared, self.baseline_method)

    @cached_property
    def epochs(self) -> float | None:
        """Epochs that its weights were trained for, with those of the model that they started from.

        None when one of the models was removed, and of given embeddings.
        """
        return _epochs(self.artifact)

    @cached_property
    def epochs_of_both(self) -> float | None:
        """The same with those of the model that mined for it, unless it started from one."""
        mined = self.mining.input("train") if self.mining and not self.artifact.input(START_INPUT) else None
        if self.epochs is None or mined is None:
            return self.epochs
        return self.epochs + (_epochs(mined) or 0.0)


def _epochs(artifact: Artifact | None) -> float | None:
    done = 0.0
    while artifact is not None:
        if artifact.manifest is None or HISTORY not in artifact.manifest.outputs:
            return None
        done += read_table(artifact.folder / HISTORY)["epoch"][-1].as_py()
        artifact = artifact.input(START_INPUT)
    return round(done, 3)


def member_prefix(number: int) -> str:
    """What stands before the settings of a member of an ensemble, counted from 1; nothing before the first's."""
    return "" if number == 1 else f"model {number} "
