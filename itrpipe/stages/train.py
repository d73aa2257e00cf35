"""`itrpipe train`: trains a backbone with a method and embeds every split with the best weights.

The first training is `--method triplet`; a second one (`--method aoq`) also reads the lists mined with its model.
"""

from typing import Any

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.stages.base import Job, Need, Stage, Step, prepare_need
from itrpipe.synthesis.generators import usual_method
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
        """Refuses features that a model cannot read, encoders that cannot be fetched, and options that change nothing.

        Raises:
            UsageError: one of them, or an option that changes nothing was given.
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
        """Refuses options that change nothing, also where the model is trained already.

        Raises:
            UsageError: likewise.
        """
        settings: Any = step.settings
        checks.refuse_unread(settings, step.resolved.origins, step.need.conf)

    def label(self, conf: str, settings: TrainSettings) -> str:
        """`method.backbone`, with the seed when it is not 0."""
        return run_label(conf, settings.backbone, settings.seed)

    def needs(self, settings: TrainSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Captions, features but for models of photographs, the weights to start from and, for AOQ, the mined lists.

        Raises:
            UsageError: the method does not train this backbone.
        """
        checks.refuse_method(settings)
        loss = settings.loss
        mined = loss.mined()
        masked = loss.masked()
        same = {name: getattr(settings, name) for name in OF_START}
        # Teachers are told of the share of the training images, where it is not all of them.
        share = {} if settings.train_share == 1.0 else {"train_share": settings.train_share}
        wanted = {"prepare": prepare_need(definition)}
        if not settings.reads_photographs:
            wanted["extract"] = Need("extract", settings.features)
        if mined is not None:
            teacher, name = teacher_of(settings, mined, definition)
            asked = {**share, **mining_settings(settings, mined, teacher)}
            wanted["mine_negatives"] = Need("mine_negatives", "exact", asked, {"train": name} if name else {})
        if settings.model.reads_phrases or (masked is not None and masked.units == "phrases"):
            wanted["parse"] = Need("parse", "rules")
        if loss.reads_sentences():
            asked: dict[str, Any] = {"split": "train", **share}
            if usual_method(settings.sentences):  # rules write the same for the models of all seeds
                asked["seed"] = settings.seed
            wanted["synthesize"] = Need("synthesize", settings.sentences, asked)
        if settings.start_from:
            wanted["start"] = Need("train", settings.start_from, same)
        for side, encoder in settings.encoded_once().items():
            wanted[f"frozen_{side}"] = Need("encode", side, encoder)
        if masked is not None and masked.writer:
            wanted["writer"] = Need("train", masked.writer, same)
        return wanted

    def run(self, job: Job) -> None:
        """Trains, keeps the weights that validated best, and embeds every split with them where the model embeds.

        Of several processes of a launcher all train; the first does all else.
        """
        from itrpipe.training.recipe import train

        train(job)
