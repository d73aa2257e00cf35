"""Settings of an evaluation: the model, what is asked of it, and what cannot be asked together."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from itrpipe.config import Outside, Settings
from itrpipe.datasets import benchmarks
from itrpipe.datasets.judgements import JUDGEMENTS
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import NOT_HERE, FeatureSettings, is_given
from itrpipe.judging.declaration import LOCAL_JUDGE, LOCAL_JUDGES, judge_names
from itrpipe.models.declaration import canonical_backbone, settings_of
from itrpipe.storage.artifact import LOCAL_MODEL, DigestCache
from itrpipe.synthesis.generators import generator_names
from itrpipe.training import settings as training_settings
from itrpipe.training.settings import ModelName

ECCV_PACKAGE = "eccv_caption"
SCORED = "scored_"
"""Begins the name of an input: the evaluation of one model of an ensemble, whose own input name follows."""
LONGEST_LABEL = 200
"""Characters of a label that leave room for the rest of a folder name, which may have 255."""
BENCHMARKS = Outside(
    lambda _, texts, cache: benchmarks.digests(texts, cache),
    lambda texts: [benchmarks.named(text).name for text in texts],
)


def _judge_digests(name: str, judges: Sequence[str], cache: DigestCache) -> dict[str, str]:
    """Return the digests of the models of judges that are folders."""
    digests = {}
    for judge in judges:
        digests |= LOCAL_JUDGE.digests(f"judge {len(digests)}", judge, cache)
    return digests


class EvaluateSettings(Settings):
    """Models that are evaluated, and the questions asked of them.

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
        blind_encoder: hub id or folder of a text encoder that says how many of these sentences can be told without the
            image; empty: models of words alone say it.
        benchmark: benchmarks of hard negatives, `NAME=FOLDER` or `scenes`; see `itrpipe.datasets.benchmarks`. In the
            order of their names.
        decisions: file of people's judgements, see `itrpipe.review`; what fits counts as right beside the own
            image or caption; empty: none.
        judges: names of judges, see `itrpipe.judging.declaration.judge_name`, which are asked whether wrong answers are
            right after all, and are compared with people where `benchmark` says so.
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
    blind_encoder: Annotated[str, LOCAL_MODEL] = ""
    benchmark: Annotated[tuple[str, ...], BENCHMARKS, AfterValidator(benchmarks.benchmark_names)] = ()
    decisions: Annotated[str, Outside(lambda name, value, cache: {})] = ""  # digests: `EvaluateStage.sources`
    judges: Annotated[
        tuple[str, ...],
        Outside(_judge_digests, LOCAL_JUDGES.seen),
        AfterValidator(judge_names),
    ] = ()
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
    def _different_models(
        cls,
        value: tuple[str, ...],
        info: ValidationInfo,
    ) -> tuple[str, ...]:
        if not {"method", "backbone", "seed"} <= info.data.keys():
            return value  # one of these is refused already
        first = ModelName(info.data["method"], info.data["backbone"], info.data["seed"])
        members = []
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
    def models(self) -> list[ModelName]:
        """Return the evaluated model and those that its scores are averaged with."""
        first = ModelName(self.method, self.backbone, self.seed)
        return [first, *map(first.named_by, self.ensemble_with)]


def models_label(settings: EvaluateSettings) -> str:
    """Return the name of the run and of those averaged with it: `aoq.vsrn`, `aoq.bfan+scan`, `ssamt.ssamt.rerank64`."""
    name = "+".join((settings.models[0].label, *settings.ensemble_with))
    if settings.rerank:
        name += f".rerank{settings.rerank}"
    return name


def check_asked(settings: EvaluateSettings) -> None:
    """Refuse options that do not apply to these models.

    Raises:
        UsageError: `rerank` is set and the model does not rank in two steps; sentences or benchmarks are named and
            several models; or a language model is, and the evaluated one does not correct sentences.
        MissingInputError: `eccv` is set and the package with its ground truth is not installed.
    """
    if settings.eccv and importlib.util.find_spec(ECCV_PACKAGE) is None:
        raise MissingInputError(
            f"--eccv reads the ground truth of the package {ECCV_PACKAGE}, which is not installed; run "
            "`pip install itrpipe[eccv]`, or leave --eccv out"
        )
    given = is_given(settings.backbone)
    ranks_in_two_steps = False
    corrects_sentences = False
    if not given and not settings.ensemble_with:
        ranks_in_two_steps = settings_of(settings.backbone).reads_phrases
        corrects_sentences = "words" in training_settings.method_of(settings.method).answers
    if settings.rerank and not ranks_in_two_steps:
        raise UsageError(
            f"--rerank {settings.rerank} is for single models that rank in two steps, such as --method ssamt; "
            "leave it out"
        )
    if settings.language_model and not corrects_sentences:
        raise UsageError(
            f"--language-model {settings.language_model} reads what a single model makes of wrong sentences, such "
            "as --method tags-dc; leave it out, or give it to `itrpipe synthesize`, whose sentences it also reads"
        )
    if settings.blind_encoder and not settings.discriminate:
        raise UsageError(
            f"blind_encoder = {settings.blind_encoder} reads the sentences of --discriminate; name some, such as "
            "graph-edits, or leave it out"
        )
    if JUDGEMENTS in BENCHMARKS.seen(settings.benchmark) and not settings.judges:
        raise UsageError(
            f"--benchmark {JUDGEMENTS} compares judges with people; name one with --judge, such as captions"
        )
    for option, values in (
        ("discriminate", settings.discriminate),
        ("benchmark", settings.benchmark),
    ):
        if values and settings.ensemble_with:
            raise UsageError(f"--{option} looks at the scores of one model; leave --ensemble-with out and test each")
        if values and given:
            raise UsageError(f"--{option} {values[0]} scores other pairs, and {NOT_HERE}; leave it out")


def check_photographs(
    settings: EvaluateSettings,
    features: Mapping[str, FeatureSettings],
) -> None:
    """Refuse benchmarks of photographs for a model whose features those cannot have.

    Args:
        settings: of the evaluation.
        features: the extractors that made the features which the model was trained on, by name.

    Raises:
        UsageError: the features were imported, or come from a detector of drawings.
    """
    of_photographs = [name for name in settings.benchmark if benchmarks.named(name).folder]
    if not of_photographs:
        return
    option = f"--benchmark {of_photographs[0]}"
    for part in features.values():
        if part.imported:
            raise UsageError(
                f"{option}: the features of this dataset were imported ({part.kind}), so those "
                "of other photographs cannot be made alike; evaluate a model that was trained on extracted features"
            )
        if part.drawings_only:
            raise UsageError(
                f"{option}: the features of this dataset come from the detector of "
                f"`{part.kind}`, which knows synthetic images and no photographs; evaluate a model that was trained on "
                "other features, such as --backbone dual-encoder, or give --benchmark scenes"
            )
