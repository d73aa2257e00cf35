"""`itrpipe synthesize`: negative sentences for every caption of a split, by a trained model or by rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from itrpipe.config import NEWER, ReadWith, Settings, unknown
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.engine.run import SharedExecution
from itrpipe.engine.work import resolve_device
from itrpipe.errors import UsageError
from itrpipe.features.hub import require_reachable
from itrpipe.models.registry import backbones as backbone_classes
from itrpipe.progress import Reporter
from itrpipe.stages.base import PARTS, Job, Need, Stage, Step, prepare_need
from itrpipe.storage.artifact import SCENES_FILE, STATISTICS
from itrpipe.storage.disk import require_space, write_json
from itrpipe.storage.integrity import LOCAL_MODEL, read_checked_json
from itrpipe.training.settings import backbones, canonical_backbone, run_label, settings_of

if TYPE_CHECKING:
    from itrpipe.synthesis.sentences import Opened

TRAIN = "train"
BYTES_PER_SENTENCE = 35
UNTRAINED_SHARE = 0.5
"""Share of the vocabulary that a trained model's perplexity of the captions' own words stays below."""


class SynthesizeSettings(Settings):
    """What all makers of sentences have in common.

    Attributes:
        split: whose captions the sentences are made of. Training reads those of the training split alone.
        train_share: share of the training images that anything is learned from.
        seed: of the model that writes, and of everything drawn.
        keep: sentences kept of a caption at most; of rules, by each rule.
        block: captions that are worked on together; what is drawn depends on it.
        language_model: hub id or folder of a GPT-2 that measures perplexity; empty: none.
        language_model_sentences: sentences that it reads.
    """

    split: Annotated[Literal["train", "val", "test"], NEWER] = "train"
    train_share: Annotated[float, NEWER] = Field(default=1.0, gt=0, le=1)
    seed: int = Field(ge=0)
    keep: int = Field(ge=1, le=10_000)
    block: int = Field(ge=1)
    language_model: Annotated[str, LOCAL_MODEL] = ""
    language_model_sentences: Annotated[int, ReadWith("language_model")] = Field(ge=1)

    @property
    def most_kept(self) -> int:
        """Sentences of a caption at most."""
        return self.keep

    def label(self, conf: str) -> str:
        """Readable part of the artifact's name."""
        return f"{conf}{f'.s{self.seed}' if self.seed else ''}"

    def needs(self) -> dict[str, Need]:
        """What is read beside the captions."""
        raise NotImplementedError

    def open(self, folders: Mapping[str, Path], device: str, memory: int) -> Opened:
        """The maker itself.

        Args:
            folders: input name -> artifact.
            device: `auto`, `cpu` or `cuda`.
            memory: bytes that the words of sentences take while a model ranks them.
        """
        raise NotImplementedError


class ByModel(SynthesizeSettings):
    """A masked language model that sees the image writes and ranks. Source: TAGS-DC §2.1, §2.2.

    Attributes:
        method: configuration of `train` of the model.
        backbone, features: of the model.
        masks: what is masked: phrases of scene graphs, or single words.
        copies, draws, temperature, noise, compare, exclude_specials, write_rejected: see
            `itrpipe.synthesis.masked.ModelSettings`.
    """

    maker: Literal["model"]
    method: str
    backbone: str
    features: str
    masks: Literal["phrases", "words"]
    copies: int = Field(ge=1, le=10_000)
    draws: int = Field(ge=1, le=10_000)
    temperature: float = Field(gt=0)
    noise: bool
    compare: Literal["piece", "off"]
    exclude_specials: bool
    write_rejected: bool

    @field_validator("backbone")
    @classmethod
    def _writes(cls, value: str) -> str:
        name = canonical_backbone(value)
        if name not in backbones():
            raise ValueError(unknown("backbone", name, sorted(backbones())))
        if "writing" not in settings_of(name).answers:
            able = " or ".join(each for each, declared in backbone_classes().items() if "writing" in declared.answers)
            raise ValueError(f"it cannot write words in masked places, only {able} can; give --backbone {able}")
        return name

    def label(self, conf: str) -> str:
        """With the name of the model."""
        return f"{conf}.{run_label(self.method, self.backbone, self.seed)}"

    def needs(self) -> dict[str, Need]:
        """The model, the features that it looks at and, for phrases, the scene graphs."""
        wanted: dict[str, Any] = {"backbone": self.backbone, "seed": self.seed, "features": self.features}
        if self.train_share != 1.0:
            wanted["train_share"] = self.train_share
        needed = {"extract": Need("extract", self.features), "train": Need("train", self.method, wanted)}
        return needed | ({"parse": Need("parse", "rules")} if self.masks == "phrases" else {})

    def open(self, folders: Mapping[str, Path], device: str, memory: int) -> Opened:
        """The trained model on the split."""
        from itrpipe.synthesis.masked import ModelSettings, open_model_maker

        values = self.model_dump(include=set(ModelSettings.__dataclass_fields__))
        made_by = ModelSettings(**values), resolve_device(device), memory
        return open_model_maker(folders, *made_by, self.split, self.train_share)


RuleName = Literal[
    "nouns", "numerals", "relations", "attribute", "exchange", "object", "ends", "relation", "side", "count"
]


class ByRules(SynthesizeSettings):
    """Rules write, without a model. Source: VSE-C (Shi et al., COLING 2018); `itrpipe.synthesis.edits`.

    Attributes:
        rules: which of them.
        min_count: fewest occurrences of a noun, or of a statement, that is written.
        refined: sentences that can be told from their captions without the image are left out.
        twins: those are kept alone of which a training image is found that they are true of; so many captions of either
            image have to agree. 0: all are kept, and no image is looked for.
    """

    maker: Literal["rules"]
    rules: tuple[RuleName, ...] = Field(min_length=1)
    min_count: int = Field(ge=1)
    refined: Annotated[bool, NEWER] = False
    twins: Annotated[int, NEWER] = Field(default=0, ge=0, le=100)

    @model_validator(mode="after")
    def _twins_are_trained_on(self) -> ByRules:
        if self.twins and self.split != TRAIN:
            raise ValueError(f"twins are training images, and split = {self.split} has none; leave it out")
        return self

    @property
    def most_kept(self) -> int:
        """Sentences of a caption by all rules."""
        return self.keep * len(self.rules)

    def needs(self) -> dict[str, Need]:
        """The words of the captions with their parts of speech, which the scene graphs of the rules have."""
        return {"parse": Need("parse", "rules")}

    def open(self, folders: Mapping[str, Path], device: str, memory: int) -> Opened:
        """The rules on the split, with the nouns of the training split."""
        from itrpipe.synthesis.rules import open_rule_maker

        names = ("min_count", "rules", "keep", "seed", "split", "train_share", "refined", "twins")
        return open_rule_maker(folders["prepare"], folders["parse"], **{name: getattr(self, name) for name in names})


MAKERS: dict[str, type[SynthesizeSettings]] = {"model": ByModel, "rules": ByRules}


class Execution(SharedExecution):
    """Settings that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
        memory_mib: MiB that the words of sentences take while a model ranks them.
    """

    device: Literal["auto", "cpu", "cuda"]
    memory_mib: int = Field(ge=1)


class Synthesize(Stage):
    """Writes negative sentences."""

    schema_version, execution = 3, Execution

    def check(self, step: Step) -> None:
        """Refuses a language model that is neither here nor on the hub."""
        settings: Any = step.settings
        if settings.language_model:
            require_reachable(settings.language_model)

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """The settings of the configuration's maker.

        Raises:
            UsageError: there is no such maker.
        """
        name = values.get("maker")
        if name not in MAKERS:
            raise UsageError(f"synthesize: maker = {name!r} is none of {', '.join(MAKERS)}; leave it out")
        return MAKERS[name]

    def label(self, conf: str, settings: SynthesizeSettings) -> str:
        """The configuration's name, with that of the model that writes, and the split when it is not the training "
        "split."""
        name = settings.label(conf)
        return name if settings.split == TRAIN else f"{name}.{settings.split}"

    def needs(self, settings: SynthesizeSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The captions and what the maker reads."""
        return {"prepare": prepare_need(definition), **settings.needs()}

    def run(self, job: Job) -> None:
        """Writes sentences.parquet and statistics.json."""
        from itrpipe.synthesis.checks import read_scenes, synthesis_statistics, true_negatives
        from itrpipe.synthesis.sentences import SentenceFile, Writing, join_parts

        settings = job.settings
        # Read first: what cannot be used is better found out before the sentences are written than after.
        device, reader, truth = job.execution.device, None, job.inputs["prepare"].folder / SCENES_FILE
        scenes = read_scenes(truth) if truth.is_file() else None
        if settings.language_model:
            from itrpipe.synthesis.language_model import LanguageModel, fluency

            reader = LanguageModel(settings.language_model, resolve_device(device), job.warn)
        folders = {name: each.folder.absolute() for name, each in job.inputs.items()}
        opening = partial(settings.open, folders, device, job.execution.memory_mib * 2**20)
        work = Writing(opening, settings.block, device if settings.maker == "model" else "cpu")
        opened = work.opened
        count = len(opened.texts)
        made_before = settings.block * len(list((job.work / PARTS).glob(f"*{work.suffix}")))
        needed = BYTES_PER_SENTENCE * settings.most_kept * (max(0, count - made_before) + count)
        require_space(job.folder, needed, "the file of sentences, once in parts and once joined,")
        made = job.made(work)
        join_parts(made.paths, job.folder, opened.guessed and opened.guessed(made.paths))
        file = SentenceFile(job.folder)
        statistics = synthesis_statistics(file, count)
        if reader is not None:
            most = settings.language_model_sentences  # every one may be of another caption
            with job.reporter.task("reading sentences", 2 * most, "texts") as task:
                found = fluency(file, opened.texts, reader, most, settings.seed, task.advance)
            statistics["language_model"] = {"name": Path(settings.language_model).name, **found}
        if scenes is not None:
            with job.reporter.task("judging sentences", len(file), "sentences") as task:
                statistics["true_negatives"] = true_negatives(file, scenes, task.advance)
        write_json(job.folder / STATISTICS, statistics)
        job.metrics |= {"kept": statistics["sentences"], "captions": count}
        if made.rows == count:  # how long an interrupted run took for its sentences is not known
            job.timings["writing sentences"] = round(made.seconds, 3)
            rate = statistics["sentences"] / made.seconds
            job.metrics["sentences/s"] = round(rate) if rate >= 100 else round(rate, 1)
        _say(statistics, job.reporter)
        _warn(job, statistics, opened.num_tokens)

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Prints the table of a finished artifact."""
        _say(read_checked_json(folder / STATISTICS), reporter)


def _warn(job: Job, statistics: Mapping[str, Any], num_tokens: int | None) -> None:
    """Says what makes sentences useless though everything went well."""
    perplexity = statistics["caption_perplexity"]
    if num_tokens and perplexity is not None and perplexity > UNTRAINED_SHARE * num_tokens:
        job.warn(
            f"the model's perplexity of captions is {perplexity:,.0f}, and a guess among its {num_tokens:,} words "
            "would do as well: its head for masked words is untrained; train it longer, or by --method pretrain"
        )
    if not statistics["sentences"]:
        job.warn("no sentence was kept; see the table above for what became of them")


def _say(statistics: Mapping[str, Any], reporter: Reporter) -> None:
    """Prints what became of the sentences and what else is known of them."""
    from itrpipe.synthesis.checks import facts, table_rows

    rows = table_rows(statistics)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, number, share in rows:
        reporter.say(f"  {name:<{widths[0]}}  {number:>{widths[1]}}  {share:>{widths[2]}}".rstrip())
    for fact in facts(statistics):
        reporter.say(f"  {fact}")
    if read := statistics.get("language_model"):
        reporter.say(
            f"  perplexity by {read['name']}: {read['perplexity']} of {read['sentences']:,} sentences, "
            f"{read['caption_perplexity']} of their {read['captions']:,} captions"
        )
