"""The stage of `itrpipe train`: a backbone trained with a method, and every split embedded with the best weights.

The first training is `--method triplet`; a second one (`--method aoq`) also reads the lists mined with its model.
"""

from typing import Any

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.stages.base import Job, Need, Stage, Step, prepare_need
from itrpipe.synthesis.generators import default_method
from itrpipe.training import checks
from itrpipe.training.settings import (
    OF_START,
    UNTIMED,
    TrainExecution,
    TrainSettings,
    mining_settings,
    run_label,
    teacher_of,
)


class TrainStage(Stage):
    """Trains a model."""

    schema_version = 3
    settings = TrainSettings
    execution = TrainExecution
    untimed = UNTIMED

    def check(self, step: Step) -> None:
        """Refuse features that a model cannot read, encoders that cannot be fetched, and options that change nothing.

        Raises:
            UsageError: there is one of these.
        """
        settings: Any = step.settings
        if "extract" in step.inputs:
            checks.refuse_other_features(settings, step.inputs["extract"].settings)
        self.check_read(step)
        checks.require_encoders(settings, step.resolved.origins, step.need.conf)
        if "mine_negatives" in step.inputs:
            mining: Any = step.inputs["mine_negatives"].settings
            checks.refuse_lists(settings, mining, step.need.conf)

    def check_read(self, step: Step) -> None:
        """Refuse options that change nothing, even if the model is trained already.

        Raises:
            UsageError: such an option was given.
        """
        settings: Any = step.settings
        checks.refuse_unread(settings, step.resolved.origins, step.need.conf)

    def label(self, conf: str, settings: TrainSettings) -> str:
        """Return `method.backbone`, with the seed when it is not 0."""
        return run_label(conf, settings.backbone, settings.seed)

    def needs(self, settings: TrainSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for captions, features, mined lists, graphs, sentences, start weights and encodings, if they are read.

        Raises:
            UsageError: the method does not train this backbone.
        """
        checks.refuse_method(settings)
        loss = settings.loss
        mined = loss.mined()
        masked = loss.masked()
        of_start = {name: getattr(settings, name) for name in OF_START}
        share = {}
        if settings.train_share != 1.0:
            share["train_share"] = settings.train_share
        needs = {"prepare": prepare_need(definition)}
        if not settings.reads_photographs:
            needs["extract"] = Need("extract", settings.features)
        if mined is not None:
            teacher, name = teacher_of(settings, mined, definition)
            search = {**share, **mining_settings(settings, mined, teacher)}
            named = {"train": name} if name else {}
            needs["mine_negatives"] = Need("mine_negatives", "exact", search, named)
        if settings.model.reads_phrases or (masked is not None and masked.units == "phrases"):
            needs["parse"] = Need("parse", "rules")
        if loss.reads_sentences():
            writing: dict[str, Any] = {"split": "train", **share}
            if default_method(settings.sentences):  # rules write the same for the models of all seeds
                writing["seed"] = settings.seed
            needs["synthesize"] = Need("synthesize", settings.sentences, writing)
        if settings.start_from:
            needs["start"] = Need("train", settings.start_from, of_start)
        for side, encoder in settings.encoded_once().items():
            needs[f"frozen_{side}"] = Need("encode", side, encoder)
        if masked is not None and masked.writer:
            needs["writer"] = Need("train", masked.writer, of_start)
        return needs

    def run(self, job: Job) -> None:
        """Train, keep the weights that validated best, and embed every split with them if the model embeds.

        All processes of a launcher train; the first does all other work.
        """
        from itrpipe.training.recipe import train

        train(job)
