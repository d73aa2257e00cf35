"""`itrpipe synthesize`: negative sentences for every caption of a split, by a trained model or by rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.engine.run import SharedExecution
from itrpipe.engine.work import resolve_device
from itrpipe.errors import UsageError
from itrpipe.features.hub import require_reachable
from itrpipe.progress import Reporter
from itrpipe.stages.base import PARTS, Job, Need, Stage, Step, prepare_need
from itrpipe.storage.artifact import SCENES_FILE, STATISTICS
from itrpipe.storage.disk import require_space, write_json
from itrpipe.storage.integrity import read_checked_json
from itrpipe.synthesis.generators import MAKERS, TRAIN, ByModel, ByRules, SynthesizeSettings
from itrpipe.training.settings import run_label

if TYPE_CHECKING:
    from itrpipe.synthesis.sentences import Opened

BYTES_PER_SENTENCE = 35
UNTRAINED_SHARE = 0.5
"""Share of the vocabulary that a trained model's perplexity of the captions' own words stays below."""


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

    schema_version, execution = 5, Execution

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
        """The configuration's name, with that of the model that writes, and a split other than train."""
        name = f"{conf}.s{settings.seed}" if settings.seed else conf
        if isinstance(settings, ByModel):
            name = f"{conf}.{run_label(settings.method, settings.backbone, settings.seed)}"
        return name if settings.split == TRAIN else f"{name}.{settings.split}"

    def needs(self, settings: SynthesizeSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The captions, and what the maker reads: a model and features, or scene graphs, which also have all words."""
        wanted = {"prepare": prepare_need(definition)}
        if isinstance(settings, ByModel):
            model: dict[str, Any] = {name: getattr(settings, name) for name in ("backbone", "seed", "features")}
            if settings.train_share != 1.0:
                model["train_share"] = settings.train_share
            wanted |= {"extract": Need("extract", settings.features), "train": Need("train", settings.method, model)}
        if not isinstance(settings, ByModel) or settings.masks == "phrases":
            wanted["parse"] = Need("parse", "rules")
        return wanted

    def run(self, job: Job) -> None:
        """Writes sentences.parquet and statistics.json."""
        from itrpipe.scenes.build import read_described
        from itrpipe.synthesis.checks import synthesis_statistics, true_negatives
        from itrpipe.synthesis.sentences import SentenceFile, Writing, join_parts

        settings = job.settings
        # Read first: what cannot be used is better found out before the sentences are written than after.
        device, reader, truth = job.execution.device, None, job.inputs["prepare"].folder / SCENES_FILE
        described = read_described(truth) if truth.is_file() else {}
        if settings.language_model:
            from itrpipe.synthesis.language_model import LanguageModel, fluency

            reader = LanguageModel(settings.language_model, resolve_device(device), job.warn)
        folders = {name: each.folder.absolute() for name, each in job.inputs.items()}
        opening = partial(open_maker, settings, folders, device, job.execution.memory_mib * 2**20)
        work = Writing(opening, settings.block, device if settings.maker == "model" else "cpu")
        opened = work.opened
        count = len(opened.split.captions)
        made_before = settings.block * len(list((job.work / PARTS).glob(f"*{work.suffix}")))
        most_kept = settings.keep * (len(settings.rules) if isinstance(settings, ByRules) else 1)
        needed = BYTES_PER_SENTENCE * most_kept * (max(0, count - made_before) + count)
        require_space(job.folder, needed, "the file of sentences, once in parts and once joined,")
        made = job.made(work)
        join_parts(made.paths, job.folder, opened.guessed and opened.guessed(made.paths))
        file = SentenceFile(job.folder)
        statistics = synthesis_statistics(file, count)
        if reader is not None:
            captions = dict(zip(opened.split.caption_ids.tolist(), opened.split.texts, strict=True))
            most = settings.language_model_sentences  # every one may be of another caption
            with job.reporter.task("reading sentences", 2 * most, "texts") as task:
                found = fluency(file, captions, reader, most, settings.seed, task.advance)
            statistics["language_model"] = {"name": Path(settings.language_model).name, **found}
        if described:
            scenes = {image_id: each.scene for image_id, each in described.items()}
            with job.reporter.task("judging sentences", len(file), "sentences") as task:
                statistics["true_negatives"] = true_negatives(file, scenes, task.advance)
        write_json(job.folder / STATISTICS, statistics)
        job.metrics |= {"kept": statistics["sentences"], "captions": count}
        if made.rows == count:  # how long an interrupted run took for its sentences is not known
            rate = statistics["sentences"] / made.seconds
            job.metrics["sentences/s"] = round(rate) if rate >= 100 else round(rate, 1)
        _say(statistics, job.reporter)
        _warn(job, statistics, opened.num_tokens)

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Prints the table of a finished artifact."""
        _say(read_checked_json(folder / STATISTICS), reporter)


def open_maker(settings: SynthesizeSettings, folders: Mapping[str, Path], device: str, memory: int) -> Opened:
    """What makes the sentences of a split: a trained model, or rules with the nouns of the training split.

    Args:
        settings: which of them.
        folders: input name -> artifact.
        device: `auto`, `cpu` or `cuda`.
        memory: bytes that the words of sentences take while a model ranks them.
    """
    if isinstance(settings, ByRules):
        from itrpipe.synthesis.rules import open_rule_maker

        return open_rule_maker(folders["prepare"], folders["parse"], settings)
    from itrpipe.synthesis.masked import model_maker
    from itrpipe.training.data import Sources, reopened
    from itrpipe.training.saved import load_model

    assert isinstance(settings, ByModel)
    saved = load_model(folders["train"])
    if "writing" not in saved.settings.answers:
        raise UsageError(f"{saved.config['backbone']} cannot write words; give --backbone uniter")
    # Of the training images those that have features, as in training.
    sources = Sources(folders["prepare"], folders["extract"], train_share=settings.train_share)
    data = reopened(saved, sources, [settings.split])[settings.split]
    device = resolve_device(device)
    return model_maker(
        saved.model, saved.tokens, data.split, data.images, folders.get("parse"), settings, device, memory
    )


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
    from itrpipe.printable import aligned
    from itrpipe.synthesis.checks import facts, table_rows

    for line in aligned(table_rows(statistics)):
        reporter.say(line)
    for fact in facts(statistics):
        reporter.say(f"  {fact}")
    if read := statistics.get("language_model"):
        reporter.say(
            f"  perplexity by {read['name']}: {read['perplexity']} of {read['sentences']:,} sentences, "
            f"{read['caption_perplexity']} of their {read['captions']:,} captions"
        )
