"""The stage of `itrpipe synthesize`: negative sentences for the captions of a split, by a trained model or rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.encoders.folders import require_model
from itrpipe.engine.run import Device, SharedExecution
from itrpipe.engine.work import resolve_device
from itrpipe.errors import UsageError
from itrpipe.progress import Reporter
from itrpipe.stages.base import PARTS, Job, Need, Stage, Step, prepare_need
from itrpipe.storage.artifact import SCENES_FILE, STATISTICS, open_artifact
from itrpipe.storage.disk import read_json, require_space, write_json
from itrpipe.synthesis.generators import MAKERS, TRAIN, ByModel, ByRules, SynthesizeSettings
from itrpipe.training.settings import run_label

if TYPE_CHECKING:
    from itrpipe.synthesis.sentences import Opened

BYTES_PER_SENTENCE = 35
UNTRAINED_SHARE = 0.5
"""Share of the vocabulary; a trained model's perplexity of the captions' own words is below it."""


class SynthesizeExecution(SharedExecution):
    """Settings that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
    """

    device: Device


class SynthesizeStage(Stage):
    """Writes negative sentences."""

    schema_version = 6
    execution = SynthesizeExecution

    def check(self, step: Step) -> None:
        """Refuses a language model that is neither here nor on the hub."""
        settings: Any = step.settings
        if settings.language_model:
            require_model(settings.language_model, sides=("text",))

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """Return the settings of the configuration's maker.

        Raises:
            UsageError: there is no such maker.
        """
        name = values.get("maker")
        if name not in MAKERS:
            raise UsageError(f"synthesize: maker = {name!r} is none of {', '.join(MAKERS)}; leave it out")
        return MAKERS[name]

    def label(self, conf: str, settings: SynthesizeSettings) -> str:
        """Return the configuration's name, with that of the model that writes, and a split other than train."""
        name = conf
        if isinstance(settings, ByModel):
            name += f".{run_label(settings.method, settings.backbone, settings.seed)}"
        elif settings.seed:
            name += f".s{settings.seed}"
        if settings.split != TRAIN:
            name += f".{settings.split}"
        return name

    def needs(self, settings: SynthesizeSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the captions, and for what the maker reads: a model and features, or scene graphs."""
        needs = {"prepare": prepare_need(definition)}
        if isinstance(settings, ByModel):
            model: dict[str, Any] = {
                "backbone": settings.backbone,
                "seed": settings.seed,
                "features": settings.features,
            }
            if settings.train_share != 1.0:
                model["train_share"] = settings.train_share
            needs["train"] = Need("train", settings.method, model)
            if settings.features:
                needs["extract"] = Need("extract", settings.features)
        if not isinstance(settings, ByModel) or settings.masks == "phrases":
            needs["parse"] = Need("parse", "rules")
        return needs

    def run(self, job: Job) -> None:
        """Write sentences.parquet and statistics.json."""
        from itrpipe.scenes.build import read_described
        from itrpipe.synthesis.checks import synthesis_statistics, true_negatives
        from itrpipe.synthesis.sentences import SentenceFile, Writing, join_parts

        settings = job.settings
        device = job.execution.device
        # The truth and the language model are read first, so that their errors come before the work.
        scenes = {}
        truth = job.inputs["prepare"].folder / SCENES_FILE
        if truth.is_file():
            for image_id, described in read_described(truth).items():
                scenes[image_id] = described.scene
        reader = None
        if settings.language_model:
            from itrpipe.synthesis.language_model import LanguageModel, fluency

            reader = LanguageModel(settings.language_model, resolve_device(device), job.warn)
        opening = partial(open_maker, settings, job.input_folders(), device)
        writing_device = device if isinstance(settings, ByModel) else "cpu"
        work = Writing(opening, settings.block, writing_device)
        opened = work.opened
        count = len(opened.split.captions)

        made_before = settings.block * len(list((job.work / PARTS).glob(f"*{work.suffix}")))
        most_kept = settings.keep
        if isinstance(settings, ByRules):
            most_kept *= len(settings.rules)
        needed = BYTES_PER_SENTENCE * most_kept * (max(0, count - made_before) + count)
        require_space(job.folder, needed, "the file of sentences, once in parts and once joined,")

        made = job.made(work)
        guessed = None
        if opened.guessed:
            guessed = opened.guessed(made.paths)
        drawn = join_parts(made.paths, job.folder, guessed)
        file = SentenceFile(job.folder)
        statistics = synthesis_statistics(file, drawn, count)
        if reader is not None:
            captions = dict(zip(opened.split.caption_ids.tolist(), opened.split.texts, strict=True))
            most = settings.language_model_sentences
            with job.reporter.task("reading sentences", 2 * most, "texts") as task:  # each may have its own caption
                figures = fluency(file, captions, reader, most, settings.seed, task.advance)
            statistics["language_model"] = {"name": Path(settings.language_model).name, **figures}
        if scenes:
            with job.reporter.task("judging sentences", len(file), "sentences") as task:
                statistics["true_negatives"] = true_negatives(file, scenes, task.advance)
        write_json(job.folder / STATISTICS, statistics)
        job.metrics |= {"kept": statistics["sentences"], "captions": count}
        if made.rows == count:  # how long an interrupted run took for its sentences is not known
            job.metrics["sentences/s"] = round(statistics["sentences"] / made.seconds, 1)

        _say(statistics, job.reporter)
        perplexity = statistics["caption_perplexity"]
        if opened.num_tokens and perplexity is not None and perplexity > UNTRAINED_SHARE * opened.num_tokens:
            job.warn(
                f"the model's perplexity of captions is {perplexity:,.0f}, and a guess among its "
                f"{opened.num_tokens:,} words would do as well: its head for masked words is untrained; train it "
                "longer, or by --method pretrain"
            )
        if not statistics["sentences"]:
            job.warn("no sentence was kept; see the table above for what became of them")

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Prints the table of a finished artifact."""
        open_artifact(folder)
        _say(read_json(folder / STATISTICS), reporter)


def open_maker(settings: SynthesizeSettings, folders: Mapping[str, Path], device: str) -> Opened:
    """Open what makes the sentences of a split: a trained model, or rules with the nouns of the training split.

    Args:
        settings: which of them.
        folders: input name -> artifact.
        device: `auto`, `cpu` or `cuda`.
    """
    if isinstance(settings, ByRules):
        from itrpipe.synthesis.rules import open_rule_maker

        return open_rule_maker(folders["prepare"], folders["parse"], settings)
    from itrpipe.synthesis.masked import ModelMaker, UniterSentences
    from itrpipe.synthesis.sentences import Opened
    from itrpipe.synthesis.tokens import caption_masks, token_captions
    from itrpipe.training.data import Sources, reopened
    from itrpipe.training.saved import load_model

    assert isinstance(settings, ByModel)
    saved = load_model(folders["train"])
    # Of the training images those that have features, as in training.
    sources = Sources(folders["prepare"], folders.get("extract"), train_share=settings.train_share)
    data = reopened(saved, sources, [settings.split])[settings.split]
    device = resolve_device(device)
    captions = token_captions(data.split, saved.tokens, saved.model.text.max_tokens)
    masks = caption_masks(captions, saved.tokens, folders.get("parse"), settings.compare)
    writer = UniterSentences(saved.model, data.images, device)
    maker = ModelMaker(captions, writer, masks, settings, device)
    return Opened(maker.make, data.split, len(captions.pieces))


def _say(statistics: Mapping[str, Any], reporter: Reporter) -> None:
    """Print the counts of the sentences and further facts on them."""
    from itrpipe.printable import aligned
    from itrpipe.synthesis.checks import facts, table_rows

    for line in aligned(table_rows(statistics)):
        reporter.say(line)
    for fact in facts(statistics):
        reporter.say(f"  {fact}")
    read = statistics.get("language_model")
    if read:
        reporter.say(
            f"  perplexity by {read['name']}: {read['perplexity']} of {read['sentences']:,} sentences, "
            f"{read['caption_perplexity']} of their {read['captions']:,} captions"
        )
