"""The stage of `itrpipe evaluate`: metrics and rankings of a model, or of several with averaged scores, on a split."""

from pathlib import Path
from typing import Any

from pydantic import Field

from itrpipe.analysis.questions.base import SENTENCES, EvaluatedModel, answer_questions
from itrpipe.analysis.settings import SCORED, EvaluateSettings, check_asked, check_photographs, models_label
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition
from itrpipe.encoders.folders import require_model
from itrpipe.engine.run import Device, MapExecution
from itrpipe.errors import UsageError
from itrpipe.features.declaration import first_model, passes_of
from itrpipe.judging.declaration import judge_name
from itrpipe.models.declaration import settings_of
from itrpipe.progress import Reporter
from itrpipe.stages.base import Job, Need, Stage, Step, check_split, prepare_need
from itrpipe.stages.embeddings import embeddings_need
from itrpipe.stages.judge import SIDES
from itrpipe.storage.artifact import SUMMARY, DigestCache, open_artifact
from itrpipe.storage.disk import write_text
from itrpipe.synthesis.generators import Generator


class EvaluateExecution(MapExecution):
    """Settings that do not change the result.

    Attributes:
        device: for what needs the model itself; `auto` takes CUDA when there is one.
        encode_block: images or captions per forward pass.
    """

    device: Device
    encode_block: int = Field(ge=1)


class EvaluateStage(Stage):
    """Measures trained models."""

    schema_version = 10
    settings = EvaluateSettings
    execution = EvaluateExecution

    def label(self, conf: str, settings: EvaluateSettings) -> str:
        """Return the name of the evaluated model or models, with the split when it is not the test split."""
        name = models_label(settings)
        if settings.split != "test":
            name += f".{settings.split}"
        return name

    def needs(self, settings: EvaluateSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for models as `train` or `embeddings`, `train_2` and so on; the dataset for its truth; and sentences.

        Raises:
            UsageError: something cannot be asked of these models, or the embedded dataset's benchmark of another
                dataset.
            MissingInputError: `eccv` is set and the package with its ground truth is not installed.
        """
        check_asked(settings)
        prepare = prepare_need(definition, settings.split)
        if EMBEDDED in settings.benchmark and prepare.conf != EMBEDDED:
            raise UsageError(
                f"--benchmark {EMBEDDED} edits captions of the synthetic dataset, whose truth is known; leave it out, "
                f"or give --dataset {EMBEDDED}"
            )
        needs = {"prepare": prepare}
        for number, model in enumerate(settings.models, 1):
            need = embeddings_need(model, settings.split, features=settings.features)
            name = need.stage
            if number > 1:
                name += f"_{number}"
            needs[name] = need
            is_trained = need.stage == "train"
            if settings.ensemble_with and is_trained and not settings_of(model.backbone).embeds:
                alone = {**need.settings, "method": model.method, "split": settings.split}
                needs[f"{SCORED}{name}"] = Need("evaluate", "recall", alone)
        for name in settings.discriminate:
            generator = Generator.named(name)
            sentences = generator.settings_for(settings.split)
            needs[f"{SENTENCES}{name}"] = Need("synthesize", generator.conf, sentences)
        return needs

    def sources(self, settings: Any, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
        """Return the digests of files outside the data folder; of decisions, of those on pairs of the split."""
        digests = super().sources(settings, definition, cache)
        if settings.decisions:
            from itrpipe.datasets.decisions import decisions_digest

            digests["decisions"] = decisions_digest(settings.decisions, training=settings.split == "train")
        return digests

    def check(self, step: Step) -> None:
        """Refuse a split without images, benchmarks of images that cannot be read, and models that are not there."""
        settings: Any = step.settings
        check_split(first_model(step.inputs), settings.split)
        if settings.benchmark:
            extracted = step.inputs["train"].inputs.get("extract")
            if extracted is not None:
                check_photographs(settings, passes_of("", extracted.settings))
        for encoder in (settings.language_model, settings.blind_encoder):
            if encoder:
                require_model(encoder, sides=("text",))
        for name in settings.judges:
            judge = judge_name(name)
            if judge.pretrained:
                require_model(judge.pretrained, sides=SIDES.get(judge.kind, ("vision", "text")))

    def run(self, job: Job) -> None:
        """Write metrics.json, both files of rankings, the answers of `analysis.questions`, and all of it as text."""
        from itrpipe.analysis.scores import caveats, evaluated_scores
        from itrpipe.datasets.truth import known_pairs
        from itrpipe.datasets.vocabulary import UNKNOWN_WORDS, tell_unknown_words
        from itrpipe.evaluation.rankings import write_results
        from itrpipe.evaluation.results import results_text, summed_up

        settings = job.settings
        evaluation = EvaluatedModel(job)
        split = evaluated_scores(job)
        unknown = evaluation.manifest.metrics.get(UNKNOWN_WORDS.format(settings.split), 0)
        tell_unknown_words(job, settings.split, unknown)
        if settings.rerank:
            from itrpipe.analysis.phrases import reranked

            split = reranked(evaluation, split)
        matches = known_pairs(evaluation.prepare, split.image_ids, split.caption_ids)
        for caveat in caveats(job.inputs["prepare"], settings, matches is not None):
            job.warn(caveat)
        figures = write_results(
            job.folder,
            split,
            matches,
            protocols=settings.protocols,
            samples=settings.bootstrap_samples,
            level=settings.interval_level,
            depth=settings.ranking_depth,
        )
        text = results_text(figures, settings.interval_level, split.matrix.shape)
        job.reporter.say_lines(text)
        if settings.ensemble_with:
            job.metrics["mean of"] = " + ".join(model.label for model in settings.models)
        job.metrics |= summed_up(figures)
        answers = answer_questions(evaluation, split)
        job.reporter.say_lines(answers)
        write_text(job.folder / SUMMARY, f"{text}\n{answers}\n")

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Print the recalls of a finished evaluation, and the answers of its questions."""
        open_artifact(folder)
        reporter.say_lines((folder / SUMMARY).read_text(encoding="utf-8").rstrip("\n"))
