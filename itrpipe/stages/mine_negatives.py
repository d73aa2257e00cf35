"""`itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a trained model."""

from __future__ import annotations

from typing import Any

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import is_given, read_model
from itrpipe.models.declaration import settings_of
from itrpipe.stages.base import Job, Need, Stage, prepare_need
from itrpipe.stages.embeddings import embeddings_need
from itrpipe.storage.artifact import HISTORY
from itrpipe.training.settings import MineExecution, MineSettings, Model, run_label

TRAIN = "train"


class MineNegatives(Stage):
    """Searches the training set for hard negatives."""

    settings, execution = MineSettings, MineExecution

    def label(self, conf: str, settings: MineSettings) -> str:
        """`exact`, or `approximate` by an index, and the mining model, with `+` and the backbone of a second one."""
        found = conf if settings.index == "flat" else "approximate"
        models = "+".join(filter(None, (settings.backbone, settings.rescore_with)))
        return f"{found}.{run_label(settings.method, models, settings.seed)}"

    def needs(self, settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The captions and the mining model's embeddings; a second model, and the features that it looks at.

        Raises:
            UsageError: the mining model has no embeddings.
        """
        if is_given(settings.backbone):
            if settings.rescore_with:
                raise UsageError(
                    f"--rescore-with {settings.rescore_with} names a second model of the same method and features, "
                    "which given embeddings do not have; leave it out"
                )
        elif not settings_of(settings.backbone).embeds:
            raise UsageError(
                f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
                "backbone, such as vsrn, and train with `--negatives-from vsrn`"
            )
        wanted: dict[str, Any] = {"features": settings.features}
        if settings.train_share != 1.0:
            wanted["train_share"] = settings.train_share
        model = Model(settings.method, settings.backbone, settings.seed)
        need = embeddings_need(model, TRAIN, **wanted)
        needed = {"prepare": prepare_need(definition, TRAIN), need.stage: need}
        if settings.rescore_with:
            second = Need("train", settings.method, {**need.settings, "backbone": settings.rescore_with})
            needed |= {"extract": Need("extract", settings.features), "rescorer": second}
        return needed

    def run(self, job: Job) -> None:
        """Writes both lists and statistics.json."""
        from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows
        from itrpipe.storage.tables import read_table
        from itrpipe.training.convergence import why_longer
        from itrpipe.training.mining import mine_training_set

        model, settings = read_model(job.inputs), job.settings
        embeddings = EmbeddingRows.open(model.folder / EMBEDDINGS, TRAIN)
        rescorer = None
        if settings.rescore_with:
            from itrpipe.training.second_model import second_model

            rescorer = second_model(settings, job.execution, job.inputs, embeddings)
        job.metrics |= mine_training_set(
            embeddings,
            job.inputs["prepare"],
            settings,
            job.execution,
            job.folder,
            job.reporter,
            job.warn,
            decisions=job.sources.get("decisions", ""),
            unit=model.manifest.settings.get("measure") == "cosine",  # of given ones
            rescorer=rescorer,
        )
        if HISTORY not in model.manifest.outputs:  # trained elsewhere
            return
        history = read_table(model.folder / HISTORY, (), "remove its folder and train again").to_pylist()
        validated = EmbeddingRows.open(model.folder / EMBEDDINGS, "val").images.shape[0]
        if reason := why_longer(history, model.manifest.settings, validated):
            job.reporter.say(f"  train the model that mined longer first: {reason}")
