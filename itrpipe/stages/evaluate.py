"""`itrpipe evaluate`: metrics and rankings of one trained model, or of several with averaged scores, on one split."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from itrpipe.analysis.questions.base import SENTENCES, EvaluatedModel, answers_text, questions
from itrpipe.config import Outside, Settings
from itrpipe.datasets import benchmarks
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition
from itrpipe.engine.run import MapExecution
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import NOT_HERE, is_given, model_inputs, passes_of, read_model
from itrpipe.features.hub import require_reachable
from itrpipe.models.registry import canonical_backbone, settings_of
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Job, Need, Stage, Step, check_split, prepare_need
from itrpipe.stages.embeddings import embeddings_need
from itrpipe.storage.artifact import CROSS_RETRIEVAL, METRICS, RANKINGS, SUMMARY, existing_input
from itrpipe.storage.disk import write_json, write_text
from itrpipe.storage.integrity import LOCAL_MODEL, checked
from itrpipe.synthesis.generators import Generator, generator_names
from itrpipe.training import settings as training_settings
from itrpipe.training.settings import Model, decisions_file

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores

SCORED = "scored_"
"""What the input name of the evaluation of one model of an ensemble begins with; that of the model follows."""
ECCV_PACKAGE = "eccv_caption"
LONGEST_LABEL = 200
"""Characters of a label that leave room for the rest of a folder name, which may have 255."""
BENCHMARKS = Outside(
    lambda _, given, cache: benchmarks.digests(given, cache),
    lambda given: [benchmarks.named(each).name for each in given],
)


class EvaluateSettings(Settings):
    """What is evaluated and how.

    Attributes:
        method: configuration of `train` (triplet, aoq).
        backbone, seed, features: of the trained model; an empty backbone is the one of the method.
        ensemble_with: further models, trained on the same features, whose scores are averaged with those of the first.
            A name is `[method.]backbone[.sN]`; what is left out is that of the first model. Kept in the shortest form
            and in the order of the models, since the order they are given in changes nothing.
        split: which split is ranked.
        rerank: score only so many candidates of every query in full, of a model that ranks in two steps; 0: all.
        eccv: also measure with the matches of ECCV Caption and CxC, on COCO's 5K test split.
        discriminate: generators of negative sentences, see `itrpipe.synthesis.generators`; of each is measured
            how many score below the captions of the split that they were made of. Kept in the shortest form and in one
            order.
        language_model: hub id or folder of a GPT-2 that measures the perplexity of sentences before and after the
            model corrected them; empty: none.
        benchmark: benchmarks of hard negatives, `NAME=FOLDER` or `scenes`; see `itrpipe.datasets.benchmarks`. In the
            order of their names.
        decisions: file of people's judgements, see `itrpipe.review`; what fits counts as right beside the own
            image or caption; empty: none.
        protocols: names in `itrpipe.evaluation.metrics`; those that need more images than there are do not apply.
        bootstrap_samples: resampled test sets behind every interval.
        interval_level: share of them that an interval holds.
        ranking_depth: candidates kept for each query.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    ensemble_with: tuple[str, ...] = ()
    split: Literal["train", "val", "test"]
    rerank: int = Field(default=0, ge=0)
    eccv: bool = False
    discriminate: Annotated[tuple[str, ...], AfterValidator(generator_names)] = ()
    language_model: Annotated[str, LOCAL_MODEL] = ""
    benchmark: Annotated[tuple[str, ...], BENCHMARKS, AfterValidator(benchmarks.benchmark_names)] = ()
    decisions: Annotated[str, decisions_file(training=False)] = ""
    protocols: tuple[Literal["full", "coco-1k", "coco-5k"], ...]
    bootstrap_samples: int = Field(ge=100, le=1_000_000)
    interval_level: float = Field(gt=0, lt=1)
    ranking_depth: int = Field(ge=1)

    @field_validator("backbone")
    @classmethod
    def _canonical(cls, value: str, info: ValidationInfo) -> str:
        if value or "method" not in info.data:
            return canonical_backbone(value)
        return training_settings.usual_backbone(info.data["method"])

    @field_validator("ensemble_with")
    @classmethod
    def _different_models(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not {"method", "backbone", "seed"} <= info.data.keys():
            return value  # one of these is refused already
        first = Model(info.data["method"], info.data["backbone"], info.data["seed"])
        members: list[Model] = []
        for name in value:
            member = first.named_by(name)
            if member == first:
                raise ValueError(f"{name!r} is the evaluated model itself; name another one, such as another seed")
            if member in members:
                raise ValueError(f"{name!r} names {member.label} a second time; leave it out")
            members.append(member)
        names = tuple(first.name_of(member) for member in sorted(members))
        length = len("+".join((first.label, *names)))
        if length > LONGEST_LABEL:
            raise ValueError(f"the artifact's name would have {length} characters; average fewer models")
        return names

    @property
    def models(self) -> list[Model]:
        """The evaluated model and those that its scores are averaged with."""
        first = Model(self.method, self.backbone, self.seed)
        return [first, *map(first.named_by, self.ensemble_with)]


class Execution(MapExecution):
    """Settings that do not change the result.

    Attributes:
        device: for what needs the model itself; `auto` takes CUDA when there is one.
        encode_block: images or captions per forward pass.
    """

    device: Literal["auto", "cpu", "cuda"]
    encode_block: int = Field(ge=1)


class Evaluate(Stage):
    """Measures trained models."""

    schema_version, settings, execution = 7, EvaluateSettings, Execution

    def label(self, conf: str, settings: EvaluateSettings) -> str:
        """Name of the evaluated model or models, with the split when it is not the test split."""
        name = models_label(settings)
        return name if settings.split == "test" else f"{name}.{settings.split}"

    def needs(self, settings: EvaluateSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The models as inputs `train` or `embeddings`, `train_2` and so on; the dataset for its truth; and sentences.

        Raises:
            UsageError: `rerank` is set and the model does not rank in two steps; sentences or benchmarks are named and
                several models; a language model is, and the evaluated one does not correct sentences; or the embedded
                dataset's benchmark is, for another dataset.
            MissingInputError: `eccv` is set and the package with its ground truth is not installed.
        """
        if settings.eccv and importlib.util.find_spec(ECCV_PACKAGE) is None:
            raise MissingInputError(
                f"--eccv reads the ground truth of the package {ECCV_PACKAGE}, which is not installed; run "
                "`pip install itrpipe[eccv]`, or leave --eccv out"
            )
        given = is_given(settings.backbone)
        trained_alone = not given and not settings.ensemble_with
        if settings.rerank and not (trained_alone and settings_of(settings.backbone).reads_phrases):
            raise UsageError(
                f"--rerank {settings.rerank} is for single models that rank in two steps, such as --method ssamt; "
                "leave it out"
            )
        if settings.language_model and not (
            trained_alone and "words" in training_settings.method_of(settings.method).answers
        ):
            raise UsageError(
                f"--language-model {settings.language_model} reads what a single model makes of wrong sentences, such "
                "as --method tags-dc; leave it out, or give it to `itrpipe synthesize`, whose sentences it also reads"
            )
        for option in ("discriminate", "benchmark"):
            values = getattr(settings, option)
            if values and settings.ensemble_with:
                raise UsageError(
                    f"--{option} looks at the scores of one model; leave --ensemble-with out and test each"
                )
            if values and given:
                raise UsageError(f"--{option} {values[0]} scores other pairs, and {NOT_HERE}; leave it out")
        wanted = {"prepare": prepare_need(definition, settings.split)}
        if EMBEDDED in settings.benchmark and wanted["prepare"].conf != EMBEDDED:
            raise UsageError(
                f"--benchmark {EMBEDDED} edits captions of the synthetic dataset, whose truth is known; leave it out, "
                f"or give --dataset {EMBEDDED}"
            )
        for number, model in enumerate(settings.models, 1):
            need = embeddings_need(model, settings.split, features=settings.features)
            name = need.stage if number == 1 else f"{need.stage}_{number}"
            wanted[name] = need
            is_trained = need.stage == "train"
            if settings.ensemble_with and is_trained and not settings_of(model.backbone).embeds:
                alone = {**need.settings, "method": model.method, "split": settings.split}
                wanted[f"{SCORED}{name}"] = Need("evaluate", "recall", alone)
        for name in settings.discriminate:
            generator = Generator.named(name)
            wanted[f"{SENTENCES}{name}"] = Need("synthesize", generator.conf, generator.wanted(settings.split))
        return wanted

    def check(self, step: Step) -> None:
        """Refuses a split without images, benchmarks of images that cannot be read, and models that are not there."""
        settings: Any = step.settings
        check_split(read_model(step.inputs), settings.split)
        given = [each for each in settings.benchmark if benchmarks.named(each).folder]
        for part in passes_of("", step.inputs["train"].inputs["extract"].settings).values() if given else ():
            fact = f"--benchmark {given[0]}: the features of this dataset "
            if part.imported:
                raise UsageError(
                    f"{fact}were imported ({part.kind}), so those of other photographs cannot be made alike; evaluate "
                    "a model that was trained on extracted features"
                )
            if part.drawings_only:
                raise UsageError(
                    f"{fact}come from the detector of `{part.kind}`, which knows synthetic images and no photographs; "
                    "evaluate a model that was trained on other features, such as --backbone dual-encoder, or give "
                    "--benchmark scenes"
                )
        if settings.language_model:
            require_reachable(settings.language_model)

    def run(self, job: Job) -> None:
        """Writes metrics.json, both files of rankings, what `analysis.questions` answer, and all of it as text."""
        from itrpipe.analysis.questions.phrases import reranked
        from itrpipe.datasets.prepared import LEAKED, PreparedDataset
        from itrpipe.datasets.truth import known_pairs
        from itrpipe.evaluation.metrics import ranks
        from itrpipe.evaluation.rankings import write_cross_retrieval, write_rankings
        from itrpipe.evaluation.results import oracle_ranks, results, results_text, summed_up
        from itrpipe.mining.filters import DuplicateCaptions

        settings, evaluation, split = job.settings, EvaluatedModel(job), _averaged(job)
        unknown_words = evaluation.manifest.metrics.get(train.UNKNOWN_WORDS.format(settings.split), 0)
        train.tell_unknown_words(job, settings.split, unknown_words)
        if settings.rerank:
            split = reranked(evaluation, split)
        full = ranks(split.matrix, split.caption_image)
        matches = known_pairs(evaluation.prepare, split.image_ids, split.caption_ids)
        own = PreparedDataset.open(evaluation.prepare, tokens=False).split(settings.split)
        shared = DuplicateCaptions(own.texts, own.caption_image).report()["captions_of_other_images"]
        if matches is None and shared:
            job.warn(
                f"{shared:,} of {len(own.texts):,} captions are also those of another image, where they count as "
                "wrong, and ties do, too: no model reaches 100 %"
            )
        if leaks := job.inputs["prepare"].manifest.metrics.get("leaks"):
            job.warn(LEAKED.format(leaks))
        oracle = None if matches is None else oracle_ranks(split, matches)
        found = results(split, full, oracle, matches, settings, job.warn)
        write_json(job.folder / METRICS, found)
        write_rankings(job.folder / RANKINGS, split, full, oracle, settings.ranking_depth)
        write_cross_retrieval(job.folder / CROSS_RETRIEVAL, split)
        text = results_text(found, settings.interval_level, split.matrix.shape)
        job.reporter.say_lines(text)
        if settings.ensemble_with:
            job.metrics["mean of"] = " + ".join(model.label for model in settings.models)
        job.metrics |= summed_up(found)
        for question in questions():
            if question.asks(evaluation):
                question.answer(evaluation, split)
        answers = answers_text(job.folder)
        job.reporter.say_lines(answers)
        write_text(job.folder / SUMMARY, f"{text}\n{answers}\n")

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Prints the recalls of a finished evaluation, and what was answered in it."""
        reporter.say_lines(checked(folder / SUMMARY).read_text(encoding="utf-8").rstrip("\n"))


def models_label(settings: EvaluateSettings) -> str:
    """Name of the run, followed by those averaged with it: `aoq.vsrn`, `aoq.bfan+bfan-prob`, `ssamt.ssamt.rerank64`."""
    name = "+".join((settings.models[0].label, *settings.ensemble_with))
    return f"{name}.rerank{settings.rerank}" if settings.rerank else name


def _averaged(job: Job) -> SplitScores:
    """Return the scores of the evaluated model; of several the mean of their scores as they are, in single precision.

    Raises:
        DataError: the models were trained on different images or captions of the split.
    """
    from itrpipe.features.embeddings import EMBEDDINGS

    own, *others = model_inputs(job.inputs)
    if not others and EMBEDDINGS not in job.inputs[own].manifest.outputs:
        return _scored(job)
    scores = _known_scores(job, own)
    for name in others:
        other = _known_scores(job, name)
        for rows in ("image_ids", "caption_ids", "caption_image"):
            if getattr(scores, rows).tolist() != getattr(other, rows).tolist():
                raise DataError(
                    f"{job.inputs[name].folder}: its {rows.replace('_', ' ')} of split {job.settings.split} are not "
                    f"those of {job.inputs[own].folder}, so their scores cannot be averaged; train both on the same "
                    "dataset"
                )
        scores.matrix[:] += other.matrix
    if others:
        scores.matrix[:] /= len(others) + 1
    return scores


def _scored(job: Job) -> SplitScores:
    """Scores of a model without embeddings, which are kept beside its metrics.

    Raises:
        MissingInputError: what the model was trained on was removed.
    """
    from itrpipe.features.embeddings import SCORES, write_scores
    from itrpipe.training.data import Sources
    from itrpipe.training.encoding import Scoring

    trained, manifest, split = job.inputs["train"].folder, job.inputs["train"].manifest, job.settings.split
    read = ["prepare", "extract"]
    if settings_of(job.settings.backbone).reads_phrases:
        read.append("parse")  # other models may have been trained on sentences that it helped to write
    folders = {name: existing_input(trained, manifest, name).absolute() for name in read}
    sources = Sources(**folders, train_share=manifest.settings["train_share"])
    work = Scoring(trained.absolute(), sources, job.execution.encode_block, job.execution.device, split)
    scores = work.join(job.made(work).paths)
    (job.folder / SCORES).unlink(missing_ok=True)  # of an interrupted run
    write_scores(job.folder / SCORES, split, scores)
    return scores


def _known_scores(job: Job, name: str) -> SplitScores:
    """Return the scores of one model: of its embeddings, or those that its own evaluation has written.

    Args:
        job: the evaluation.
        name: of the input that is the model.

    Raises:
        DataError: the file is damaged.
        MissingInputError: it has no such split.
    """
    from itrpipe.features.embeddings import EMBEDDINGS, SCORES, SplitScores, read_embeddings, read_scores

    scored = job.inputs.get(f"{SCORED}{name}")
    if scored is not None:
        return read_scores(scored.folder / SCORES, job.settings.split)
    split = read_embeddings(job.inputs[name].folder / EMBEDDINGS, job.settings.split)
    return SplitScores(split.scores(), split.image_ids, split.caption_ids, split.caption_image)
