"""`itrpipe evaluate`: metrics and rankings of one trained model, or of several with averaged scores, on one split."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.artifacts.disk import write_json
from itrpipe.artifacts.integrity import read_checked_json
from itrpipe.artifacts.sources import DigestCache, folder_digests, local_folders
from itrpipe.config import Settings, did_you_mean
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Job, Need, prepare_need
from itrpipe.stages.evaluate import analyses
from itrpipe.stages.evaluate.generators import generator_names, sentence_needs
from itrpipe.stages.evaluate.named_models import Model
from itrpipe.training import settings as training_settings

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.evaluation.ranks import Ranks
    from itrpipe.features.embeddings import SplitEmbeddings
    from itrpipe.features.scores import SplitScores

SCHEMA_VERSION = 5
METRICS, RANKINGS, CROSS_RETRIEVAL = "metrics.json", "rankings.parquet", "cross_retrieval.parquet"
FULL, ORACLE = "full", "oracle"
RESULT_PROTOCOLS = (FULL, "coco-1k", "coco-5k")
"""Names in `itrpipe.evaluation.protocols`."""
ECCV_PACKAGE = "eccv_caption"
LONGEST_LABEL = 200
"""Characters of a label that leave room for the rest of a folder name, which may have 255."""
NEWER = ("discriminate", "language_model")
"""Settings that are newer than evaluations which must not go stale: they count where they are not at their default."""
backbones, canonical_backbone = train.backbones, train.canonical_backbone


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
        discriminate: generators of negative sentences, see `itrpipe.stages.evaluate.generators`; of each is measured
            how many score below the captions of the split that they were made of. Kept in the shortest form and in one
            order.
        language_model: hub id or folder of a GPT-2 that measures the perplexity of sentences before and after the
            model corrected them; empty: none.
        protocols: names in `itrpipe.evaluation.protocols`; those that need more images than there are do not apply.
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
    discriminate: tuple[str, ...] = ()
    language_model: str = ""
    protocols: tuple[str, ...]
    bootstrap_samples: int = Field(ge=100, le=1_000_000)
    interval_level: float = Field(gt=0, lt=1)
    ranking_depth: int = Field(ge=1)

    @field_validator("protocols")
    @classmethod
    def _known_protocols(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in RESULT_PROTOCOLS:
                raise ValueError(f"no protocol {name!r}{did_you_mean(name, RESULT_PROTOCOLS)}")
        return value

    @field_validator("discriminate")
    @classmethod
    def _known_generators(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return generator_names(value)

    @field_validator("backbone")
    @classmethod
    def _canonical(cls, value: str, info: ValidationInfo) -> str:
        if value or "method" not in info.data:
            return train.canonical_backbone(value)
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


class Execution(Settings):
    """Settings that do not change the result.

    Attributes:
        device: for what needs the model itself; `auto` takes CUDA when there is one.
        encode_block: images or captions per forward pass.
    """

    device: Literal["auto", "cpu", "cuda"]
    encode_block: int = Field(ge=1)


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `EvaluateSettings`."""
    return EvaluateSettings


def label(conf: str, settings: EvaluateSettings) -> str:
    """Name of the evaluated model or models, with the split when it is not the test split."""
    name = models_label(settings)
    return name if settings.split == "test" else f"{name}.{settings.split}"


def models_label(settings: EvaluateSettings) -> str:
    """Name of the run, followed by those averaged with it: `aoq.vsrn`, `aoq.bfan+bfan-prob`, `ssamt.ssamt.rerank64`."""
    name = "+".join((settings.models[0].label, *settings.ensemble_with))
    return f"{name}.rerank{settings.rerank}" if settings.rerank else name


def sources(settings: EvaluateSettings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
    """Digest of a language model that lies on this machine.

    Raises:
        MissingInputError: it is no folder.
    """
    return folder_digests(_local_folders(settings), cache)


def fingerprinted(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings as the fingerprint sees them: of a language model's folder its content, not where it lies."""
    unused = {name for name in NEWER if getattr(settings, name) == EvaluateSettings.model_fields[name].default}
    values = settings.model_dump(mode="json", exclude=unused)
    return values | dict.fromkeys(_local_folders(settings), "local")


def _local_folders(settings: EvaluateSettings) -> dict[str, Path]:
    return local_folders({"language_model": settings.language_model})


def needs(settings: EvaluateSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """The trained model as input `train`, others as `train_2` and so on; the dataset for its truth; and sentences.

    Raises:
        UsageError: `rerank` is set and the model does not rank in two steps; sentences are named and several models; or
            a language model is, and the evaluated one does not correct sentences.
        MissingInputError: `eccv` is set and the package with its ground truth is not installed.
    """
    if settings.eccv and importlib.util.find_spec(ECCV_PACKAGE) is None:
        raise MissingInputError(
            f"--eccv reads the ground truth of the package {ECCV_PACKAGE}, which is not installed; run "
            "`pip install itrpipe[eccv]`, or leave --eccv out"
        )
    if settings.rerank and (settings.ensemble_with or not training_settings.reads_phrases(settings.backbone)):
        raise UsageError(
            f"--rerank {settings.rerank} is for single models that rank in two steps, such as --method ssamt; leave it "
            "out"
        )
    if settings.language_model and (settings.ensemble_with or not analyses.corrects_words(settings.method)):
        raise UsageError(
            f"--language-model {settings.language_model} reads what a single model makes of wrong sentences, such as "
            "--method tags-dc; leave it out, or give it to `itrpipe synthesize`, whose sentences it also reads"
        )
    wanted = {"prepare": prepare_need(definition)}
    for name, model in _inputs(settings).items():
        same = {"backbone": model.backbone, "seed": model.seed, "features": settings.features}
        wanted[name] = Need("train", model.method, same)
    return wanted | sentence_needs(settings.discriminate, settings.split, settings.ensemble_with)


def _inputs(settings: EvaluateSettings) -> dict[str, Model]:
    """Input name -> the model it is."""
    return {f"train_{number}" if number > 1 else "train": model for number, model in enumerate(settings.models, 1)}


def run(job: Job) -> None:
    """Writes metrics.json, rankings.parquet and others that every model has; of some also what is theirs alone."""
    from itrpipe.evaluation.oracle import oracle_ranks
    from itrpipe.evaluation.ranks import ranks
    from itrpipe.evaluation.written import write_cross_retrieval, write_rankings

    split = _averaged(job)
    if not job.settings.ensemble_with:
        split = analyses.with_phrases(job, split)
    full = ranks(split.matrix, split.caption_image)
    matches = _true_matches(job, split)
    oracle = None if matches is None else oracle_ranks(split.matrix, *matches)
    results = _results(job, split, full, oracle)
    if matches is not None:
        results[ORACLE] |= _precision(job, split, *matches)
    write_json(job.folder / METRICS, results)
    write_rankings(job.folder / RANKINGS, split, full, oracle, job.settings.ranking_depth)
    write_cross_retrieval(job.folder / CROSS_RETRIEVAL, split)
    analyses.write_query_length(job, split, full)
    if job.settings.eccv:
        analyses.write_eccv_caption(job, split)
    _say(results, job.settings.interval_level, job.reporter)
    _record(job, results)
    if not job.settings.ensemble_with:
        analyses.write_alignment(job)
        analyses.write_false_negatives(job)
        analyses.write_word_maps(job, split)
        analyses.write_words(job)
        analyses.write_discrimination(job, split)


def _averaged(job: Job) -> SplitScores:
    """Scores of the evaluated model; of several models the mean of their scores as they are, in single precision.

    Raises:
        DataError: the models were trained on different images or captions of the split.
    """
    from itrpipe.features.scores import SplitScores

    inputs = _inputs(job.settings)
    first = _read(job, "train", inputs["train"])
    total = first.scores()
    for name in list(inputs)[1:]:
        other = _read(job, name, inputs[name])
        _refuse_other_rows(job, name, first, other)
        total += other.scores()
    if len(inputs) > 1:
        total /= len(inputs)
    return SplitScores(total, first.image_ids, first.caption_ids, first.caption_image)


def _read(job: Job, name: str, model: Model) -> SplitEmbeddings | SplitScores:
    return read_split(job.inputs[name].folder, model.backbone, job.settings.split)


def read_split(trained: Path, backbone: str, split: str) -> SplitEmbeddings | SplitScores:
    """What training wrote of a split: embeddings, or scores of a backbone that has none.

    Args:
        trained: artifact of `train`.
        backbone: canonical.
        split: name.

    Raises:
        DataError: the file is damaged.
        MissingInputError: it has no such split.
    """
    from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
    from itrpipe.features.scores import SCORES, read_scores

    if training_settings.embeds(backbone):
        return read_embeddings(trained / EMBEDDINGS, split)
    return read_scores(trained / SCORES, split)


def _refuse_other_rows(
    job: Job, name: str, first: SplitEmbeddings | SplitScores, other: SplitEmbeddings | SplitScores
) -> None:
    import numpy as np

    for what in ("image_ids", "caption_ids", "caption_image"):
        if not np.array_equal(getattr(first, what), getattr(other, what)):
            raise DataError(
                f"{job.inputs[name].folder}: its {what.replace('_', ' ')} of split {job.settings.split} are not those "
                f"of {job.inputs['train'].folder}, so their scores cannot be averaged; train both on the same dataset"
            )


def _results(job: Job, split: SplitScores, full: Ranks, oracle: Ranks | None) -> dict[str, Any]:
    """Protocol -> metric -> value, and low and high where there is an interval."""
    from itrpipe.evaluation.protocols import PROTOCOLS, protocol_folds

    results: dict[str, Any] = {FULL: _with_intervals([(full, split.caption_image)], job.settings)}
    for name in job.settings.protocols:
        if name == FULL:
            continue
        if not PROTOCOLS[name].applies(len(split.matrix)):
            job.warn(f"{name} needs {PROTOCOLS[name].images:,} images, {job.settings.split} has {len(split.matrix):,}")
            continue
        results[name] = _with_intervals(protocol_folds(name, split.matrix, split.caption_image), job.settings)
    if oracle is not None:
        results[ORACLE] = _with_intervals([(oracle, split.caption_image)], job.settings)
    return results


def show(folder: Path, reporter: Reporter) -> None:
    """Prints the recalls of a finished evaluation, and what it found out about words and sentences."""
    _say(read_checked_json(folder / METRICS), read_manifest(folder).settings["interval_level"], reporter)
    analyses.say_words(folder, reporter)
    analyses.say_discrimination(folder, reporter)


def _say(results: Mapping[str, Any], level: float, reporter: Reporter) -> None:
    """Prints the recalls and RSum under every protocol, below them their intervals."""
    from itrpipe.evaluation.rsum import CUTOFFS

    titles = [f"{side} R@{k}" if k == CUTOFFS[0] else f"R@{k}" for side in ("i2t", "t2i") for k in CUTOFFS]
    metrics = [*(f"{side}_r{k}" for side in ("i2t", "t2i") for k in CUTOFFS), "rsum"]
    percent = f"{100 * level:g} %"
    reporter.say(_line("", [*titles, "RSum"]))
    for name, values in results.items():
        found = [values[metric] for metric in metrics]
        reporter.say(_line(name, [f"{each['value']:.1f}" for each in found]))
        reporter.say(_line(f" {percent}", [_span(each["low"], each["high"]) for each in found]))
    meaning = f"  {percent}: bootstrap interval over test images"
    reporter.say(f"{meaning}; {ORACLE}: every true match is right" if ORACLE in results else meaning)


def _line(name: str, cells: Sequence[str]) -> str:
    """Below 80 columns wide: a name, six recalls and RSum."""
    first, *others, last = cells
    return f"  {name:<7}{first:>9}" + "".join(f"{cell:>10}" for cell in others) + f"{last:>12}"


def _span(low: float, high: float) -> str:
    """Both ends; 100 % has no decimals, so that ten characters hold every interval of a recall and a blank."""
    return f"{low:.1f}\N{EN DASH}{high:.1f}".replace("100.0", "100")


def _record(job: Job, results: Mapping[str, Any]) -> None:
    """Numbers that tables show."""
    from itrpipe.evaluation.rsum import CUTOFFS

    if job.settings.ensemble_with:
        job.metrics["mean of"] = " + ".join(model.label for model in job.settings.models)
    for direction in ("i2t", "t2i"):
        recalls = [results[FULL][f"{direction}_r{k}"]["value"] for k in CUTOFFS]
        job.metrics[f"{direction} R@1/5/10"] = " / ".join(f"{value:.1f}" for value in recalls)
    for name, values in results.items():
        job.metrics[f"{name} rsum"] = round(values["rsum"]["value"], 2)


def _with_intervals(
    folds: Sequence[tuple[Ranks, np.ndarray]], settings: EvaluateSettings
) -> dict[str, dict[str, float]]:
    from itrpipe.evaluation.bootstrap import fold_intervals

    found = fold_intervals(folds, settings.bootstrap_samples, settings.interval_level)
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}


def _true_matches(job: Job, split: SplitScores) -> tuple[np.ndarray, np.ndarray] | None:
    """Every true match as `oracle_ranks` takes it, where the dataset knows them."""
    import numpy as np

    from itrpipe.datasets.truth import read_truth

    truth = read_truth(job.inputs["prepare"].folder, split.image_ids, split.caption_ids)
    if truth is None:
        return None
    return np.concatenate([[0], np.cumsum([len(rows) for rows in truth])]), np.concatenate(truth)


def _precision(
    job: Job, split: SplitScores, offsets: np.ndarray, match_images: np.ndarray
) -> dict[str, dict[str, float]]:
    """mAP@R and R-Precision with every true match counted, in percent, with their intervals."""
    import numpy as np

    from itrpipe.evaluation.bootstrap import mean_intervals
    from itrpipe.evaluation.oracle import oracle_precision

    found = oracle_precision(split.matrix, offsets, match_images)
    images, settings = len(split.matrix), job.settings
    values = {}
    for side, query_image in (("i2t", np.arange(images)), ("t2i", split.caption_image)):
        percent = {
            f"{side}_map_at_r": 100.0 * found[side].average,
            f"{side}_r_precision": 100.0 * found[side].r_precision,
        }
        values |= mean_intervals(percent, query_image, images, settings.bootstrap_samples, settings.interval_level)
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in values.items()}
